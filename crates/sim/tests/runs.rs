//! Runs of every lock in the catalog: clean ones stay clean, broken ones are caught, and every run repeats.

use lockwright_fabric::{Addr, AtomicScope, Capabilities, Endpoint, NodeId, Width, Word64};
use lockwright_locks::Protocol;
use lockwright_locks::baseline::{cas::Cas, mcs::Mcs};
use lockwright_locks::catalog::{self, Checker, Mutant, Visitor};
use lockwright_sim::{Cause, Ended, NicModel, Plan, Setup, World, run};

fn small(seed: u64) -> Plan {
    Plan {
        clients: 12,
        locks: 20,
        ops: 3_000,
        writes_percent: 70.0,
        seed,
        max_virtual_ns: 1_000_000_000,
        ..Plan::default()
    }
}

struct EveryLock;

impl Visitor for EveryLock {
    fn protocol<P: Protocol>(&mut self) {
        for seed in 1..=5 {
            for plan in [
                small(seed),
                Plan { locks: 1, ..small(seed) },
                Plan { nodes: 3, hold_ns: 3_000, think_ns: 1_000, ..small(seed) },
            ] {
                let report =
                    run::<P>(&plan, &P::Params::default()).unwrap_or_else(|failure| panic!("{failure}"));
                assert_eq!(report.cycles, plan.ops);
                assert_eq!(report.acquire.count, plan.ops);
                assert!(report.goodput_per_s > 0.0);
            }
        }
    }

    fn mutant<P: Protocol>(&mut self, mutant: Mutant) {
        // Nobody states a bound on overtaking here, so the unfair one is the explorer's to catch.
        if mutant.caught_by == Checker::Bypass {
            return;
        }
        let weak = |mut plan: Plan| {
            let two_sided = mutant.of.starts_with("qplock") && mutant.caught_by != Checker::Deadlock;
            if mutant.why.contains("CPU and NIC atomics") || two_sided {
                plan.nic.offers.scope = AtomicScope::Nic;
                plan.local_clients = 6;
            }
            if two_sided {
                // Turns come to their end only where many wait.
                plan.locks = 1;
            }
            plan
        };
        let failure = (1..=5)
            .find_map(|seed| run::<P>(&weak(small(seed)), &P::Params::default()).err())
            .unwrap_or_else(|| panic!("nobody caught {}", P::INFO.name));
        let caught = match &failure.cause {
            Cause::Violation(violation) => violation.checker,
            Cause::Stuck { moving: false, .. } => Checker::Deadlock,
            Cause::Stuck { moving: true, .. } => Checker::Livelock,
            Cause::NotFree { .. } => Checker::Quiet,
            other => panic!("{other}"),
        };
        // A lock that two can enter may first be seen handing out a token twice.
        let expected = [mutant.caught_by, Checker::Tokens];
        assert!(expected.contains(&caught), "{failure}");
        let text = failure.to_string();
        assert!(text.contains(&format!("lockwright sim {} --clients 12", P::INFO.name)), "{text}");
        assert!(text.contains(&format!("--seed {}", failure.seed)), "{text}");
        assert!(failure.timeline.lines().count() > 5, "{text}");
    }
}

#[test]
fn every_lock_runs_clean_and_every_mutant_is_caught() {
    catalog::visit(&mut EveryLock);
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_seed_another() {
    let json = |seed| {
        let report = run::<Mcs>(&small(seed), &()).unwrap();
        serde_json::to_string(&report).unwrap()
    };
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

#[test]
fn a_warm_up_is_not_counted() {
    let plan = Plan { warmup_ops: 1_000, ..small(1) };
    let report = run::<Cas>(&plan, &()).unwrap();
    assert_eq!(report.cycles, 3_000);
    let whole = run::<Cas>(&Plan { ops: 4_000, ..small(1) }, &()).unwrap();
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
