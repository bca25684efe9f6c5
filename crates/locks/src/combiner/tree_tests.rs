//! The tree against a naive list: the same operations, the same answers, and the shape a red-black tree must have.

use super::*;
use crate::combiner::places::Range;
use crate::combiner::test_random::{Random, more};
use Mode::{Exclusive, Shared};

const NOBODY: Owner = Owner { client: 0, id: 0 };

impl Trees {
    /// Checks order, colours, heights and reach below `at`; returns the number of black nodes on every path down.
    fn check(&self, at: Slot, parent: Slot) -> u32 {
        if at == NIL {
            return 1;
        }
        let node = self.node(at);
        assert_eq!(node.parent, parent);
        assert!(!(node.red && self.is_red(parent)), "two red nodes in a row");
        assert_eq!(node.left_reach, self.node(node.left).reach());
        assert_eq!(node.right_reach, self.node(node.right).reach());
        assert!(node.left == NIL || self.node(node.left).start <= node.start);
        assert!(node.right == NIL || self.node(node.right).start >= node.start);
        let height = self.check(node.left, at);
        assert_eq!(height, self.check(node.right, at), "paths with different numbers of black nodes");
        height + u32::from(!node.red)
    }

    fn check_all(&self) {
        assert!(!self.is_red(NIL) && self.node(NIL).reach() == 0 && self.node(NIL).parent == NIL);
        for root in &self.roots {
            assert!(!self.is_red(*root));
            self.check(*root, NIL);
        }
    }
}

/// `steps` random insertions, removals and questions on two trees, with up to `most` ranges in `units` units.
fn agrees_with_a_list(seed: u64, steps: u32, most: usize, units: u64) {
    let mut random = Random::new(seed);
    let mut trees = Trees::new();
    let roots = [trees.plant(), trees.plant()];
    let mut list: Vec<(Slot, u32, u64, u64)> = Vec::new();
    let a_range = |random: &mut Random| {
        let (tree, start) = (roots[random.below(2) as usize], random.below(units));
        let end = start + 1 + random.below(units.min(1 + units / (1 + most as u64)) + 1);
        Range { tree, start, end }
    };
    // Ranges whose places were looked up some steps ago; some of them are then inserted, with others in between.
    let mut planned = Vec::new();
    for step in 0..steps {
        if random.below(16) == 0 {
            planned.clear();
            planned.extend((0..random.below(8)).map(|_| a_range(&mut random)));
            trees.find_places(planned.iter().rev().copied());
        }
        let plan = if random.below(2) == 0 { planned.pop() } else { None };
        let Range { tree, start, end } = plan.unwrap_or_else(|| a_range(&mut random));
        let overlapping = || {
            let overlaps = |item: &&(Slot, u32, u64, u64)| item.1 == tree && item.2 < end && start < item.3;
            list.iter().filter(overlaps).map(|item| item.0)
        };
        match random.below(3) {
            0 if list.len() < most => {
                let none_there = overlapping().next().is_none();
                let owner = Owner { client: step, id: tree };
                let (slot, alone) = trees.insert(Node { tree, ..Node::new(start, end, Shared) }, owner);
                assert_eq!(trees.owner(slot), owner);
                assert!(!alone || none_there, "seed {seed} step {step}: overlooked an overlapping range");
                assert!(list.iter().all(|item| item.0 != slot), "a slot was given away twice");
                list.push((slot, tree, start, end));
            }
            1 if !list.is_empty() => {
                let (slot, ..) = list.swap_remove(random.below(list.len() as u64) as usize);
                trees.remove(slot);
            }
            _ => {
                let mut found = Vec::new();
                trees.overlapping(tree, start, end, &mut found);
                assert!(found.is_sorted_by_key(|slot| trees.node(*slot).start));
                found.sort_unstable();
                let mut expected: Vec<_> = overlapping().collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "seed {seed} step {step}");
            }
        }
        assert_eq!(trees.len(), list.len());
        if step % 64 == 0 {
            trees.check_all();
        }
    }
    for (slot, ..) in list {
        trees.remove(slot);
        trees.check_all();
    }
    assert!(trees.is_bare(roots[0]) && trees.is_bare(roots[1]));
}

#[test]
fn it_agrees_with_a_naive_list_on_few_crowded_ranges() {
    for seed in 0..40 * more() {
        agrees_with_a_list(seed, 2_000, 12, 8);
    }
}

#[test]
fn it_agrees_with_a_naive_list_on_many_sparse_ranges() {
    for seed in 0..4 * more() {
        agrees_with_a_list(seed, 20_000, 300, 1 << 32);
    }
}

#[test]
fn it_agrees_with_a_naive_list_on_all_sorts_of_ranges() {
    for seed in 0..9 * more() {
        agrees_with_a_list(seed, 10_000, 1 << (seed % 9 + 1), 1 << (seed % 33 + 2));
    }
}

#[test]
fn ranges_that_only_touch_do_not_overlap() {
    let mut trees = Trees::new();
    let tree = trees.plant();
    let mut alone = |start, end| trees.insert(Node { tree, ..Node::new(start, end, Exclusive) }, NOBODY).1;
    assert!(alone(10, 20));
    assert!(alone(20, 30));
    assert!(alone(0, 10));
    assert!(!alone(9, 11));
}

#[test]
fn a_slot_that_was_freed_is_used_again() {
    let mut trees = Trees::new();
    let tree = trees.plant();
    let node = Node { tree, ..Node::new(0, 1, Exclusive) };
    let (first, _) = trees.insert(node, NOBODY);
    trees.remove(first);
    assert_eq!(trees.insert(node, NOBODY).0, first);
}
