//! Every kind of tree against a naive list: the same operations, the same answers, and the shape it must have.

use super::records::{Record, Records, Slot};
use super::test_random::more;
use super::tree::{IntervalTrees, Range};
use super::wide::Wide;
use lockwright_fabric::observe::Mode::{Exclusive, Shared};
use lockwright_fabric::random::SplitMix;

/// A tree that can be looked through.
pub(super) trait Shape: IntervalTrees {
    /// Panics unless everything is as it must be.
    fn check_all(&self, records: &Records);
}

/// `steps` random insertions, removals and questions on two trees, with up to `most` ranges in `units` units.
fn agrees_with_a_list<T: Shape>(seed: u64, steps: u32, most: usize, units: u64) {
    let mut random = SplitMix::new(seed);
    let (mut trees, mut records) = (T::default(), Records::default());
    let roots = [trees.plant(), trees.plant()];
    let mut list: Vec<(Slot, u32, u64, u64)> = Vec::new();
    let a_range = |random: &mut SplitMix| {
        let (tree, start) = (roots[random.below(2) as usize], random.below(units));
        // Some are long: they overlap many, and the wide tree notes them in another way.
        let longest = if random.below(64) == 0 { units } else { units.min(1 + units / (1 + most as u64)) };
        let end = start + 1 + random.below(longest + 1);
        Range { tree, start, end }
    };
    // Ranges whose places were looked up some steps ago; some of them are then inserted, with others in between.
    let mut planned = Vec::new();
    for step in 0..steps {
        if random.below(16) == 0 {
            planned.clear();
            planned.extend((0..random.below(8)).map(|_| a_range(&mut random)));
            trees.begin_places();
            planned.iter().rev().for_each(|range| trees.want_place(*range));
            trees.find_places();
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
                let slot = records.add(Record::new(step, tree, tree, Shared));
                let alone = trees.insert(&mut records, slot, start, end);
                let Record { client, id, .. } = *records.get(slot);
                assert_eq!((client, id), (step, tree));
                assert!(!alone || none_there, "seed {seed} step {step}: overlooked an overlapping range");
                assert!(list.iter().all(|item| item.0 != slot), "a slot was given away twice");
                list.push((slot, tree, start, end));
            }
            1 if !list.is_empty() => {
                let (slot, tree, start, end) = list.swap_remove(random.below(list.len() as u64) as usize);
                assert_eq!((records.get(slot).tree, trees.range(&records, slot)), (tree, (start, end)));
                trees.fetch(&records, &[slot]);
                let is_bare = trees.remove(&mut records, slot);
                assert_eq!(is_bare, list.iter().all(|item| item.1 != tree), "seed {seed} step {step}");
                records.give_back(slot);
            }
            _ => {
                let mut found = Vec::new();
                trees.overlapping(tree, start, end, &mut found);
                assert!(found.is_sorted_by_key(|slot| trees.range(&records, *slot).0));
                found.sort_unstable();
                let mut expected: Vec<_> = overlapping().collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "seed {seed} step {step}");
            }
        }
        assert_eq!(records.len(), list.len());
        if step % 64 == 0 {
            trees.check_all(&records);
        }
    }
    while let Some((slot, tree, ..)) = list.pop() {
        let is_bare = trees.remove(&mut records, slot);
        assert_eq!(is_bare, list.iter().all(|item| item.1 != tree));
        records.give_back(slot);
        trees.check_all(&records);
    }
}

fn few_crowded_ranges<T: Shape>() {
    for seed in 0..40 * more() {
        agrees_with_a_list::<T>(seed, 2_000, 12, 8);
    }
}

fn many_sparse_ranges<T: Shape>() {
    for seed in 0..4 * more() {
        agrees_with_a_list::<T>(seed, 20_000, 300, 1 << 32);
    }
}

fn all_sorts_of_ranges<T: Shape>() {
    for seed in 0..9 * more() {
        agrees_with_a_list::<T>(seed, 10_000, 1 << (seed % 9 + 1), 1 << (7 * seed % 61 + 2));
    }
}

fn ranges_that_only_touch<T: Shape>() {
    let (mut trees, mut records) = (T::default(), Records::default());
    let tree = trees.plant();
    let mut alone = |start, end| {
        let slot = records.add(Record::new(0, 0, tree, Exclusive));
        trees.insert(&mut records, slot, start, end)
    };
    assert!(alone(10, 20));
    assert!(alone(20, 30));
    assert!(alone(0, 10));
    assert!(!alone(9, 11));
    assert!(alone(u64::MAX - 1, u64::MAX));
    assert!(!alone(29, u64::MAX));
}

macro_rules! kinds {
    ($($kind:ident: $tree:ty),+) => {$(
        mod $kind {
            use super::*;

            #[test]
            fn it_agrees_with_a_naive_list_on_few_crowded_ranges() {
                few_crowded_ranges::<$tree>();
            }

            #[test]
            fn it_agrees_with_a_naive_list_on_many_sparse_ranges() {
                many_sparse_ranges::<$tree>();
            }

            #[test]
            fn it_agrees_with_a_naive_list_on_all_sorts_of_ranges() {
                all_sorts_of_ranges::<$tree>();
            }

            #[test]
            fn ranges_that_only_touch_do_not_overlap() {
                ranges_that_only_touch::<$tree>();
            }
        }
    )+};
}

// The narrow one is as deep with twenty ranges as the shipped one with a hundred.
kinds!(wide: Wide, narrow: Wide<4, 4>);
