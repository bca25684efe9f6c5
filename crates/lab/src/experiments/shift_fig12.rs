//! ShiftLock Fig. 12: how many writers may follow each other before readers have their turn.
//!
//! As in the paper the turn comes whether a reader waits or not; our own optimisation, which asks first, is run beside
//! it at every N.

use super::prelude::*;
use super::shift::{SHIFTLOCK, micro, mops, near, us};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-fig12",
    title: "ShiftLock by the number of writers in a row",
    source: "ShiftLock (FAST '25) Fig. 12, §4.7",
    run,
};

/// What stands for "never".
const NEVER: u64 = u32::MAX as u64;

/// What changes by less is stable: of the changes in this figure, 3.3 % is the smallest that the paper mentions as one.
const STABLE_PERCENT: f64 = 3.3;

/// Why goodput is not flat here.
const FLAT_NOTE: &str = "in the model goodput still rises from 16 to 64, by more than the 3.3 % that the paper calls a \
                         change";

/// Why the last step gains nothing here.
const GAIN_NOTE: &str = "published is a gain of 3.3 % over 32; in the model goodput is highest at 64, and no limit \
                         at all gives that back";

/// Why the median grows more here.
const MEDIAN_NOTE: &str = "without a limit readers of the hot locks wait for runs of writers that end only by chance, \
                           and in the model they are enough to lift the median of all acquires";

fn run(context: &Context) -> Result<Findings, LabError> {
    let thresholds: &[u64] = context.pick(&[1, 2, 4, 8, 16, 32, 64, NEVER], &[1, 16, 32, NEVER]);
    let mut runs = Vec::new();
    for asks_first in [0, 1] {
        for threshold in thresholds {
            let tunables = vec![("threshold", *threshold), ("skips-idle-readers", asks_first)];
            runs.push(Run { tunables, ..micro(context, SHIFTLOCK, |_| {}) });
        }
    }
    let reports = context.simulate(&runs)?;
    let (printed, asking) = reports.split_at(thresholds.len());
    let name = |threshold: u64| if threshold == NEVER { "inf".to_owned() } else { threshold.to_string() };
    let mut table = Table::new(
        "by-n",
        &["n", "asks_first", "mops", "mean_us", "p50_us", "p99_us", "read_p99_us", "seed"],
    );
    for (asks_first, reports) in [("no", printed), ("yes", asking)] {
        for (threshold, report) in thresholds.iter().zip(reports) {
            table.row([
                name(*threshold),
                asks_first.to_owned(),
                two(mops(report)),
                two(us(report.acquire.mean_ns)),
                two(us(report.acquire.p50_ns as f64)),
                two(us(report.acquire.p99_ns as f64)),
                two(us(report.acquire_shared.p99_ns as f64)),
                report.seed.to_string(),
            ]);
        }
    }
    let at = |n: u64| -> &Report {
        &printed[thresholds.iter().position(|threshold| *threshold == n).expect("a point of the sweep")]
    };
    let curve = |reports: &[Report]| -> Vec<(f64, f64)> {
        let shown = thresholds.iter().zip(reports).filter(|(threshold, _)| **threshold != NEVER);
        shown.map(|(threshold, report)| (*threshold as f64, mops(report))).collect()
    };
    let plot = Plot {
        name: "goodput".into(),
        title: "ShiftLock by writers in a row, half of it writes".into(),
        note: "simulated; dashes: no limit".into(),
        x: Axis::log("writers in a row"),
        y: Axis::linear("million cycles per second"),
        series: vec![
            Series::new("as printed", Style::Line, curve(printed)),
            Series::new("asks first", Style::Line, curve(asking)),
            Series::new("no limit", Style::Dashes, vec![(1.0, mops(at(NEVER))), (64.0, mops(at(NEVER)))]),
        ],
    };
    let p99 = |n| at(n).acquire.p99_ns;
    let p50 = |n| at(n).acquire.p50_ns as f64;
    let asked =
        |n: u64| mops(&asking[thresholds.iter().position(|t| *t == n).expect("a point of the sweep")]);
    let flat = thresholds
        .iter()
        .filter(|n| (16..NEVER).contains(n))
        .all(|n| near(mops(at(16)), mops(at(*n)), STABLE_PERCENT));
    let claims = vec![
        explained(statement("flat-from-16", flat), FLAT_NOTE),
        statement("small-n-costs-goodput", mops(at(1)) < 0.95 * mops(at(16))),
        explained(statement("no-limit-gains-goodput", mops(at(NEVER)) > mops(at(32))), GAIN_NOTE),
        statement("tail-falls-as-n-grows", p99(1) > p99(16)),
        statement("median-stable-up-to-32", near(p50(1), p50(32), STABLE_PERCENT)),
        explained(
            Claim::new("no-limit-median-over-32", 1.365, p50(NEVER) / p50(32)).within_percent(20.0),
            MEDIAN_NOTE,
        ),
        statement(
            "ours-asking-first-costs-nothing",
            asked(1) >= mops(at(1)) && asked(16) >= 0.98 * mops(at(16)),
        ),
    ];
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}
