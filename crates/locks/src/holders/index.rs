//! The index of a name's ranges: a tree over the holder records, by which a request finds those that overlap its own.
//!
//! It is a treap: ordered by where the ranges start, balanced by a number made of each entry's place, and with the greatest
//! end below every entry. Every record has an entry of its own, so nothing is allocated and nothing is full. The records
//! stay the truth. An entry says where to look, and stays where it is when its range is given back; whoever meets it reads
//! the record.
//!
//! Why it is safe, if any client is killed or stopped between any two instructions:
//!
//! 1. **Changed inside.** Only the holder of the name's gate changes its tree. A gate that is reset is of the next generation,
//!    for which the tree is not good: whatever was half changed is given up, and built again from the records.
//! 2. **Swapped with its tag.** A client that was evicted can have one more verb under way. That verb compares the tag, or the
//!    epoch in the root, and the next holder of the gate raises that before anything else.
//! 3. **Entered inside.** A record becomes held, or waits, with its entry in the tree, if there is one.
//! 4. **Read with its tag.** An entry in another tree is met by mistake only, and then the records are scanned.

use super::index_layout::{IndexLayout, Node, Part, Root, is_of, lock_of, tagged};
use super::space::{RangeSpace, RecordRules};
use lockwright_fabric::{FabricError, Word64};
use std::cell::Cell;
use std::marker::PhantomData;

/// Levels of a tree that are gone down. 65,536 entries have about forty. Of more, the records are scanned.
const DEPTH: u32 = 128;
/// How often a word is read again that somebody who was evicted has just changed.
const RETRIES: u32 = 4;

/// Why an index was of no use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It is not, or not any more, a tree of its epoch; or an entry that it needs is in another tree.
    Broken,
    /// This client was evicted.
    Fabric(FabricError),
}

impl From<FabricError> for Trouble {
    fn from(error: FabricError) -> Self {
        Self::Fabric(error)
    }
}

/// The entries below another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Below {
    left: Node,
    right: Node,
}

impl Below {
    const fn of(word: u64) -> Self {
        let mask = (1 << Node::BITS) - 1;
        Self { left: Node(word & mask), right: Node(word >> Node::BITS & mask) }
    }

    const fn word(self) -> u64 {
        self.left.0 | self.right.0 << Node::BITS
    }
}

/// An entry as it was read.
#[derive(Clone, Copy, Debug)]
struct Entry {
    below: Below,
    start: u64,
    end: u64,
    greatest: u64,
}

/// The order of entries: by start, and those with the same by their places.
type Key = (u64, Node);

/// A tree, in the hands of the holder of its lock's gate.
pub(super) struct Tree<'a, S, F, R> {
    space: &'a S,
    load: F,
    layout: IndexLayout,
    lock: u64,
    root: Root,
    /// Entries that may still be read: a tree that others change meanwhile may have no end.
    budget: Cell<u64>,
    rules: PhantomData<R>,
}

impl<'a, S: RangeSpace, F: Fn(Word64) -> u64, R: RecordRules> Tree<'a, S, F, R> {
    /// The tree of `lock`, whose root was read under the gate in this generation of it. None if there is no good one.
    #[inline(always)]
    pub(super) fn open(
        space: &'a S,
        load: F,
        layout: IndexLayout,
        (lock, root): (u64, Root),
        generation: u64,
    ) -> Option<Self> {
        let good = root.generation() == generation || !R::TREES_ARE_OF_A_GENERATION;
        (root.exists() && good).then(|| Self::at(space, load, layout, lock, root))
    }

    fn at(space: &'a S, load: F, layout: IndexLayout, lock: u64, root: Root) -> Self {
        let table = space.layout();
        let budget = Cell::new(4 * table.clients() * table.records());
        Self { space, load, layout, lock, root, budget, rules: PhantomData }
    }

    /// Begins a tree.
    pub(super) fn begin(
        space: &'a S,
        load: F,
        layout: IndexLayout,
        (lock, root): (u64, Root),
    ) -> Result<Self, Trouble> {
        Ok(Self::at(space, load, layout, lock, give_up(space, &layout, lock, root)?))
    }

    /// The tree that was begun is good for `generation` of the gate.
    pub(super) fn finish(self, generation: u64) -> Result<(), Trouble> {
        let begun = self.root.with_top(Node::NONE);
        self.set_root(begun, self.root.good_for(generation, self.root.top()))
    }

    #[inline(always)]
    const fn tag(&self) -> u64 {
        self.lock | self.root.epoch() << 32
    }

    fn set_root(&self, old: Root, new: Root) -> Result<(), Trouble> {
        let word = self.layout.root(self.lock);
        let found = if old == new { old.0 } else { self.space.go_now(word.cas(old.0, new.0))? };
        if found == old.0 { Ok(()) } else { Err(Trouble::Broken) }
    }

    /// Words of an entry of this tree.
    #[inline(always)]
    fn read<const N: usize>(&self, node: Node, parts: [Part; N]) -> Result<[u64; N], Trouble> {
        let table = self.space.layout();
        if node.0 > table.clients() * table.records() {
            return Err(Trouble::Broken);
        }
        self.budget.set(self.budget.get().checked_sub(1).ok_or(Trouble::Broken)?);
        let mut found = [0; N];
        for (word, part) in found.iter_mut().zip(parts) {
            *word = (self.load)(self.layout.value(node, part));
        }
        // Last: another tree says that an entry is its before it changes anything else.
        if !R::ENTRIES_ARE_IN_ONE_TREE || (self.load)(self.layout.tag(node, Part::Below)) == self.tag() {
            Ok(found)
        } else {
            Err(Trouble::Broken)
        }
    }

    #[inline(always)]
    fn entry(&self, node: Node) -> Result<Entry, Trouble> {
        let [below, start, end, greatest] =
            self.read(node, [Part::Below, Part::Start, Part::End, Part::Greatest])?;
        Ok(Entry { below: Below::of(below), start, end, greatest })
    }

    /// Swaps a word of an entry that is in this tree.
    fn swap(&self, node: Node, part: Part, old: u64, new: u64) -> Result<(), Trouble> {
        let (old, new) = (tagged(old, self.tag()), tagged(new, self.tag()));
        let found =
            if old == new { old } else { self.space.go_now(self.layout.both(node, part).cas(old, new))? };
        if found == old { Ok(()) } else { Err(Trouble::Broken) }
    }

    #[inline(always)]
    fn greatest(&self, node: Node) -> Result<u64, Trouble> {
        if node == Node::NONE { Ok(0) } else { Ok(self.read(node, [Part::Greatest])?[0]) }
    }

    fn link(&self, node: Node, entry: &Entry, below: Below) -> Result<(), Trouble> {
        self.swap(node, Part::Below, entry.below.word(), below.word())
    }

    fn set_greatest(&self, node: Node, entry: &Entry, greatest: u64) -> Result<(), Trouble> {
        if R::GREATEST_ENDS_FOLLOW {
            self.swap(node, Part::Greatest, entry.greatest, greatest)
        } else {
            Ok(())
        }
    }

    /// Puts others below an entry.
    fn put_below(&self, node: Node, entry: &Entry, below: Below) -> Result<(), Trouble> {
        self.link(node, entry, below)?;
        let greatest = entry.end.max(self.greatest(below.left)?).max(self.greatest(below.right)?);
        self.set_greatest(node, entry, greatest)
    }

    /// Whether `settles` says so of an entry that overlaps `start..end`.
    #[inline(always)]
    pub(super) fn any(
        &self,
        (start, end): (u64, u64),
        settles: &mut impl FnMut(Node) -> Result<bool, Trouble>,
    ) -> Result<bool, Trouble> {
        self.any_below(self.root.top(), (start, end), settles, DEPTH)
    }

    fn any_below(
        &self,
        mut node: Node,
        (start, end): (u64, u64),
        settles: &mut impl FnMut(Node) -> Result<bool, Trouble>,
        depth: u32,
    ) -> Result<bool, Trouble> {
        let depth = depth.checked_sub(1).ok_or(Trouble::Broken)?;
        while self.greatest(node)? > start {
            let entry = self.entry(node)?;
            if self.greatest(entry.below.left)? > start
                && self.any_below(entry.below.left, (start, end), settles, depth)?
            {
                return Ok(true);
            }
            if entry.start >= end {
                return Ok(false);
            }
            if start < entry.end && settles(node)? {
                return Ok(true);
            }
            node = entry.below.right;
        }
        Ok(false)
    }

    /// Sees to it that the entry is in the tree, with this range.
    pub(super) fn enter(&mut self, node: Node, start: u64, end: u64) -> Result<(), Trouble> {
        let before = self.root;
        if (self.load)(self.layout.tag(node, Part::Below)) == self.tag() {
            let entry = self.entry(node)?;
            if (entry.start, entry.end) == (start, end) || !R::ENTRIES_MOVE {
                return Ok(());
            }
            self.root =
                self.root.with_top(self.remove(self.root.top(), (entry.start, node), entry.end, DEPTH)?);
        }
        self.add(node, start, end)?;
        self.set_root(before, self.root)
    }

    /// Adds an entry that is in no tree. The root's word is not changed.
    pub(super) fn add(&mut self, node: Node, start: u64, end: u64) -> Result<(), Trouble> {
        self.claim(node)?;
        for (part, value) in [(Part::Start, start), (Part::End, end), (Part::Greatest, end)] {
            self.fill(node, part, value)?;
        }
        self.root = self.root.with_top(self.insert(self.root.top(), (start, node), end, DEPTH)?);
        Ok(())
    }

    /// Takes an entry out, if it is in this tree.
    pub(super) fn take_out(&mut self, node: Node) -> Result<(), Trouble> {
        let before = self.root;
        if (self.load)(self.layout.tag(node, Part::Below)) != self.tag() {
            return Ok(());
        }
        let entry = self.entry(node)?;
        self.root =
            self.root.with_top(self.remove(self.root.top(), (entry.start, node), entry.end, DEPTH)?);
        self.set_root(before, self.root)?;
        let word = self.layout.both(node, Part::Below);
        let old = tagged(entry.below.word(), self.tag());
        // What was below it is below others now.
        if self.space.go_now(word.cas(old, 0))? == old { Ok(()) } else { Err(Trouble::Broken) }
    }

    /// Makes an entry this tree's, if it is no other's.
    fn claim(&self, node: Node) -> Result<(), Trouble> {
        let [below, tag] = [self.layout.value(node, Part::Below), self.layout.tag(node, Part::Below)];
        let (below, tag) = ((self.load)(below), (self.load)(tag));
        if tag != self.tag() && R::ENTRIES_ARE_IN_ONE_TREE && is_linked(self.space, &self.layout, tag)? {
            return Err(Trouble::Broken);
        }
        let (old, new) = (tagged(below, tag), tagged(0, self.tag()));
        let found = self.space.go_now(self.layout.both(node, Part::Below).cas(old, new))?;
        if found == old { Ok(()) } else { Err(Trouble::Broken) }
    }

    /// Writes a word of an entry that this tree has just claimed.
    fn fill(&self, node: Node, part: Part, value: u64) -> Result<(), Trouble> {
        let word = self.layout.both(node, part);
        let (was, tag) = (self.layout.value(node, part), self.layout.tag(node, part));
        let mut seen = tagged((self.load)(was), (self.load)(tag));
        for _ in 0..RETRIES {
            let found = self.space.go_now(word.cas(seen, tagged(value, self.tag())))?;
            if found == seen {
                return Ok(());
            }
            seen = found;
        }
        Err(Trouble::Broken)
    }

    /// Adds an entry, with nothing below it, to those from `node` on; says which is on top of them then.
    fn insert(&self, node: Node, key: Key, end: u64, depth: u32) -> Result<Node, Trouble> {
        if node == Node::NONE {
            return Ok(key.1);
        }
        let depth = depth.checked_sub(1).ok_or(Trouble::Broken)?;
        if key.1.rank() > node.rank() {
            let (left, right) = self.split(node, key, depth)?;
            self.put_below(key.1, &self.entry(key.1)?, Below { left, right })?;
            return Ok(key.1);
        }
        let entry = self.entry(node)?;
        let mut below = entry.below;
        if key < (entry.start, node) {
            below.left = self.insert(below.left, key, end, depth)?;
        } else {
            below.right = self.insert(below.right, key, end, depth)?;
        }
        self.link(node, &entry, below)?;
        self.set_greatest(node, &entry, entry.greatest.max(end))?;
        Ok(node)
    }

    /// Those from `node` on that come before `key`, and those that come after it.
    fn split(&self, node: Node, key: Key, depth: u32) -> Result<(Node, Node), Trouble> {
        if node == Node::NONE {
            return Ok((Node::NONE, Node::NONE));
        }
        let depth = depth.checked_sub(1).ok_or(Trouble::Broken)?;
        let entry = self.entry(node)?;
        if (entry.start, node) < key {
            let (left, right) = self.split(entry.below.right, key, depth)?;
            self.put_below(node, &entry, Below { right: left, ..entry.below })?;
            Ok((node, right))
        } else {
            let (left, right) = self.split(entry.below.left, key, depth)?;
            self.put_below(node, &entry, Below { left: right, ..entry.below })?;
            Ok((left, node))
        }
    }

    /// Takes the entry with this key, and this end, out of those from `node` on; says which is on top of them then.
    fn remove(&self, node: Node, key: Key, end: u64, depth: u32) -> Result<Node, Trouble> {
        if node == Node::NONE {
            return Err(Trouble::Broken);
        }
        let depth = depth.checked_sub(1).ok_or(Trouble::Broken)?;
        let entry = self.entry(node)?;
        let mut below = entry.below;
        if node == key.1 {
            return self.merge(below.left, below.right, depth);
        }
        if key < (entry.start, node) {
            below.left = self.remove(below.left, key, end, depth)?;
        } else {
            below.right = self.remove(below.right, key, end, depth)?;
        }
        if entry.greatest == end {
            self.put_below(node, &entry, below)?;
        } else {
            self.link(node, &entry, below)?;
        }
        Ok(node)
    }

    /// One of two, the first of which all come before the others.
    fn merge(&self, left: Node, right: Node, depth: u32) -> Result<Node, Trouble> {
        if left == Node::NONE || right == Node::NONE {
            return Ok(Node(left.0 | right.0));
        }
        let depth = depth.checked_sub(1).ok_or(Trouble::Broken)?;
        let top = if left.rank() > right.rank() { left } else { right };
        let entry = self.entry(top)?;
        let mut below = entry.below;
        if top == left {
            below.right = self.merge(below.right, right, depth)?;
        } else {
            below.left = self.merge(left, below.left, depth)?;
        }
        self.put_below(top, &entry, below)?;
        Ok(top)
    }
}

/// Whether an entry with this tag is in a tree, good or not.
fn is_linked<S: RangeSpace>(space: &S, layout: &IndexLayout, tag: u64) -> Result<bool, FabricError> {
    if tag == 0 {
        return Ok(false);
    }
    Ok(is_of(tag, Root(space.go_now(layout.root(lock_of(tag)).read())?)))
}

/// Of which other lock than `lock` an entry is in the tree.
#[inline(always)]
pub(super) fn other_tree<S: RangeSpace>(
    space: &S,
    layout: &IndexLayout,
    node: Node,
    lock: u64,
) -> Result<Option<u64>, FabricError> {
    let tag = space.load_now(layout.tag(node, Part::Below));
    let elsewhere = tag != 0 && lock_of(tag) != lock && is_linked(space, layout, tag)?;
    Ok(elsewhere.then_some(lock_of(tag)))
}

/// Gives up what tree there is. Of the holder of the gate, with whom nobody contends but for the last verbs of the evicted.
pub(super) fn give_up<S: RangeSpace>(
    space: &S,
    layout: &IndexLayout,
    lock: u64,
    mut root: Root,
) -> Result<Root, FabricError> {
    loop {
        let found = Root(space.go_now(layout.root(lock).cas(root.0, root.given_up().0))?);
        if found == root {
            return Ok(root.given_up());
        }
        root = found;
    }
}
