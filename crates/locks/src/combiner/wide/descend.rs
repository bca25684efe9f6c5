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
use super::shortcuts::Shortcuts;
use arrayvec::ArrayVec;

/// Where a range belongs.
#[derive(Clone, Copy, Debug)]
struct Found {
    tree: u32,
    start: u64,
    /// The step of `start`.
    step: usize,
    node: Number,
    /// Where it is otherwise.
    next: Number,
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

    /// The leaf for `start` is wanted.
    #[inline(always)]
    pub(super) fn want(&mut self, tree: u32, start: u64, step: usize) {
        self.found.push(Found { tree, start, step, node: 0, next: 0 });
    }
}

impl<const L: usize, const N: usize> Wide<L, N> {
    /// The leaf into which `start` belongs. If there was no short cut that leads there, there is one next time.
    #[inline(always)]
    pub(super) fn find_leaf(&mut self, tree: u32, start: u64) -> Number {
        match self.short_cut(tree, start) {
            Some(leaf) => leaf,
            None if self.shortcuts[tree as usize].exist() => self.make_short_cut(tree, start),
            None => self.way_down(tree, start),
        }
    }

    /// The same without making one.
    pub(super) fn leaf_for(&self, tree: u32, start: u64) -> Number {
        self.short_cut(tree, start).unwrap_or_else(|| self.way_down(tree, start))
    }

    #[inline(always)]
    pub(super) fn short_cut(&self, tree: u32, start: u64) -> Option<Number> {
        let shortcuts = &self.shortcuts[tree as usize];
        if !shortcuts.exist() {
            return None;
        }
        let noted = shortcuts.leaves(shortcuts.step(start));
        self.leaf(noted.0).fetch();
        Shortcuts::right(&self.leaves, noted, (tree, start))
    }

    #[cold]
    fn make_short_cut(&mut self, tree: u32, start: u64) -> Number {
        let number = self.way_down(tree, start);
        self.note(number, start);
        number
    }

    /// The leaf into which `start` belongs: all the way down.
    #[inline]
    fn way_down(&self, tree: u32, start: u64) -> Number {
        let mut number = self.roots[tree as usize].node;
        while number & ABOVE != 0 {
            let node = self.node(number);
            number = node.below[node.way(start)];
            self.fetch_node(number);
        }
        number
    }

    /// Finds out to which leaf each of the ranges wanted belongs, all of which are far.
    pub(super) fn find_leaves(&mut self) {
        let Self { leaves, roots, shortcuts, places: Places { found, .. }, .. } = self;
        for Found { tree, step, node, next, .. } in &mut *found {
            let shortcuts = &shortcuts[*tree as usize];
            if shortcuts.exist() {
                (*node, *next) = shortcuts.leaves(*step);
                leaves.at(*node).fetch_far();
                // Perhaps the one ends within the step.
                if next != node {
                    leaves.at(*next).fetch_far();
                }
            }
        }
        let mut lost = ArrayVec::<u8, TOGETHER>::new();
        for (at, Found { tree, start, node, next, .. }) in found.iter_mut().enumerate() {
            *node = Shortcuts::right(leaves, (*node, *next), (*tree, *start)).unwrap_or_else(|| {
                lost.push(at as u8);
                roots[*tree as usize].node
            });
        }
        if !lost.is_empty() {
            self.go_down();
            for at in lost {
                let Found { start, node, .. } = self.places.found[at as usize];
                self.note(node, start);
            }
        }
        // Hints leave some of the wait to the first access: the CPU need not follow them. Loads it must follow, and
        // since none of these depends on another they are all under way at once.
        let seen = self.places.found.iter().fold(0, |seen, found| seen ^ self.leaf(found.node).touch());
        std::hint::black_box(seen);
    }

    /// The way down for all for whom there is no short cut, in step.
    fn go_down(&mut self) {
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
                    leaves.at(*number).fetch_far();
                } else {
                    above.at(*number & !ABOVE).fetch();
                    going = true;
                }
            }
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
