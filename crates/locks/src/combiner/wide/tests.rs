//! The shape that a wide tree must have, and what it takes.

use super::*;
use crate::combiner::test_random::Random;
use crate::combiner::tree_tests::Shape;
use lockwright_fabric::observe::Mode;

impl<const N: usize> Wide<N> {
    /// Checks the node and everything below it; adds how many nodes and ranges that is, and how many came over others.
    fn check(&self, number: Number, seen: &mut (usize, usize, u32)) {
        let node = self.node(number);
        assert_eq!(number & ABOVE == 0, node.level == 0);
        seen.0 += 1;
        let len = node.len as usize;
        let fewest = match (node.parent, node.level) {
            (NONE, 0) => 0,
            (NONE, _) => 2,
            _ => Node::<N>::FEWEST,
        };
        assert!((fewest..=N).contains(&len), "a node of {len}");
        for at in len..N {
            assert_eq!((node.starts[at], node.ends[at], node.below[at]), (NEVER, 0, 0), "an unused place");
        }
        for (at, place) in node.places().enumerate() {
            assert!(node.low <= place.start && place.start <= node.high);
            if node.level == 0 {
                let record = self.records.get(place.below);
                assert_eq!((record.at, record.tree), (number, node.tree));
                seen.1 += 1;
                seen.2 += u32::from(record.came_over);
                continue;
            }
            let below = self.node(place.below);
            assert_eq!((below.parent, below.level, below.tree), (number, node.level - 1, node.tree));
            let high = if at + 1 < len { node.starts[at + 1] } else { node.high };
            assert_eq!((below.low, below.high, below.overhang()), (place.start, high, place.end));
            assert!(at > 0 || place.start == node.low);
            self.check(place.below, seen);
        }
    }
}

impl<const N: usize> Shape for Wide<N> {
    fn check_all(&self) {
        let mut all = (0, 0, 0);
        for (tree, root) in self.roots.iter().enumerate() {
            let node = self.node(root.node);
            assert_eq!((node.parent, node.tree, node.low, node.high), (NONE, tree as u32, 0, NEVER));
            let came_over = all.2;
            self.check(root.node, &mut all);
            assert_eq!(all.2 - came_over, root.came_over);
        }
        let some = |number: Number| Some(number).filter(|number| *number != NONE);
        let free = |arena: &Arena<N>| {
            std::iter::successors(some(arena.free), |number| some(self.node(*number).parent)).count()
        };
        let arenas = [&self.above, &self.leaves];
        let nodes: usize = arenas.iter().map(|arena| arena.nodes.len() - free(arena)).sum();
        assert_eq!(all.0, nodes, "a node was lost");
        assert_eq!(all.1, self.records.len());
    }
}

/// As many ranges as said, at places that `start` chooses.
fn filled(ranges: u64, mut start: impl FnMut(u64) -> u64) -> Wide {
    let mut trees = Wide::default();
    let tree = trees.plant();
    for range in 0..ranges {
        let start = start(range);
        trees.insert(Record::new(0, 0, tree, Mode::Shared), start, start + 1);
    }
    trees.check_all();
    trees
}

#[test]
fn a_range_takes_less_than_a_hundred_bytes_in_whatever_order_ranges_come() {
    let mut random = Random::new(1);
    let count = 50_000;
    for (order, trees) in [
        ("at random", filled(count, |_| random.below(1 << 40))),
        ("upwards", filled(count, |range| 10 * range)),
        ("downwards", filled(count, |range| 10 * (count - range))),
        ("all alike", filled(count, |_| 7)),
    ] {
        let bytes = trees.bytes() as u64 / count;
        // A client's table of its ids takes four more.
        assert!(bytes + 4 <= 100, "{bytes} bytes a range {order}");
    }
}

#[test]
fn a_range_that_crosses_leaves_is_seen_from_all_of_them() {
    let mut trees = filled(1_000, |range| 10 * range);
    let long = trees.insert(Record::new(0, 0, 0, Mode::Shared), 4_001, 6_000);
    assert!(!long.1);
    for (start, alone) in [(3_992, true), (4_002, false), (5_002, false), (5_995, false), (6_002, true)] {
        let (slot, was_alone) = trees.insert(Record::new(0, 0, 0, Mode::Shared), start, start + 2);
        assert_eq!(was_alone, alone, "{start}");
        trees.remove(slot);
    }
    trees.remove(long.0);
    trees.check_all();
    assert_eq!(trees.roots[0].came_over, 0);
    assert!(trees.insert(Record::new(0, 0, 0, Mode::Shared), 5_002, 5_004).1);
}
