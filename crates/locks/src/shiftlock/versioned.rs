//! The entry for locks whose holders are written down ([`holders`](crate::holders)): the paper's, with a count of grants that
//! were made sure of.
//!
//! A waiter that was handed the lock has changed nothing in the entry yet. It records that it holds the lock, and then bumps
//! the entry: a client that read the entry before that, and found no holder recorded, cannot reset it any more, because a
//! reset compares all of it.

use super::grant::has_room_for;
use super::layout::{Guard, Layout, counts_end_well};
use lockwright_fabric::{Field, Needs, Verb, Word};

/// A layout whose entry has a version.
pub trait VersionedLayout: Layout {
    /// What a bump changes.
    const VERSION: Field;

    /// Changes the entry, but no field that a client acts on, if it has these bits. As [`Layout::change`]: a layout without
    /// such a verb reads while `seen` is `None`, and then swaps exactly what was `seen`.
    fn bump(word: Word<Self::Word>, guard: Guard, seen: Option<Self::Word>) -> Verb<Self::Word>;
}

/// The entry with a version.
///
/// | bits | field | holds |
/// |---|---|---|
/// | 0 | Epoch | |
/// | 1–17 | RdrCnt | at most 131,071 readers at a time |
/// | 18 | upgrading | a reader waits to be alone; no reader comes in |
/// | 19–31 | version | rises when a client confirms its grant, or begins to wait for an upgrade, and wraps |
/// | 32–39 | TailPtr, low | the slot: which of the client's acquisitions |
/// | 40–63 | TailPtr, high | the client's peer id, never 0 |
/// | 64–115 | RelCnt | releases so far |
/// | 116–127 | generation | recoveries so far, modulo 4096 |
///
/// Nobody is let in from 2⁵¹ releases on: 3.6 years at 20 million a second without a pause. So tokens stay below 2⁵², and
/// below 2⁵³ with what a space adds to them, which readers of JSON may round from there on. A recovery adds one, and one per
/// reader inside. The generation only tells a zombie's leaving of a reader from a living one's; it is mistaken if its process
/// was stopped between a look at whether it is still in and the verb after it, and the lock was reset 4096 times meanwhile,
/// or a multiple of that.
///
/// Every release changes RelCnt, so the entry could only come back to what it was if 8192 readers made sure of one and
/// the same grant between a look and a reset, and none of them left.
#[derive(Debug)]
pub struct Versioned;

impl Layout for Versioned {
    type Word = u128;
    const NAME: &'static str = "shiftlock-versioned";
    const SUMMARY: &'static str = "ShiftLock's entry for locks whose holders are written down";
    const NEEDS: Needs =
        Needs { masked: true, wide: true, guarded: true, messages: true, global_scope: true };

    const EPOCH: Field = Field { shift: 0, bits: 1 };
    const RDR_CNT: Field = Field { shift: 1, bits: 17 };
    const SLOT: Field = Field { shift: 32, bits: 8 };
    const PEER: Field = Field { shift: 40, bits: 24 };
    const REL_CNT: Field = Field { shift: 64, bits: 52 };
    const GENERATION: Field = Field { shift: 116, bits: 12 };
    const UPGRADING: u128 = UPGRADING.mask();
    /// A client that was handed the lock confirms the grant.
    const STRAGGLERS: u64 = 0;
    const TOPS: u128 = Self::EPOCH.top()
        | Self::RDR_CNT.top()
        | Self::UPGRADING
        | Self::VERSION.top()
        | Self::TAIL.top()
        | Self::REL_CNT.top()
        | Self::GENERATION.top();
}

const UPGRADING: Field = Field { shift: 18, bits: 1 };

impl VersionedLayout for Versioned {
    const VERSION: Field = Field { shift: 19, bits: 13 };

    #[inline(always)]
    fn bump(word: Word<u128>, guard: Guard, _: Option<u128>) -> Verb<u128> {
        word.guarded_fetch_add(Self::VERSION.put(1), Self::TOPS, guard.value, guard.mask)
    }
}

const _: () = {
    type L = Versioned;
    let fields = [L::EPOCH, L::RDR_CNT, UPGRADING, L::VERSION, L::TAIL, L::REL_CNT, L::GENERATION];
    assert!(Field::fill(&fields, 128), "the fields fill the word and do not overlap");
    assert!(counts_end_well::<L>());
    assert!(has_room_for(Versioned::TAIL.bits), "a grant has room for a queue member");
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shiftlock::layout::{Entry, Stamp, happened};
    use lockwright_fabric::{Addr, NodeId, Width};

    #[test]
    fn a_new_version_changes_the_entry_and_no_field_that_is_decided_by() {
        let word = Word::<u128>::at(Addr::new(NodeId(0), 0));
        let before = Versioned::RDR_CNT.mask()
            | Versioned::UPGRADING
            | Versioned::TAIL.put(7)
            | Versioned::put(Stamp::new(9, 3));
        let guard = |generation| Guard::generation::<Versioned>(Stamp::new(0, generation));
        let verb = Versioned::bump(word, guard(3), None);
        let after = verb.raw().op.apply(Width::W128, before).unwrap();
        let (old, new) = (Entry::<Versioned>::of(before), Entry::<Versioned>::of(after));
        assert_ne!(before, after);
        assert_eq!((old.epoch(), old.rdr_cnt(), old.tail()), (new.epoch(), new.rdr_cnt(), new.tail()));
        assert_eq!((old.stamp(), old.is_upgrading()), (new.stamp(), new.is_upgrading()));
        assert!(!happened(Versioned::bump(word, guard(2), None), before), "only in its generation");
        let full = before | Versioned::VERSION.mask();
        let wrapped = verb.raw().op.apply(Width::W128, full).unwrap();
        assert_eq!(wrapped, before, "it wraps and carries nothing over");
    }
}
