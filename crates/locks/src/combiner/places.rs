//! Where the ranges of a batch belong, found out together before the first of them is inserted.
//!
//! To go down a large tree is to wait for one cache miss after the other. Several that go down in step wait for all of
//! theirs at once; and when its turn comes, a range is put where it was found to belong, if that is still so. That is
//! seen from the place itself: in the order of starts it lies between two neighbours, and nothing else.
//!
//! What it must not do: be relied upon. A place that no longer fits is looked up again.

use super::tree::{NIL, Slot, Trees};
use arrayvec::ArrayVec;
use lockwright_fabric::backend::prefetch;
use std::hint::select_unpredictable;

/// As many are looked up at once: as many misses as a core can have under way, and some for those that hit.
pub(super) const TOGETHER: usize = 32;

/// A range that will be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) tree: u32,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Where it belongs.
#[derive(Clone, Copy, Debug)]
struct Place {
    range: Range,
    at: Slot,
    parent: Slot,
    alone: bool,
}

/// What was found out for a batch, and what has been inserted since.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    found: ArrayVec<Place, TOGETHER>,
    /// The first of `found` that has not been asked for.
    next: usize,
    since: ArrayVec<Range, TOGETHER>,
}

impl Trees {
    /// Finds out where each of `ranges` belongs. Nothing is changed.
    pub(super) fn find_places(&mut self, ranges: impl IntoIterator<Item = Range>) {
        let mut places = std::mem::take(&mut self.places);
        (places.next, places.found) = (0, ArrayVec::new());
        places.since.clear();
        places.found.extend(ranges.into_iter().take(TOGETHER).map(|range| {
            let at = self.roots[range.tree as usize];
            Place { range, at, parent: NIL, alone: true }
        }));
        let mut going = !places.found.is_empty();
        while going {
            let mut all = NIL;
            for Place { range: Range { start, end, .. }, at, parent, alone } in &mut places.found {
                let here = &self.nodes[*at as usize];
                *parent = select_unpredictable(*at == NIL, *parent, *at);
                // The empty node is in nobody's way, and has only itself below it.
                *alone &= here.is_clear_of(*start, *end);
                *at = select_unpredictable(*start < here.start, here.left, here.right);
                all |= *at;
            }
            going = all != NIL;
        }
        for place in &places.found {
            // What a new node's colour may concern.
            let above = &self.nodes[self.nodes[place.parent as usize].parent as usize];
            let uncle = if above.left == place.parent { above.right } else { above.left };
            prefetch(&self.nodes[uncle as usize]);
        }
        self.places = places;
    }

    /// Brings the node into the cache, and waits for nothing.
    #[inline(always)]
    pub(super) fn fetch(&self, slot: Slot) {
        prefetch(&self.nodes[slot as usize]);
    }

    /// Where the range belongs, if that was found out and is still so: below which node, whether on the left, and whether
    /// nothing can overlap it there. It will be inserted.
    #[inline(always)]
    pub(super) fn place_known(&mut self, tree: u32, start: u64, end: u64) -> Option<(Slot, bool, bool)> {
        if self.places.next == self.places.found.len() {
            return None;
        }
        self.place_found(Range { tree, start, end })
    }

    fn place_found(&mut self, range: Range) -> Option<(Slot, bool, bool)> {
        let places = &mut self.places;
        let waiting = &places.found[places.next..];
        let found = waiting.iter().position(|place| place.range == range);
        let place = found.map(|ahead| waiting[ahead]);
        // Those before it were not asked for, and will not be.
        places.next += found.map_or(0, |ahead| ahead + 1);
        let Range { tree, start, end } = range;
        let meets = |other: &Range| other.tree == tree && other.start < end && start < other.end;
        let alone = !places.since.iter().any(meets);
        if places.since.try_push(range).is_err() {
            // More has been inserted than was asked for: what was found no longer tells who is alone.
            places.next = places.found.len();
        }
        let place = place?;
        let goes_left = start < self.nodes[place.parent as usize].start;
        self.fits(&range, place.parent, goes_left).then_some((place.parent, goes_left, place.alone & alone))
    }

    /// Whether a range that starts there belongs below `parent` on that side: nobody is there, and in the order of starts
    /// it would stand behind the one neighbour and before the other.
    fn fits(&self, range: &Range, parent: Slot, goes_left: bool) -> bool {
        if parent == NIL {
            return self.roots[range.tree as usize] == NIL;
        }
        let node = &self.nodes[parent as usize];
        let child = if goes_left { node.left } else { node.right };
        if child != NIL || node.tree != range.tree {
            return false;
        }
        // The other neighbour is the first above of which this is on the other side.
        let (mut below, mut at) = (parent, node.parent);
        while at != NIL && (self.nodes[at as usize].left == below) == goes_left {
            (below, at) = (at, self.nodes[at as usize].parent);
        }
        let other = &self.nodes[at as usize];
        at == NIL || (other.start <= range.start) == goes_left
    }
}
