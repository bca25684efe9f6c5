//! Simulated ranges, what the work of a server's threads costs there, and runs that are cut off.

use lockwright_baselines::lld::Lld;
use lockwright_baselines::served::{Served, interval::Interval, list::List, maple::Maple};
use lockwright_baselines::ss::{SsParams, StaticSegments};
use lockwright_fabric::{BoxedRole, Endpoint, Message, NodeId, Outbox, PeerId, Role, Time};
use lockwright_sim::{Ended, NicModel, Oltp, Pattern, Plan, Ranges, ServerThreads, Setup, World, run};
use std::cell::RefCell;
use std::rc::Rc;

fn plan(pattern: Pattern) -> Plan {
    Plan { clients: 12, locks: 1, ops: 3_000, ranges: Some(Ranges::of(4_096, pattern)), ..Plan::default() }
}

fn borders() -> Pattern {
    Pattern::Borders { lengths: vec![1, 16, 256], step: 1 }
}

#[test]
fn every_range_lock_of_the_comparison_runs_clean_under_contention() {
    for seed in 1..=3 {
        for pattern in [borders(), Pattern::Between, Pattern::Interleaved { record_bytes: 47, unit_bytes: 4 }]
        {
            let plan = Plan { seed, ..plan(pattern) };
            let segments = SsParams { segment_units: 16, ..SsParams::default() };
            let reports = [
                run::<Lld>(&plan, &Default::default()),
                run::<Served<List>>(&plan, &Default::default()),
                run::<Served<Interval>>(&plan, &Default::default()),
                run::<Served<Maple>>(&plan, &Default::default()),
                run::<StaticSegments>(&plan, &segments),
            ];
            for report in reports {
                let report = report.unwrap_or_else(|failure| panic!("{failure}"));
                assert_eq!((report.cycles, report.denied), (plan.ops, 0), "{}", report.protocol);
            }
        }
    }
}

#[test]
fn a_run_with_ranges_repeats_exactly_and_tells_its_kinds_of_clients_apart() {
    let oltp = Oltp {
        readers: 8,
        writers: 3,
        files: 3,
        io_units: 2,
        log_units: 64,
        aligned: true,
        reads_per_write: 10,
        reads_per_log_write: 100,
        reads_ahead: 50,
    };
    let plan = plan(Pattern::Oltp(oltp));
    let report = run::<Served<List>>(&plan, &Default::default()).unwrap();
    assert_eq!(report, run::<Served<List>>(&plan, &Default::default()).unwrap());
    let counts: Vec<_> = report.kinds.iter().map(|kind| (kind.name.as_str(), kind.acquire.count)).collect();
    let [("log writer", logs), ("writer", writes), ("reader", reads)] = counts[..] else {
        panic!("{counts:?}")
    };
    assert_eq!(logs + writes + reads, plan.ops);
    // Three writers, one write each for ten reads; the log once for a hundred.
    assert!(reads > 2_000 && writes.abs_diff(reads * 3 / 10) < 50, "{counts:?}");
    assert!(logs.abs_diff(reads / 100) <= 2, "{counts:?}");
}

#[test]
fn a_run_that_is_cut_off_counts_what_was_done_until_then() {
    let plan = Plan { duration_ns: Some(1_000_000), cut_off: true, ..plan(borders()) };
    let report = run::<Served<List>>(&plan, &Default::default()).unwrap();
    assert!(report.cycles > 500, "{}", report.cycles);
    assert_eq!(report.virtual_ns, 1_000_000);
}

/// Answers everything, after work on a hundred cache lines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Busy {
    alone: bool,
}

impl Role for Busy {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        if self.alone {
            out.touch_alone(100);
        } else {
            out.touch(100);
        }
        out.send(from, message.clone());
    }
}

/// When each of three clients, who all ask at the same time, has its answer.
fn answers_ns(alone: bool, threads: usize) -> Vec<u64> {
    let mut world = World::new(Setup { clients: 3, ..Setup::default() });
    let threads = ServerThreads { threads, ..ServerThreads::default() };
    let server = world.install_role_on(NodeId(0), BoxedRole::new(Busy { alone }), &[threads]);
    let answers = Rc::new(RefCell::new(Vec::new()));
    for _ in 0..3 {
        let answers = Rc::clone(&answers);
        world.spawn(None, move |ep| async move {
            ep.send(server, Message::new(0, 1, &[])).await.unwrap();
            ep.recv(|_, _| Some(())).await;
            answers.borrow_mut().push(ep.true_now_ns());
        });
    }
    assert_eq!(world.run(1_000_000).unwrap(), Ended::AllDone);
    answers.take()
}

#[test]
fn work_keeps_a_thread_busy_and_work_alone_keeps_all_of_them() {
    let work_ns = 100 * NicModel::default().cpu_access_ns;
    let last_after_first = |alone, threads| {
        let answers = answers_ns(alone, threads);
        answers[2] - answers[0]
    };
    assert!(last_after_first(false, 3) < work_ns / 2);
    assert!(last_after_first(false, 1) > 2 * work_ns - work_ns / 2);
    assert!(last_after_first(true, 3) > 2 * work_ns - work_ns / 2);
    let all = [(false, 3), (false, 1), (true, 3)];
    assert!(all.iter().all(|(alone, threads)| answers_ns(*alone, *threads)[0] > work_ns));
}
