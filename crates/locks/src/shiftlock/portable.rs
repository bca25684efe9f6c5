//! The portable entry: eight bytes, and nothing but plain compare-and-swap and fetch-and-add.
//!
//! Everything stands in one word, ordered so that a plain add cannot cross fields: RelCnt ends at a limit that leaves room
//! for all clients inside, and RdrCnt is never below one when a reader leaves, so nothing is borrowed. Readers therefore
//! still take one verb each way. Writers pay: fetch-and-store becomes a READ and a CAS that is repeated while others change
//! the word, and a release repeats its CAS when a reader came meanwhile.

use super::grant::has_room_for;
use super::layout::{Delta, EntryWord, Guard, Layout, is_sound, masked_add};
use lockwright_fabric::{Field, MaskedCas, Needs, Verb, Word};

/// The portable entry.
///
/// | bits | field | holds |
/// |---|---|---|
/// | 0–2 | TailPtr, low | the slot: which of the client's acquisitions of this lock |
/// | 3–13 | TailPtr, high | the client's peer id, 1 to 2047 |
/// | 14–24 | RdrCnt | at most 2047 readers at a time |
/// | 25 | Epoch | |
/// | 26–57 | RelCnt | releases so far |
/// | 58–63 | generation | recoveries so far, modulo 64 |
///
/// Nobody is let in from 2³¹ releases on, of which a recovery takes 18,424: on a lock that is never idle that is a matter
/// of an hour, and the price of eight bytes. Where additions are not guarded, a reader that is not let in adds one, too, and
/// after another 2³¹ of those RelCnt would wrap.
#[derive(Debug)]
pub struct Portable;

impl Layout for Portable {
    type Word = u64;
    const NAME: &'static str = "shiftlock-portable";
    const SUMMARY: &'static str = "ShiftLock in eight bytes, with plain CAS and FAA only";
    const NEEDS: Needs =
        Needs { masked: false, wide: false, guarded: false, messages: true, global_scope: true };

    const SLOT: Field = Field { shift: 0, bits: 3 };
    const PEER: Field = Field { shift: 3, bits: 11 };
    const RDR_CNT: Field = Field { shift: 14, bits: 11 };
    const EPOCH: Field = Field { shift: 25, bits: 1 };
    const REL_CNT: Field = Field { shift: 26, bits: 32 };
    const GENERATION: Field = Field { shift: 58, bits: 6 };
    /// One of every member of a queue.
    const STRAGGLERS: u64 = Self::TAIL.max() as u64;
}

impl EntryWord for u64 {
    /// By nothing but compare-and-swap.
    #[inline(always)]
    fn change(word: Word<u64>, change: MaskedCas, seen: Option<u64>) -> Verb<u64> {
        let Some(seen) = seen else { return word.read() };
        let (swap, mask) = (change.swap as u64, change.swap_mask as u64);
        word.cas(seen, (seen & !mask) | (swap & mask))
    }

    /// By nothing but fetch-and-add, where no guard is asked for.
    #[inline(always)]
    fn add<L: Layout<Word = u64>>(word: Word<u64>, delta: Delta, guard: Option<Guard>) -> Verb<u64> {
        if guard.is_some() {
            return masked_add::<L>(word, delta, guard);
        }
        let readers = (delta.readers as i64 as u64) << L::RDR_CNT.shift;
        let epochs = u64::from(delta.epochs) << L::EPOCH.shift;
        let releases = u64::from(delta.releases) << L::REL_CNT.shift;
        word.fetch_add(readers.wrapping_add(epochs).wrapping_add(releases))
    }
}

const _: () = assert!(is_sound::<Portable>(64) && has_room_for(Portable::TAIL.bits));
