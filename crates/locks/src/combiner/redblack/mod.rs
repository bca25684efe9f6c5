//! The red-black interval tree of the thesis (Alg. 2 `tree`): one range a node.
//!
//! Nodes have the numbers of their requests' records and refer to each other by them, so that no `unsafe` is needed. One
//! arena holds many trees. A node is ordered by the start of its range, later ones behind
//! equal ones, and knows how far the ranges below it reach, on its left and on its right: so whoever looks for a place
//! or an overlap never touches a node beside its way. For a batch of requests the cache misses of all ways can be under
//! way at once (`places`).
//!
//! What it must not do: know who blocks whom.

mod balance;
mod places;

use super::records::{NIL, Records, Slot, make_room};
use super::tree::{IntervalTrees, Range};
use lockwright_fabric::backend::prefetch;
use places::Places;
use std::hint::select_unpredictable;

/// The tree of a slot without a node.
const NOWHERE: u32 = u32::MAX;

/// A range.
///
/// | bytes | field |
/// |---|---|
/// | 0–15 | range, `start..end` |
/// | 16–31 | the largest end in the left subtree, in the right one |
/// | 32–43 | left, right, parent |
/// | 44 | colour |
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Node {
    start: u64,
    end: u64,
    left_reach: u64,
    right_reach: u64,
    left: Slot,
    right: Slot,
    parent: Slot,
    red: bool,
}

const _: () = assert!(size_of::<Node>() == 48, "with its record, 80 bytes a range");

impl Node {
    fn new(start: u64, end: u64) -> Self {
        let (left_reach, right_reach, left, right, parent) = (0, 0, NIL, NIL, NIL);
        Self { start, end, left_reach, right_reach, left, right, parent, red: false }
    }

    /// Whether a new range that goes down from here can overlap neither this node nor anything on the other side of it.
    #[inline(always)]
    fn is_clear_of(&self, start: u64, end: u64) -> bool {
        let goes_left = start < self.start;
        // If left: everything on the right starts here or later. If right: what reaches over the new range from the left
        // is somewhere down there.
        let before = end <= self.start;
        let behind = self.end.max(self.left_reach) <= start;
        (goes_left & before) | (!goes_left & behind)
    }

    /// The largest end in its subtree. The empty node reaches nowhere.
    #[inline(always)]
    fn reach(&self) -> u64 {
        self.end.max(self.left_reach).max(self.right_reach)
    }
}

/// Some trees in one arena.
#[derive(Clone, Debug)]
pub struct RedBlack {
    /// By slot. The node of no request is black, so that the deletion's cases need no exceptions.
    nodes: Vec<Node>,
    roots: Vec<Slot>,
    places: Places,
}

impl Default for RedBlack {
    fn default() -> Self {
        let (nodes, roots) = (vec![Node::new(0, 0)], Vec::new());
        Self { nodes, roots, places: Places::default() }
    }
}

impl IntervalTrees for RedBlack {
    /// The nearest cache.
    const MANY: usize = 1 << 8;

    /// What is above a node may be as long as all that is below it.
    const IS_SURE: bool = false;

    fn plant(&mut self) -> u32 {
        self.roots.push(NIL);
        self.roots.len() as u32 - 1
    }

    #[inline(always)]
    fn range(&self, _: &Records, slot: Slot) -> (u64, u64) {
        let node = &self.nodes[slot as usize];
        (node.start, node.end)
    }

    #[inline]
    fn insert(&mut self, records: &mut Records, slot: Slot, start: u64, end: u64) -> bool {
        let tree = records.get(slot).tree;
        let (parent, went_left, alone) = match self.place_known(records, slot, (start, end)) {
            Some(place) => place,
            None => self.place_for(tree, start, end),
        };
        self.places.crowded |= !alone;
        let new = Node { parent, red: true, ..Node::new(start, end) };
        if slot as usize == self.nodes.len() {
            make_room(&mut self.nodes);
            self.nodes.push(new);
        } else {
            self.nodes[slot as usize] = new;
        }
        if parent == NIL {
            self.roots[tree as usize] = slot;
        } else {
            self.set_child(parent, !went_left, slot);
            self.raise(slot, end);
        }
        self.mend_insert(tree, slot);
        alone
    }

    #[inline]
    fn remove(&mut self, records: &mut Records, slot: Slot) -> bool {
        let Node { left, right, left_reach, right_reach, parent, red, .. } = self.nodes[slot as usize];
        let tree = std::mem::replace(&mut records.get_mut(slot).tree, NOWHERE);
        // `moved` takes the place of a node that is cut out; `black` says whether the cut took a black one.
        let (moved, black);
        if left == NIL || right == NIL {
            moved = if left == NIL { right } else { left };
            black = !red;
            let on_right = self.nodes[parent as usize].right == slot;
            self.replace(tree, slot, moved);
            self.settle(moved, parent, on_right);
        } else {
            let next = self.leftmost(right);
            black = !self.nodes[next as usize].red;
            moved = self.nodes[next as usize].right;
            let lowest = self.nodes[next as usize].parent;
            if lowest == slot {
                self.nodes[moved as usize].parent = next;
            } else {
                self.replace(tree, next, moved);
                self.nodes[next as usize].right = right;
                self.nodes[next as usize].right_reach = right_reach;
                self.nodes[right as usize].parent = next;
            }
            self.replace(tree, slot, next);
            let taken = &mut self.nodes[next as usize];
            (taken.left, taken.left_reach, taken.red) = (left, left_reach, red);
            self.nodes[left as usize].parent = next;
            if lowest != slot {
                // It was the leftmost: so it was on the left.
                self.settle(moved, lowest, false);
            }
            let above = self.nodes[next as usize].parent;
            self.settle(next, above, self.nodes[above as usize].right == next);
        }
        if black {
            self.mend_remove(tree, moved);
        }
        self.nodes[NIL as usize].parent = NIL;
        self.roots[tree as usize] == NIL
    }

    fn overlapping(&self, tree: u32, start: u64, end: u64, found: &mut Vec<Slot>) {
        // Twice the depth of a tree of 2^32 nodes is more than there can be.
        let mut stack = [NIL; 72];
        let (mut depth, mut at) = (0, self.roots[tree as usize]);
        loop {
            while at != NIL {
                stack[depth] = at;
                depth += 1;
                let node = &self.nodes[at as usize];
                // Nothing below reaches the range: nothing to find there.
                at = if node.left_reach > start { node.left } else { NIL };
            }
            if depth == 0 {
                return;
            }
            depth -= 1;
            let slot = stack[depth];
            let node = &self.nodes[slot as usize];
            if node.start >= end {
                // So does everything still to come.
                return;
            }
            if node.end > start {
                found.push(slot);
            }
            at = if node.right_reach > start { node.right } else { NIL };
        }
    }

    fn walk(&self, tree: u32, found: &mut Vec<Slot>) {
        let mut at = self.roots[tree as usize];
        let mut stack = Vec::new();
        while at != NIL || !stack.is_empty() {
            while at != NIL {
                stack.push(at);
                at = self.nodes[at as usize].left;
            }
            let slot = stack.pop().expect("the loop's condition");
            found.push(slot);
            at = self.nodes[slot as usize].right;
        }
    }

    fn begin_places(&mut self) {
        self.places.clear();
    }

    #[inline(always)]
    fn want_place(&mut self, range: Range) {
        self.places.want(range, self.roots[range.tree as usize]);
    }

    fn find_places(&mut self) {
        self.look_up();
    }

    #[inline]
    fn fetch(&self, records: &Records, slots: &[Slot]) {
        for slot in slots {
            records.fetch(*slot);
            prefetch(&self.nodes[*slot as usize]);
        }
    }

    fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.roots.capacity() * size_of::<Slot>()
    }
}

impl RedBlack {
    /// Nodes from the root down to this one, itself included.
    pub(crate) fn depth(&self, mut slot: Slot) -> u64 {
        let mut depth = 0;
        while slot != NIL {
            depth += 1;
            slot = self.nodes[slot as usize].parent;
        }
        depth
    }

    /// Where a new range belongs: below which node, on which side; and whether nothing can overlap it there.
    #[inline]
    fn place_for(&self, tree: u32, start: u64, end: u64) -> (Slot, bool, bool) {
        let (mut parent, mut at, mut alone, mut went_left) = (NIL, self.roots[tree as usize], true, false);
        while at != NIL {
            let here = &self.nodes[at as usize];
            parent = at;
            // Which way is a matter of chance: a branch would be mispredicted every other time.
            went_left = start < here.start;
            alone &= here.is_clear_of(start, end);
            at = select_unpredictable(went_left, here.left, here.right);
        }
        (parent, went_left, alone)
    }
}

#[cfg(test)]
mod tests;
