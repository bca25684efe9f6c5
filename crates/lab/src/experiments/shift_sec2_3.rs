//! ShiftLock §2.3: what retries cost. 240 clients, on five machines, all want one CAS lock, release it at once
//! and want it again; first without backoff, then with SMART's. The ideal, one client alone, never retries.
//!
//! The paper prints the figures at 240 clients only; the curve up to there is ours.

use crate::claim::Claim;
use crate::context::{Context, LabError, Run};
use crate::experiment::{Experiment, Findings};
use crate::plot::{Axis, Plot, Series, Style};
use crate::table::Table;
use lockwright_sim::{Plan, Report};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-sec2-3",
    title: "What retries cost: one CAS lock, up to 240 clients",
    source: "ShiftLock (FAST '25) §2.3",
    run,
};

/// Clients of the paper's experiment: 48 cores on each of five machines (§4.1).
const CLIENTS: usize = 240;

/// Goodput without retries, without backoff and with backoff, in thousands of cycles per second.
const IDEAL_K: f64 = 278.3;
const PLAIN_K: f64 = 15.5;
const BACKOFF_K: f64 = 141.4;

/// Percent of CAS verbs that are retries, without and with backoff.
const PLAIN_RETRIES: f64 = 99.4;
const BACKOFF_RETRIES: f64 = 87.1;

/// Why the figures with backoff can differ from the paper's.
const BACKOFF_NOTE: &str = "a few clients that are awake pass the lock among themselves while the others sleep \
                            (see p50 and p99); how often SMART's cap adapts is not in the paper";

fn run(context: &Context) -> Result<Findings, LabError> {
    let counts: &[usize] =
        context.pick(&[1, 2, 5, 10, 20, 40, 80, 120, 160, 200, CLIENTS], &[1, 15, 60, CLIENTS]);
    let (ops, warmup_ops) = context.pick((40_000, 20_000), (6_000, 4_000));
    let plan =
        |clients| Plan { clients, machines: 5, locks: 1, zipf: 0.0, ops, warmup_ops, ..Plan::default() };
    let runs: Vec<Run> = ["cas", "cas-backoff"]
        .iter()
        .flat_map(|protocol| counts.iter().map(move |clients| Run { protocol, plan: plan(*clients) }))
        .collect();
    let reports = context.simulate(&runs)?;
    let (plain, backoff) = reports.split_at(counts.len());
    Ok(Findings {
        tables: vec![table(&reports)],
        plots: vec![plot(plain, backoff)],
        claims: claims(&plain[0], &plain[counts.len() - 1], &backoff[counts.len() - 1]),
    })
}

fn kilo(report: &Report) -> f64 {
    report.goodput_per_s / 1e3
}

fn claims(ideal: &Report, plain: &Report, backoff: &Report) -> Vec<Claim> {
    vec![
        Claim::new("ideal-kops", IDEAL_K, kilo(ideal)).within_percent(15.0),
        Claim::new("no-backoff-kops", PLAIN_K, kilo(plain)).within_percent(15.0),
        Claim::new("no-backoff-retry-percent", PLAIN_RETRIES, plain.retry_percent).within_points(2.0),
        Claim::new("backoff-kops", BACKOFF_K, kilo(backoff)).within_factor(1.5).note(BACKOFF_NOTE),
        Claim::new("backoff-retry-percent", BACKOFF_RETRIES, backoff.retry_percent)
            .within_points(10.0)
            .note(BACKOFF_NOTE),
    ]
}

fn table(reports: &[Report]) -> Table {
    let header =
        ["protocol", "clients", "goodput_kops", "retry_percent", "cas_per_cycle", "p50_us", "p99_us", "seed"];
    let mut table = Table::new("goodput", &header);
    for report in reports {
        table.row([
            report.protocol.clone(),
            report.clients.to_string(),
            format!("{:.1}", kilo(report)),
            format!("{:.1}", report.retry_percent),
            format!("{:.2}", report.per_cycle.cas),
            format!("{:.2}", report.acquire.p50_ns as f64 / 1e3),
            format!("{:.2}", report.acquire.p99_ns as f64 / 1e3),
            report.seed.to_string(),
        ]);
    }
    table
}

fn plot(plain: &[Report], backoff: &[Report]) -> Plot {
    let curve =
        |reports: &[Report]| reports.iter().map(|report| (report.clients as f64, kilo(report))).collect();
    let at_240 = |kops| vec![(CLIENTS as f64, kops)];
    Plot {
        name: "goodput".into(),
        title: "One CAS lock: goodput under contention".into(),
        note: "simulated; crosses and dashes: ShiftLock §2.3, measured by its authors".into(),
        x: Axis::linear("clients"),
        y: Axis::log("thousand acquire+release cycles per second"),
        series: vec![
            Series::new("no backoff", Style::Line, curve(plain)),
            Series::new("backoff", Style::Line, curve(backoff)),
            Series::new("no backoff, paper", Style::Cross, at_240(PLAIN_K)),
            Series::new("backoff, paper", Style::Cross, at_240(BACKOFF_K)),
            Series::new("ideal, paper", Style::Dashes, vec![(0.0, IDEAL_K), (CLIENTS as f64, IDEAL_K)]),
        ],
    }
}
