//! What the catalog's cases do not show: runs at random, and that they repeat.

use super::{Faults, Op, Served};
use lockwright_fabric::observe::Mode;
use lockwright_server::MachineRules;
use lockwright_sim::model::{explore, shrink, soak};

#[test]
fn a_search_visits_the_same_states_however_long_it_takes() {
    let programs = vec![vec![Op::Lock(Mode::Exclusive), Op::Unlock]; 2];
    let faults = Faults { breaks: 1, expiries: 1, ..Faults::default() };
    let model = Served { programs, faults, ..Served::default() };
    let visited = || {
        let explored = explore(&model, u64::MAX, None);
        (explored.states, explored.transitions, explored.depth)
    };
    assert_eq!(visited(), visited());
}

#[test]
fn a_cluster_with_faults_at_random_violates_nothing_and_repeats_by_its_seed() {
    let model = Served::soak(3);
    for seed in 0..20 {
        let mut taken = Vec::new();
        let soaked = soak(&model, seed, 2_000, |_, step| taken.push(step.to_string()));
        if let Some(found) = soaked.found {
            let found = shrink(&model, found);
            let steps: Vec<_> = found.trace.iter().map(ToString::to_string).collect();
            panic!("seed {seed}: {}\n{}", found.violation, steps.join("\n"));
        }
        let mut again = Vec::new();
        soak(&model, seed, 2_000, |_, step| again.push(step.to_string()));
        assert_eq!(taken, again, "seed {seed}");
    }
}

#[test]
fn a_broken_server_is_found_at_random_and_its_failure_shrunk() {
    let rules = MachineRules { grants_early: true, ..MachineRules::default() };
    let model = Served { rules, ..Served::soak(3) };
    let found = (0..200).find_map(|seed| soak(&model, seed, 2_000, |_, _| {}).found);
    let (long, short) = {
        let found = found.expect("within so many runs");
        (found.trace.len(), shrink(&model, found).trace.len())
    };
    assert!(short <= long / 10, "{short} of {long} steps are left");
}
