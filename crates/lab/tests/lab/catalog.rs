//! Every protocol of the catalog is clean, in a first look of the explorer and in plain simulated runs, and mutants are caught in
//! those. `cargo xtask check` goes through every case to its end, and explores every mutant until its checker catches it.
//!
//! These tests live in the lab because it compiles each protocol for both fabrics once and hands them out as values:
//! here they are only run.

use lockwright_fabric::AtomicScope;
use lockwright_proofs::subject::{self, Subject};
use lockwright_sim::check::Checker;
use lockwright_sim::explore::{Options, Outcome};
use lockwright_sim::{Cause, Plan};
use std::sync::Mutex;

/// Futures within futures, unoptimised, take more than the usual two megabytes.
const STACK: usize = 64 << 20;

/// Does `work` for every subject that `wanted` picks, on all cores.
fn each(wanted: impl Fn(&Subject) -> bool, work: impl Fn(&Subject) + Sync) {
    let subjects: Vec<_> = subject::all().into_iter().filter(wanted).collect();
    spread(subjects.iter().collect(), work);
}

/// Does every piece of `work`, the last first, on all cores.
fn spread<T: Send>(pieces: Vec<T>, work: impl Fn(T) + Sync) {
    let queue = Mutex::new(pieces);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            let worker = std::thread::Builder::new().stack_size(STACK);
            let work = || {
                while let Some(piece) = { queue.lock().expect("a worker failed").pop() } {
                    work(piece);
                }
            };
            worker.spawn_scoped(scope, work).expect("the system can start a thread");
        }
    });
}

fn is_protocol(subject: &Subject) -> bool {
    subject.mutant.is_none()
}

/// States of one case at most: a first look.
const MAX_STATES: u64 = 5_000;

fn explore(subject: &Subject, case: usize) -> Outcome {
    let outcome = subject.explore(case, &mut Options { max_states: Some(MAX_STATES), ..Options::default() });
    let Outcome { states, transitions, depth, exhaustive, seconds, .. } = &outcome;
    println!(
        "{} {}: {states} states, {transitions} transitions, depth {depth}, exhaustive {exhaustive}, {seconds:.2} s",
        subject.info.name, subject.cases[case].name
    );
    outcome
}

#[test]
fn every_protocol_explores_clean() {
    let subjects: Vec<_> = subject::all().into_iter().filter(is_protocol).collect();
    // Case by case: a protocol with many would be the last to end, alone.
    let cases = subjects.iter().flat_map(|subject| (0..subject.cases.len()).map(move |case| (subject, case)));
    spread(cases.collect(), |(subject, case)| {
        if let Some(found) = explore(subject, case).violation {
            let (name, case) = (subject.info.name, subject.cases[case].name);
            panic!("{name} {case}: {}\n{}", found.violation, found.trace);
        }
    });
}

#[test]
fn every_checker_has_a_mutant_it_catches() {
    let caught: Vec<_> =
        subject::all().iter().filter_map(|subject| Some(subject.mutant?.caught_by)).collect();
    for checker in Checker::ALL {
        assert!(caught.contains(&checker), "no mutant shows that {} is checked", checker.name());
    }
}

/// Look at a record of every client there may be, with every request or for every reader that came before: a matter of loads
/// where they are used, of hundreds of round trips in the simulator. A tenth of the operations takes them as long as all of them
/// take the others.
const FOR_ONE_HOST: [&str; 2] = ["holders-ranges", "qplock-member"];

#[test]
fn every_protocol_runs_clean() {
    each(
        |subject| is_protocol(subject) && subject.can_be_simulated(),
        |subject| {
            for seed in 1..=5 {
                for plan in [
                    Plan::small(seed),
                    Plan { locks: 1, ..Plan::small(seed) },
                    Plan { nodes: 3, hold_ns: 3_000, think_ns: 1_000, ..Plan::small(seed) },
                ] {
                    let name = subject.info.name;
                    let share = if FOR_ONE_HOST.contains(&name) { 10 } else { 1 };
                    let plan = Plan { ops: plan.ops / share, ..plan };
                    let report = subject.simulate(&plan).unwrap_or_else(|failure| panic!("{failure}"));
                    assert_eq!((report.cycles, report.denied), (plan.ops, 0), "{name}");
                    assert_eq!(report.acquire.count, plan.ops, "{name}");
                    assert!(report.goodput_per_s > 0.0, "{name}");
                }
            }
        },
    );
}

#[test]
fn mutants_that_show_in_a_plain_run_are_caught_in_one() {
    each(
        |subject| subject.mutant.is_some() && subject.can_be_simulated(),
        |subject| {
            let name = subject.info.name;
            let weak = |mut plan: Plan| {
                if name == "cas-weak-scope" {
                    plan.nic.offers.scope = AtomicScope::Nic;
                    plan.local_clients = 6;
                }
                plan
            };
            let failure = (1..=5).find_map(|seed| subject.simulate(&weak(Plan::small(seed))).err());
            let failure = failure.unwrap_or_else(|| panic!("no run caught {name}"));
            // Which checker is first to see it depends on the schedule; the explorer's test says which one must.
            let seen =
                matches!(failure.cause, Cause::Violation(_) | Cause::Stuck { .. } | Cause::NotFree { .. });
            assert!(seen, "{failure}");
            let text = failure.to_string();
            assert!(text.contains(&format!("lockwright-lab sim {name} --clients 12")), "{text}");
            assert!(text.contains(&format!("--seed {}", failure.seed)), "{text}");
            assert!(failure.timeline.lines().count() > 5, "{text}");
        },
    );
}
