//! A guest of a space: this client's membership of it for one session, and the locks it takes through it.

use super::super::link::Remote;
use super::book::GuestBook;
use super::endpoint::GuestEndpoint;
use crate::error::LockError;
use crate::home::cards::CARDS;
use crate::home::members::{SHAPE, params};
use crate::home::{AnyGrant, Refused, Seat, Ticket};
use lockwright_fabric::observe::Claim;
use lockwright_locks::kept::{Book, KeptClient};
use lockwright_locks::shiftlock::ShiftGrant;
use lockwright_locks::{Denied, Lost};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

type Kept = KeptClient<GuestEndpoint, GuestBook>;

/// One membership. It ends with its session, and everything it held with it.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) number: u32,
    remote: Arc<Remote>,
    ep: GuestEndpoint,
    /// Bit n: card n is in use.
    taken: AtomicU64,
    /// A client for every card: each has to know what befell its own.
    cards: [OnceLock<Kept>; CARDS as usize],
}

impl Guest {
    pub(super) fn new(remote: &Arc<Remote>, number: u32, ep: GuestEndpoint) -> Self {
        let cards = [const { OnceLock::new() }; CARDS as usize];
        Self { number, remote: Arc::clone(remote), ep, taken: AtomicU64::new(0), cards }
    }

    /// The client that takes locks by `card`.
    pub(super) fn client(&self, card: u8) -> &Kept {
        self.cards[card as usize].get_or_init(|| {
            let (remote, ep) = (Arc::clone(&self.remote), self.ep.ep.clone());
            let book = GuestBook { remote, ep, number: self.number, written: AtomicU64::new(0) };
            KeptClient::new(self.ep.clone(), &SHAPE, &params(), book)
        })
    }

    fn take_card(&self) -> Option<u8> {
        let free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let before = self.taken.fetch_update(SeqCst, SeqCst, free).ok()?;
        Some(before.trailing_ones() as u8)
    }

    fn give_card(&self, card: u8) {
        self.taken.fetch_and(!(1 << card), SeqCst);
    }

    /// Takes a lock: now or never, or however long it takes.
    pub(super) async fn take(self: Arc<Self>, claim: Claim, wait: bool) -> Result<Ticket, Refused> {
        let full = || LockError::NoSeat("a guest can hold and want 64 locks at a time, not more".to_owned());
        let card = self.take_card().ok_or_else(|| Refused::Error(full()))?;
        let client = self.client(card);
        let granted = match client.try_take(card, claim).await {
            Err(Denied::Busy) if wait => client.take(card, claim).await,
            Err(Denied::Busy) => client.try_past_the_dead(card, claim).await,
            tried => tried,
        };
        match granted {
            Ok(grant) => {
                let seat = Seat::new(self.number, card);
                Ok(Ticket { grant: AnyGrant::Shift(grant), seat })
            }
            Err(denied) => {
                // Whatever the attempt left in the lock's word, nobody's card says that it is held.
                let _ = client.book().write(card, None).await;
                self.give_card(card);
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// Gives a lock back.
    pub(super) async fn give_back(self: Arc<Self>, card: u8, grant: ShiftGrant) -> Result<(), Lost> {
        let given = self.client(card).give_back(card, grant).await;
        self.give_card(card);
        given
    }
}
