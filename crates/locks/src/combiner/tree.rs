//! The red-black interval tree of the thesis (Alg. 2 `tree`): requests by their range, held and waiting alike.
//!
//! Nodes live in one arena and refer to each other by number, so that a number stays a request's name for as long as
//! it lives, a node fills exactly one cache line, and no `unsafe` is needed. One arena holds many trees (one for each
//! lock that has ranges, one for all names together). A node is ordered by the start of its range, later ones behind
//! equal ones, and knows how far the ranges below it reach, on its left and on its right: so whoever looks for a place
//! or an overlap never touches a node beside its way. With a million nodes every touch is a cache miss; for a batch of
//! requests they can all be under way at once (`places`).
//!
//! What it must not do: know who blocks whom. It finds what overlaps; the rest is the combiner's.

use super::places::Places;
use lockwright_fabric::observe::Mode;
use std::hint::select_unpredictable;

/// A node's number in the arena.
pub(crate) type Slot = u32;

/// No node. The arena keeps a node of this number, black, so that the deletion's cases need no exceptions.
pub(crate) const NIL: Slot = 0;

/// The tree of a slot without a node.
const NOWHERE: u32 = u32::MAX;

/// A request, queued or granted: the thesis's `RequestNode` (Alg. 1), one cache line. Whose it is stands apart, in
/// [`Trees::owner`]: only answers need it.
///
/// | bytes | field |
/// |---|---|
/// | 0–15 | range, `start..end` |
/// | 16–31 | the largest end in the left subtree, in the right one |
/// | 32–39 | `stamp`: number of arrival while it waits, fencing token once granted |
/// | 40–51 | left, right, parent |
/// | 52–55 | `blocking`: how many conflicting requests stand before it (Alg. 1 `blockingRanges`) |
/// | 56–59 | the tree it is in |
/// | 60–63 | mode, state, colour, whether somebody's count includes it |
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Node {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(super) left_reach: u64,
    pub(super) right_reach: u64,
    pub(crate) stamp: u64,
    pub(crate) left: Slot,
    pub(crate) right: Slot,
    pub(crate) parent: Slot,
    pub(crate) blocking: u32,
    pub(crate) tree: u32,
    pub(crate) mode: Mode,
    pub(crate) state: State,
    pub(super) red: bool,
    /// Some waiting request may have counted this one: only then does its end concern anybody.
    pub(crate) blocks: bool,
}

const _: () = assert!(size_of::<Node>() == 64, "a node is one cache line");

/// Whose request a node is: the client, and the client's own id for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) client: u32,
    pub(crate) id: u32,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum State {
    /// In the queue.
    Waiting,
    /// Held.
    Granted,
    /// Held in shared mode, and waiting to hold it alone.
    Upgrading,
}

impl Node {
    /// A request that waits behind nobody yet.
    #[inline]
    pub(crate) fn new(start: u64, end: u64, mode: Mode) -> Self {
        Self {
            start,
            end,
            left_reach: 0,
            right_reach: 0,
            stamp: 0,
            left: NIL,
            right: NIL,
            parent: NIL,
            blocking: 0,
            tree: 0,
            mode,
            state: State::Waiting,
            red: false,
            blocks: false,
        }
    }

    /// The same request for other units; not in any tree yet.
    pub(crate) fn cut_to(mut self, start: u64, end: u64) -> Self {
        (self.start, self.end) = (start, end);
        self
    }

    /// Whether a new range that goes down from here can overlap neither this node nor anything on the other side of it.
    #[inline(always)]
    pub(crate) fn is_clear_of(&self, start: u64, end: u64) -> bool {
        let goes_left = start < self.start;
        // If left: everything on the right starts here or later. If right: what reaches over the new range from the left
        // is somewhere down there.
        let before = end <= self.start;
        let behind = self.end.max(self.left_reach) <= start;
        (goes_left & before) | (!goes_left & behind)
    }

    /// The largest end in its subtree. The empty node reaches nowhere.
    #[inline(always)]
    pub(super) fn reach(&self) -> u64 {
        self.end.max(self.left_reach).max(self.right_reach)
    }

    /// Whether it has a unit in common with `start..end`.
    #[inline(always)]
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// Some trees in one arena.
#[derive(Clone, Debug)]
pub(crate) struct Trees {
    pub(super) nodes: Vec<Node>,
    owners: Vec<Owner>,
    /// Slots without a node, linked by `left`.
    free: Slot,
    pub(super) roots: Vec<Slot>,
    live: usize,
    pub(super) places: Places,
}

impl Trees {
    /// No trees yet.
    pub(crate) fn new() -> Self {
        let (nobody, nowhere) = (Owner { client: 0, id: 0 }, Node::new(0, 0, Mode::Shared));
        let (roots, places) = (Vec::new(), Places::default());
        Self { nodes: vec![nowhere], owners: vec![nobody], free: NIL, roots, live: 0, places }
    }

    /// A new, empty tree.
    pub(crate) fn plant(&mut self) -> u32 {
        self.roots.push(NIL);
        self.roots.len() as u32 - 1
    }

    /// Whether the tree has no nodes.
    #[inline(always)]
    pub(crate) fn is_bare(&self, tree: u32) -> bool {
        self.roots[tree as usize] == NIL
    }

    /// Nodes in all trees.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Nodes from the root down to this one, itself included.
    pub(crate) fn depth(&self, mut slot: Slot) -> u64 {
        let mut depth = 0;
        while slot != NIL {
            depth += 1;
            slot = self.nodes[slot as usize].parent;
        }
        depth
    }

    /// Bytes of memory it has taken.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.owners.capacity() * size_of::<Owner>()
            + self.roots.capacity() * size_of::<Slot>()
    }

    /// The node.
    #[inline(always)]
    pub(crate) fn node(&self, slot: Slot) -> &Node {
        &self.nodes[slot as usize]
    }

    /// Whose it is.
    #[inline(always)]
    pub(crate) fn owner(&self, slot: Slot) -> Owner {
        self.owners[slot as usize]
    }

    /// The node, to be changed; never its range.
    #[inline(always)]
    pub(crate) fn node_mut(&mut self, slot: Slot) -> &mut Node {
        &mut self.nodes[slot as usize]
    }

    /// Puts `node` into the tree it names. Also says whether nothing there overlaps it; where that cannot be seen on
    /// the way down, the answer is no, and [`Trees::overlapping`] finds out.
    #[inline]
    pub(crate) fn insert(&mut self, node: Node, owner: Owner) -> (Slot, bool) {
        let Node { start, end, tree, .. } = node;
        let (parent, went_left, alone) = match self.place_known(tree, start, end) {
            Some(place) => place,
            None => self.place_for(tree, start, end),
        };
        self.places.crowded |= !alone;
        let slot = self.take_slot(node, owner);
        let new = &mut self.nodes[slot as usize];
        (new.parent, new.left, new.right, new.red) = (parent, NIL, NIL, true);
        (new.left_reach, new.right_reach) = (0, 0);
        if parent == NIL {
            self.roots[tree as usize] = slot;
        } else {
            self.set_child(parent, !went_left, slot);
            self.raise(slot, end);
        }
        self.mend_insert(tree, slot);
        (slot, alone)
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

    /// Takes the node out of its tree and forgets it.
    #[inline]
    pub(crate) fn remove(&mut self, slot: Slot) {
        let Node { left, right, left_reach, right_reach, parent, red, tree, .. } = self.nodes[slot as usize];
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
        self.free_slot(slot);
    }

    /// Adds to `found` every node of `tree` that has a unit in common with `start..end`, by their starts.
    pub(crate) fn overlapping(&self, tree: u32, start: u64, end: u64, found: &mut Vec<Slot>) {
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

    /// Every node of `tree`, by start.
    pub(crate) fn walk(&self, tree: u32, found: &mut Vec<Slot>) {
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

    // ---- slots ----

    #[inline]
    fn take_slot(&mut self, node: Node, owner: Owner) -> Slot {
        self.live += 1;
        if self.free != NIL {
            let slot = self.free;
            self.free = self.nodes[slot as usize].left;
            self.nodes[slot as usize] = node;
            self.owners[slot as usize] = owner;
            return slot;
        }
        if self.nodes.len() == self.nodes.capacity() {
            // By an eighth, not by doubling: a million nodes should not cost the memory of two.
            let more = (self.nodes.len() / 8).max(16);
            self.nodes.reserve_exact(more);
            self.owners.reserve_exact(more);
        }
        self.nodes.push(node);
        self.owners.push(owner);
        Slot::try_from(self.nodes.len() - 1).expect("the combiner's limits keep requests below 2^32")
    }

    #[inline]
    fn free_slot(&mut self, slot: Slot) {
        self.live -= 1;
        let node = &mut self.nodes[slot as usize];
        (node.left, node.tree) = (self.free, NOWHERE);
        self.free = slot;
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
