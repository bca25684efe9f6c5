//! FissLock over packets that are lost, doubled, delayed and overtaken, for a long time, under the checkers' eyes.

use lockwright_fabric::fault::{FaultPlan, NetworkFaults};
use lockwright_locks::fisslock::pipeline::Preference;
use lockwright_locks::fisslock::{FissLock, Params};
use lockwright_sim::{Plan, run};

/// Eight machines with four clients each on a few locks, so that everybody meets everybody.
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
#[ignore = "hours of virtual time: minutes of real time"]
fn hours_of_virtual_time_at_every_rate() {
    for (seed, rate) in [(1, 0.001), (2, 0.005), (3, 0.01), (4, 0.05)] {
        let hour_ns = 3_600_000_000_000;
        // A cycle of every client every 50 ms: slow traffic, so that hours stay affordable.
        let plan = Plan {
            seed,
            think_ns: 50_000_000,
            duration_ns: Some(hour_ns),
            max_virtual_ns: 2 * hour_ns,
            ..plan(rates(rate), 0)
        };
        let report = run::<FissLock>(&plan, &Params::default()).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.cycles > 1_000_000);
    }
}
