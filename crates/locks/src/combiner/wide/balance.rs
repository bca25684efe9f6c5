//! How the wide tree stays balanced: a node that is full is split, one that has too few is joined with a neighbour or gets
//! some of the neighbour's; and how nodes know what below them reaches beyond
//! its bounds.
//!
//! What it must not do: touch more than it must. A neighbour is looked at only if a node has too few.

use super::Wide;
use super::node::{NEVER, NONE, Node, Number, Place};
use arrayvec::ArrayVec;

impl<const N: usize> Wide<N> {
    /// Something that ends at `end`, beyond the node's bounds, is new in it: tells those above whom it concerns.
    #[cold]
    pub(super) fn raise(&mut self, mut number: Number, end: u64) {
        while end > self.node(number).high {
            // Nothing reaches beyond the bounds of a root.
            let above = self.node(number).parent;
            let parent = self.node_mut(above);
            let overhang = &mut parent.ends[parent.place_of(number)];
            *overhang = end.max(*overhang);
            number = above;
        }
    }

    /// What is in this node may reach less far beyond its bounds than it did: tells those above, as far as it is news
    /// there.
    #[cold]
    pub(super) fn settle(&mut self, mut number: Number) {
        loop {
            let (above, new) = (self.node(number).parent, self.node(number).overhang());
            if above == NONE {
                return;
            }
            let parent = self.node_mut(above);
            let overhang = &mut parent.ends[parent.place_of(number)];
            if *overhang == new {
                return;
            }
            *overhang = new;
            number = above;
        }
    }

    // Cuts move between neighbours only: what reaches beyond the bounds of the node above them did so before and does so
    // afterwards. So what is below has to be told to that node, and to nobody else.

    /// Splits a full node. Returns the half into which `start` belongs.
    #[cold]
    pub(super) fn split(&mut self, number: Number, start: u64) -> Number {
        let Node { tree, level, low, high, parent, .. } = *self.node(number);
        let above = if parent == NONE {
            let root = self.take_node(Node::empty(tree, level + 1, low, high));
            self.node_mut(root).push(Place { start: low, end: 0, below: number });
            self.node_mut(number).parent = root;
            self.roots[tree as usize].node = root;
            root
        } else if self.node(parent).len as usize == N {
            self.split(parent, low);
            // The one that has this node below it now. Nodes that begin alike can be on either side of the cut.
            self.node(number).parent
        } else {
            parent
        };
        let places = self.in_order(&[number]);
        // Who goes up or down in steps leaves full nodes behind.
        let kept = if start >= places[N - 1].start {
            N - Node::<N>::FEWEST
        } else if start < places[0].start {
            Node::<N>::FEWEST
        } else {
            N / 2
        };
        let cut = places[kept].start;
        let right = self.take_node(Node { parent: above, ..Node::empty(tree, level, cut, high) });
        self.node_mut(number).high = cut;
        self.fill(number, &places[..kept]);
        self.fill(right, &places[kept..]);
        let (left_end, right_end) = (self.node(number).overhang(), self.node(right).overhang());
        let parent = self.node_mut(above);
        let place = parent.place_of(number);
        parent.ends[place] = left_end;
        let mut below: ArrayVec<_, N> = parent.places().collect();
        below.insert(place + 1, Place { start: cut, end: right_end, below: right });
        parent.refill(&below);
        if start < cut { number } else { right }
    }

    /// A node has too few: gives it more, or joins it with a neighbour.
    #[cold]
    pub(super) fn mend(&mut self, number: Number) {
        let Node { parent: above, tree, .. } = *self.node(number);
        if above == NONE {
            return;
        }
        let parent = *self.node(above);
        let place = parent.place_of(number).max(1);
        let (left, right) = (parent.below[place - 1], parent.below[place]);
        let places = self.in_order(&[left, right]);
        if places.len() > Node::<N>::JOINED {
            let (few, more) = places.split_at(places.len() / 2);
            let cut = more[0].start;
            (self.node_mut(left).high, self.node_mut(right).low) = (cut, cut);
            self.fill(left, few);
            self.fill(right, more);
            let (left_end, right_end) = (self.node(left).overhang(), self.node(right).overhang());
            let parent = self.node_mut(above);
            (parent.ends[place - 1], parent.ends[place]) = (left_end, right_end);
            parent.starts[place] = cut;
            return;
        }
        self.node_mut(left).high = self.node(right).high;
        self.fill(left, &places);
        self.free_node(right);
        let end = self.node(left).overhang();
        let parent = self.node_mut(above);
        parent.ends[place - 1] = end;
        let mut below: ArrayVec<_, N> = parent.places().collect();
        below.remove(place);
        parent.refill(&below);
        if parent.parent == NONE && below.len() == 1 {
            // A root with one below it is none.
            self.roots[tree as usize].node = left;
            self.node_mut(left).parent = NONE;
            self.free_node(above);
        } else if below.len() < Node::<N>::FEWEST {
            self.mend(above);
        }
    }

    /// What is in these one or two neighbours, in order.
    fn in_order(&self, numbers: &[Number]) -> ArrayVec<Place, 32> {
        let mut places: ArrayVec<_, 32> =
            numbers.iter().flat_map(|number| self.node(*number).places()).collect();
        if self.node(numbers[0]).level == 0 {
            places.sort_unstable_by_key(|place| place.start);
        }
        places
    }

    /// Puts these into the node, and tells them where they are.
    fn fill(&mut self, number: Number, places: &[Place]) {
        let node = self.node_mut(number);
        debug_assert!(places.iter().all(|place| node.low <= place.start && place.start <= node.high));
        node.refill(places);
        let level = node.level;
        for place in places {
            if level == 0 {
                self.records.get_mut(place.below).at = number;
            } else {
                self.node_mut(place.below).parent = number;
            }
        }
        debug_assert!(places.iter().all(|place| place.start != NEVER));
    }
}
