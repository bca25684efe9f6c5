//! The entry for locks whose holders are written down ([`holders`](crate::holders)), in eight bytes and with plain verbs only:
//! what a lock in the memory of a NIC with 8-byte compare-and-swap and fetch-and-add is made of.
//!
//! It is [`Versioned`](super::versioned::Versioned) with smaller fields. A bump is a READ and a compare-and-swap that is
//! repeated while others change the entry. Additions are not guarded by the generation, unless the fabric can: the user of
//! this entry must destroy a dead client's connection before its locks are reset, so that none of its verbs takes effect
//! later.

use super::grant::has_room_for;
use super::layout::{Guard, Layout, counts_end_well};
use super::versioned::VersionedLayout;
use lockwright_fabric::{Field, Needs, Verb, Word};

/// The portable entry with a version.
///
/// | bits | field | holds |
/// |---|---|---|
/// | 0–1 | TailPtr, low | the slot: which of the client's acquisitions of this lock |
/// | 2–8 | TailPtr, high | the client's peer id, 1 to 127 |
/// | 9–17 | RdrCnt | at most 508 readers at a time: four of every client |
/// | 18–26 | version | rises when a client confirms its grant, and wraps |
/// | 27 | Epoch | |
/// | 28–59 | RelCnt | releases so far |
/// | 60–63 | generation | recoveries so far, modulo 16 |
///
/// Nobody is let in from 2³² - 2¹² releases on, of which a recovery takes one, and one per reader inside: on a lock that is
/// never idle, some hours. The generation tells nothing of the dead, whose connections are destroyed before a reset; it tells
/// a reader that waits, and did not look once while the lock was reset, that it is not counted any more. A writer is told by
/// RelCnt.
///
/// VersionedLayout is as wide as RdrCnt, so the entry never comes back to what it was between a look and a reset: every release changes
/// RelCnt, so those who bump meanwhile are all inside, each of them bumps once, and there are not enough of them to get
/// around.
#[derive(Debug)]
pub struct VersionedPortable;

impl VersionedPortable {
    /// Acquisitions of one lock that one client can have under way, and readers inside: else RdrCnt has no room.
    pub const PER_CLIENT: u64 = 4;
}

impl Layout for VersionedPortable {
    type Word = u64;
    const NAME: &'static str = "shiftlock-versioned-portable";
    const SUMMARY: &'static str =
        "ShiftLock's entry for locks whose holders are written down, in eight bytes";
    const NEEDS: Needs =
        Needs { masked: false, wide: false, guarded: false, messages: true, global_scope: true };

    const SLOT: Field = Field { shift: 0, bits: 2 };
    const PEER: Field = Field { shift: 2, bits: 7 };
    const RDR_CNT: Field = Field { shift: 9, bits: 9 };
    const EPOCH: Field = Field { shift: 27, bits: 1 };
    const REL_CNT: Field = Field { shift: 28, bits: 32 };
    const GENERATION: Field = Field { shift: 60, bits: 4 };
    const LIMIT: u64 = (1 << 32) - (1 << 12);
    /// Half of the field is too much to keep for a bit that plain verbs do not compare: readers look before they come.
    const SPENT: u128 = 0;
    /// A client that was handed the lock confirms the grant.
    const STRAGGLERS: u64 = 0;
    const TOPS: u128 = Self::EPOCH.top()
        | Self::RDR_CNT.top()
        | Self::VERSION.top()
        | Self::TAIL.top()
        | Self::REL_CNT.top()
        | Self::GENERATION.top();
}

impl VersionedLayout for VersionedPortable {
    const VERSION: Field = Field { shift: 18, bits: 9 };

    #[inline(always)]
    fn bump(word: Word<u64>, guard: Guard, seen: Option<u64>) -> Verb<u64> {
        match seen.filter(|seen| u128::from(*seen) & guard.mask == guard.value) {
            None => word.read(),
            Some(seen) => {
                let (mask, one) = (Self::VERSION.mask() as u64, Self::VERSION.put(1) as u64);
                word.cas(seen, (seen & !mask) | (seen.wrapping_add(one) & mask))
            }
        }
    }
}

const _: () = {
    type L = VersionedPortable;
    let fields = [L::EPOCH, L::RDR_CNT, L::VERSION, L::TAIL, L::REL_CNT, L::GENERATION];
    assert!(Field::fill(&fields, 64), "the fields fill the word and do not overlap");
    assert!(has_room_for(L::TAIL.bits), "a grant has room for a queue member");
    assert!(L::VERSION.bits >= L::RDR_CNT.bits, "bumping never gets around");
    assert!(L::PER_CLIENT as u128 * L::PEER.max() <= L::RDR_CNT.max(), "RdrCnt has room for all clients");
    assert!(L::PER_CLIENT as u128 - 1 <= L::SLOT.max(), "and TailPtr for every slot");
    assert!(counts_end_well::<L>());
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shiftlock::layout::{Delta, Entry, Stamp, happened};
    use lockwright_fabric::{Addr, NodeId, Width};

    type L = VersionedPortable;

    #[test]
    fn a_new_version_changes_the_entry_and_no_field_that_is_decided_by() {
        let word = Word::<u64>::at(Addr::new(NodeId(0), 0));
        let before = L::RDR_CNT.mask() | L::TAIL.put(7) | L::put(Stamp::new(9, 3));
        let guard = |generation| Guard::generation::<L>(Stamp::new(0, generation));
        for bumps in [0, L::VERSION.max()] {
            let before = (before | L::VERSION.put(bumps)) as u64;
            assert!(!happened(L::bump(word, guard(3), None), before), "it looks first");
            let verb = L::bump(word, guard(3), Some(before));
            let after = verb.raw().op.apply(Width::W64, before.into()).unwrap() as u64;
            let (old, new) = (Entry::<L>::of(before), Entry::<L>::of(after));
            assert_ne!(before, after);
            assert_eq!((old.epoch(), old.rdr_cnt(), old.tail()), (new.epoch(), new.rdr_cnt(), new.tail()));
            assert_eq!(old.stamp(), new.stamp());
            assert!(!happened(L::bump(word, guard(2), Some(before)), before), "only in its generation");
        }
    }

    #[test]
    fn a_count_changes_no_other_field() {
        let word = Word::<u64>::at(Addr::new(NodeId(0), 0));
        let before =
            L::VERSION.mask() | L::RDR_CNT.put(1) | L::TAIL.mask() | L::EPOCH.put(1) | L::REL_CNT.put(7);
        let first = Guard::generation::<L>(Stamp::new(0, 0));
        for (guard, delta, readers, releases) in [
            (None, Delta::LEAVE, 0, 8),
            (Some(first), Delta::LEAVE, 0, 8),
            (None, Delta::ENTER, 2, 7),
            (None, Delta::HAND_OVER, 1, 8),
        ] {
            let op = L::add(word, delta, guard).raw().op;
            let after = Entry::<L>::of(op.apply(Width::W64, before).unwrap() as u64);
            assert_eq!((after.rdr_cnt(), after.rel_cnt(), after.epoch()), (readers, releases, true));
            let rest = L::VERSION.mask() | L::TAIL.mask();
            assert_eq!(after.bits & rest, before & rest);
        }
    }
}
