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
//! | RelCnt | releases so far; it only rises, across recoveries too, so it is the fencing token |
//! | generation | recoveries so far, modulo its width: tells clients that were inside before a recovery from those after |
//!
//! # Why RelCnt never falls, and what a recovery adds to it
//!
//! Within a generation `RelCnt + RdrCnt` never falls: a reader that comes adds one to RdrCnt, one that leaves moves one from
//! RdrCnt to RelCnt, and every other change (a release, a handover, a change of mode, a grant that is made sure of) adds one
//! to RelCnt alone. A writer that waits for readers waits for a RelCnt that was `RelCnt + RdrCnt` when it began. So a
//! recovery that writes [`Entry::after_recovery`], one more than that sum, is
//!
//! - beyond what any writer waits for: it finds RelCnt past its mark and starts again, whatever the generation says;
//! - above every token given out, which is at most one more than RelCnt, as long as the entry's RelCnt does not lag behind a
//!   holder's. It lags by the additions of handovers that are still under way. A lock with holder records is not used before its own has
//!   landed (`SharedClient::make_sure`); elsewhere a recovery adds [`Layout::STRAGGLERS`] as well.
//!
//! No two grants of a writer therefore ever have the same RelCnt, and a verb that compares RelCnt is refused after any
//! recovery. The generation is for verbs that cannot compare it because others change it meanwhile: a reader's leaving and
//! a handover's addition. It wraps: such a verb is mistaken if its client slept, between deciding on the verb and executing
//! it, through an exact multiple of all generations.
//!
//! # Where RelCnt ends
//!
//! From [`Layout::LIMIT`] on no new client is let in ([`Denied::Exhausted`](crate::protocol::Denied)). A client that is inside by
//! then adds at most two, and a recovery needs a client inside: what is left of the field above the limit has room for all of that
//! (`counts_end_well`), so RelCnt neither wraps nor carries into its neighbour.

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
    /// Releases so far.
    const REL_CNT: Field;
    /// Recoveries so far; wraps.
    const GENERATION: Field;
    /// Nobody new is let in from this RelCnt on.
    const LIMIT: u64 = 1 << (Self::REL_CNT.bits - 1);
    /// The bit of RelCnt that is set from the limit on, for verbs that compare it; 0 if there is none, and readers have to
    /// look before they come.
    const SPENT: u128 = Self::REL_CNT.top();
    /// The bit that is set while a reader waits to be alone, and keeps other readers out; 0 if there is none, and locks are not
    /// upgraded. See `change`.
    const UPGRADING: u128 = 0;
    /// Handovers that may be under way at a time without having been counted, where nobody makes sure of its grant.
    const STRAGGLERS: u64;

    /// Slot and client together: a queue member.
    const TAIL: Field = Field { shift: Self::SLOT.shift, bits: Self::SLOT.bits + Self::PEER.bits };
    /// What a [`Stamp`] is made of.
    const STAMP: u128 = Self::REL_CNT.mask() | Self::GENERATION.mask();
    /// The top bits of all fields.
    const TOPS: u128 = Self::EPOCH.top()
        | Self::RDR_CNT.top()
        | Self::TAIL.top()
        | Self::REL_CNT.top()
        | Self::GENERATION.top();

    /// The verb that makes `change`. A layout without masked verbs has to know the entry first: it reads while `seen`
    /// is `None`, and then swaps exactly what was `seen`. Whether the change happened, [`happened`] tells.
    #[inline(always)]
    fn change(word: Word<Self::Word>, change: MaskedCas, seen: Option<Self::Word>) -> Verb<Self::Word> {
        Self::Word::change(word, change, seen)
    }

    /// The verb that adds `delta`; if a guard is given, only while the entry has those bits.
    #[inline(always)]
    fn add(word: Word<Self::Word>, delta: Delta, guard: Option<Guard>) -> Verb<Self::Word> {
        Self::Word::add::<Self>(word, delta, guard)
    }

    /// A stamp in its place.
    #[inline(always)]
    fn put(stamp: Stamp) -> u128 {
        Self::REL_CNT.put(u128::from(stamp.rel_cnt())) | Self::GENERATION.put(u128::from(stamp.generation()))
    }

    /// The stamp that a recovery leaves which adds `more` to RelCnt. `None` if there is no room for it.
    #[inline(always)]
    fn next(stamp: Stamp, more: u64) -> Option<Stamp> {
        let rel_cnt = stamp.rel_cnt().checked_add(more)?;
        let generation = (stamp.generation() + 1) & Self::GENERATION.max() as u64;
        (u128::from(rel_cnt) <= Self::REL_CNT.max()).then(|| Stamp::new(rel_cnt, generation))
    }
}

/// RelCnt and generation in one word, the same for all layouts.
///
/// | bits | holds |
/// |---|---|
/// | 0–51 | RelCnt |
/// | 52–63 | generation |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(pub(super) u64);

impl Stamp {
    const REL_CNT_BITS: u32 = 52;

    /// Of these two.
    #[inline(always)]
    pub const fn new(rel_cnt: u64, generation: u64) -> Self {
        Self(rel_cnt | generation << Self::REL_CNT_BITS)
    }

    /// RelCnt.
    #[inline(always)]
    pub const fn rel_cnt(self) -> u64 {
        self.0 & ((1 << Self::REL_CNT_BITS) - 1)
    }

    /// The generation.
    #[inline(always)]
    pub const fn generation(self) -> u64 {
        self.0 >> Self::REL_CNT_BITS
    }

    /// So many releases later, in the same generation. Stays within RelCnt: nobody is let in at the limit.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, releases: u64) -> Self {
        Self(self.0 + releases)
    }

    /// The fencing token of a grant at this RelCnt.
    #[inline(always)]
    pub const fn token(self) -> u64 {
        self.rel_cnt() + 1
    }

    /// What names a grant at this RelCnt in this generation: its token, and the generation above it. Never 0.
    #[inline(always)]
    pub const fn mark(self) -> u64 {
        self.0 + 1
    }

    /// The token in a mark.
    #[inline(always)]
    pub const fn token_of(mark: u64) -> u64 {
        Self(mark).rel_cnt()
    }
}

/// Bits that the entry must have for an addition to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Which bits.
    pub mask: u128,
    /// What they must be.
    pub value: u128,
}

impl Guard {
    /// Only in this generation.
    #[inline(always)]
    pub fn generation<L: Layout>(stamp: Stamp) -> Self {
        Self { mask: L::GENERATION.mask(), value: L::GENERATION.put(u128::from(stamp.generation())) }
    }

    /// Only at this RelCnt of this generation.
    #[inline(always)]
    pub fn stamp<L: Layout>(stamp: Stamp) -> Self {
        Self { mask: L::STAMP, value: L::put(stamp) }
    }
}

/// A word that holds an entry. Those of 16 bytes are changed by masked verbs, those of eight by plain ones.
pub trait EntryWord: Value {
    /// [`Layout::change`].
    fn change(word: Word<Self>, change: MaskedCas, seen: Option<Self>) -> Verb<Self>;
    /// [`Layout::add`].
    fn add<L: Layout<Word = Self>>(word: Word<Self>, delta: Delta, guard: Option<Guard>) -> Verb<Self>;
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

    /// Whether a reader waits to be alone.
    #[inline(always)]
    pub fn is_upgrading(self) -> bool {
        self.bits & L::UPGRADING != 0
    }

    /// Whether a reader that comes is inside: no writer is there, and no reader waits to be alone.
    #[inline(always)]
    pub fn lets_readers_in(self) -> bool {
        self.bits & (L::TAIL.mask() | L::UPGRADING) == 0
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

    /// The generation.
    #[inline(always)]
    pub fn generation(self) -> u64 {
        L::GENERATION.get(self.bits) as u64
    }

    /// RelCnt and generation.
    #[inline(always)]
    pub fn stamp(self) -> Stamp {
        Stamp::new(self.rel_cnt(), self.generation())
    }

    /// Whether nobody new is let in.
    #[inline(always)]
    pub fn is_spent(self) -> bool {
        self.rel_cnt() >= L::LIMIT
    }

    /// The stamp that a recovery of an entry like this leaves: beyond every count that a client may wait for, and above every
    /// token. `None` if there is no room for it.
    #[inline(always)]
    pub fn after_recovery(self) -> Option<Stamp> {
        L::next(self.stamp(), self.rdr_cnt() + 1)
    }
}

impl<L: Layout> fmt::Debug for Entry<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("epoch", &self.epoch())
            .field("rdr_cnt", &self.rdr_cnt())
            .field("tail", &self.tail())
            .field("rel_cnt", &self.rel_cnt())
            .field("generation", &self.generation())
            .finish()
    }
}

/// One acquisition of one client in the queue; 0 is nobody. A client that gave up still stands in the queue, so its next
/// acquisition of the same lock has to be another member.
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
/// | 64–115 | RelCnt | releases so far; the paper's has 64 bits |
/// | 116–127 | generation | recoveries so far, modulo 4096 |
///
/// NodeId and DctQpNum are the paper's route to a client; here the fabric knows the route from the peer id. Nobody is let
/// in from 2⁵¹ releases on: 19 years at 0.27 µs each, the fastest one NIC can do. A recovery, which knows neither RdrCnt nor
/// who is between the two halves of a handover, adds 2²⁵ to RelCnt. Where additions are not guarded, a reader that is not
/// let in adds one, too: above the limit there is room for 2⁵¹ of them.
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
    const REL_CNT: Field = Field { shift: 64, bits: 52 };
    const GENERATION: Field = Field { shift: 116, bits: 12 };
    /// One of every client.
    const STRAGGLERS: u64 = Self::PEER.max() as u64;
}

impl EntryWord for u128 {
    /// One verb, whatever the entry is.
    #[inline(always)]
    fn change(word: Word<u128>, change: MaskedCas, _: Option<u128>) -> Verb<u128> {
        word.masked_cas(change.compare, change.compare_mask, change.swap, change.swap_mask)
    }

    #[inline(always)]
    fn add<L: Layout<Word = u128>>(word: Word<u128>, delta: Delta, guard: Option<Guard>) -> Verb<u128> {
        masked_add::<L>(word, delta, guard)
    }
}

/// Adds to every field by itself.
#[inline(always)]
pub(super) fn masked_add<L: Layout>(
    word: Word<L::Word>,
    delta: Delta,
    guard: Option<Guard>,
) -> Verb<L::Word> {
    let narrow = L::Word::narrow;
    let (add, tops) = (narrow(delta.by_field(L::EPOCH, L::RDR_CNT, L::REL_CNT)), narrow(L::TOPS));
    match guard {
        None => word.masked_fetch_add(add, tops),
        Some(guard) => word.guarded_fetch_add(add, tops, narrow(guard.value), narrow(guard.mask)),
    }
}

/// The fields fill the word, and slot and client are neighbours.
pub(super) const fn is_sound<L: Layout>(bits: u32) -> bool {
    Field::fill(&[L::EPOCH, L::RDR_CNT, L::TAIL, L::REL_CNT, L::GENERATION], bits)
        && L::PEER.shift == L::SLOT.shift + L::SLOT.bits
        && counts_end_well::<L>()
}

/// RelCnt and generation fit into a stamp, and above the limit there is room for all clients that can be inside by then
/// (readers, writers between the halves of a handover, and one that holds the lock): for two additions by each, and for the
/// recovery from each, which adds one, and one per reader; or all that could be inside, where clients do not confirm their
/// grants.
pub const fn counts_end_well<L: Layout>() -> bool {
    let inside = L::RDR_CNT.max() + L::STRAGGLERS as u128 + 1;
    let above = L::REL_CNT.max() - L::LIMIT as u128;
    let recoveries = if L::STRAGGLERS == 0 { 2 * inside } else { inside * inside };
    let bit = L::SPENT == 0 || (L::SPENT == L::REL_CNT.top() && L::LIMIT == 1 << (L::REL_CNT.bits - 1));
    L::REL_CNT.bits <= Stamp::REL_CNT_BITS
        && L::GENERATION.bits <= 64 - Stamp::REL_CNT_BITS
        && above >= 2 * inside + recoveries
        && bit
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
        let stamp = Stamp::new(L::LIMIT + 17, 2);
        let bits = L::EPOCH.put(1) | L::RDR_CNT.put(9) | L::TAIL.put(u128::from(member.0)) | L::put(stamp);
        let entry = Entry::<L>::of(L::Word::narrow(bits));
        assert_eq!(entry.word().widen(), bits);
        assert_eq!((entry.epoch(), entry.rdr_cnt()), (true, 9));
        assert_eq!((entry.tail(), entry.tail().peer::<L>()), (member, PeerId::client(5)));
        assert_eq!((entry.rel_cnt(), entry.generation()), (L::LIMIT + 17, 2));
        assert_eq!(entry.stamp(), stamp);
        assert_eq!(stamp.token(), L::LIMIT + 18);
    }

    #[test]
    fn every_field_of_both_layouts_comes_back_as_it_was_put() {
        every_field_comes_back::<Wide>();
        every_field_comes_back::<Portable>();
    }

    fn counters_move_alone<L: Layout>(guard: Option<Guard>) {
        let word = Word::<L::Word>::at(lockwright_fabric::Addr::new(lockwright_fabric::NodeId(0), 0));
        let member = Member::new::<L>(PeerId::client(5), 3).unwrap();
        let before =
            L::EPOCH.put(1) | L::RDR_CNT.put(1) | L::TAIL.put(u128::from(member.0)) | L::REL_CNT.put(7);
        let after = |delta| {
            let op = L::add(word, delta, guard).raw().op;
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
        let first = Stamp::new(0, 0);
        for guards in [None, Some((Guard::generation::<Wide>(first), Guard::generation::<Portable>(first)))] {
            counters_move_alone::<Wide>(guards.map(|guards| guards.0));
            counters_move_alone::<Portable>(guards.map(|guards| guards.1));
        }
    }

    fn a_recovery_only_raises_rel_cnt<L: Layout>() {
        let last = Stamp::new(17, L::GENERATION.max() as u64);
        let entry = Entry::<L>::of(L::Word::narrow(L::RDR_CNT.put(9) | L::put(last)));
        assert_eq!(entry.after_recovery(), Some(Stamp::new(27, 0)), "a generation wraps, RelCnt does not");
        let full = Stamp::new(L::REL_CNT.max() as u64, 1);
        assert_eq!(Entry::<L>::of(L::Word::narrow(L::put(full))).after_recovery(), None);
    }

    #[test]
    fn a_recovery_wraps_the_generation_and_only_raises_rel_cnt() {
        a_recovery_only_raises_rel_cnt::<Wide>();
        a_recovery_only_raises_rel_cnt::<Portable>();
    }
}
