//! The entry for locks whose holders are written down ([`kept`](crate::kept)): the paper's, with a count of grants that
//! were made sure of.
//!
//! A waiter that was handed the lock has changed nothing in the entry yet. It writes down that it holds the lock, and
//! then stirs the entry: whoever read the entry before that, and found nobody written down, cannot reset it any more,
//! because a reset compares all of it.

use super::grant::has_room_for;
use super::layout::Layout;
use lockwright_fabric::{Field, Needs, Verb, Word};

/// A layout whose entry can be stirred.
pub trait Stir: Layout {
    /// Changes the entry and nothing that anybody goes by, if its generation is this one. As [`Layout::change`]: a layout
    /// without such a verb reads while `seen` is `None`, and then swaps exactly what was `seen`.
    fn stir(word: Word<Self::Word>, generation: u64, seen: Option<Self::Word>) -> Verb<Self::Word>;
}

/// The entry with a field that is stirred.
///
/// | bits | field | holds |
/// |---|---|---|
/// | 0 | Epoch | |
/// | 1–17 | RdrCnt | at most 131,071 readers at a time |
/// | 18–31 | Stir | rises when somebody makes sure of its grant, and wraps |
/// | 32–39 | TailPtr, low | the slot: which of the client's acquisitions |
/// | 40–63 | TailPtr, high | the client's peer id, never 0 |
/// | 64–111 | RelCnt, low | count of releases |
/// | 112–127 | RelCnt, high | generation: count of recoveries |
///
/// Every release changes RelCnt, so the entry could only come back to what it was if 16,384 readers made sure of one and
/// the same grant between a look and a reset, and none of them left.
#[derive(Debug)]
pub struct Stirred;

impl Stirred {
    const STIR: Field = Field { shift: 18, bits: 14 };
}

impl Layout for Stirred {
    type Word = u128;
    const NAME: &'static str = "shiftlock-stirred";
    const SUMMARY: &'static str = "ShiftLock's entry for locks whose holders are written down";
    const NEEDS: Needs =
        Needs { masked: true, wide: true, guarded: true, messages: true, global_scope: true };

    const EPOCH: Field = Field { shift: 0, bits: 1 };
    const RDR_CNT: Field = Field { shift: 1, bits: 17 };
    const SLOT: Field = Field { shift: 32, bits: 8 };
    const PEER: Field = Field { shift: 40, bits: 24 };
    const REL_CNT: Field = Field { shift: 64, bits: 64 };
    const COUNT_BITS: u32 = 48;
    const TOPS: u128 =
        Self::EPOCH.top() | Self::RDR_CNT.top() | Self::STIR.top() | Self::TAIL.top() | Self::REL_CNT.top();
}

impl Stir for Stirred {
    #[inline(always)]
    fn stir(word: Word<u128>, generation: u64, _: Option<u128>) -> Verb<u128> {
        let guard = Self::GENERATION.put(u128::from(generation));
        word.guarded_fetch_add(Self::STIR.put(1), Self::TOPS, guard, Self::GENERATION.mask())
    }
}

const _: () = {
    let fields = [Stirred::EPOCH, Stirred::RDR_CNT, Stirred::STIR, Stirred::TAIL, Stirred::REL_CNT];
    assert!(Field::fill(&fields, 128), "the fields fill the word and do not overlap");
    assert!(has_room_for(Stirred::TAIL.bits), "a grant has room for a queue member");
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shiftlock::layout::{Entry, happened};
    use lockwright_fabric::{Addr, NodeId, Width};

    #[test]
    fn stirring_changes_the_entry_and_no_field_that_anybody_goes_by() {
        let word = Word::<u128>::at(Addr::new(NodeId(0), 0));
        let before = Stirred::RDR_CNT.mask() | Stirred::TAIL.put(7) | Stirred::REL_CNT.put(3 << 48 | 9);
        let verb = Stirred::stir(word, 3, None);
        let after = verb.raw().op.apply(Width::W128, before).unwrap();
        let (old, new) = (Entry::<Stirred>::of(before), Entry::<Stirred>::of(after));
        assert_ne!(before, after);
        assert_eq!((old.epoch(), old.rdr_cnt(), old.tail()), (new.epoch(), new.rdr_cnt(), new.tail()));
        assert_eq!(old.rel_cnt(), new.rel_cnt());
        assert!(!happened(Stirred::stir(word, 2, None), before), "only in its generation");
        let full = before | Stirred::STIR.mask();
        let wrapped = verb.raw().op.apply(Width::W128, full).unwrap();
        assert_eq!(wrapped, before, "it wraps and carries nothing over");
    }
}
