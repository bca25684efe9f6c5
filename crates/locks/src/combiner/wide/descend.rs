//! The way down, for one range or for a batch of them.
//!
//! To go down a large tree is to wait for one cache miss after the other. Several that go down in step wait for all of
//! theirs at once; and when its turn comes, a range goes where it was found to belong, if that is still so, which the
//! leaf's bounds tell.
//!
//! What it must not do: be relied upon. A place that no longer fits is looked up again.

use super::super::tree::{Range, TOGETHER};
use super::Wide;
use super::node::{ABOVE, Number};
use arrayvec::ArrayVec;

/// Where a range belongs.
#[derive(Clone, Copy, Debug)]
struct Found {
    tree: u32,
    start: u64,
    node: Number,
}

/// What was found out for a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    found: ArrayVec<Found, TOGETHER>,
    /// The first of `found` that has not been asked for.
    next: usize,
}

impl<const L: usize, const N: usize> Wide<L, N> {
    /// The leaf into which `start` belongs.
    #[inline]
    pub(super) fn leaf_for(&self, tree: u32, start: u64) -> Number {
        let mut number = self.roots[tree as usize].node;
        while number & ABOVE != 0 {
            let node = self.node(number);
            number = node.below[node.way(start)];
            self.fetch_node(number);
        }
        number
    }

    /// Finds out to which leaf each of `ranges` belongs.
    pub(super) fn find_leaves(&mut self, ranges: &[Range]) {
        let mut places = std::mem::take(&mut self.places);
        places.next = 0;
        places.found.clear();
        for Range { tree, start, .. } in ranges.iter().take(TOGETHER) {
            let node = self.roots[*tree as usize].node;
            places.found.push(Found { tree: *tree, start: *start, node });
        }
        let mut going = true;
        while going {
            going = false;
            for Found { start, node: number, .. } in &mut places.found {
                if *number & ABOVE == 0 {
                    continue;
                }
                let node = self.node(*number);
                *number = node.below[node.way(*start)];
                self.fetch_node(*number);
                going |= *number & ABOVE != 0;
            }
        }
        // Hints leave some of the wait to whoever comes first: the CPU need not follow them. Loads it must follow, and
        // since none of these depends on another they are all under way at once.
        std::hint::black_box(places.found.iter().fold(0, |seen, found| seen ^ self.leaf(found.node).touch()));
        self.places = places;
    }

    /// The leaf into which `start` belongs, if that was found out and is still so.
    #[inline(always)]
    pub(super) fn place_known(&mut self, tree: u32, start: u64) -> Option<Number> {
        let Places { found, next } = &mut self.places;
        if *next == found.len() {
            return None;
        }
        let ahead = found[*next..].iter().position(|place| (place.tree, place.start) == (tree, start))?;
        let leaf = found[*next + ahead].node;
        // Those before it were not asked for, and will not be.
        *next += ahead + 1;
        self.leaf(leaf).is_for(tree, start).then_some(leaf)
    }
}
