//! An entry whose counts come to their ends within a few steps: for the explorer, which could not get there otherwise.

use lockwright_fabric::{Field, Needs, Verb, Word};
use lockwright_locks::shiftlock::layout::{Guard, Layout, counts_end_well};
use lockwright_locks::shiftlock::versioned::VersionedLayout;

/// [`Versioned`](lockwright_locks::shiftlock::versioned::Versioned) with fewer bits.
///
/// | bits | field | holds |
/// |---|---|---|
/// | 0 | Epoch | |
/// | 1–2 | RdrCnt | at most three readers at a time |
/// | 18–19 | version | |
/// | 20 | upgrading | |
/// | 32–63 | TailPtr | |
/// | 64–69 | RelCnt | nobody is let in from 32 releases on |
/// | 70 | generation | recoveries so far, modulo 2 |
#[derive(Debug)]
pub(crate) struct Narrow;

impl Layout for Narrow {
    type Word = u128;
    const NAME: &'static str = "shiftlock-narrow";
    const SUMMARY: &'static str = "an entry of few bits, for the explorer";
    const NEEDS: Needs =
        Needs { masked: true, wide: true, guarded: true, messages: true, global_scope: true };

    const EPOCH: Field = Field { shift: 0, bits: 1 };
    const RDR_CNT: Field = Field { shift: 1, bits: 2 };
    const SLOT: Field = Field { shift: 32, bits: 8 };
    const PEER: Field = Field { shift: 40, bits: 24 };
    const REL_CNT: Field = Field { shift: 64, bits: 6 };
    const GENERATION: Field = Field { shift: 70, bits: 1 };
    const UPGRADING: u128 = 1 << 20;
    const STRAGGLERS: u64 = 0;
    const TOPS: u128 = Self::EPOCH.top()
        | Self::UPGRADING
        | Self::RDR_CNT.top()
        | Self::VERSION.top()
        | Self::TAIL.top()
        | Self::REL_CNT.top()
        | Self::GENERATION.top();
}

impl VersionedLayout for Narrow {
    const VERSION: Field = Field { shift: 18, bits: 2 };

    #[inline(always)]
    fn bump(word: Word<u128>, guard: Guard, _: Option<u128>) -> Verb<u128> {
        word.guarded_fetch_add(Self::VERSION.put(1), Self::TOPS, guard.value, guard.mask)
    }
}

const _: () = assert!(counts_end_well::<Narrow>());
