//! FissLock Fig. 3: what a lock costs a task that takes microseconds, and how uneven that is, on the lock managers that there
//! were before.

use super::fiss::{LOCKS, ZIPF, cdf, of};
use super::prelude::*;
use crate::rack::{RackReport, RackRun, simulate_all};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "fiss-fig3",
    title: "Grant time in the latency of short tasks",
    source: "FissLock (OSDI '24) Fig. 3, §2.3",
    run,
};

const WORK_US: [u64; 3] = [1, 10, 20];
/// Name, Zipf exponent, percent of reads; the last is there to see what is left when no client waits for another.
const MIXES: [(&str, f64, f64); 5] = [
    ("uni-uh", 0.0, 50.0),
    ("uni-rm", 0.0, 90.0),
    ("zipf-uh", ZIPF, 50.0),
    ("zipf-rm", ZIPF, 90.0),
    ("uni-ro", 0.0, 100.0),
];
const OLD: [&str; 3] = ["srvlock", "parlock", "netlock"];

fn run(context: &Context) -> Result<Findings, LabError> {
    let new = |manager, zipf, reads_percent, work_us| {
        let mut run = RackRun::new(manager, Workload::Micro { locks: LOCKS, zipf, reads_percent });
        run.duration_ns = context.pick(10_000_000, 2_000_000);
        run.work_ns = work_us * 1_000;
        run
    };
    let tasks = WORK_US
        .iter()
        .flat_map(|work_us| MIXES.map(|(_, zipf, reads)| new("srvlock", zipf, reads, *work_us)));
    let spread = [0.0, ZIPF].into_iter().flat_map(|zipf| OLD.map(|manager| new(manager, zipf, 90.0, 0)));
    let runs: Vec<_> = tasks.chain(spread).collect();
    let reports = simulate_all(&runs, context.threads())?;
    let (tasks, spread) = reports.split_at(WORK_US.len() * MIXES.len());
    let mut shares =
        Table::new("share", &["work_us", "workload", "p50_us", "p90_us", "p50_percent", "p90_percent"]);
    let share = |report: &RackReport, work_us: u64, quantile| {
        let grant_us = report.grant_us(quantile);
        100.0 * grant_us / (grant_us + work_us as f64)
    };
    for (work_us, row) in WORK_US.iter().zip(tasks.chunks(MIXES.len())) {
        for ((name, ..), report) in MIXES.iter().zip(row) {
            shares.row([
                work_us.to_string(),
                (*name).to_owned(),
                two(report.grant_us(0.5)),
                two(report.grant_us(0.9)),
                two(share(report, *work_us, 0.5)),
                two(share(report, *work_us, 0.9)),
            ]);
        }
    }
    let plots = ["uniform", "zipf"].iter().zip(spread.chunks(OLD.len())).map(|(name, row)| {
        let curves: Vec<_> = OLD.iter().map(|manager| (*manager, &of(row, manager).acquire_ns[..])).collect();
        cdf(name, &format!("Lock grant time before FissLock, read-mostly, {name}"), &curves)
    });
    let plots = plots.collect();
    let all = || WORK_US.iter().zip(tasks.chunks(MIXES.len()));
    let significant =
        all().all(|(work_us, row)| row.iter().all(|report| share(report, *work_us, 0.5) >= 20.0));
    // Update-heavy against read-only on the same uniform locks: what is more is time in queues of locks.
    let waits = all().map(|(_, row)| row[0].grant_us(0.5) / row[4].grant_us(0.5)).fold(0.0, f64::max);
    let uniform = of(&spread[..OLD.len()], "srvlock");
    let claims = vec![
        statement("grant-time-is-a-fifth-or-more-of-every-task", significant),
        statement("waiting-is-negligible-on-uniform-locks", waits < 1.1),
        explained(
            statement("a-grant-takes-a-few-us-at-best", uniform.grant_us(0.0) < 10.0),
            "160 clients in a closed loop always fill the queues of SrvLock's cores here",
        ),
        explained(
            statement("a-grant-takes-over-100-us-at-worst", uniform.grant_us(1.0) > 100.0),
            "the testbed's servers take packets in batches, and some wait for several of them; here they queue one by one",
        ),
    ];
    Ok(Findings { tables: vec![shares], plots, claims })
}
