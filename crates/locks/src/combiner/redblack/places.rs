//! Where the ranges of a batch belong, found out together before the first of them is inserted.
//!
//! To go down a large tree is to wait for one cache miss after the other. Several that go down in step wait for all of
//! theirs at once; and when its turn comes, a range is put where it was found to belong, if that is still so. That is
//! seen from the place itself: in the order of starts it lies between two neighbours, and nothing else.
//!
//! What it must not do: be relied upon. A place that no longer fits is looked up again.

use super::super::tree::{Range, TOGETHER};
use super::{NIL, Records, RedBlack, Slot};
use arrayvec::ArrayVec;
use lockwright_fabric::backend::prefetch;
use std::hint::select_unpredictable;

/// Where it belongs.
#[derive(Clone, Copy, Debug)]
struct Place {
    range: Range,
    at: Slot,
    parent: Slot,
    alone: bool,
}

/// What was found out for a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    found: ArrayVec<Place, TOGETHER>,
    /// The first of `found` that has not been asked for.
    next: usize,
    /// Something that overlaps others, for all that was seen, has been inserted since.
    pub(super) crowded: bool,
}

impl Places {
    pub(super) fn clear(&mut self) {
        (self.next, self.crowded) = (0, false);
        self.found.clear();
    }

    /// The place of this range is wanted, which is somewhere below `root`.
    #[inline(always)]
    pub(super) fn want(&mut self, range: Range, root: Slot) {
        self.found.push(Place { range, at: root, parent: NIL, alone: true });
    }
}

impl RedBlack {
    /// Finds out where each of the ranges wanted belongs. Nothing is changed.
    pub(super) fn look_up(&mut self) {
        let Self { places, nodes, .. } = self;
        let mut going = !places.found.is_empty();
        while going {
            let mut all = NIL;
            for Place { range: Range { start, end, .. }, at, parent, alone } in &mut places.found {
                let here = &nodes[*at as usize];
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
            let above = &nodes[nodes[place.parent as usize].parent as usize];
            let uncle = if above.left == place.parent { above.right } else { above.left };
            prefetch(&nodes[uncle as usize]);
        }
    }

    /// Where the range belongs, if that was found out and is still so: below which node, whether on the left, and whether
    /// nothing can overlap it there. It will be inserted.
    #[inline(always)]
    pub(super) fn place_known(
        &mut self,
        records: &Records,
        slot: Slot,
        (start, end): (u64, u64),
    ) -> Option<(Slot, bool, bool)> {
        if self.places.next == self.places.found.len() {
            return None;
        }
        let tree = records.get(slot).tree;
        self.place_found(records, slot, Range { tree, start, end })
    }

    #[inline]
    fn place_found(&mut self, records: &Records, slot: Slot, range: Range) -> Option<(Slot, bool, bool)> {
        let places = &mut self.places;
        let waiting = &places.found[places.next..];
        let ahead = waiting.iter().position(|place| place.range == range)?;
        let Place { parent, alone, .. } = waiting[ahead];
        // Those before it were not asked for, and will not be.
        places.next += ahead + 1;
        let goes_left = range.start < self.nodes[parent as usize].start;
        let clear = self.fits(records, slot, &range, parent, goes_left)?;
        Some((parent, goes_left, alone & clear & !self.places.crowded))
    }

    /// Whether a range that starts there belongs below `parent` on that side: nobody is there, and in the order of starts
    /// it would stand behind the one neighbour and before the other. If so, whether it overlaps neither.
    ///
    /// A range that overlapped nothing when its place was found, in a tree where nothing since has been inserted over
    /// anything else, can overlap only its neighbours: whatever stood between it and another it overlaps would overlap
    /// one of the two.
    #[inline]
    fn fits(
        &self,
        records: &Records,
        slot: Slot,
        range: &Range,
        parent: Slot,
        goes_left: bool,
    ) -> Option<bool> {
        if parent == NIL {
            return (self.roots[range.tree as usize] == NIL).then_some(true);
        }
        let node = &self.nodes[parent as usize];
        let child = if goes_left { node.left } else { node.right };
        // Gone, and perhaps the slot is this very request's by now, whose record says its tree but which is in none yet.
        if child != NIL || parent == slot || records.get(parent).tree != range.tree {
            return None;
        }
        // The other neighbour is the first above of which this is on the other side.
        let (mut below, mut at) = (parent, node.parent);
        while at != NIL && (self.nodes[at as usize].left == below) == goes_left {
            (below, at) = (at, self.nodes[at as usize].parent);
        }
        let other = &self.nodes[at as usize];
        // The empty node starts and ends at zero: it is before everything, and in nobody's way there.
        let (before, behind) = if goes_left { (other, node) } else { (node, other) };
        let is_last = !goes_left && at == NIL;
        let fits = before.start <= range.start && (is_last || range.start < behind.start);
        fits.then_some(before.end <= range.start && (is_last || range.end <= behind.start))
    }
}
