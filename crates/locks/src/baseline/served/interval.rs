//! IT: the interval tree of what is held, at the server, under one lock (Citron §4.1: Lustre's).
//!
//! The tree is the thesis's that a combiner can have ([`combiner`](crate::combiner)), which is red-black, one range a node. There one
//! thread owns it and it stays in that core's cache, and requests that wait stand in it, too. Here all of the server's
//! threads use it in turn, so whatever a thread touches was touched last by another core: a line for every node on the
//! way from the root, and one for the node itself.

use super::{Lines, Store};
use crate::combiner::records::{Record, Records, Slot};
use crate::combiner::redblack::RedBlack;
use crate::combiner::tree::IntervalTrees;
use lockwright_fabric::observe::Mode;
use std::hash::{Hash, Hasher};

/// The tree.
#[derive(Clone, Debug)]
pub struct Interval {
    records: Records,
    trees: RedBlack,
    tree: u32,
}

impl Default for Interval {
    fn default() -> Self {
        let mut trees = RedBlack::default();
        let tree = trees.plant();
        Self { records: Records::default(), trees, tree }
    }
}

impl Interval {
    fn overlapping(&self, start: u64, end: u64) -> Vec<Slot> {
        let mut found = Vec::new();
        self.trees.overlapping(self.tree, start, end, &mut found);
        found
    }

    /// What is held, in order.
    fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut slots = Vec::new();
        self.trees.walk(self.tree, &mut slots);
        slots.into_iter().map(|slot| self.trees.range(&self.records, slot))
    }
}

impl Store for Interval {
    const NAME: &'static str = "it";
    const SUMMARY: &'static str = "range locks at a server, in an interval tree under one lock";
    const ALONE: bool = true;

    fn take(&mut self, start: u64, end: u64) -> (bool, Lines) {
        if let Some(found) = self.overlapping(start, end).first() {
            return (false, self.trees.depth(*found));
        }
        // Nobody asks whose it is: ranges are exclusive and are given back by their bounds.
        let slot = self.records.add(Record::new(0, 0, self.tree, Mode::Exclusive));
        self.trees.insert(&mut self.records, slot, start, end);
        (true, self.trees.depth(slot))
    }

    fn give(&mut self, start: u64, end: u64) -> Lines {
        let slot = self.overlapping(start, end)[0];
        let lines = self.trees.depth(slot);
        self.trees.remove(&mut self.records, slot);
        self.records.give_back(slot);
        lines
    }

    fn is_bare(&self) -> bool {
        self.records.is_empty()
    }
}

/// Two trees that hold the same ranges answer alike, whatever their shape.
impl PartialEq for Interval {
    fn eq(&self, other: &Self) -> bool {
        self.ranges().eq(other.ranges())
    }
}

impl Eq for Interval {}

impl Hash for Interval {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ranges().collect::<Vec<_>>().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_depth_and_the_depth_is_logarithmic() {
        let mut tree = Interval::default();
        assert_eq!(tree.take(0, 1), (true, 1));
        let deepest = (1..1_000).map(|start| tree.take(start, start + 1).1).max().unwrap();
        assert!((10..=20).contains(&deepest), "{deepest}");
        assert!(tree.give(500, 501) <= 20);
        assert!(tree.take(500, 501).0);
    }
}
