//! The space's book as a guest has it: the server writes it, in the order of the guest's verbs.
//!
//! `lockwright_locks::holders` rests on a card being written before the verb that takes the lock. Cards go to the server as
//! messages, verbs as verbs, over one connection, and the server handles both in the order in which they came; so a card
//! need not be waited for. If the connection breaks in between, that order is lost: the verb may be executed on the next
//! connection before the card is written. So a grant counts only if no connection broke since its card was written, which
//! is looked at when the server has said that the guest is still in, which every grant is followed by. Whatever such a grant
//! leaves in the lock's word is held by nobody's card, and the next to come resets it.

use super::super::guest::endpoint::GuestEndpoint;
use super::super::inquiry::Inquiry;
use super::super::link::Remote;
use super::super::talk::{Ask, RequestId};
use crate::home::holders::RECORDS;
use crate::lent::reach::Reach;
use lockwright_fabric::{FabricError, NodeId};
use lockwright_locks::holders::{Holding, Recorder};
use lockwright_locks::shiftlock::layout::Member;
use lockwright_locks::shiftlock::lookup::HolderLookup;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The server cannot be asked.
const GONE: FabricError = FabricError::NodeLost(NodeId(0));

/// A guest's view of the book.
#[derive(Debug)]
pub(crate) struct GuestBook {
    remote: Arc<Remote>,
    ep: GuestEndpoint,
    /// Which guest this is: the server may know another by now.
    number: u32,
    /// Connections that had broken when a card was last written.
    written: [AtomicU64; RECORDS as usize],
}

impl GuestBook {
    pub(super) fn new(remote: &Arc<Remote>, ep: GuestEndpoint, number: u32) -> Self {
        let written = [const { AtomicU64::new(0) }; RECORDS as usize];
        Self { remote: Arc::clone(remote), ep, number, written }
    }

    /// Says something about this guest, if it still is one.
    fn say(&self, ask: &Ask) -> Result<(), FabricError> {
        let mut line = self.remote.line();
        if line.table.guest.map(|(number, _)| number) != Some(self.number) {
            return Err(GONE);
        }
        line.say(ask);
        Ok(())
    }

    async fn ask(&self, ask: impl FnOnce(RequestId) -> Ask + Unpin) -> Result<bool, FabricError> {
        Ok(Inquiry::new(&self.remote, ask).await.map_err(|_| GONE)? == [1])
    }
}

impl HolderLookup for GuestBook {
    async fn is_held(&self, lock: u64, except: Member) -> Result<bool, FabricError> {
        self.ask(|id| Ask::Witness { id, lock, except: except.0 }).await
    }
}

impl Recorder for GuestBook {
    async fn write(&self, card: u8, says: Option<Holding>) -> Result<(), FabricError> {
        self.written[usize::from(card)].store(self.ep.breaks(), SeqCst);
        self.say(&Ask::Card { card, says })
    }

    async fn granted(&self, card: u8, token: u64) -> Result<(), FabricError> {
        if !self.ask(|id| Ask::Granted { id, card, token }).await? {
            return Err(FabricError::Expelled);
        }
        let written = self.written[usize::from(card)].load(SeqCst);
        if written == self.ep.breaks() { Ok(()) } else { Err(GONE) }
    }
}
