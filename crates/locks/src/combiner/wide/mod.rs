//! A wide interval tree: up to eight ranges a node, all of them in leaves, and every node above knows which of those below
//! it hold ranges that reach beyond their bounds, and how far.
//!
//! With a million ranges the way down a binary tree is twenty cache lines, most of them far away. Here it is eight nodes,
//! of which all but the lowest two or three are few enough to stay near; a leaf is three lines, which are fetched together; and
//! what a request ends needs no way down at all, for its record knows its leaf. Leaves keep their ranges in no order: to
//! insert is to append, to remove is to put the last one there.
//!
//! As long as no two ranges of a tree overlap, a new one can only overlap its neighbours, which stand in the same leaf
//! or behind its bounds. So every tree counts the ranges that overlapped others when they came and are still there
//! (`Root::came_over`): at zero the leaf answers by itself, otherwise the nodes above tell where to look.
//!
//! What it must not do: know who blocks whom.

mod balance;
mod descend;
mod node;
#[cfg(test)]
mod tests;

use super::records::{Record, Records, Slot, make_room};
use super::tree::{IntervalTrees, Range};
use arrayvec::ArrayVec;
use descend::Places;
use node::{ABOVE, NEVER, NONE, Node, Number, Place};

/// A tree's top.
#[derive(Clone, Copy, Debug)]
struct Root {
    node: Number,
    /// How many of its ranges overlapped something when they came. Zero: no two overlap.
    came_over: u32,
}

/// Nodes of one kind.
#[derive(Clone, Debug)]
struct Arena<const N: usize> {
    nodes: Vec<Node<N>>,
    /// Nodes in no tree, linked by `parent`.
    free: Number,
}

/// Some wide trees, with up to `N` ranges a node.
#[derive(Clone, Debug)]
pub struct Wide<const N: usize = 8> {
    records: Records,
    /// Apart from the leaves, so that what every way down goes through lies close together.
    above: Arena<N>,
    leaves: Arena<N>,
    roots: Vec<Root>,
    places: Places,
}

impl<const N: usize> Default for Wide<N> {
    fn default() -> Self {
        let arena = || Arena { nodes: Vec::new(), free: NONE };
        let (above, leaves, roots) = (arena(), arena(), Vec::new());
        Self { records: Records::default(), above, leaves, roots, places: Places::default() }
    }
}

impl<const N: usize> IntervalTrees for Wide<N> {
    fn plant(&mut self) -> u32 {
        let tree = self.roots.len() as u32;
        let node = self.take_node(Node::empty(tree, 0, 0, NEVER));
        self.roots.push(Root { node, came_over: 0 });
        tree
    }

    #[inline(always)]
    fn is_bare(&self, tree: u32) -> bool {
        // Nodes are joined when they have few, so the last ranges are in the root.
        self.node(self.roots[tree as usize].node).len == 0
    }

    #[inline(always)]
    fn records(&self) -> &Records {
        &self.records
    }

    #[inline(always)]
    fn records_mut(&mut self) -> &mut Records {
        &mut self.records
    }

    fn range(&self, slot: Slot) -> (u64, u64) {
        let leaf = self.node(self.records.get(slot).at);
        let place = leaf.place_of(slot);
        (leaf.starts[place], leaf.ends[place])
    }

    #[inline]
    fn insert(&mut self, mut record: Record, start: u64, end: u64) -> (Slot, bool) {
        let tree = record.tree;
        let mut number = match self.place_known(tree, start) {
            Some(leaf) => leaf,
            None => self.leaf_for(tree, start),
        };
        let alone = self.is_alone(number, start, end);
        if self.node(number).len as usize == N {
            number = self.split(number, start);
        }
        (record.at, record.came_over) = (number, !alone);
        self.roots[tree as usize].came_over += u32::from(!alone);
        let slot = self.records.add(record);
        let leaf = self.node_mut(number);
        leaf.push(Place { start, end, below: slot });
        if end > leaf.high {
            self.raise(number, end);
        }
        (slot, alone)
    }

    #[inline]
    fn remove(&mut self, slot: Slot) {
        let Record { at: number, tree, came_over, .. } = *self.records.get(slot);
        self.roots[tree as usize].came_over -= u32::from(came_over);
        self.records.give_back(slot);
        let leaf = self.node_mut(number);
        let place = leaf.place_of(slot);
        let end = leaf.ends[place];
        leaf.swap_remove(place);
        let (high, len) = (leaf.high, leaf.len as usize);
        if end > high {
            self.settle(number);
        }
        if len < Node::<N>::FEWEST {
            self.mend(number);
        }
    }

    fn overlapping(&self, tree: u32, start: u64, end: u64, found: &mut Vec<Slot>) {
        self.gather(self.roots[tree as usize].node, start, end, found);
    }

    fn walk(&self, tree: u32, found: &mut Vec<Slot>) {
        self.overlapping(tree, 0, u64::MAX, found);
    }

    fn find_places(&mut self, ranges: &[Range]) {
        self.find_leaves(ranges);
    }

    #[inline]
    fn fetch(&self, slots: &[Slot]) {
        for slot in slots {
            self.records.fetch(*slot);
        }
        for slot in slots {
            self.node(self.records.get(*slot).at).fetch(true);
        }
    }

    fn bytes(&self) -> usize {
        self.records.bytes()
            + (self.above.nodes.capacity() + self.leaves.nodes.capacity()) * size_of::<Node<N>>()
            + self.roots.capacity() * size_of::<Root>()
    }
}

impl<const N: usize> Wide<N> {
    #[inline(always)]
    fn node(&self, number: Number) -> &Node<N> {
        if number & ABOVE == 0 {
            &self.leaves.nodes[number as usize]
        } else {
            &self.above.nodes[(number & !ABOVE) as usize]
        }
    }

    #[inline(always)]
    fn node_mut(&mut self, number: Number) -> &mut Node<N> {
        if number & ABOVE == 0 {
            &mut self.leaves.nodes[number as usize]
        } else {
            &mut self.above.nodes[(number & !ABOVE) as usize]
        }
    }

    /// Whether nothing overlaps `start..end`, which belongs into this leaf.
    #[inline]
    fn is_alone(&self, number: Number, start: u64, end: u64) -> bool {
        let leaf = self.node(number);
        let (mut meets, mut has_one_before) = (false, leaf.low == 0);
        for at in 0..N {
            meets |= (leaf.starts[at] < end) & (start < leaf.ends[at]);
            has_one_before |= leaf.starts[at] <= start;
        }
        let root = &self.roots[leaf.tree as usize];
        if meets {
            return false;
        }
        // If no two overlap: whatever stands before one that starts before `start` ends there.
        if (root.came_over == 0) & has_one_before & (end <= leaf.high) {
            return true;
        }
        !self.meets_any(root.node, start, end)
    }

    /// Whether anything at or below the node overlaps `start..end`.
    fn meets_any(&self, number: Number, start: u64, end: u64) -> bool {
        let node = self.node(number);
        if node.level == 0 {
            return node.meeting(start, end).next().is_some();
        }
        node.ways(start, end).any(|below| self.meets_any(below, start, end))
    }

    /// Adds what overlaps, at or below the node, by start.
    fn gather(&self, number: Number, start: u64, end: u64, found: &mut Vec<Slot>) {
        let node = self.node(number);
        if node.level > 0 {
            node.ways(start, end).for_each(|below| self.gather(below, start, end, found));
            return;
        }
        let mut meeting: ArrayVec<_, N> = node.meeting(start, end).collect();
        meeting.sort_unstable_by_key(|place| place.start);
        found.extend(meeting.iter().map(|place| place.below));
    }

    fn take_node(&mut self, node: Node<N>) -> Number {
        let (arena, kind) = if node.level == 0 { (&mut self.leaves, 0) } else { (&mut self.above, ABOVE) };
        if arena.free != NONE {
            let number = arena.free;
            let place = &mut arena.nodes[(number & !ABOVE) as usize];
            arena.free = place.parent;
            *place = node;
            return number;
        }
        make_room(&mut arena.nodes);
        arena.nodes.push(node);
        (arena.nodes.len() as Number - 1) | kind
    }

    fn free_node(&mut self, number: Number) {
        let arena = if number & ABOVE == 0 { &mut self.leaves } else { &mut self.above };
        let node = &mut arena.nodes[(number & !ABOVE) as usize];
        (node.level, node.parent) = (node::FREE, arena.free);
        arena.free = number;
    }
}
