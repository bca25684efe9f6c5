//! A remote client, as its host knows it: the memory lent to it, the queue pair it comes over, and the letters for it.
//!
//! Its **fence** is what recovery rests on: when [`Guest::fence`] returns, the queue pair is destroyed, and a verb of the
//! client that is still under way finds nothing to act on.

use super::control::Frame;
use super::letter;
use super::pair::PairInfo;
use super::station::{CHUNK, Keeper, Owner, Station, bundled};
use super::verbs::Lent;
use super::wire::Wire;
use crate::addr::PeerId;
use crate::backend::block_on;
use crate::backend::clock::Clock;
use crate::backend::inproc::mailbox::{Mailbox, Receive};
use crate::backend::inproc::{InProc, InProcEndpoint};
use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::wait::Deadline;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// See the module.
pub(super) struct Guest {
    // Dropped in this order: first nobody reaches the memory any more, then its keys go, then the rest.
    pub(super) wire: Arc<Wire>,
    pub(super) lent: Mutex<Vec<Lent>>,
    pub(super) station: Arc<Station>,
    pub(super) _keeper: Keeper,
    pub(super) control: Mutex<TcpStream>,
    pub(super) inbox: Inbox,
    /// What is lent, if it does not belong to the host's own fabric.
    pub(super) _memory: Option<Arc<InProc>>,
    pub(super) gone: AtomicBool,
}

/// Letters for a client.
pub(super) enum Inbox {
    /// Of roles and local clients; keeps the lent memory, too.
    InProc(InProcEndpoint),
    /// Of whoever receives clients here.
    Own(Arc<Mailbox>, Clock),
}

impl Inbox {
    async fn next(&self, deadline: Deadline) -> Option<(PeerId, Message)> {
        let pick = |from, message: &Message| Some((from, message.clone()));
        match self {
            Self::InProc(ep) => ep.recv_by(deadline, pick).await,
            Self::Own(mailbox, clock) => Receive::new(mailbox, clock, deadline, pick).await,
        }
    }

    fn close(&self) {
        match self {
            Self::InProc(ep) => ep.close(),
            Self::Own(mailbox, _) => mailbox.close(),
        }
    }
}

impl Guest {
    pub(super) fn say(&self, frame: &Frame) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = frame.write(&mut *control);
    }

    /// From here on nothing of it takes effect: its queue pair is destroyed, its keys are revoked.
    pub(super) fn fence(&self) {
        self.gone.store(true, Relaxed);
        self.wire.close();
        self.revoke();
        self.inbox.close();
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = control.shutdown(Shutdown::Both);
    }

    /// Revokes its keys; it may go on writing letters.
    pub(super) fn revoke(&self) {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The client comes with a new queue pair; the old one is destroyed first. `None` if there is none to be had.
    pub(super) fn renew(&self, other: &PairInfo) -> Option<PairInfo> {
        self.wire.cut();
        if self.gone.load(Relaxed) {
            return None;
        }
        let pair = self.station.pair(true).ok()?;
        pair.connect(other).ok()?;
        let info = pair.info;
        self.wire.set(pair);
        Some(info)
    }

    /// Carries letters to the client in their order until it is gone: all that are there, as far as they fit together, with
    /// one doorbell. What may not have arrived is sent again over the next queue pair: the client knows letters by their numbers.
    pub(super) fn carry(&self) {
        let mut number = 0_u32;
        let mut letters = Vec::new();
        while let Some(first) = block_on(self.inbox.next(Deadline::Never)) {
            let others = std::iter::from_fn(|| block_on(self.inbox.next(Deadline::Now)));
            // From the host, a letter says whom it is from.
            letters.extend(std::iter::once(first).chain(others).take(CHUNK).map(|(from, message)| {
                number = number.wrapping_add(1);
                letter::encode(from, number, &message)
            }));
            while !letters.is_empty() {
                let count = bundled(letters.iter().map(Vec::len));
                if !self.deliver(&letters[..count]) {
                    return;
                }
                letters.drain(..count);
            }
        }
    }

    /// Sends letters until they have arrived; `false` if the client is gone.
    fn deliver(&self, letters: &[Vec<u8>]) -> bool {
        loop {
            let used = self.wire.number();
            if block_on(self.wire.send_all(letters)) {
                return true;
            }
            if self.gone.load(Relaxed) {
                return false;
            }
            self.ask_for_another(used);
        }
    }

    /// Asks the client for a new queue pair, unless there is another already than the one that failed.
    fn ask_for_another(&self, failed: Option<u32>) {
        if failed.is_some() && self.wire.number() == failed {
            self.wire.cut();
            self.say(&Frame::Broken);
        }
    }
}

/// What becomes of a client's letters, and of its queue pair.
pub(super) struct Desk<F, S> {
    pub(super) deliver: F,
    pub(super) settle: S,
    pub(super) guest: Arc<OnceLock<Weak<Guest>>>,
}

impl<F: Fn(PeerId, Message) + Send + Sync, S: Fn() + Send + Sync> Owner for Desk<F, S> {
    fn letter(&self, _: u32, bytes: &[u8]) {
        if let Some((to, _, message)) = letter::decode(bytes) {
            (self.deliver)(to, message);
        }
    }

    fn settle(&self) {
        (self.settle)();
    }

    fn broken(&self, pair: u32) {
        let guest = self.guest.get().and_then(Weak::upgrade);
        if let Some(guest) = guest.filter(|guest| guest.wire.doubt(pair)) {
            guest.say(&Frame::Broken);
        }
    }
}
