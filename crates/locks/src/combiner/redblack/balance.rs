//! How the tree stays balanced: red and black (Cormen, Leiserson, Rivest, Stein, ch. 13), with what nodes know of the
//! reaches below them kept right (ch. 17.3).
//!
//! What it must not do: look at ranges' starts. Order is the business of the tree itself and of `places`.

use super::{NIL, Node, RedBlack, Slot};

impl RedBlack {
    #[inline(always)]
    pub(super) fn is_red(&self, slot: Slot) -> bool {
        self.nodes[slot as usize].red
    }

    pub(super) fn leftmost(&self, mut at: Slot) -> Slot {
        while self.nodes[at as usize].left != NIL {
            at = self.nodes[at as usize].left;
        }
        at
    }

    /// Something that ends at `end` is new at or below `below`: tells everything above, as far as it is news there.
    #[inline]
    pub(super) fn raise(&mut self, mut below: Slot, end: u64) {
        let mut at = self.nodes[below as usize].parent;
        while at != NIL {
            let node = &mut self.nodes[at as usize];
            let reach = if node.right == below { &mut node.right_reach } else { &mut node.left_reach };
            if *reach >= end {
                return;
            }
            *reach = end;
            (below, at) = (at, node.parent);
        }
    }

    /// The subtree `below` (possibly empty), on that side of `at`, has changed: puts right what is known of it above, and
    /// stops where nothing changes.
    #[inline]
    pub(super) fn settle(&mut self, mut below: Slot, mut at: Slot, mut on_right: bool) {
        while at != NIL {
            let new = self.nodes[below as usize].reach();
            let node = &mut self.nodes[at as usize];
            let reach = if on_right { &mut node.right_reach } else { &mut node.left_reach };
            if *reach == new {
                return;
            }
            *reach = new;
            (below, at) = (at, node.parent);
            on_right = self.nodes[at as usize].right == below;
        }
    }

    /// `new` stands where `old` stood, in the eyes of `old`'s parent.
    #[inline]
    pub(super) fn replace(&mut self, tree: u32, old: Slot, new: Slot) {
        let parent = self.nodes[old as usize].parent;
        if parent == NIL {
            self.roots[tree as usize] = new;
        } else if self.nodes[parent as usize].left == old {
            self.nodes[parent as usize].left = new;
        } else {
            self.nodes[parent as usize].right = new;
        }
        self.nodes[new as usize].parent = parent;
    }

    /// The child on the given side.
    #[inline(always)]
    pub(super) fn child(&self, slot: Slot, right: bool) -> Slot {
        let node = &self.nodes[slot as usize];
        if right { node.right } else { node.left }
    }

    #[inline(always)]
    pub(super) fn set_child(&mut self, slot: Slot, right: bool, child: Slot) {
        let node = &mut self.nodes[slot as usize];
        if right { node.right = child } else { node.left = child }
    }

    /// Turns `slot` down to the given side; its child on the other side comes up.
    pub(super) fn rotate(&mut self, tree: u32, slot: Slot, to_right: bool) {
        let up = self.child(slot, !to_right);
        let inner = self.child(up, to_right);
        self.set_child(slot, !to_right, inner);
        if inner != NIL {
            self.nodes[inner as usize].parent = slot;
        }
        self.replace(tree, slot, up);
        self.set_child(up, to_right, slot);
        self.nodes[slot as usize].parent = up;
        let Node { left_reach, right_reach, .. } = self.nodes[up as usize];
        let down = &mut self.nodes[slot as usize];
        if to_right {
            down.left_reach = right_reach;
        } else {
            down.right_reach = left_reach;
        }
        let reach = down.reach();
        let up = &mut self.nodes[up as usize];
        if to_right { up.right_reach = reach } else { up.left_reach = reach }
    }

    pub(super) fn mend_insert(&mut self, tree: u32, mut at: Slot) {
        loop {
            let parent = self.nodes[at as usize].parent;
            if !self.is_red(parent) {
                break;
            }
            // A red node has a parent: roots are black.
            let above = self.nodes[parent as usize].parent;
            let on_right = self.nodes[above as usize].right == parent;
            let uncle = self.child(above, !on_right);
            if self.is_red(uncle) {
                self.nodes[parent as usize].red = false;
                self.nodes[uncle as usize].red = false;
                self.nodes[above as usize].red = true;
                at = above;
                continue;
            }
            let mut parent = parent;
            if self.child(parent, !on_right) == at {
                self.rotate(tree, parent, on_right);
                std::mem::swap(&mut parent, &mut at);
            }
            self.nodes[parent as usize].red = false;
            self.nodes[above as usize].red = true;
            self.rotate(tree, above, !on_right);
            break;
        }
        let root = self.roots[tree as usize];
        self.nodes[root as usize].red = false;
    }

    /// `at` (possibly the empty node, whose parent is set) is one black short.
    pub(super) fn mend_remove(&mut self, tree: u32, mut at: Slot) {
        while at != self.roots[tree as usize] && !self.is_red(at) {
            let parent = self.nodes[at as usize].parent;
            let on_right = self.nodes[parent as usize].right == at;
            let mut sibling = self.child(parent, !on_right);
            if self.is_red(sibling) {
                self.nodes[sibling as usize].red = false;
                self.nodes[parent as usize].red = true;
                self.rotate(tree, parent, on_right);
                sibling = self.child(parent, !on_right);
            }
            let (near, far) = (self.child(sibling, on_right), self.child(sibling, !on_right));
            if !self.is_red(near) && !self.is_red(far) {
                self.nodes[sibling as usize].red = true;
                at = parent;
                continue;
            }
            if !self.is_red(far) {
                self.nodes[near as usize].red = false;
                self.nodes[sibling as usize].red = true;
                self.rotate(tree, sibling, !on_right);
                sibling = self.child(parent, !on_right);
            }
            self.nodes[sibling as usize].red = self.is_red(parent);
            self.nodes[parent as usize].red = false;
            let far = self.child(sibling, !on_right);
            self.nodes[far as usize].red = false;
            self.rotate(tree, parent, on_right);
            at = self.roots[tree as usize];
        }
        self.nodes[at as usize].red = false;
    }
}
