//! ShiftLock Fig. 7: from a thousand locks to ten million, write-intensive.

use super::prelude::*;
use super::shift::{BASELINES, SHIFTLOCK, all_locks, best_baseline, micro_in_sweep, mops, of, us};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-fig7",
    title: "Goodput and latency by the number of locks",
    source: "ShiftLock (FAST '25) Fig. 7, §4.3",
    run,
};

/// Why the advantage does not grow here.
const GROWTH_NOTE: &str = "the best baseline is RMA-RW at every count, and what it pays for its modes is the same \
                           number of round trips on a hot lock as on a cold one";

fn run(context: &Context) -> Result<Findings, LabError> {
    let counts: &[u64] = context.pick(&[1_000, 10_000, 100_000, 1_000_000, 10_000_000], &[1_000, 10_000_000]);
    let runs: Vec<_> = counts
        .iter()
        .flat_map(|locks| {
            all_locks().map(|lock| {
                micro_in_sweep(context, lock, |plan| {
                    plan.locks = *locks;
                    // A fifth will do: a lock that hardly moves has few surprises.
                    if ["drtm", "rpc"].contains(&lock) {
                        plan.ops /= 5;
                        plan.warmup_ops /= 5;
                    }
                })
            })
        })
        .collect();
    let reports = context.simulate(&runs)?;
    let points: Vec<&[Report]> = reports.chunks(BASELINES.len() + 1).collect();
    let mut table = Table::new("by-locks", &["lock", "locks", "mops", "p50_us", "p99_us", "seed"]);
    for report in &reports {
        table.row([
            report.protocol.clone(),
            report.locks.to_string(),
            two(mops(report)),
            two(us(report.acquire.p50_ns as f64)),
            two(us(report.acquire.p99_ns as f64)),
            report.seed.to_string(),
        ]);
    }
    let plot = Plot {
        name: "goodput".into(),
        title: "Goodput by the number of locks, half of it writes".into(),
        note: "simulated; the paper's curves are ShiftLock Fig. 7".into(),
        x: Axis::log("locks"),
        y: Axis::linear("million cycles per second"),
        series: all_locks()
            .map(|lock| {
                let curve = points.iter().map(|reports| of(reports, lock));
                Series::new(
                    lock,
                    Style::Line,
                    curve.map(|report| (report.locks as f64, mops(report))).collect(),
                )
            })
            .collect(),
    };
    let over =
        |reports: &[Report]| of(reports, SHIFTLOCK).goodput_per_s / best_baseline(reports).goodput_per_s;
    let (few, many) = (points[0], points[points.len() - 1]);
    let claims = vec![
        statement("shiftlock-highest-everywhere", points.iter().all(|reports| over(reports) > 1.0)),
        explained(Claim::new("over-best-at-1k", 1.52, over(few)).within_percent(15.0), GROWTH_NOTE),
        Claim::new("over-best-at-10m", 1.38, over(many)).within_percent(15.0),
        explained(statement("advantage-grows-with-contention", over(few) > over(many)), GROWTH_NOTE),
        statement(
            "drtm-p99-above-10-ms",
            points.iter().all(|reports| of(reports, "drtm").acquire.p99_ns > 10_000_000),
        ),
    ];
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}
