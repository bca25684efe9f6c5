//! What a simulated run promises: it repeats, counts what it says it counts, and ends. That every lock of the catalog runs
//! clean is tested in the lab.

use lockwright_baselines::cas::Cas;
use lockwright_baselines::dslr::{Dslr, DslrParams};
use lockwright_baselines::mcs::Mcs;
use lockwright_fabric::{Addr, AtomicScope, Capabilities, Endpoint, NodeId, Width, Word64};
use lockwright_proofs::holders::{HolderParams, Holders};
use lockwright_sim::{Ended, NicModel, Plan, Setup, World, run};

#[test]
fn the_same_seed_gives_the_same_report_and_another_seed_another() {
    let json = |seed| {
        let report = run::<Mcs>(&Plan::small(seed), &()).unwrap();
        serde_json::to_string(&report).unwrap()
    };
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

#[test]
fn a_warm_up_is_not_counted() {
    let plan = Plan { warmup_ops: 1_000, ..Plan::small(1) };
    let report = run::<Cas>(&plan, &()).unwrap();
    assert_eq!(report.cycles, 3_000);
    let whole = run::<Cas>(&Plan { ops: 4_000, ..Plan::small(1) }, &()).unwrap();
    assert_eq!(whole.total_verbs, report.total_verbs);
    assert!(report.virtual_ns < whole.virtual_ns);
}

#[test]
fn one_client_alone_takes_two_round_trips() {
    let plan = Plan { clients: 1, locks: 1, ops: 1_000, ..Plan::default() };
    let report = run::<Cas>(&plan, &()).unwrap();
    assert_eq!(report.per_cycle.round_trips, 2.0);
    assert_eq!(report.retries, 0);
    assert_eq!(report.longest_bypass, 0);
}

#[test]
fn a_plan_without_clients_is_refused() {
    let failure = run::<Cas>(&Plan { clients: 0, ..Plan::default() }, &()).unwrap_err();
    assert!(failure.to_string().contains("a run needs clients"), "{failure}");
}

#[test]
fn more_clients_than_a_lock_has_room_for_are_refused() {
    let plan = Plan { clients: 65, ..Plan::default() };
    let failure = run::<Holders>(&plan, &HolderParams::default()).unwrap_err();
    assert!(failure.to_string().contains("holders has room for 64 clients, not for 65"), "{failure}");
}

#[test]
fn a_run_of_a_given_duration_ends_then_however_many_cycles_that_makes() {
    let plan = Plan { clients: 4, duration_ns: Some(2_000_000), ops: 1, ..Plan::default() };
    let report = run::<Mcs>(&plan, &()).unwrap();
    assert!((2_000_000..2_100_000).contains(&report.virtual_ns), "{}", report.virtual_ns);
    assert!(report.cycles > 1_000, "{}", report.cycles);
}

#[test]
fn a_lonely_client_spends_all_of_its_acquire_in_the_first_verb() {
    let plan = Plan { clients: 1, ops: 100, ..Plan::default() };
    let report = run::<Mcs>(&plan, &()).unwrap();
    assert!((report.first_verb.exclusive_ns - report.acquire.mean_ns).abs() < 2.0);
    assert!((report.first_verb.release_ns - report.release.mean_ns).abs() < 2.0);
}

#[test]
fn a_lock_that_is_never_released_is_recovered_by_the_next_client() {
    let plan = Plan { clients: 8, locks: 4, ops: 5_000, abandon_rate: 0.01, ..Plan::default() };
    let report = run::<Dslr>(&plan, &DslrParams::default()).unwrap();
    assert!(report.recoveries > 10, "{}", report.recoveries);
    assert!(report.lost >= report.recoveries, "{} {}", report.lost, report.recoveries);
}

#[test]
fn dslr_goes_on_when_its_tickets_run_out() {
    let params = DslrParams { limit: 16, ..DslrParams::default() };
    let plan = Plan { clients: 8, locks: 1, writes_percent: 50.0, ops: 2_000, ..Plan::default() };
    let report = run::<Dslr>(&plan, &params).unwrap();
    assert_eq!((report.cycles, report.recoveries), (2_000, 0));
}

#[test]
fn atomics_of_one_nic_lose_no_update_where_cpus_see_them_in_two_steps() {
    let offers = Capabilities { scope: AtomicScope::Nic, ..Capabilities::CPU };
    let nic = NicModel { offers, ..NicModel::default() };
    let mut world = World::new(Setup { clients: 16, nic, ..Setup::default() });
    let word = Word64::at(Addr::new(NodeId(0), 0));
    for _ in 0..16 {
        world.spawn(None, move |ep| async move {
            for _ in 0..100 {
                ep.go(word.fetch_add(1)).await.unwrap();
            }
        });
    }
    assert_eq!(world.run(1_000_000_000).unwrap(), Ended::AllDone);
    assert_eq!(world.read(word.addr(), Width::W64), 1_600);
}
