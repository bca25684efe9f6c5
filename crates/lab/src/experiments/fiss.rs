//! What FissLock's experiments have in common: the lock managers compared, the microbenchmark, and small helpers.

use super::prelude::*;
use crate::rack::{RackReport, RackRun, quantile_us, simulate_all};
use crate::workload::Workload;

pub(super) const FISSLOCK: &str = "fisslock";
/// The lock managers, ours first.
pub(super) const MANAGERS: [&str; 4] = [FISSLOCK, "netlock", "srvlock", "parlock"];

/// Locks of the microbenchmark (§7.1).
pub(super) const LOCKS: u64 = 1_000_000;

/// Skew of the paper's Zipfian workloads, which it does not print. The hottest 1 % of the locks take 27 % of the requests
/// (NetLock holds 10,000 of a million), the first eighth takes 56.7 % (§2.3): 0.01^(1−s) = 0.27 and 8^(s−1) = 0.567 both
/// say s ≈ 0.72; for a million locks, not infinitely many, 0.73 meets both.
pub(super) const ZIPF: f64 = 0.73;

/// Workloads of the microbenchmark: name, Zipf exponent, percent of reads.
pub(super) const WORKLOADS: [(&str, f64, f64); 6] = [
    ("uni-uh", 0.0, 50.0),
    ("uni-rm", 0.0, 90.0),
    ("uni-ro", 0.0, 100.0),
    ("zipf-uh", ZIPF, 50.0),
    ("zipf-rm", ZIPF, 90.0),
    ("zipf-ro", ZIPF, 100.0),
];

/// The microbenchmark on every manager: one row per workload, in the order of [`MANAGERS`].
pub(super) fn micro(context: &Context) -> Result<Vec<Vec<RackReport>>, LabError> {
    let runs: Vec<_> = WORKLOADS
        .iter()
        .flat_map(|(_, zipf, reads)| {
            let workload = Workload::Micro { locks: LOCKS, zipf: *zipf, reads_percent: *reads };
            MANAGERS.map(|manager| {
                let mut run = RackRun::new(manager, workload.clone());
                run.duration_ns = context.pick(20_000_000, 2_000_000);
                run
            })
        })
        .collect();
    let reports = simulate_all(&runs, context.threads())?;
    Ok(reports.chunks(MANAGERS.len()).map(<[RackReport]>::to_vec).collect())
}

/// The report of `manager`.
pub(super) fn of<'a>(reports: &'a [RackReport], manager: &str) -> &'a RackReport {
    reports.iter().find(|report| report.protocol == manager).expect("every manager was run")
}

/// Percent by which `ours` is below `theirs`.
pub(super) fn below(ours: f64, theirs: f64) -> f64 {
    100.0 * (1.0 - ours / theirs)
}

/// A curve of quantiles: how many percent take at most so long.
pub(super) fn cdf(name: &str, title: &str, curves: &[(&str, &[u64])]) -> Plot {
    let curve = |(label, sorted): &(&str, &[u64])| {
        let points =
            (1..100).map(|percent| (quantile_us(sorted, f64::from(percent) / 100.0), f64::from(percent)));
        Series::new(label, Style::Line, points.collect())
    };
    Plot {
        name: name.to_owned(),
        title: title.to_owned(),
        note: "simulated".to_owned(),
        x: Axis::log("µs"),
        y: Axis::linear("percent"),
        series: curves.iter().map(curve).collect(),
    }
}
