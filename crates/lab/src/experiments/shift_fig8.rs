//! ShiftLock Fig. 8: from five clients to 240, write-intensive and read-intensive.

use super::prelude::*;
use super::shift::{
    BASELINES, RI, SHIFTLOCK, STABLE_PERCENT, WI, all_locks, best_baseline, micro_in_sweep, mops, near, of,
    us,
};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-fig8",
    title: "Goodput and latency by the number of clients",
    source: "ShiftLock (FAST '25) Fig. 8, §4.3",
    run,
};

/// What the paper calls stable, by its own figures.
const STABLE_NOTE: &str = "goodput falls by a quarter from 80 clients to 240; so does what the latencies of the \
                           paper's Table 3 amount to, 11.2 and 8.5 million cycles per second";
/// Where the NIC is full here.
const SCALES_NOTE: &str = "the model's NIC is nearly full with 80 clients, 15.0 of 16.4 million cycles per second; by \
                           Table 3 the paper's does 13.3 there and 14.7 with 120";

fn run(context: &Context) -> Result<Findings, LabError> {
    let counts: &[usize] = context.pick(&[5, 20, 40, 80, 120, 160, 200, 240], &[40, 80, 120, 240]);
    let mut runs = Vec::new();
    for writes in [WI, RI] {
        for clients in counts {
            runs.extend(all_locks().map(|lock| {
                micro_in_sweep(context, lock, |plan| {
                    (plan.clients, plan.writes_percent) = (*clients, writes);
                    plan.duration_ns = plan.duration_ns.map(|ns| ns.min(500_000_000));
                    plan.ops /= 2;
                })
            }));
        }
    }
    let reports = context.simulate(&runs)?;
    let (wi, ri) = reports.split_at(reports.len() / 2);
    let mut table =
        Table::new("by-clients", &["workload", "lock", "clients", "mops", "p50_us", "p99_us", "seed"]);
    for (name, reports) in [("wi", wi), ("ri", ri)] {
        for report in reports {
            table.row([
                name.to_owned(),
                report.protocol.clone(),
                report.clients.to_string(),
                two(mops(report)),
                two(us(report.acquire.p50_ns as f64)),
                two(us(report.acquire.p99_ns as f64)),
                report.seed.to_string(),
            ]);
        }
    }
    let curve = |reports: &[Report], lock: &str| -> Vec<(f64, f64)> {
        let curve = reports.iter().filter(|report| report.protocol == lock);
        curve.map(|report| (report.clients as f64, mops(report))).collect()
    };
    let plot = |name: &str, title: &str, reports| Plot {
        name: name.into(),
        title: title.into(),
        note: "simulated; the paper's curves are ShiftLock Fig. 8".into(),
        x: Axis::linear("clients"),
        y: Axis::linear("million cycles per second"),
        series: all_locks().map(|lock| Series::new(lock, Style::Line, curve(reports, lock))).collect(),
    };
    let at = |reports: &[Report], clients: usize| {
        let found = reports.iter().find(|r| r.protocol == SHIFTLOCK && r.clients == clients);
        mops(found.expect("a point of the sweep"))
    };
    let beyond = |reports: &[Report], from: usize| {
        counts.iter().filter(|n| **n > from).all(|n| near(at(reports, from), at(reports, *n), STABLE_PERCENT))
    };
    let last = |reports: &[Report]| reports[reports.len() - BASELINES.len() - 1..].to_vec();
    let highest =
        |reports: &[Report]| of(reports, SHIFTLOCK).goodput_per_s > best_baseline(reports).goodput_per_s;
    let claims = vec![
        statement("wi-scales-to-80", at(wi, 80) > 1.2 * at(wi, 40)),
        explained(statement("wi-stable-beyond-80", beyond(wi, 80)), STABLE_NOTE),
        explained(statement("ri-scales-to-120", at(ri, 120) > 1.1 * at(ri, 80)), SCALES_NOTE),
        statement("ri-stable-beyond-120", beyond(ri, 120)),
        statement("wi-shiftlock-highest-at-240", highest(&last(wi))),
        statement("ri-shiftlock-highest-at-240", highest(&last(ri))),
    ];
    Ok(Findings {
        tables: vec![table],
        plots: vec![
            plot("wi", "Goodput by clients, half of it writes", wi),
            plot("ri", "Goodput by clients, one write in twenty", ri),
        ],
        claims,
    })
}
