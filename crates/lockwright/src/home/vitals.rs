//! Who is alive, and whether somebody who is holds or wants a lock: the space's answers to what `lockwright_locks::kept`
//! asks.
//!
//! A process that has died is seen by its pidfd, at once. One that is stopped is alive until its lease is over; then it is
//! condemned, with a swap of the sign of life that was found too old, and declared dead. If it has woken up and shown life
//! meanwhile, the swap fails and it is alive.

use super::Kind;
use super::cards::{self, Card, Pen, Sheet};
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace};
use lockwright_fabric::{Endpoint, FabricError, Time};
use lockwright_locks::kept::{Book, Says};
use lockwright_locks::shiftlock::layout::Member;
use lockwright_locks::shiftlock::stirred::Stirred;
use lockwright_locks::shiftlock::witness::Witness;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A client's own signs of life.
#[derive(Debug)]
pub(crate) struct Life {
    last: AtomicU64,
    lease_ns: u64,
}

impl Life {
    pub(crate) fn new(now: Time, lease_ns: u64) -> Self {
        Self { last: AtomicU64::new(now.0), lease_ns }
    }

    /// The last sign of life: a time in the recent past that costs nothing to ask for.
    #[inline(always)]
    fn last(&self) -> Time {
        Time(self.last.load(Relaxed))
    }

    /// Whether others may have begun to doubt.
    pub(crate) fn is_in_doubt(&self, now: Time) -> bool {
        now.since(self.last()) > self.lease_ns
    }
}

/// The cards of one client, and its eyes on those of the others.
#[derive(Clone, Debug)]
pub(crate) struct Cards {
    pub(crate) space: ShmSpace,
    pub(crate) ep: ShmEndpoint,
    pub(crate) pen: Pen,
    pub(crate) life: Arc<Life>,
}

impl Cards {
    /// A sign of life. If it comes too late, this client is out.
    pub(crate) fn beat(&self) -> Result<(), FabricError> {
        let now = self.space.now().0;
        self.beat_after(|last| now.max(last + 1))
    }

    /// The sign of life that follows from the last one. Threads of this client may give theirs at once.
    #[inline(always)]
    fn beat_after(&self, next: impl Fn(u64) -> u64) -> Result<(), FabricError> {
        let mut last = self.life.last().0;
        loop {
            let next = next(last);
            match self.pen.beat(&self.ep, last, next)? {
                Some(found) if found == last => {
                    self.life.last.store(next, Relaxed);
                    return Ok(());
                }
                Some(found) => last = found,
                None => return self.too_late(),
            }
        }
    }

    #[cold]
    fn too_late(&self) -> Result<(), FabricError> {
        self.space.declare_dead(self.ep.me());
        Err(FabricError::Expelled)
    }

    /// Whether the client of `sheet` lives, by its process, its ward and its lease. Whoever has been silent for longer
    /// than its lease is declared dead here.
    pub(crate) fn is_alive(&self, sheet: &Sheet, now: Time) -> bool {
        if !self.space.is_alive(sheet.peer) {
            return sheet.ward.lives();
        }
        if !sheet.is_expired(now) {
            return true;
        }
        // A client that is out itself decides nothing about others.
        let Ok(condemned) = cards::condemn(&self.ep, sheet) else { return true };
        if condemned {
            self.space.declare_dead(sheet.peer);
        }
        !condemned
    }

    /// Whether somebody who is alive has a card for `lock`, keyed or ranges.
    pub(crate) fn is_wanted(&self, lock: u64) -> bool {
        self.has_card(|card| card.claim.lock == lock)
    }

    fn has_card(&self, which: impl Fn(&Card) -> bool) -> bool {
        let now = self.space.now();
        cards::sheets(&self.space)
            .any(|sheet| sheet.cards(&self.space).any(|card| which(&card)) && self.is_alive(&sheet, now))
    }
}

impl Witness for Cards {
    async fn is_held(&self, lock: u64, except: Member) -> Result<bool, FabricError> {
        let holds = |card: &Card| card.kind == Kind::Keyed && card.claim.lock == lock && card.state.holds();
        let asks = |card: &Card| Member::new::<Stirred>(card.peer, card.card) == Some(except);
        let held = self.has_card(|card| holds(card) && !asks(card));
        // Somebody who is out may not have been able to condemn the dead; but it cannot reset anything either.
        Ok(held)
    }
}

impl Book for Cards {
    #[inline(always)]
    async fn write(&self, card: u8, says: Option<Says>) -> Result<(), FabricError> {
        let card = u64::from(card);
        match says {
            Some(Says { state, claim }) => {
                let line = (state.into(), Kind::Keyed, &claim);
                self.pen.fill(&self.ep, card, line, 0, self.life.last())
            }
            None => self.pen.clear(&self.ep, card),
        }
    }

    /// The next nanosecond after the last sign of life: another value, which is what counts, and no look at the clock.
    /// Whoever holds locks for long shows life by the clock all the same.
    #[inline(always)]
    async fn show_life(&self) -> Result<(), FabricError> {
        self.beat_after(|last| last + 1)?;
        if self.ep.is_in_by_now() { Ok(()) } else { Err(FabricError::Expelled) }
    }
}
