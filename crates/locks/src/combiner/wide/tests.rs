//! The shape that a wide tree must have, and what it takes.

use super::leaf::fewest;
use super::*;
use crate::combiner::tree_tests::Shape;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::random::SplitMix;

impl<const L: usize, const N: usize> Wide<L, N> {
    /// Checks the node and everything below it; adds how many nodes and ranges that is, and how many came over others.
    fn check(&self, records: &Records, number: Number, seen: &mut (usize, usize, u32)) {
        seen.0 += 1;
        if number & ABOVE == 0 {
            let leaf = self.leaf(number);
            leaf.check();
            assert!(leaf.parent == NONE || leaf.len > 0, "a leaf of {}", leaf.len);
            for place in leaf.places() {
                let record = records.get(place.below);
                assert_eq!((Self::stands(record.at).0, record.tree), (number, leaf.tree));
                seen.1 += 1;
                seen.2 += u32::from(record.came_over);
            }
            return;
        }
        let node = self.node(number);
        let len = node.len as usize;
        let fewest = if node.parent == NONE { 2 } else { fewest(N) };
        assert!((fewest..=N).contains(&len), "a node of {len}");
        for at in len..N {
            assert_eq!((node.lows[at], node.reaches[at], node.below[at]), (NEVER, 0, 0), "an unused place");
        }
        for (at, place) in node.places().enumerate() {
            let (parent, level, tree, low, high, overhang) = if place.below & ABOVE == 0 {
                let Leaf { parent, tree, low, high, .. } = *self.leaf(place.below);
                (parent, 0, tree, low, high, self.leaf(place.below).overhang())
            } else {
                let Node { parent, level, tree, low, high, .. } = *self.node(place.below);
                (parent, level, tree, low, high, self.node(place.below).overhang())
            };
            assert_eq!((parent, level, tree), (number, node.level - 1, node.tree));
            let ends = if at + 1 < len { node.lows[at + 1] } else { node.high };
            assert_eq!((low, high, overhang), (place.start, ends, place.end));
            assert!(at > 0 || place.start == node.low);
            self.check(records, place.below, seen);
        }
    }
}

impl<const L: usize, const N: usize> Shape for Wide<L, N> {
    fn check_all(&self, records: &Records) {
        let mut all = (0, 0, 0);
        for (tree, Root { node: root, came_over, leaves }) in self.roots.iter().enumerate() {
            let top = if root & ABOVE == 0 {
                let Leaf { parent, tree, low, high, .. } = *self.leaf(*root);
                (parent, tree, low, high)
            } else {
                let Node { parent, tree, low, high, .. } = *self.node(*root);
                (parent, tree, low, high)
            };
            assert_eq!(top, (NONE, tree as u32, 0, NEVER));
            let before = all.2;
            self.check(records, *root, &mut all);
            assert_eq!(all.2 - before, *came_over);
            let of_tree = |leaf: &&Leaf<L>| leaf.tree == tree as u32;
            assert_eq!(self.leaves.nodes.iter().filter(of_tree).count(), *leaves as usize);
        }
        let some = |number: Number| Some(number).filter(|number| *number != NONE);
        let next_leaf = |number: &Number| some(self.leaf(*number).parent);
        let next_node = |number: &Number| some(self.node(*number).parent);
        let free = std::iter::successors(some(self.leaves.free), next_leaf).count()
            + std::iter::successors(some(self.above.free), next_node).count();
        assert_eq!(all.0, self.leaves.nodes.len() + self.above.nodes.len() - free, "a node was lost");
        assert_eq!(all.1, records.len());
    }
}

/// One more.
fn add(trees: &mut Wide, records: &mut Records, start: u64, end: u64) -> (Slot, bool) {
    let slot = records.add(Record::new(0, 0, 0, Mode::Shared));
    (slot, trees.insert(records, slot, start, end))
}

/// As many ranges as said, at places that `start` chooses.
fn filled(ranges: u64, mut start: impl FnMut(u64) -> u64) -> (Wide, Records) {
    let (mut trees, mut records) = (Wide::default(), Records::default());
    trees.plant();
    for range in 0..ranges {
        let start = start(range);
        add(&mut trees, &mut records, start, start + 1);
    }
    trees.check_all(&records);
    (trees, records)
}

#[test]
fn a_range_takes_less_than_a_hundred_bytes_in_whatever_order_ranges_come() {
    let mut random = SplitMix::new(1);
    let count = 50_000;
    for (order, (trees, records)) in [
        ("at random", filled(count, |_| random.below(1 << 32))),
        ("far apart", filled(count, |_| random.below(u64::MAX - 1))),
        ("upwards", filled(count, |range| 10 * range)),
        ("downwards", filled(count, |range| 10 * (count - range))),
        ("all alike", filled(count, |_| 7)),
    ] {
        let bytes = (trees.bytes() + records.bytes()) as u64 / count;
        // A client's table of its ids takes four more.
        assert!(bytes + 4 <= 100, "{bytes} bytes a range {order}");
    }
}

#[test]
fn a_range_that_crosses_leaves_is_seen_from_all_of_them() {
    let (mut trees, mut records) = filled(1_000, |range| 10 * range);
    let long = add(&mut trees, &mut records, 4_001, 6_000);
    assert!(!long.1);
    for (start, alone) in [(3_992, true), (4_002, false), (5_002, false), (5_995, false), (6_002, true)] {
        let (slot, was_alone) = add(&mut trees, &mut records, start, start + 2);
        assert_eq!(was_alone, alone, "{start}");
        trees.remove(&mut records, slot);
        records.give_back(slot);
    }
    trees.remove(&mut records, long.0);
    records.give_back(long.0);
    trees.check_all(&records);
    assert_eq!(trees.roots[0].came_over, 0);
    assert!(add(&mut trees, &mut records, 5_002, 5_004).1);
}

#[test]
fn ranges_that_are_too_long_or_too_far_to_be_noted_in_short_are_noted_in_full() {
    let (mut trees, mut records) = filled(100, |range| 10 * range);
    let far = 1 << 40;
    for (start, end) in [(505, u64::MAX), (505, 505 + far), (far, far + 1), (5 * far, 5 * far + 9)] {
        let (slot, _) = add(&mut trees, &mut records, start, end);
        assert_eq!(trees.range(&records, slot), (start, end));
        trees.check_all(&records);
    }
    let mut found = Vec::new();
    trees.overlapping(0, far, far + 1, &mut found);
    assert_eq!(found.len(), 3);
    // Gone again: leaves that noted them in full note the next ones in short.
    for slot in found {
        trees.remove(&mut records, slot);
        records.give_back(slot);
        trees.check_all(&records);
    }
    for start in 0..100 {
        add(&mut trees, &mut records, 500 + start, 501 + start);
        trees.check_all(&records);
    }
}

/// How many of a hundred starts have a short cut.
fn short_cuts(trees: &mut Wide, mut start: impl FnMut() -> u64) -> u32 {
    let mut found = 0;
    for _ in 0..10_000 {
        let start = start();
        found += u32::from(trees.short_cut(0, start).is_some());
        trees.find_leaf(0, start);
    }
    found / 100
}

#[test]
fn where_ranges_lie_evenly_nearly_every_start_has_a_short_cut() {
    for (count, units) in [(5_000, 1 << 32), (50_000, 1 << 32), (50_000, 1 << 50)] {
        let mut random = SplitMix::new(count);
        let (mut trees, _) = filled(count, |_| random.below(units));
        let found = short_cuts(&mut trees, || random.below(units));
        assert!(found >= 98, "{found} of a hundred starts, {count} ranges in {units} units");
    }
}

#[test]
fn a_few_ranges_that_are_far_away_leave_the_others_their_short_cuts() {
    let mut random = SplitMix::new(1);
    let (mut trees, _) =
        filled(
            10_000,
            |range| {
                if range % 1_000 == 0 { random.below(1 << 60) } else { random.below(1 << 32) }
            },
        );
    let found = short_cuts(&mut trees, || random.below(1 << 32));
    assert!(found >= 90, "{found} of a hundred starts");
}

#[test]
fn ranges_that_move_on_take_their_short_cuts_along() {
    let (mut trees, mut records) = (Wide::default(), Records::default());
    trees.plant();
    let mut held = std::collections::VecDeque::new();
    for step in 0..50_000 {
        held.push_back(add(&mut trees, &mut records, 100 * step, 100 * step + 1).0);
        if held.len() > 5_000 {
            let slot = held.pop_front().unwrap();
            trees.remove(&mut records, slot);
            records.give_back(slot);
        }
    }
    trees.check_all(&records);
    let mut random = SplitMix::new(1);
    let found = short_cuts(&mut trees, || 100 * (45_000 + random.below(5_000)));
    assert!(found >= 70, "{found} of a hundred starts");
}

#[test]
fn where_ranges_lie_very_unevenly_nobody_looks_for_short_cuts() {
    let mut random = SplitMix::new(1);
    let (mut trees, mut records) = filled(10_000, |range| ((range % 2) << 50) + random.below(1 << 20));
    assert!(!trees.shortcuts[0].exist());
    // Until it is otherwise.
    for _ in 0..100_000 {
        let start = random.below(1 << 51);
        add(&mut trees, &mut records, start, start + 1);
    }
    trees.check_all(&records);
    assert!(trees.shortcuts[0].exist());
}

#[test]
fn short_cuts_that_lead_astray_change_nothing() {
    let mut random = SplitMix::new(1);
    let (mut trees, mut records) = filled(10_000, |range| 10 * range);
    let mut others = Vec::new();
    for step in 0..10_000 {
        if step % 100 == 0 {
            let leaves = trees.leaves.nodes.len() as u64;
            trees.shortcuts[0].lead_astray(|| random.below(leaves) as Number);
        }
        let start = random.below(100_000);
        let (slot, alone) = add(&mut trees, &mut records, start, start + 1);
        assert_eq!(alone, !start.is_multiple_of(10) && !others.iter().any(|(_, other)| *other == start));
        others.push((slot, start));
        if others.len() > 20 {
            let (slot, _) = others.swap_remove(random.below(20) as usize);
            trees.remove(&mut records, slot);
            records.give_back(slot);
        }
    }
    trees.check_all(&records);
}
