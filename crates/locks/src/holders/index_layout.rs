//! The layout of an index of ranges: which word is where, and what its bits mean.
//!
//! | root of a name, bits | holds |
//! |---|---|
//! | 0–16 | the entry on top, counted from one; 0: none |
//! | 17–28 | the generation of the gate for which the tree is good |
//! | 29 | whether there is a tree |
//! | 32–63 | epoch: rises when a tree is given up, and when one is begun |
//!
//! | entry, 16-byte word | low half | high half |
//! |---|---|---|
//! | 0 | the entries below: left (bits 0–16), right (17–33) | tag |
//! | 1 | start | tag |
//! | 2 | end | tag |
//! | 3 | the greatest end, here and below | tag |
//!
//! A tag is the lock (bits 0–31) and the epoch (32–63) of the tree that has the entry; 0: none has.

use super::record::TableLayout;
use lockwright_fabric::random::mix;
use lockwright_fabric::{Addr, Field, Word, Word64, Word128};

/// Bytes of an entry: a cache line.
const ENTRY: u64 = 64;

/// Where an index lies, and when one is made.
#[derive(Clone, Copy, Debug)]
pub struct IndexLayout {
    /// The entries, in the order of the table's records.
    pub entries: Addr,
    /// The root of lock 0.
    pub roots: Addr,
    /// Bytes from one root to the next.
    pub stride: u64,
    /// Records that a scan may read without an index being made.
    pub worth: u64,
    /// Every so many tokens of a gate an index may be made, and entries that say nothing any more are taken out.
    pub every: u64,
}

impl IndexLayout {
    /// Bytes of the entries for the records of `table`.
    ///
    /// # Panics
    /// If there are too many records.
    pub const fn bytes(table: &TableLayout) -> u64 {
        assert!(table.clients() * table.records() < 1 << Node::BITS, "an entry has a number");
        ENTRY * table.clients() * table.records()
    }

    /// Where the entries of a client's records are, and their bytes.
    pub const fn of_client(&self, table: &TableLayout, slot: u64) -> (Addr, u64) {
        let bytes = ENTRY * table.records();
        (self.entries.plus(slot * bytes), bytes)
    }

    /// The root of a lock that has an index with nothing in it, from the beginning.
    pub const EMPTY: u64 = Root(0).given_up().good_for(0, Node::NONE).0;

    /// The root of `lock`.
    #[inline(always)]
    pub(super) const fn root(&self, lock: u64) -> Word64 {
        Word64::at(self.roots.plus(self.stride * lock))
    }

    #[inline(always)]
    pub(super) const fn at(&self, node: Node, part: Part) -> Addr {
        self.entries.plus(ENTRY * (node.0 - 1) + 16 * part as u64)
    }

    #[inline(always)]
    pub(super) const fn value(&self, node: Node, part: Part) -> Word64 {
        Word::at(self.at(node, part))
    }

    #[inline(always)]
    pub(super) const fn tag(&self, node: Node, part: Part) -> Word64 {
        Word::at(self.at(node, part).plus(8))
    }

    #[inline(always)]
    pub(super) const fn both(&self, node: Node, part: Part) -> Word128 {
        Word::at(self.at(node, part))
    }
}

/// A word of an entry.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Below = 0,
    Start = 1,
    End = 2,
    Greatest = 3,
}

/// What a word of an entry holds.
#[inline(always)]
pub(super) const fn tagged(value: u64, tag: u64) -> u128 {
    value as u128 | (tag as u128) << 64
}

/// An entry: its place, counted from one. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node(pub(super) u64);

impl Node {
    pub(super) const NONE: Self = Self(0);
    pub(super) const BITS: u32 = 17;

    /// Of a record.
    #[inline(always)]
    pub(super) const fn new(table: &TableLayout, slot: u64, record: u64) -> Self {
        Self(slot * table.records() + record + 1)
    }

    /// Of which record: the client's slot, and the number.
    #[inline(always)]
    pub(super) const fn place(self, table: &TableLayout) -> (u64, u64) {
        ((self.0 - 1) / table.records(), (self.0 - 1) % table.records())
    }

    /// The larger it is, the higher up. No two have the same.
    #[inline(always)]
    pub(super) const fn rank(self) -> u64 {
        mix(self.0)
    }
}

/// The word that names the tree of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root(pub(super) u64);

impl Root {
    const TOP: Field = Field { shift: 0, bits: Node::BITS };
    const GENERATION: Field = Field { shift: 17, bits: 12 };
    const EXISTS: Field = Field { shift: 29, bits: 1 };
    const EPOCH: Field = Field { shift: 32, bits: 32 };

    #[inline(always)]
    pub(super) const fn top(self) -> Node {
        Node(Self::TOP.get(self.0 as u128) as u64)
    }

    #[inline(always)]
    pub(super) const fn generation(self) -> u64 {
        Self::GENERATION.get(self.0 as u128) as u64
    }

    /// Whether there is a tree, good or not.
    #[inline(always)]
    pub(super) const fn exists(self) -> bool {
        self.0 & Self::EXISTS.mask() as u64 != 0
    }

    #[inline(always)]
    pub(super) const fn epoch(self) -> u64 {
        Self::EPOCH.get(self.0 as u128) as u64
    }

    #[inline(always)]
    pub(super) const fn with_top(self, top: Node) -> Self {
        Self(self.0 & !(Self::TOP.mask() as u64) | top.0)
    }

    /// No tree, and nothing that belonged to the last one belongs to the next. (Of epoch 0 there is none, so no tag is 0.)
    pub(super) const fn given_up(self) -> Self {
        let epoch = match (self.epoch() + 1) & Self::EPOCH.max() as u64 {
            0 => 1,
            epoch => epoch,
        };
        Self(Self::EPOCH.put(epoch as u128) as u64)
    }

    /// With a tree that is good for `generation`.
    pub(super) const fn good_for(self, generation: u64, top: Node) -> Self {
        let word = Self::EPOCH.put(self.epoch() as u128)
            | Self::EXISTS.put(1)
            | Self::GENERATION.put(generation as u128)
            | Self::TOP.put(top.0 as u128);
        Self(word as u64)
    }
}

const LOCK: Field = Field { shift: 0, bits: 32 };

/// The lock in a tag.
#[inline(always)]
pub(super) const fn lock_of(tag: u64) -> u64 {
    LOCK.get(tag as u128) as u64
}

/// Whether a tag is of this epoch of its lock.
#[inline(always)]
pub(super) const fn is_of(tag: u64, root: Root) -> bool {
    tag >> 32 == root.epoch()
}

const _: () = {
    let fields = [Root::TOP, Root::GENERATION, Root::EXISTS, Field { shift: 30, bits: 2 }, Root::EPOCH];
    assert!(Field::fill(&fields, 64), "the fields fill the word and do not overlap");
};
