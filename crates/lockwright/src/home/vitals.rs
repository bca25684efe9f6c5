//! Who is alive, and whether somebody who is holds or wants a lock: the space's answers to what `lockwright_locks::kept`
//! asks.
//!
//! A process that has died is seen by its pidfd, at once. One that is stopped is accused when all but the last quarter of its
//! lease is over; if it shows no life until the end, it is declared dead (`lockwright_locks::kept::verdict`). A living one
//! answers with its next sign of life, of which there is one per quarter.

use super::Kind;
use super::cards::{Card, Pen, Sheet, Sheets};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace};
use lockwright_fabric::{Endpoint, FabricError, Time};
use lockwright_locks::kept::verdict::{self, Verdict};
use lockwright_locks::kept::{Book, PromptBook, Says};
use lockwright_locks::shiftlock::layout::Member;
use lockwright_locks::shiftlock::stirred::Stirred;
use lockwright_locks::shiftlock::witness::Witness;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Looks at a lock that is taken before its waiter queues: a few microseconds.
const LOOKS: u32 = 100;

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

    /// The last sign of life by the clock: a time in the recent past that costs nothing to ask for.
    #[inline(always)]
    pub(super) fn last(&self) -> Time {
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
    pub(crate) sheets: Sheets,
    pub(crate) life: Arc<Life>,
}

impl Cards {
    /// A sign of life, for which one thread of this client is responsible. If it comes too late, this client is out.
    pub(crate) fn beat(&self) -> Result<(), FabricError> {
        let now = self.space.now();
        self.pen.beat(now);
        self.life.last.store(now.0, Relaxed);
        self.is_in_after_all()
    }

    /// Whether this client is still in, after whatever it did last with a verb.
    #[inline(always)]
    fn is_in_after_all(&self) -> Result<(), FabricError> {
        let verdict = self.pen.verdict();
        if verdict.is_in() && self.ep.is_member_seq_cst() { Ok(()) } else { self.defend(verdict) }
    }

    #[cold]
    fn defend(&self, seen: Verdict) -> Result<(), FabricError> {
        let in_time = block_on(verdict::defend(&self.ep, self.pen.verdict_word(), seen));
        if in_time.is_err() {
            self.space.evict(self.ep.me());
        }
        in_time?;
        if self.ep.is_member_seq_cst() { Ok(()) } else { Err(FabricError::Evicted) }
    }

    /// An error if this client is out.
    #[inline(always)]
    pub(crate) fn if_in(&self) -> Result<(), FabricError> {
        if self.ep.is_member() { Ok(()) } else { Err(FabricError::Evicted) }
    }

    /// Whether the client of `sheet` lives, by its process, its dependent process and its lease. One that has been silent
    /// for longer than its lease is declared dead here.
    pub(crate) fn is_alive(&self, sheet: &Sheet, now: Time) -> bool {
        if !self.space.is_alive(sheet.peer) {
            return sheet.has_dependent();
        }
        if !sheet.is_out() && !sheet.is_silent(None, now) {
            return true;
        }
        let out = sheet.is_out() || self.judge(sheet);
        if out {
            self.space.evict(sheet.peer);
        }
        !out
    }

    /// Whether somebody is out who has been silent for quite a while.
    #[cold]
    fn judge(&self, sheet: &Sheet) -> bool {
        let silent = async |since| sheet.is_silent(since, self.space.now());
        // A client that is out itself decides nothing about others.
        block_on(verdict::judge(&self.ep, sheet.verdict_word(), silent)).unwrap_or(false)
    }

    /// Whether somebody who is alive has a card for `lock`, keyed or ranges.
    pub(crate) fn is_wanted(&self, lock: u64) -> bool {
        self.has_card(|card| card.claim.lock == lock)
    }

    fn has_card(&self, which: impl Fn(&Card) -> bool) -> bool {
        let now = self.space.now();
        self.sheets
            .all()
            .any(|sheet| self.sheets.cards(sheet).any(|card| which(&card)) && self.is_alive(&sheet, now))
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
    async fn write(&self, card: u8, says: Option<Says>) -> Result<(), FabricError> {
        self.write_now(card, says)
    }

    async fn granted(&self, card: u8, mark: u64) -> Result<(), FabricError> {
        self.granted_now(card, mark)
    }

    fn looks(&self) -> u32 {
        LOOKS
    }
}

impl PromptBook for Cards {
    #[inline(always)]
    fn write_now(&self, card: u8, says: Option<Says>) -> Result<(), FabricError> {
        self.if_in()?;
        let card = u64::from(card);
        match says {
            Some(Says { state, claim }) => self.pen.fill(card, state.into(), &claim, self.life.last()),
            None => self.pen.clear(card),
        }
        Ok(())
    }

    #[inline(always)]
    fn granted_now(&self, card: u8, mark: u64) -> Result<(), FabricError> {
        self.pen.granted(u64::from(card), mark);
        self.is_in_after_all()
    }
}
