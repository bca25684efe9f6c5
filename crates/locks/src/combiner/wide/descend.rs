//! The way down, for one range or for a batch of them.
//!
//! To go down a large tree is to wait for one cache miss after the other. Several that go down in step wait for all of
//! theirs at once; and when its turn comes, a range goes where it was found to belong, if that is still so, which the
//! leaf's bounds tell.
//!
//! What it must not do: be relied upon. A place that no longer fits is looked up again.

use super::super::tree::TOGETHER;
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

impl Places {
    pub(super) fn clear(&mut self) {
        self.found.clear();
        self.next = 0;
    }

    /// The leaf for `start` is wanted, which is somewhere below `node`.
    #[inline(always)]
    pub(super) fn want(&mut self, tree: u32, start: u64, node: Number) {
        self.found.push(Found { tree, start, node });
    }
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

    /// Finds out to which leaf each of the ranges wanted belongs. The nodes on the way are fetched ahead if they are far.
    pub(super) fn find_leaves<const FAR: bool>(&mut self) {
        let Self { above, leaves, places: Places { found, .. }, .. } = self;
        let mut going = true;
        while going {
            going = false;
            for Found { start, node: number, .. } in &mut *found {
                if *number & ABOVE == 0 {
                    continue;
                }
                let node = above.at(*number & !ABOVE);
                *number = node.below[node.way(*start)];
                if *number & ABOVE == 0 {
                    let leaf = leaves.at(*number);
                    if FAR { leaf.fetch_far() } else { leaf.fetch() }
                } else {
                    if FAR {
                        above.at(*number & !ABOVE).fetch();
                    }
                    going = true;
                }
            }
        }
        if FAR {
            // Hints leave some of the wait to whoever comes first: the CPU need not follow them. Loads it must follow, and
            // since none of these depends on another they are all under way at once.
            std::hint::black_box(found.iter().fold(0, |seen, found| seen ^ leaves.at(found.node).touch()));
        }
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
