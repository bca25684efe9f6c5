//! Short cuts past the way down: which leaf of a tree a start belongs into, by where between the first and the last it lies.
//!
//! The way down a tree of a million ranges is five nodes, each of which has to be there before the next can be asked for.
//! But where ranges lie evenly, and mostly they do, where a start lies tells as much as all of these nodes together. So
//! every tree with more than a few leaves divides its span into *steps* of equal length, some for each leaf, and notes for each
//! step the leaf into which its first unit belongs. A start belongs into that leaf or, if that one ends within the
//! step, most likely into that of the next step.
//!
//! What it must not do: be relied upon. Leaves come and go, and where ranges lie unevenly many share a step. A leaf that was found
//! this way says itself whether it is the right one; if not, there is the way down.

use super::super::records::make_large;
use super::leaf::Leaf;
use super::node::{ABOVE, Number};
use super::{Arena, Wide};
use lockwright_fabric::backend::prefetch;

/// Trees with fewer leaves have none: the way down is as short.
const FEW: u32 = 64;
/// Steps for each leaf, when they are made anew.
const STEPS: usize = 4;
/// If more than one leaf in so many is shorter than a step, ranges lie too unevenly for short cuts.
const UNEVEN: u32 = 4;
/// Steps on either side of a start that are noted together with its own.
const AROUND: usize = 8;

/// The short cuts of a tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Shortcuts {
    /// The leaf into which the first unit of each step belongs; none: there are no short cuts.
    leaves: Vec<Number>,
    /// Where the first step begins. It takes in what is before, and the last what is behind.
    first: u64,
    /// Steps in a unit, as a fraction of 2^64.
    scale: u64,
    /// How many leaves the tree had when these were made, or not made because they would lead nowhere.
    made_for: u32,
    /// How many leaves were split since then.
    splits: u32,
}

impl Shortcuts {
    /// For these leaves, in order.
    fn new<const L: usize>(arena: &Arena<Leaf<L>>, leaves: &[Number]) -> Self {
        let low = |at: usize| arena.at(leaves[at]).low;
        let (last, margin) = (leaves.len() - 1, leaves.len() / 32);
        // The first leaf begins at zero, wherever its ranges are. And a few that are far away from all others do not count.
        let (whole, inner) = ((low(1), low(last)), (low(1 + margin), low(last - margin)));
        let is_even = (whole.1 - whole.0) / 4 <= inner.1 - inner.0;
        let (first, end) = if is_even { whole } else { inner };
        let span = (end - first).max(1);
        let steps = (STEPS * leaves.len()).min(usize::try_from(span).unwrap_or(usize::MAX));
        let scale = u64::try_from(((steps as u128) << 64) / u128::from(span)).unwrap_or(u64::MAX);
        let made_for = leaves.len() as u32;
        let mut this = Self { leaves: make_large(steps), first, scale, made_for, splits: 0 };
        let mut short = 0;
        for number in leaves {
            let (from, to) = this.of(arena.at(*number));
            this.leaves[from..to].fill(*number);
            short += u32::from(from == to);
        }
        if short > made_for / UNEVEN { Self { made_for, ..Self::default() } } else { this }
    }

    /// Whether they are for a tree of about so many leaves, about where they are now.
    const fn are_for(&self, leaves: u32) -> bool {
        match self.made_for {
            0 => leaves < FEW,
            made_for => made_for / 4 <= leaves && leaves <= made_for / 3 * 4 && self.splits <= made_for / 4,
        }
    }

    /// Whether there are any.
    #[inline(always)]
    pub(super) const fn exist(&self) -> bool {
        !self.leaves.is_empty()
    }

    /// The step of that start.
    #[inline(always)]
    pub(super) fn step(&self, start: u64) -> usize {
        let steps = u128::from(start.saturating_sub(self.first)) * u128::from(self.scale);
        ((steps >> 64) as usize).min(self.leaves.len().wrapping_sub(1))
    }

    /// The steps whose first unit belongs into the leaf.
    fn of<const L: usize>(&self, leaf: &Leaf<L>) -> (usize, usize) {
        let from = if leaf.low == 0 { 0 } else { self.step(leaf.low - 1) + 1 };
        (from, (self.step(leaf.high.saturating_sub(1)) + 1).max(from))
    }

    /// Starts to bring into the cache what is noted for this step.
    #[inline(always)]
    pub(super) fn fetch(&self, step: usize) {
        if let Some(leaf) = self.leaves.get(step) {
            prefetch(leaf);
        }
    }

    /// The leaves that are noted for this step and the next.
    #[inline(always)]
    pub(super) fn leaves(&self, step: usize) -> (Number, Number) {
        let noted = self.leaves[step];
        (noted, self.leaves.get(step + 1).copied().unwrap_or(noted))
    }

    /// The one of two leaves that were noted for `start` that is the right one.
    #[inline(always)]
    pub(super) fn right<const L: usize>(
        leaves: &Arena<Leaf<L>>,
        (noted, next): (Number, Number),
        (tree, start): (u32, u64),
    ) -> Option<Number> {
        if leaves.at(noted).is_for(tree, start) {
            return Some(noted);
        }
        leaves.at(next).is_for(tree, start).then_some(next)
    }

    /// Notes that leaf for those steps around that of `start` whose first unit belongs into it.
    fn note<const L: usize>(&mut self, number: Number, leaf: &Leaf<L>, start: u64) {
        let ((from, to), step) = (self.of(leaf), self.step(start));
        let (from, to) = (from.max(step.saturating_sub(AROUND)), to.min(step + AROUND));
        if from < to {
            self.leaves[from..to].fill(number);
        }
    }

    /// Notes something else everywhere.
    #[cfg(test)]
    pub(super) fn lead_astray(&mut self, leaf: impl FnMut() -> Number) {
        self.leaves.fill_with(leaf);
    }

    pub(super) fn bytes(&self) -> usize {
        self.leaves.capacity() * size_of::<Number>()
    }
}

impl<const L: usize, const N: usize> Wide<L, N> {
    /// Makes a short cut to the leaf, into which `start` belongs.
    pub(super) fn note(&mut self, number: Number, start: u64) {
        let leaf = self.leaves.at(number);
        let shortcuts = &mut self.shortcuts[leaf.tree as usize];
        if shortcuts.exist() {
            shortcuts.note(number, leaf, start);
        }
    }

    /// A leaf of the tree was split, or else joined with another. If it has many more leaves than before or fewer, or perhaps
    /// elsewhere, its short cuts are made anew.
    pub(super) fn leaf_was(&mut self, split: bool, tree: u32) {
        let (root, shortcuts) = (&mut self.roots[tree as usize], &mut self.shortcuts[tree as usize]);
        let leaves = if split { root.leaves + 1 } else { root.leaves - 1 };
        root.leaves = leaves;
        shortcuts.splits = shortcuts.splits.saturating_add(u32::from(split));
        if shortcuts.are_for(leaves) {
            return;
        }
        let (node, mut all) = (root.node, Vec::new());
        let mut made = Shortcuts::default();
        if leaves >= FEW {
            self.gather_leaves(node, &mut all);
            made = Shortcuts::new(&self.leaves, &all);
        }
        self.shortcuts[tree as usize] = made;
    }

    fn gather_leaves(&self, number: Number, all: &mut Vec<Number>) {
        if number & ABOVE == 0 {
            return all.push(number);
        }
        let node = self.node(number);
        node.places().for_each(|place| self.gather_leaves(place.below, all));
    }
}
