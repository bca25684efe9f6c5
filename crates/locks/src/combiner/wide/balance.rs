//! How the wide tree stays balanced: what is full is split, what has too few is joined with a neighbour or gets some of
//! the neighbour's; and how nodes know what below them reaches beyond its bounds.
//!
//! What it must not do: touch more than it must. A neighbour is looked at only if a node has too few.

use super::super::records::Records;
use super::Wide;
use super::leaf::{Leaf, fewest, joined};
use super::node::{ABOVE, NONE, Node, Number, Place};
use arrayvec::ArrayVec;

/// How many of `len` stay where they are when a node is split for something that starts at `start`.
fn kept(places: &[Place], most: usize, start: u64) -> usize {
    let len = places.len();
    // Who goes up or down in steps leaves full nodes behind.
    if len < most {
        len / 2
    } else if start >= places[len - 1].start {
        len - fewest(most)
    } else if start < places[0].start {
        fewest(most)
    } else {
        len / 2
    }
}

impl<const L: usize, const N: usize> Wide<L, N> {
    /// Something that ends at `end`, beyond the leaf's bounds, is new in it: tells those above whom it concerns.
    #[cold]
    pub(super) fn raise(&mut self, leaf: Number, end: u64) {
        let Leaf { mut high, parent: mut above, .. } = *self.leaf(leaf);
        let mut number = leaf;
        // Nothing reaches beyond the bounds of a root.
        while end > high {
            let parent = self.node_mut(above);
            let reach = &mut parent.reaches[parent.place_of(number)];
            *reach = end.max(*reach);
            (number, high, above) = (above, parent.high, parent.parent);
        }
    }

    /// What is in this leaf may reach less far beyond its bounds than it did: tells those above, as far as it is news there.
    #[cold]
    pub(super) fn settle(&mut self, leaf: Number) {
        let (mut number, mut above, mut new) = (leaf, self.leaf(leaf).parent, self.leaf(leaf).overhang());
        while above != NONE {
            let parent = self.node_mut(above);
            let reach = &mut parent.reaches[parent.place_of(number)];
            if *reach == new {
                return;
            }
            *reach = new;
            (number, new, above) = (above, parent.overhang(), parent.parent);
        }
    }

    // Cuts move between neighbours only: what reaches beyond the bounds of the node above them did so before and does so
    // afterwards. So what is below has to be told to that node, and to nobody else.

    /// Makes room for `start..end`, which belongs into this leaf. Returns the leaf into which it belongs then.
    #[cold]
    pub(super) fn make_way(
        &mut self,
        records: &mut Records,
        mut number: Number,
        start: u64,
        end: u64,
    ) -> Number {
        let places = self.leaf(number).in_order();
        // What made it note its ranges in full may be gone.
        self.fill_leaf(records, number, &places);
        while !self.has_way(number, end) {
            number = self.split_leaf(records, number, start);
        }
        number
    }

    /// Whether the leaf has room, once it notes its ranges the way this one needs.
    fn has_way(&mut self, number: Number, end: u64) -> bool {
        if self.leaf(number).has_room(end) {
            return true;
        }
        let leaf = self.leaf_mut(number);
        leaf.has_room_in_full() && {
            leaf.note_in_full();
            true
        }
    }

    /// Splits a leaf. Returns the half into which `start` belongs.
    fn split_leaf(&mut self, records: &mut Records, number: Number, start: u64) -> Number {
        let Leaf { tree, low, high, parent, .. } = *self.leaf(number);
        let above = self.room_above(number, parent, (tree, 1), (low, high));
        let places = self.leaf(number).in_order();
        let kept = kept(&places, Leaf::<L>::most(low, &places), start);
        let cut = places[kept].start;
        let right = self.take_leaf(Leaf::empty(tree, cut, high));
        self.leaf_mut(right).parent = above;
        self.leaf_mut(number).high = cut;
        self.fill_leaf(records, number, &places[..kept]);
        self.fill_leaf(records, right, &places[kept..]);
        let (left_end, right_end) = (self.leaf(number).overhang(), self.leaf(right).overhang());
        self.add_below(above, number, left_end, Place { start: cut, end: right_end, below: right });
        self.leaf_was(true, tree);
        if start < cut { number } else { right }
    }

    /// Splits a node above leaves, for something below it that begins at `start`.
    fn split_node(&mut self, number: Number, start: u64) {
        let Node { tree, level, low, high, parent, .. } = *self.node(number);
        let above = self.room_above(number, parent, (tree, level + 1), (low, high));
        let places: ArrayVec<_, N> = self.node(number).places().collect();
        let kept = kept(&places, N, start);
        let cut = places[kept].start;
        let right = self.take_node(Node { parent: above, ..Node::empty(tree, level, cut, high) });
        self.node_mut(number).high = cut;
        self.fill_node(number, &places[..kept]);
        self.fill_node(right, &places[kept..]);
        let (left_end, right_end) = (self.node(number).overhang(), self.node(right).overhang());
        self.add_below(above, number, left_end, Place { start: cut, end: right_end, below: right });
    }

    /// The node above one that is to be split, with room for one more.
    fn room_above(
        &mut self,
        number: Number,
        parent: Number,
        (tree, level): (u32, u8),
        (low, high): (u64, u64),
    ) -> Number {
        if parent == NONE {
            let root = self.take_node(Node::empty(tree, level, low, high));
            self.node_mut(root).push(Place { start: low, end: 0, below: number });
            self.set_parent(number, root);
            self.roots[tree as usize].node = root;
            return root;
        }
        if (self.node(parent).len as usize) < N {
            return parent;
        }
        self.split_node(parent, low);
        // The one that has this node below it now. Nodes that begin alike can be on either side of the cut.
        self.parent(number)
    }

    /// `left` was split: `right` is new behind it, and what is left reaches less far.
    fn add_below(&mut self, above: Number, left: Number, left_end: u64, right: Place) {
        let parent = self.node_mut(above);
        let place = parent.place_of(left);
        parent.reaches[place] = left_end;
        let mut below: ArrayVec<_, N> = parent.places().collect();
        below.insert(place + 1, right);
        parent.refill(&below);
    }

    /// A leaf has few: joins it with a neighbour, if that leaves some room, and in any case if it has none. Otherwise it stays as
    /// it is: where ranges come and go, moving some to it from a full neighbour would only be undone. So two neighbours have
    /// more between them than one should have, but for those that nothing has left since they were split.
    #[cold]
    pub(super) fn mend_leaf(&mut self, records: &mut Records, number: Number) {
        let Leaf { parent: above, len, tree, .. } = *self.leaf(number);
        if above == NONE {
            return;
        }
        let (place, left, right) = self.neighbours(above, number);
        let (is_empty, both) = (len == 0, self.leaf(left).len + self.leaf(right).len);
        if !is_empty && both as usize > joined(L) {
            return;
        }
        let mut places = self.leaf(left).in_order();
        places.extend(self.leaf(right).in_order());
        let most = Leaf::<L>::most(self.leaf(left).low, &places);
        if places.len() <= if is_empty { most } else { joined(most) } {
            self.leaf_mut(left).high = self.leaf(right).high;
            self.fill_leaf(records, left, &places);
            self.free_leaf(right);
            let end = self.leaf(left).overhang();
            self.take_below(above, place, left, end);
            self.leaf_was(false, tree);
            return;
        }
        if !is_empty {
            return;
        }
        // Noted from the left one's lower bound they do not fit into one. However they are noted, so many fit into the one that
        // has none, and the other has fewer than before.
        let given = (places.len() / 2).min(Leaf::<L>::IN_FULL);
        let kept = if left == number { given } else { places.len() - given };
        let cut = places[kept].start;
        (self.leaf_mut(left).high, self.leaf_mut(right).low) = (cut, cut);
        self.fill_leaf(records, left, &places[..kept]);
        self.fill_leaf(records, right, &places[kept..]);
        let ends = (self.leaf(left).overhang(), self.leaf(right).overhang());
        self.move_cut(above, place, cut, ends);
    }

    /// The same for a node above leaves.
    fn mend_node(&mut self, number: Number) {
        let above = self.node(number).parent;
        if above == NONE {
            return;
        }
        let (place, left, right) = self.neighbours(above, number);
        let places: ArrayVec<_, 32> =
            [left, right].iter().flat_map(|node| self.node(*node).places()).collect();
        if places.len() <= joined(N) {
            self.node_mut(left).high = self.node(right).high;
            self.fill_node(left, &places);
            self.free_node(right);
            let end = self.node(left).overhang();
            self.take_below(above, place, left, end);
            return;
        }
        let (few, more) = places.split_at(places.len() / 2);
        let cut = more[0].start;
        (self.node_mut(left).high, self.node_mut(right).low) = (cut, cut);
        self.fill_node(left, few);
        self.fill_node(right, more);
        let ends = (self.node(left).overhang(), self.node(right).overhang());
        self.move_cut(above, place, cut, ends);
    }

    /// A node, or its neighbour on the right if it is the first, with the one before it: its place in the node above, and both.
    fn neighbours(&self, above: Number, number: Number) -> (usize, Number, Number) {
        let parent = self.node(above);
        let place = parent.place_of(number).max(1);
        (place, parent.below[place - 1], parent.below[place])
    }

    /// What is in `place` begins elsewhere, and it and the one before it reach elsewhere.
    fn move_cut(&mut self, above: Number, place: usize, cut: u64, (left_end, right_end): (u64, u64)) {
        let parent = self.node_mut(above);
        (parent.reaches[place - 1], parent.reaches[place]) = (left_end, right_end);
        parent.lows[place] = cut;
    }

    /// What was in `place` is part of `left`, the one before it, which reaches to `end`.
    fn take_below(&mut self, above: Number, place: usize, left: Number, end: u64) {
        let parent = self.node_mut(above);
        parent.reaches[place - 1] = end;
        let mut below: ArrayVec<_, N> = parent.places().collect();
        below.remove(place);
        parent.refill(&below);
        let Node { parent: beyond, tree, .. } = *parent;
        if beyond == NONE && below.len() == 1 {
            // A root with one below it is none.
            self.roots[tree as usize].node = left;
            self.set_parent(left, NONE);
            self.free_node(above);
        } else if below.len() < fewest(N) {
            self.mend_node(above);
        }
    }

    /// Puts these into the leaf, and tells them where they are.
    fn fill_leaf(&mut self, records: &mut Records, number: Number, places: &[Place]) {
        self.leaf_mut(number).refill(places);
        for (at, place) in places.iter().enumerate() {
            records.get_mut(place.below).at = Self::standing(number, at);
        }
        let middle = places.get(places.len() / 2).map_or(self.leaf(number).low, |place| place.start);
        self.note(number, middle);
    }

    /// Puts these below the node, and tells them where they are.
    fn fill_node(&mut self, number: Number, places: &[Place]) {
        self.node_mut(number).refill(places);
        for place in places {
            self.set_parent(place.below, number);
        }
    }

    fn parent(&self, number: Number) -> Number {
        if number & ABOVE == 0 { self.leaf(number).parent } else { self.node(number).parent }
    }

    fn set_parent(&mut self, number: Number, parent: Number) {
        if number & ABOVE == 0 {
            self.leaf_mut(number).parent = parent;
        } else {
            self.node_mut(number).parent = parent;
        }
    }
}
