//! ShiftLock Fig. 13: goodput of the locks that recover, when clients fail while they hold one.
//!
//! As in the paper a client fails by never releasing what it was granted, and goes on with another lock: to every
//! client that wants the first one it is dead. The checkers watch these runs too. Leases are the paper's, 10 ms for both locks.
//! Beside ShiftLock as it ships, where any waiter resets a dead lock, runs the paper's own recovery: the server does it,
//! once per era.

use super::prelude::*;
use super::shift::{SHIFTLOCK, micro, mops, us};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-fig13",
    title: "Goodput by the rate of client failures",
    source: "ShiftLock (FAST '25) Fig. 13, §4.8",
    run,
};

const DSLR: &str = "dslr";
/// ShiftLock with the paper's recovery.
const SERVED: &str = "shiftlock, reset by the server";
/// The paper's lease (§3.6).
const LEASE_NS: u64 = 10_000_000;

/// Why ShiftLock is above DSLR at the lowest rate here.
const RARE_NOTE: &str = "with one failure in a hundred thousand grants, goodput without failures still decides, and \
                         there ShiftLock is far above DSLR (Fig. 4)";

/// Why the server is not behind at the lowest rate.
const DRAW_NOTE: &str = "at the lowest rate recoveries hardly ever meet, and the two are 0.4 % apart";

fn run(context: &Context) -> Result<Findings, LabError> {
    let rates: &[f64] = context.pick(&[1e-5, 1e-4, 1e-3, 1e-2], &[1e-4, 1e-3]);
    let lease = ("lease-ns", LEASE_NS);
    let locks = [
        (SHIFTLOCK, vec![lease]),
        (SHIFTLOCK, vec![lease, ("server-resets", 1)]),
        (DSLR, vec![]), // its lease is as long
    ];
    let mut runs = Vec::new();
    for (lock, tunables) in locks {
        for rate in rates {
            let run = micro(context, lock, |plan| {
                plan.abandon_rate = *rate;
                // A failure costs tens of milliseconds: what counts is how many there are.
                plan.ops = context.pick(if *rate < 5e-4 { 3_000_000 } else { 300_000 }, 60_000);
                plan.warmup_ops = 0;
            });
            runs.push(Run { tunables: tunables.clone(), ..run });
        }
    }
    let reports = context.simulate(&runs)?;
    let (shiftlock, others) = reports.split_at(rates.len());
    let (served, dslr) = others.split_at(rates.len());
    let mut table = Table::new(
        "by-rate",
        &["lock", "failure_rate", "mops", "recoveries", "void", "mean_us", "p99_us", "seed"],
    );
    for (name, reports) in [(SHIFTLOCK, shiftlock), (SERVED, served), (DSLR, dslr)] {
        for (rate, report) in rates.iter().zip(reports) {
            table.row([
                name.to_owned(),
                format!("{rate:e}"),
                format!("{:.3}", mops(report)),
                report.recoveries.to_string(),
                report.lost.to_string(),
                two(us(report.acquire.mean_ns)),
                two(us(report.acquire.p99_ns as f64)),
                report.seed.to_string(),
            ]);
        }
    }
    let curve =
        |reports: &[Report]| rates.iter().zip(reports).map(|(rate, report)| (*rate, mops(report))).collect();
    let plot = Plot {
        name: "goodput".into(),
        title: "Goodput when clients fail".into(),
        note: "simulated; the paper's curves are ShiftLock Fig. 13".into(),
        x: Axis::log("chance that a grant is never released"),
        y: Axis::log("million cycles per second"),
        series: vec![
            Series::new(SHIFTLOCK, Style::Line, curve(shiftlock)),
            Series::new(SERVED, Style::Line, curve(served)),
            Series::new(DSLR, Style::Line, curve(dslr)),
        ],
    };
    let falls = |reports: &[Report]| reports.windows(2).all(|pair| mops(&pair[1]) < mops(&pair[0]));
    let pairs = || shiftlock.iter().zip(dslr);
    let dslr_leads = pairs().all(|(shiftlock, dslr)| mops(dslr) > mops(shiftlock));
    let ours_leads = shiftlock.iter().zip(served).all(|(ours, served)| mops(ours) >= mops(served));
    let claims = vec![
        statement("both-recover", reports.iter().all(|report| report.recoveries > 0)),
        statement("goodput-falls-with-the-rate", falls(shiftlock) && falls(dslr)),
        // Two leases of silence are enough for DSLR, ShiftLock waits for three.
        explained(statement("dslr-above-shiftlock", dslr_leads), RARE_NOTE),
        statement(
            "same-order-of-magnitude",
            pairs().all(|(shiftlock, dslr)| mops(dslr) < 10.0 * mops(shiftlock)),
        ),
        explained(statement("ours-reset-by-a-waiter-not-below-reset-by-the-server", ours_leads), DRAW_NOTE),
    ];
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}
