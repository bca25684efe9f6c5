//! FissLock over packets that are lost, doubled, delayed and overtaken, for a long time, and with deciders and servers that
//! fail, under the checkers' eyes.

use lockwright_fabric::NodeId;
use lockwright_locks::fisslock::pipeline::Preference;
use lockwright_locks::fisslock::{FissLock, Params};
use lockwright_sim::fault::{FaultPlan, NetworkFaults};
use lockwright_sim::{Plan, run};

/// Eight machines with four clients each on a few locks, so that every client meets every other.
fn plan(network: NetworkFaults, ops: u64) -> Plan {
    Plan {
        clients: 32,
        local_clients: 32,
        nodes: 8,
        locks: 40,
        zipf: 0.9,
        writes_percent: 30.0,
        ops,
        hold_ns: 1_000,
        faults: FaultPlan { network, ..FaultPlan::default() },
        ..Plan::default()
    }
}

fn rates(rate: f64) -> NetworkFaults {
    NetworkFaults { loss: rate, duplication: rate, reorder: rate, extra_delay_ns: 10_000 }
}

#[test]
fn a_clean_network_grants_everything() {
    for preference in [Preference::ReadersAlways, Preference::Readers, Preference::Writers] {
        let params = Params { preference, ..Params::default() };
        let report = run::<FissLock>(&plan(NetworkFaults::default(), 20_000), &params).unwrap();
        assert_eq!(report.cycles, 20_000);
    }
}

#[test]
fn packets_that_go_wrong_lose_no_lock_and_grant_none_twice() {
    for (seed, rate) in [(1, 0.001), (2, 0.01), (3, 0.05)] {
        for preference in [Preference::Readers, Preference::Writers] {
            let plan = Plan { seed, ..plan(rates(rate), 20_000) };
            let params = Params { preference, ..Params::default() };
            let report = run::<FissLock>(&plan, &params).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(report.cycles, 20_000);
        }
    }
}

#[test]
fn locks_beyond_the_switch_and_two_racks_bear_it_too() {
    let params = Params { switch_locks: 20, racks: 2, lanes: 3, ..Params::default() };
    let report = run::<FissLock>(&plan(rates(0.02), 20_000), &params).unwrap();
    assert_eq!(report.cycles, 20_000);
}

#[test]
fn clients_that_crash_leave_nothing_behind() {
    let mut plan = plan(rates(0.01), 20_000);
    plan.faults.crash_rate = 1e-4;
    let report = run::<FissLock>(&plan, &Params::default()).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.crashed > 0);
}

#[test]
fn a_decider_that_is_restarted_again_and_again_loses_no_lock_and_no_count() {
    for (seed, preference) in [(1, Preference::Readers), (2, Preference::Writers)] {
        let mut plan = Plan { seed, ..plan(rates(0.01), 20_000) };
        // The decider comes after the eight machines. A recovery takes a few tens of microseconds.
        plan.faults.restarts = (1..40).map(|n| (8, n * 300_000 + 17 * n * n)).collect();
        let params = Params { preference, ..Params::default() };
        let report = run::<FissLock>(&plan, &params).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(report.cycles, 20_000);
    }
}

#[test]
fn servers_are_lost_one_by_one_and_the_others_go_on() {
    for params in [Params::default(), Params { switch_locks: 20, racks: 2, lanes: 3, ..Params::default() }] {
        let mut plan = plan(rates(0.01), 20_000);
        plan.faults.node_deaths = (0..6).map(|n| (NodeId(n), u64::from(n + 1) * 1_000_000)).collect();
        // One of them together with the decider, one in the middle of a recovery.
        plan.faults.restarts = vec![(8, 2_000_000), (8, 3_110_000)];
        let report = run::<FissLock>(&plan, &params).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(report.crashed, 24);
        assert!(report.cycles > 15_000, "{report:?}");
    }
}

/// Sixteen clients that hold locks for long and think for long, so that hours of traffic are cheap and a client always waits.
fn slow(rate: f64, seed: u64) -> Plan {
    let hour_ns = 3_600_000_000_000;
    Plan {
        clients: 16,
        local_clients: 16,
        nodes: 4,
        locks: 6,
        zipf: 0.5,
        writes_percent: 40.0,
        hold_ns: 100_000_000,
        think_ns: 400_000_000,
        duration_ns: Some(hour_ns),
        max_virtual_ns: 2 * hour_ns,
        seed,
        faults: FaultPlan { network: rates(rate), ..FaultPlan::default() },
        ..Plan::default()
    }
}

#[test]
fn an_hour_of_virtual_time_at_every_rate() {
    for (seed, rate) in [(1, 0.001), (2, 0.01), (3, 0.05)] {
        let report = run::<FissLock>(&slow(rate, seed), &Params::default())
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.cycles > 50_000, "{report:?}");
    }
}
