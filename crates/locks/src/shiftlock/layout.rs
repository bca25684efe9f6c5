//! The lock entry: which bits of it mean what, and the few verbs the protocol is made of.
//!
//! The algorithm sees fields ([`Entry`]) and three kinds of change ([`Layout::change`], [`Delta`], a read); where the
//! fields lie, and which verbs a fabric has for them, is the layout's business alone. [`Wide`] is the paper's
//! (Fig. 3); [`Portable`](super::portable::Portable) makes do with eight bytes and plain verbs.
//!
//! What stands in the fields:
//!
//! | field | meaning |
//! |---|---|
//! | Epoch | flips whenever writers give the lock to readers (§3.5.2) |
//! | RdrCnt | readers that hold the lock or wait for it |
//! | TailPtr | the last writer in the queue, or the one that holds the lock; 0: none |
//! | RelCnt | releases so far, below the number of recoveries so far: it only rises, so it is the fencing token too |

use super::grant::has_room_for;
use lockwright_fabric::{Field, MaskedCas, Needs, PeerId, Value, Verb, Word};
use std::fmt;
use std::marker::PhantomData;

/// Where the fields lie, and how they are changed.
pub trait Layout: fmt::Debug + Sized + 'static {
    /// What holds the entry, and with it the verbs that change it.
    type Word: EntryWord;
    /// The protocol's name with this layout.
    const NAME: &'static str;
    /// One line for lists.
    const SUMMARY: &'static str;
    /// What verbs it takes.
    const NEEDS: Needs;

    /// Flips when the lock goes from writers to readers.
    const EPOCH: Field;
    /// Readers inside or waiting.
    const RDR_CNT: Field;
    /// Of TailPtr: which of its client's acquisitions the queue member is.
    const SLOT: Field;
    /// Of TailPtr, directly above the slot: the client.
    const PEER: Field;
    /// Generation and count together.
    const REL_CNT: Field;
    /// How many low bits of RelCnt are the count; the others are the generation.
    const COUNT_BITS: u32;

    /// Slot and client together: a queue member.
    const TAIL: Field = Field { shift: Self::SLOT.shift, bits: Self::SLOT.bits + Self::PEER.bits };
    /// Recoveries so far.
    const GENERATION: Field =
        Field { shift: Self::REL_CNT.shift + Self::COUNT_BITS, bits: Self::REL_CNT.bits - Self::COUNT_BITS };
    /// The top bits of all fields.
    const TOPS: u128 = Self::EPOCH.top() | Self::RDR_CNT.top() | Self::TAIL.top() | Self::REL_CNT.top();

    /// The verb that makes `change`. A layout without masked verbs has to know the entry first: it reads while `seen`
    /// is `None`, and then swaps exactly what was `seen`. Whether the change happened, [`happened`] tells.
    #[inline(always)]
    fn change(word: Word<Self::Word>, change: MaskedCas, seen: Option<Self::Word>) -> Verb<Self::Word> {
        Self::Word::change(word, change, seen)
    }

    /// The verb that adds `delta`; if a generation is given, only while that is the entry's.
    #[inline(always)]
    fn add(word: Word<Self::Word>, delta: Delta, generation: Option<u64>) -> Verb<Self::Word> {
        Self::Word::add::<Self>(word, delta, generation)
    }

    /// The generation of a RelCnt.
    #[inline(always)]
    fn generation(rel_cnt: u64) -> u64 {
        rel_cnt >> Self::COUNT_BITS
    }

    /// The RelCnt that a recovery leaves: the next generation, nothing counted.
    #[inline(always)]
    fn leap(rel_cnt: u64) -> u64 {
        (Self::generation(rel_cnt) + 1) << Self::COUNT_BITS
    }
}

/// A word that holds an entry. Those of 16 bytes are changed by masked verbs, those of eight by plain ones.
pub trait EntryWord: Value {
    /// [`Layout::change`].
    fn change(word: Word<Self>, change: MaskedCas, seen: Option<Self>) -> Verb<Self>;
    /// [`Layout::add`].
    fn add<L: Layout<Word = Self>>(word: Word<Self>, delta: Delta, generation: Option<u64>) -> Verb<Self>;
}

/// What is added to the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// To RdrCnt.
    pub readers: i8,
    /// To RelCnt.
    pub releases: u8,
    /// To Epoch.
    pub epochs: u8,
}

impl Delta {
    /// A reader comes (Alg. 2 line 2).
    pub const ENTER: Self = Self { readers: 1, releases: 0, epochs: 0 };
    /// A reader leaves (Alg. 3 line 2).
    pub const LEAVE: Self = Self { readers: -1, releases: 1, epochs: 0 };
    /// A writer hands over (Alg. 3 line 20).
    pub const HAND_OVER: Self = Self { readers: 0, releases: 1, epochs: 0 };
    /// A writer changes the mode as printed (Alg. 3 line 16).
    pub const CHANGE_MODE: Self = Self { readers: 0, releases: 1, epochs: 1 };

    /// One addend per field, each modulo its field, for masked verbs.
    #[inline(always)]
    pub(super) const fn by_field(self, epoch: Field, rdr_cnt: Field, rel_cnt: Field) -> u128 {
        epoch.put(self.epochs as u128)
            | rdr_cnt.put(self.readers as i128 as u128)
            | rel_cnt.put(self.releases as u128)
    }
}

/// Whether `verb` changed the word that was `old`.
#[inline(always)]
pub fn happened<T: Value>(verb: Verb<T>, old: T) -> bool {
    verb.raw().op.apply(T::WIDTH, old.widen()).is_some()
}

/// A lock entry as it was read.
pub struct Entry<L> {
    /// All of it.
    pub bits: u128,
    layout: PhantomData<L>,
}

impl<L> Clone for Entry<L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<L> Copy for Entry<L> {}

impl<L: Layout> Entry<L> {
    /// What a verb returned.
    #[inline(always)]
    pub fn of(word: L::Word) -> Self {
        Self { bits: word.widen(), layout: PhantomData }
    }

    /// The entry for verbs.
    #[inline(always)]
    pub fn word(self) -> L::Word {
        L::Word::narrow(self.bits)
    }

    /// The entry as two locals, for the explorer's marks.
    pub fn halves(self) -> [u64; 2] {
        [self.bits as u64, (self.bits >> 64) as u64]
    }

    /// Epoch.
    #[inline(always)]
    pub fn epoch(self) -> bool {
        L::EPOCH.get(self.bits) == 1
    }

    /// RdrCnt.
    #[inline(always)]
    pub fn rdr_cnt(self) -> u64 {
        L::RDR_CNT.get(self.bits) as u64
    }

    /// TailPtr.
    #[inline(always)]
    pub fn tail(self) -> Member {
        Member(L::TAIL.get(self.bits) as u64)
    }

    /// Whether a writer or a reader is inside or waits.
    #[inline(always)]
    pub fn is_taken(self) -> bool {
        self.tail() != Member::NOBODY || self.rdr_cnt() != 0
    }

    /// RelCnt.
    #[inline(always)]
    pub fn rel_cnt(self) -> u64 {
        L::REL_CNT.get(self.bits) as u64
    }

    /// The generation in RelCnt.
    #[inline(always)]
    pub fn generation(self) -> u64 {
        L::GENERATION.get(self.bits) as u64
    }
}

impl<L: Layout> fmt::Debug for Entry<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("epoch", &self.epoch())
            .field("rdr_cnt", &self.rdr_cnt())
            .field("tail", &self.tail())
            .field("rel_cnt", &self.rel_cnt())
            .finish()
    }
}

/// One acquisition of one client in the queue; 0 is nobody. A client that gave up still stands in the queue, so its next
/// acquisition of the same lock has to be somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member(pub u64);

impl Member {
    /// Nobody.
    pub const NOBODY: Self = Self(0);

    /// The acquisition `slot` of `peer`, if the layout has room for both.
    #[inline(always)]
    pub fn new<L: Layout>(peer: PeerId, slot: u64) -> Option<Self> {
        let fits = u128::from(peer.0) <= L::PEER.max() && u128::from(slot) <= L::SLOT.max();
        fits.then_some(Self(u64::from(peer.0) << L::SLOT.bits | slot))
    }

    /// The client.
    #[inline(always)]
    pub fn peer<L: Layout>(self) -> PeerId {
        PeerId((self.0 >> L::SLOT.bits) as u32)
    }
}

/// The paper's entry (Fig. 3): 16 bytes, changed by masked ("extended") atomics.
///
/// | bits | field | holds |
/// |---|---|---|
/// | 0 | Epoch | |
/// | 1–23 | RdrCnt | |
/// | 24–39 | NodeId | the slot: which of the client's acquisitions |
/// | 40–63 | DctQpNum | the client's peer id, never 0 |
/// | 64–111 | RelCnt, low | count of releases |
/// | 112–127 | RelCnt, high | generation: count of recoveries |
///
/// NodeId and DctQpNum are the paper's route to a client; here the fabric knows the route from the peer id. 2⁴⁸
/// releases of one lock within one generation take 2.4 years at 0.27 µs each, the fastest one NIC can do.
#[derive(Debug)]
pub struct Wide;

impl Layout for Wide {
    type Word = u128;
    const NAME: &'static str = "shiftlock";
    const SUMMARY: &'static str = "reader-writer queue lock with handover, recovery and tokens";
    const NEEDS: Needs =
        Needs { masked: true, wide: true, guarded: false, messages: true, global_scope: true };

    const EPOCH: Field = Field { shift: 0, bits: 1 };
    const RDR_CNT: Field = Field { shift: 1, bits: 23 };
    const SLOT: Field = Field { shift: 24, bits: 16 };
    const PEER: Field = Field { shift: 40, bits: 24 };
    const REL_CNT: Field = Field { shift: 64, bits: 64 };
    const COUNT_BITS: u32 = 48;
}

impl EntryWord for u128 {
    /// One verb, whatever the entry is.
    #[inline(always)]
    fn change(word: Word<u128>, change: MaskedCas, _: Option<u128>) -> Verb<u128> {
        word.masked_cas(change.compare, change.compare_mask, change.swap, change.swap_mask)
    }

    #[inline(always)]
    fn add<L: Layout<Word = u128>>(word: Word<u128>, delta: Delta, generation: Option<u64>) -> Verb<u128> {
        masked_add::<L>(word, delta, generation)
    }
}

/// Adds to every field by itself.
#[inline(always)]
pub(super) fn masked_add<L: Layout>(
    word: Word<L::Word>,
    delta: Delta,
    generation: Option<u64>,
) -> Verb<L::Word> {
    let narrow = L::Word::narrow;
    let (add, tops) = (narrow(delta.by_field(L::EPOCH, L::RDR_CNT, L::REL_CNT)), narrow(L::TOPS));
    match generation {
        None => word.masked_fetch_add(add, tops),
        Some(generation) => {
            let guard = narrow(L::GENERATION.put(u128::from(generation)));
            word.guarded_fetch_add(add, tops, guard, narrow(L::GENERATION.mask()))
        }
    }
}

/// The fields fill the word, and slot and client are neighbours.
pub(super) const fn is_sound<L: Layout>(bits: u32) -> bool {
    Field::fill(&[L::EPOCH, L::RDR_CNT, L::TAIL, L::REL_CNT], bits)
        && L::PEER.shift == L::SLOT.shift + L::SLOT.bits
}

const _: () = assert!(is_sound::<Wide>(128));
const _: () = assert!(has_room_for(Wide::TAIL.bits), "a grant has room for a queue member");
const _: () = assert!(Wide::RDR_CNT.bits == 23 && Wide::SLOT.bits == 16 && Wide::PEER.bits == 24);

#[cfg(test)]
mod tests {
    use super::super::portable::Portable;
    use super::*;

    fn every_field_comes_back<L: Layout>() {
        let member = Member::new::<L>(PeerId::client(5), 3).unwrap();
        let rel_cnt = L::leap(L::leap(0)) + 17;
        let bits = L::EPOCH.put(1)
            | L::RDR_CNT.put(9)
            | L::TAIL.put(u128::from(member.0))
            | L::REL_CNT.put(u128::from(rel_cnt));
        let entry = Entry::<L>::of(L::Word::narrow(bits));
        assert_eq!(entry.word().widen(), bits);
        assert_eq!((entry.epoch(), entry.rdr_cnt()), (true, 9));
        assert_eq!((entry.tail(), entry.tail().peer::<L>()), (member, PeerId::client(5)));
        assert_eq!((entry.rel_cnt(), entry.generation()), (rel_cnt, 2));
        assert_eq!(L::generation(rel_cnt), 2);
    }

    #[test]
    fn every_field_of_both_layouts_comes_back_as_it_was_put() {
        every_field_comes_back::<Wide>();
        every_field_comes_back::<Portable>();
    }

    fn counters_move_alone<L: Layout>(generation: Option<u64>) {
        let word = Word::<L::Word>::at(lockwright_fabric::Addr::new(lockwright_fabric::NodeId(0), 0));
        let member = Member::new::<L>(PeerId::client(5), 3).unwrap();
        let before =
            L::EPOCH.put(1) | L::RDR_CNT.put(1) | L::TAIL.put(u128::from(member.0)) | L::REL_CNT.put(7);
        let after = |delta| {
            let op = L::add(word, delta, generation).raw().op;
            Entry::<L>::of(L::Word::narrow(op.apply(L::Word::WIDTH, before).unwrap()))
        };
        let left = after(Delta::LEAVE);
        assert_eq!((left.rdr_cnt(), left.rel_cnt(), left.tail(), left.epoch()), (0, 8, member, true));
        let entered = after(Delta::ENTER);
        assert_eq!((entered.rdr_cnt(), entered.rel_cnt(), entered.tail()), (2, 7, member));
        let handed = after(Delta::HAND_OVER);
        assert_eq!((handed.rdr_cnt(), handed.rel_cnt(), handed.tail()), (1, 8, member));
    }

    #[test]
    fn a_count_changes_no_other_field() {
        for generation in [None, Some(0)] {
            counters_move_alone::<Wide>(generation);
            counters_move_alone::<Portable>(generation);
        }
    }
}
