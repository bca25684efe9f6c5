//! What a client holds when it holds the lock: three whole words, copied as they are written.
//!
//! A grant in pieces of other sizes (a bool beside a u32, say) is stored in those pieces and copied in larger ones, and
//! the CPU then waits for the stores: that cost an uncontended lock more than its atomics.

use super::layout::{Member, Stamp};
use crate::protocol::Grant;
use std::fmt;

/// A granted lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShiftGrant {
    pub(super) lock: u64,
    /// RelCnt and generation at the time of the grant. For a writer, what its release finds there.
    pub(super) stamp: Stamp,
    turn: Turn,
}

impl ShiftGrant {
    /// A reader's.
    #[inline(always)]
    pub(super) const fn reader(lock: u64, stamp: Stamp) -> Self {
        Self { lock, stamp, turn: Turn(0) }
    }

    /// A writer's: its place in the queue, how many writers in a row came before it, and the lock's epoch.
    #[inline(always)]
    pub(super) const fn writer(lock: u64, stamp: Stamp, member: Member, cons_wrt: u32, epoch: bool) -> Self {
        Self { lock, stamp, turn: Turn::new(member, cons_wrt, epoch) }
    }

    /// What names this grant among those of its lock, for a client that takes it away: its token, and the generation above it.
    #[inline(always)]
    pub const fn mark(&self) -> u64 {
        self.stamp.mark()
    }

    /// In which generation of its lock.
    #[inline(always)]
    pub(crate) const fn generation(&self) -> u64 {
        self.stamp.generation()
    }

    /// Of which lock.
    #[inline(always)]
    pub const fn lock(&self) -> u64 {
        self.lock
    }

    /// Whether it is a reader's.
    #[inline(always)]
    pub fn is_shared(&self) -> bool {
        self.member() == Member::NOBODY
    }

    /// The writer's place in the queue; nobody for a reader.
    #[inline(always)]
    pub(super) const fn member(&self) -> Member {
        self.turn.member()
    }

    /// Writers in a row before this one.
    #[inline(always)]
    pub(super) const fn cons_wrt(&self) -> u32 {
        self.turn.cons_wrt()
    }

    /// The lock's epoch.
    #[inline(always)]
    pub(super) const fn epoch(&self) -> bool {
        self.turn.epoch()
    }
}

impl Grant for ShiftGrant {
    /// RelCnt, counted from one. A writer's is above all tokens before it, since those clients have released. A reader's is
    /// above every earlier writer's, and its own release comes before the next writer's grant.
    #[inline(always)]
    fn token(&self) -> Option<u64> {
        Some(self.stamp.token())
    }
}

/// A writer's turn, in one word; 0 for a reader.
///
/// | bits | holds |
/// |---|---|
/// | 0–39 | the member of the queue, as in the widest TailPtr |
/// | 40 | Epoch |
/// | 41–63 | writers in a row before this one; stays at the largest number that fits |
#[derive(Clone, Copy, PartialEq, Eq)]
struct Turn(u64);

const MEMBER_BITS: u32 = 40;
const COUNT_SHIFT: u32 = MEMBER_BITS + 1;
/// The longest row of writers that is counted.
pub(super) const LONGEST_ROW: u32 = (1 << (64 - COUNT_SHIFT)) - 1;

impl Turn {
    #[inline(always)]
    const fn new(member: Member, cons_wrt: u32, epoch: bool) -> Self {
        let row = if cons_wrt < LONGEST_ROW { cons_wrt } else { LONGEST_ROW };
        Self(member.0 | (epoch as u64) << MEMBER_BITS | (row as u64) << COUNT_SHIFT)
    }

    #[inline(always)]
    const fn member(self) -> Member {
        Member(self.0 & ((1 << MEMBER_BITS) - 1))
    }

    #[inline(always)]
    const fn epoch(self) -> bool {
        self.0 >> MEMBER_BITS & 1 == 1
    }

    #[inline(always)]
    const fn cons_wrt(self) -> u32 {
        (self.0 >> COUNT_SHIFT) as u32
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_struct("Turn");
        parts.field("member", &self.member()).field("cons_wrt", &self.cons_wrt());
        parts.field("epoch", &self.epoch()).finish()
    }
}

/// Whether the members of a layout fit into a turn.
pub(super) const fn has_room_for(tail_bits: u32) -> bool {
    tail_bits <= MEMBER_BITS
}

const _: () = assert!(size_of::<ShiftGrant>() == 24, "a grant is three words");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_says_what_it_was_made_of() {
        let last = Member((1 << MEMBER_BITS) - 1);
        for (member, cons_wrt, epoch) in [(Member(1), 0, true), (last, 15, false), (last, LONGEST_ROW, true)]
        {
            let grant = ShiftGrant::writer(3, Stamp(9), member, cons_wrt, epoch);
            assert_eq!((grant.member(), grant.cons_wrt(), grant.epoch()), (member, cons_wrt, epoch));
            assert!(!grant.is_shared());
        }
        assert!(ShiftGrant::reader(3, Stamp(9)).is_shared());
    }

    #[test]
    fn a_row_that_is_too_long_to_count_stays_as_long_as_can_be_counted() {
        let grant = ShiftGrant::writer(0, Stamp(0), Member(1), u32::MAX, false);
        assert_eq!((grant.cons_wrt(), grant.member(), grant.epoch()), (LONGEST_ROW, Member(1), false));
    }
}
