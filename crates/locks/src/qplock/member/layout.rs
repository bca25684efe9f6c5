//! Where the words of an asymmetric lock with membership are and what their bits mean.
//!
//! A lock is one cache line on its node. No word is changed by read-modify-write from both sides:
//!
//! | bytes | word | changed by | meaning |
//! |---|---|---|---|
//! | 0–7 | `tail[Local]` | FAA, CAS by CPUs of the node only | tickets that the local side has given out |
//! | 8–15 | `tail[Remote]` | FAA, CAS by the NIC only | the same of the other side |
//! | 16–23 | `head[Local]` | WRITE of the local head; CAS by CPUs of the node | who is served: a [`Head`] |
//! | 24–31 | `head[Remote]` | WRITE of the remote head; CAS by the NIC | the same of the other side |
//! | 32–39 | `victim` | WRITE of both heads | the side that yields; 0 before any side ever did |
//! | 40–47 | `state` | WRITE of the holder | a [`LockState`] |
//!
//! A head:
//!
//! | bits | meaning |
//! |---|---|
//! | 0–15 | grants that were passed on with it; 0: who is served has to get past the other side by itself |
//! | 16–63 | the ticket that is served |
//!
//! A state:
//!
//! | bits | meaning |
//! |---|---|
//! | 0 | there may be readers |
//! | 1–63 | how often the lock was taken past a dead head of the other side |
//!
//! | a side | meaning |
//! |---|---|
//! | tail = ticket of the head | nobody of the side holds or wants the lock |
//! | tail above it | who drew that ticket holds the lock, or waits for the other side or for readers |
//!
//! Tickets only rise. A fencing token is twice the sum of the tickets that both sides serve and of that count, plus one; or plus
//! two, for a lock that was downgraded. From one grant to the next, one of the three has risen.

use crate::qplock::layout::{LOCK_BYTES, Side};
use lockwright_fabric::{Addr, Field, Word64};

const BUDGET: Field = Field { shift: 0, bits: 16 };
const TICKET: Field = Field { shift: 16, bits: 48 };

const _: () = assert!(Field::fill(&[BUDGET, TICKET], 64), "no overlap and no gap");

/// Where the locks of a space are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockTable {
    base: Addr,
    locks: u64,
}

impl LockTable {
    /// So many locks, at `base`.
    pub const fn new(base: Addr, locks: u64) -> Self {
        Self { base, locks }
    }

    /// Locks.
    pub const fn locks(&self) -> u64 {
        self.locks
    }

    /// Bytes from `base` to the end.
    pub const fn bytes(&self) -> u64 {
        self.locks * LOCK_BYTES
    }

    /// The words of `lock`.
    #[inline(always)]
    pub const fn lock(&self, lock: u64) -> LockWords {
        LockWords { at: self.base.plus(lock * LOCK_BYTES) }
    }
}

/// The words of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWords {
    at: Addr,
}

impl LockWords {
    /// A side's two, from the first of both.
    #[inline(always)]
    const fn of(self, side: Side, first: u64) -> Word64 {
        Word64::at(self.at.plus(first + 8 * side as u64))
    }

    /// Tickets that the side has given out.
    #[inline(always)]
    pub const fn tail(self, side: Side) -> Word64 {
        self.of(side, 0)
    }

    /// Who is served.
    #[inline(always)]
    pub const fn head(self, side: Side) -> Word64 {
        self.of(side, 16)
    }

    #[inline(always)]
    pub(super) const fn victim(self) -> Word64 {
        Word64::at(self.at.plus(32))
    }

    #[inline(always)]
    pub(super) const fn state(self) -> Word64 {
        Word64::at(self.at.plus(40))
    }
}

/// What a side's queue looked like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queue {
    /// Read first: if the tail is its ticket, the queue was empty when the tail was read.
    pub(super) head: Head,
    pub(super) tail: u64,
}

impl Queue {
    #[inline(always)]
    pub(super) const fn is_empty(self) -> bool {
        self.head.ticket() == self.tail
    }
}

/// Who is served, and with how many grants. See the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head(pub(super) u64);

impl Head {
    /// The ticket's bits.
    pub(super) const TICKET: Field = TICKET;

    #[inline(always)]
    pub(super) const fn new(ticket: u64, budget: u16) -> Self {
        Self((TICKET.put(ticket as u128) | BUDGET.put(budget as u128)) as u64)
    }

    #[inline(always)]
    pub(super) const fn ticket(self) -> u64 {
        TICKET.get(self.0 as u128) as u64
    }

    pub(super) const fn budget(self) -> u16 {
        BUDGET.get(self.0 as u128) as u16
    }

    /// The next one, who was passed nothing.
    pub(super) const fn skipped(self) -> Self {
        Self::new(self.ticket() + 1, 0)
    }
}

/// What holders leave to each other. See the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockState(pub(super) u64);

impl LockState {
    const READERS: u64 = 1;

    #[inline(always)]
    pub(super) const fn may_have_readers(self) -> bool {
        self.0 & Self::READERS != 0
    }

    pub(super) const fn with_readers(self) -> Self {
        Self(self.0 | Self::READERS)
    }

    pub(super) const fn without_readers(self) -> Self {
        Self(self.0 & !Self::READERS)
    }

    /// Taken past a dead head once more.
    pub(super) const fn past_the_dead(self) -> Self {
        Self(self.0 + 2)
    }

    /// The token of a grant, while the two sides serve these tickets.
    #[inline(always)]
    pub(super) const fn token(self, ours: u64, theirs: u64) -> u64 {
        2 * (ours + theirs + (self.0 >> 1)) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::NodeId;

    #[test]
    fn a_head_says_what_was_written_into_it() {
        for (ticket, budget) in [(0, 0), (1, 7), ((1 << 48) - 2, u16::MAX)] {
            let head = Head::new(ticket, budget);
            assert_eq!((head.ticket(), head.budget()), (ticket, budget));
            assert_eq!((head.skipped().ticket(), head.skipped().budget()), (ticket + 1, 0));
        }
    }

    #[test]
    fn no_two_words_are_in_the_same_place_and_all_are_inside() {
        let table = LockTable::new(Addr::new(NodeId(0), 128), 2);
        let sides = [Side::Local, Side::Remote];
        let mut offsets: Vec<u64> = (0..2)
            .flat_map(|lock| {
                let words = table.lock(lock);
                let both = sides.map(|side| [words.tail(side), words.head(side)]);
                both.into_iter().flatten().chain([words.victim(), words.state()]).collect::<Vec<_>>()
            })
            .map(|word| word.addr().offset - 128)
            .collect();
        assert!(offsets.iter().all(|offset| offset + 8 <= table.bytes()));
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), 2 * 6);
    }

    #[test]
    fn releases_and_deaths_raise_the_token_past_a_downgrade() {
        let state = LockState(0).with_readers();
        let downgraded = state.token(4, 7) + 1;
        assert!(state.token(5, 7) > downgraded && state.token(4, 8) > downgraded);
        let later = state.past_the_dead();
        assert!(later.may_have_readers() && !later.without_readers().may_have_readers());
        assert!(later.without_readers().token(4, 7) > downgraded);
    }
}
