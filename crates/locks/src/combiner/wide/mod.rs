//! A wide interval tree: up to eight ranges a leaf, up to sixteen nodes below a node, and every node knows which of those
//! below it hold ranges that reach beyond their bounds, and how far.
//!
//! With a million ranges the way down a binary tree is twenty cache lines, most of them far away. Here it is five nodes,
//! and where ranges lie evenly none at all: a short cut leads to the leaf (`shortcuts`). A leaf is two lines, which are
//! fetched together; and what a request ends needs no way down, for its record knows its leaf. Leaves keep their ranges in no
//! order: to insert is to append, to remove is to put the last one there.
//!
//! As long as no two ranges of a tree overlap, a new one can only overlap its neighbours, which stand in the same leaf
//! or behind its bounds. So every tree counts the ranges that overlapped others when they came and are still there
//! (`Root::came_over`): at zero the leaf answers by itself, otherwise the nodes above tell where to look.
//!
//! What it must not do: know who blocks whom.

mod balance;
mod descend;
mod leaf;
mod node;
mod shortcuts;
#[cfg(test)]
mod tests;

use super::records::{Record, Records, Slot, make_room};
use super::tree::{IntervalTrees, Range};
use arrayvec::ArrayVec;
use descend::Places;
use leaf::Leaf;
use node::{ABOVE, NEVER, NONE, Node, Number, Place};
use shortcuts::Shortcuts;

/// A tree's top.
#[derive(Clone, Copy, Debug)]
struct Root {
    node: Number,
    /// How many of its ranges overlapped something when they came. Zero: no two overlap.
    came_over: u32,
    leaves: u32,
}

/// Nodes of one kind.
#[derive(Clone, Debug)]
struct Arena<T> {
    nodes: Vec<T>,
    /// Nodes in no tree, linked by `parent`.
    free: Number,
}

impl<T> Arena<T> {
    /// The node of that number among these.
    #[inline(always)]
    fn at(&self, number: Number) -> &T {
        &self.nodes[number as usize]
    }

    /// Finds a place for a node. `link` is where a free one keeps the next.
    fn put(&mut self, node: T, link: impl FnOnce(&T) -> Number) -> Number {
        if self.free == NONE {
            make_room(&mut self.nodes);
            self.nodes.push(node);
            return self.nodes.len() as Number - 1;
        }
        let number = self.free;
        let place = &mut self.nodes[number as usize];
        self.free = link(place);
        *place = node;
        number
    }

    fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<T>()
    }
}

/// Some wide trees, with up to `L` ranges a leaf and up to `N` nodes below a node.
#[derive(Clone, Debug)]
pub struct Wide<const L: usize = 8, const N: usize = 16> {
    /// Apart from the leaves, so that what every way down goes through lies close together.
    above: Arena<Node<N>>,
    leaves: Arena<Leaf<L>>,
    roots: Vec<Root>,
    /// Of each tree.
    shortcuts: Vec<Shortcuts>,
    places: Places,
}

impl<const L: usize, const N: usize> Default for Wide<L, N> {
    fn default() -> Self {
        let (above, leaves) =
            (Arena { nodes: Vec::new(), free: NONE }, Arena { nodes: Vec::new(), free: NONE });
        Self { above, leaves, roots: Vec::new(), shortcuts: Vec::new(), places: Places::default() }
    }
}

impl<const L: usize, const N: usize> IntervalTrees for Wide<L, N> {
    /// The second-level cache: what is in there is as soon read as asked for. Sooner in narrow trees, which are for tests.
    const MANY: usize = 1 << (2 * L - 2);

    fn plant(&mut self) -> u32 {
        let tree = self.roots.len() as u32;
        let node = self.take_leaf(Leaf::empty(tree, 0, NEVER));
        self.roots.push(Root { node, came_over: 0, leaves: 1 });
        self.shortcuts.push(Shortcuts::default());
        tree
    }

    fn range(&self, records: &Records, slot: Slot) -> (u64, u64) {
        let (number, first) = Self::stands(records.get(slot).at);
        let leaf = self.leaf(number);
        let Place { start, end, .. } = leaf.place(leaf.place_of(slot, first));
        (start, end)
    }

    #[inline(always)]
    fn insert(&mut self, records: &mut Records, slot: Slot, start: u64, end: u64) -> bool {
        let tree = records.get(slot).tree;
        let number = match self.place_known(tree, start) {
            Some(leaf) => leaf,
            None => self.find_leaf(tree, start),
        };
        // Almost always: no two overlap, and what stands right before it stands in the same leaf, which has room.
        let no_two_overlap = self.roots[tree as usize].came_over == 0;
        let leaf = self.leaf_mut(number);
        let (meets, has_one_before) = leaf.look(start, end);
        if no_two_overlap & has_one_before & !meets & (end <= leaf.high) & leaf.has_room(end) {
            let record = records.get_mut(slot);
            (record.at, record.came_over) = (Self::standing(number, leaf.len as usize), false);
            leaf.push(Place { start, end, below: slot });
            return true;
        }
        self.insert_slowly(records, slot, number, (start, end))
    }

    #[inline(always)]
    fn remove(&mut self, records: &mut Records, slot: Slot) -> bool {
        let Record { at, tree, came_over, .. } = *records.get(slot);
        self.roots[tree as usize].came_over -= u32::from(came_over);
        let (number, first) = Self::stands(at);
        let leaf = self.leaf_mut(number);
        let place = leaf.place_of(slot, first);
        let end = leaf.place(place).end;
        leaf.swap_remove(place);
        let (reached_beyond, has_few) = (end > leaf.high, (leaf.len as usize) < leaf.fewest());
        if reached_beyond {
            self.settle(number);
        }
        if has_few {
            self.mend_leaf(records, number);
        }
        has_few && self.is_bare(tree)
    }

    fn overlapping(&self, tree: u32, start: u64, end: u64, found: &mut Vec<Slot>) {
        // Mostly one leaf has it all. What the way there needs is near, for the request just came that way.
        let leaf = self.leaf_for(tree, start);
        let stays_inside = end <= self.leaf(leaf).high && !self.is_reached(leaf, start);
        let from = if stays_inside { leaf } else { self.roots[tree as usize].node };
        self.gather(from, start, end, found);
    }

    fn walk(&self, tree: u32, found: &mut Vec<Slot>) {
        self.overlapping(tree, 0, u64::MAX, found);
    }

    fn begin_places(&mut self) {
        self.places.clear();
    }

    #[inline(always)]
    fn want_place(&mut self, Range { tree, start, .. }: Range) {
        let shortcuts = &self.shortcuts[tree as usize];
        let step = shortcuts.step(start);
        shortcuts.fetch(step);
        self.places.want(tree, start, step);
    }

    fn find_places(&mut self) {
        self.find_leaves();
    }

    #[inline]
    fn fetch(&self, records: &Records, slots: &[Slot]) {
        for slot in slots {
            records.fetch(*slot);
        }
        for slot in slots {
            self.leaf(Self::stands(records.get(*slot).at).0).fetch();
        }
    }

    fn bytes(&self) -> usize {
        let roots = self.roots.capacity() * size_of::<Root>();
        let shortcuts = self.shortcuts.capacity() * size_of::<Shortcuts>()
            + self.shortcuts.iter().map(Shortcuts::bytes).sum::<usize>();
        self.above.bytes() + self.leaves.bytes() + shortcuts + roots
    }
}

impl<const L: usize, const N: usize> Wide<L, N> {
    /// What a record says of where it stands: in which leaf, and in which place it was put there.
    #[inline(always)]
    fn standing(leaf: Number, first: usize) -> u32 {
        leaf * L as u32 + first as u32
    }

    #[inline(always)]
    fn stands(at: u32) -> (Number, usize) {
        (at / L as u32, at as usize % L)
    }

    /// Puts a request into this leaf, into which it belongs, or what becomes of it. Says whether nothing overlaps it.
    #[cold]
    fn insert_slowly(
        &mut self,
        records: &mut Records,
        slot: Slot,
        mut number: Number,
        (start, end): (u64, u64),
    ) -> bool {
        let alone = self.is_alone(number, start, end);
        if !self.leaf(number).has_room(end) {
            number = self.make_way(records, number, start, end);
        }
        let leaf = self.leaf_mut(number);
        let record = records.get_mut(slot);
        (record.at, record.came_over) = (Self::standing(number, leaf.len as usize), !alone);
        leaf.push(Place { start, end, below: slot });
        let (tree, high) = (leaf.tree, leaf.high);
        self.roots[tree as usize].came_over += u32::from(!alone);
        if end > high {
            self.raise(number, end);
        }
        alone
    }

    /// Whether nothing is in the tree.
    fn is_bare(&self, tree: u32) -> bool {
        // Nodes are joined when they have few, so the last ranges are in the root.
        let root = self.roots[tree as usize].node;
        root & ABOVE == 0 && self.leaf(root).len == 0
    }

    #[inline(always)]
    fn leaf(&self, number: Number) -> &Leaf<L> {
        self.leaves.at(number)
    }

    #[inline(always)]
    fn leaf_mut(&mut self, number: Number) -> &mut Leaf<L> {
        &mut self.leaves.nodes[number as usize]
    }

    #[inline(always)]
    fn node(&self, number: Number) -> &Node<N> {
        self.above.at(number & !ABOVE)
    }

    #[inline(always)]
    fn node_mut(&mut self, number: Number) -> &mut Node<N> {
        &mut self.above.nodes[(number & !ABOVE) as usize]
    }

    /// Starts to bring into the cache what the way down needs of the node or leaf.
    #[inline(always)]
    fn fetch_node(&self, number: Number) {
        if number & ABOVE == 0 {
            self.leaf(number).fetch();
        } else {
            self.node(number).fetch();
        }
    }

    /// Whether nothing overlaps `start..end`, which belongs into this leaf.
    #[inline]
    fn is_alone(&self, number: Number, start: u64, end: u64) -> bool {
        let leaf = self.leaf(number);
        let (meets, has_one_before) = leaf.look(start, end);
        if meets {
            return false;
        }
        let root = &self.roots[leaf.tree as usize];
        // If no two overlap: whatever stands before one that starts before `start` ends there.
        if (root.came_over == 0) & has_one_before & (end <= leaf.high) {
            return true;
        }
        if end <= leaf.high {
            !self.is_reached(number, start)
        } else {
            !self.meets_any(root.node, start, end)
        }
    }

    /// Whether something that stands before this leaf reaches beyond `start`, which belongs into it. Such a thing reaches
    /// beyond the bounds of everything that it is in and this leaf is not.
    fn is_reached(&self, leaf: Number, start: u64) -> bool {
        let (mut number, mut above) = (leaf, self.leaf(leaf).parent);
        while above != NONE {
            let node = self.node(above);
            if node.reaches[..node.place_of(number)].iter().any(|reach| *reach > start) {
                return true;
            }
            (number, above) = (above, node.parent);
        }
        false
    }

    /// Whether anything at or below the node overlaps `start..end`.
    fn meets_any(&self, number: Number, start: u64, end: u64) -> bool {
        if number & ABOVE == 0 {
            return self.leaf(number).meeting(start, end).next().is_some();
        }
        self.node(number).ways(start, end).any(|below| self.meets_any(below, start, end))
    }

    /// Adds what overlaps, at or below the node, by start.
    fn gather(&self, number: Number, start: u64, end: u64, found: &mut Vec<Slot>) {
        if number & ABOVE != 0 {
            self.node(number).ways(start, end).for_each(|below| self.gather(below, start, end, found));
            return;
        }
        let mut meeting: ArrayVec<_, L> = self.leaf(number).meeting(start, end).collect();
        meeting.sort_unstable_by_key(|place| place.start);
        found.extend(meeting.iter().map(|place| place.below));
    }

    fn take_leaf(&mut self, leaf: Leaf<L>) -> Number {
        let number = self.leaves.put(leaf, |free| free.parent);
        assert!(number < NONE / L as u32, "a record cannot say where it stands in so many leaves");
        number
    }

    fn take_node(&mut self, node: Node<N>) -> Number {
        self.above.put(node, |free| free.parent) | ABOVE
    }

    fn free_leaf(&mut self, number: Number) {
        let free = self.leaves.free;
        // A request that found this place before it was free sees that it fits nobody.
        let leaf = self.leaf_mut(number);
        (leaf.tree, leaf.parent) = (leaf::NOWHERE, free);
        self.leaves.free = number;
    }

    fn free_node(&mut self, number: Number) {
        self.node_mut(number).parent = self.above.free;
        self.above.free = number & !ABOVE;
    }
}
