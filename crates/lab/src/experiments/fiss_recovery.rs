//! FissLock Fig. 17 (mid): how long it takes to be back when the switch is restarted and a server lost at the same moment.
//!
//! Time is counted from when the coordinator knows. Being back is half of the throughput that the surviving seven eighths had
//! before. The coordinator is on no node and takes no time for a message, but it does for the lines of a report.

use super::fiss::FISSLOCK;
use super::prelude::*;
use crate::rack::{RackReport, RackRun, simulate_all};
use crate::testbeds::{self, fisslock::MACHINES};
use crate::workload::Workload;
use lockwright_fabric::NodeId;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "fiss-recovery",
    title: "Recovery from a restarted switch and a lost server",
    source: "FissLock (OSDI '24) Fig. 17 mid, §7.8",
    run,
};

const LOCKS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
const CLIENTS: [usize; 3] = [160, 1_280, 5_120];
const SLICE_NS: u64 = 5_000;
const FAILS_NS: u64 = 2_000_000;

fn run(context: &Context) -> Result<Findings, LabError> {
    let new = |locks, clients| {
        let workload = Workload::Objects { objects: 10_000_000, locks, zipf: 0.0, reads_percent: 90.0 };
        let mut run = RackRun::new(FISSLOCK, workload);
        run.clients = clients;
        run.slice_ns = Some(SLICE_NS);
        (run.warmup_ns, run.duration_ns) = (0, context.pick(2, 1) * FAILS_NS + FAILS_NS);
        run.faults.restarts = vec![(MACHINES, FAILS_NS)];
        run.faults.node_deaths = vec![(NodeId(MACHINES as u16 - 1), FAILS_NS)];
        run
    };
    let points: Vec<_> = LOCKS
        .map(|locks| (locks, CLIENTS[0]))
        .into_iter()
        .chain(CLIENTS[1..].iter().map(|clients| (LOCKS[3], *clients)))
        .collect();
    let runs: Vec<_> = points.iter().map(|(locks, clients)| new(*locks, *clients)).collect();
    let reports = simulate_all(&runs, context.threads())?;
    let mut table = Table::new("recovery", &["locks", "clients", "mrps_before", "recovery_us", "mrps_after"]);
    let mut times = Vec::new();
    for ((locks, clients), report) in points.iter().zip(&reports) {
        let (before, back_us, after) = recovery(report);
        times.push(back_us);
        table.row([locks.to_string(), clients.to_string(), two(before), two(back_us), two(after)]);
    }
    let (by_locks, by_clients) = times.split_at(LOCKS.len());
    let series = vec![Series::new(
        "160 clients",
        Style::Line,
        LOCKS.iter().zip(by_locks).map(|(locks, us)| (*locks as f64, *us)).collect(),
    )];
    let plot = Plot {
        name: "recovery".to_owned(),
        title: "Recovery of a switch and a server".to_owned(),
        note: "simulated".to_owned(),
        x: Axis::log("locks"),
        y: Axis::linear("µs"),
        series,
    };
    let back = reports.iter().all(|report| {
        let (before, _, after) = recovery(report);
        after > 0.8 * before * (MACHINES - 1) as f64 / MACHINES as f64
    });
    let claims = vec![
        statement("everybody-left-is-back", back),
        explained(
            statement("recovery-grows-with-the-number-of-locks", by_locks[3] > 2.0 * by_locks[0]),
            "machines keep tables of locks that are held or wanted, not of all there are: there is nothing to scan",
        ),
        statement("ours-grows-with-what-is-held", by_clients[1] > by_locks[3]),
    ];
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}

/// Throughput before the failure; microseconds from when it was known until half of that is back; throughput at the end.
fn recovery(report: &RackReport) -> (f64, f64, f64) {
    let per_us =
        |slices: &[u64]| slices.iter().sum::<u64>() as f64 * 1e3 / (slices.len() as u64 * SLICE_NS) as f64;
    let fails = (FAILS_NS / SLICE_NS) as usize;
    let known_ns = FAILS_NS + testbeds::fisslock::nic().node_lost_ns;
    let known = (known_ns / SLICE_NS) as usize;
    let before = per_us(&report.slices[fails / 2..fails]);
    let enough = before * (MACHINES - 1) as f64 / MACHINES as f64 / 2.0;
    let back = (known..report.slices.len()).find(|slice| per_us(&report.slices[*slice..=*slice]) >= enough);
    let back_us = back.map_or(f64::NAN, |back| ((back + 1 - known) as u64 * SLICE_NS) as f64 / 1e3);
    let tail = report.slices.len().min((report.duration_ns / SLICE_NS) as usize);
    (before, back_us, per_us(&report.slices[tail - 100..tail]))
}
