//! IT: the interval tree of what is held, at the server, under one lock (Citron §4.1: Lustre's).
//!
//! All of the server's threads use it in turn, so whatever a thread touches was touched last by another core: a line for
//! every node on the way from the root, and one for the node itself. Ranges that are held do not overlap, so a map by
//! their start finds them; the lines are those of a balanced binary tree with one range a node.

use super::{Lines, Store};
use std::collections::BTreeMap;

/// The tree: held ranges, start to end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Interval(BTreeMap<u64, u64>);

impl Interval {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, last)| *last > start)
    }

    /// Nodes on the way down to a range.
    fn depth(&self) -> Lines {
        Lines::from(self.0.len().ilog2()) + 1
    }
}

impl Store for Interval {
    const NAME: &'static str = "it";
    const SUMMARY: &'static str = "range locks at a server, in an interval tree under one lock";
    const ALONE: bool = true;

    fn take(&mut self, start: u64, end: u64) -> (bool, Lines) {
        let free = !self.overlaps(start, end);
        if free {
            self.0.insert(start, end);
        }
        (free, self.depth())
    }

    fn give(&mut self, start: u64, _: u64) -> Lines {
        let lines = self.depth();
        self.0.remove(&start).expect("what is given back was held");
        lines
    }

    fn is_bare(&self) -> bool {
        self.0.is_empty()
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
