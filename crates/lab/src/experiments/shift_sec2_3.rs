//! ShiftLock §2.3: what retries cost. 240 clients, on five machines, all want one CAS lock, release it at once
//! and want it again; first without backoff, then with SMART's. The ideal, one client alone, never retries.
//!
//! The paper prints the figures at 240 clients only; the curves up to there are ours.
//!
//! Every run is ten virtual seconds long and counted from its first moment, for that is what the scripts of the paper's
//! artifact ask of all locks (the paper itself does not say). With backoff it matters: every client's cap starts at one
//! unit and can double once per 64 acquires of its own, so that 240 clients crawl for seconds and then run at several
//! times the published goodput; the table `run-length` shows what other lengths would give. A quick run is as long where
//! that matters, and a second elsewhere.

use super::prelude::*;
use crate::testbeds::shiftlock::{self, CLIENTS};
use lockwright_sim::{Plan, Report};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-sec2-3",
    title: "What retries cost: one CAS lock, up to 240 clients",
    source: "ShiftLock (FAST '25) §2.3",
    run,
};

/// Goodput without retries, without backoff and with backoff, in thousands of cycles per second.
const IDEAL_K: f64 = 278.3;
const PLAIN_K: f64 = 15.5;
const BACKOFF_K: f64 = 141.4;

/// Percent of CAS verbs that are retries, without and with backoff.
const PLAIN_RETRIES: f64 = 99.4;
const BACKOFF_RETRIES: f64 = 87.1;

/// How long the artifact's runs are.
const SECONDS: u64 = 10;

/// Other lengths, to show how much that choice matters.
const OTHER_LENGTHS: [u64; 3] = [2, 5, 20];

/// What the figures with backoff rest on.
const BACKOFF_NOTE: &str =
    "the mean over a ramp, so it depends on the length of the run: see the table run-length";

fn run(context: &Context) -> Result<Findings, LabError> {
    let counts: &[usize] = context.pick(&[1, 5, 20, 40, 80, 120, 160, 200, CLIENTS], &[1, CLIENTS]);
    let lengths: &[u64] = context.pick(&OTHER_LENGTHS, &[]);
    let plan = |clients, seconds: u64| {
        let duration_ns = Some(seconds * 1_000_000_000);
        let nic = shiftlock::nic();
        Plan { clients, locks: 1, zipf: 0.0, duration_ns, nic, ..Plan::default() }
    };
    let mut runs = Vec::new();
    for clients in counts {
        runs.push(Run::new("cas", plan(*clients, context.pick(SECONDS, 1))));
    }
    for clients in counts {
        let seconds = if *clients == CLIENTS { SECONDS } else { context.pick(SECONDS, 1) };
        runs.push(Run::new("cas-backoff", plan(*clients, seconds)));
    }
    runs.extend(lengths.iter().map(|seconds| Run::new("cas-backoff", plan(CLIENTS, *seconds))));

    let reports = context.simulate(&runs)?;
    let (sweep, lengths) = reports.split_at(2 * counts.len());
    let (plain, backoff) = sweep.split_at(counts.len());
    let last = &backoff[counts.len() - 1];
    let mut claims = plain_claims(&plain[0], &plain[counts.len() - 1]);
    claims.extend(backoff_claims(last));
    let mut by_length = [lengths, std::slice::from_ref(last)].concat();
    by_length.sort_by_key(|report| report.cycles);
    Ok(Findings {
        tables: vec![table("goodput", sweep), table("run-length", &by_length)],
        plots: vec![plot(plain, backoff)],
        claims,
    })
}

fn kilo(report: &Report) -> f64 {
    report.goodput_per_s / 1e3
}

fn plain_claims(ideal: &Report, plain: &Report) -> Vec<Claim> {
    vec![
        Claim::new("ideal-kops", IDEAL_K, kilo(ideal)).within_percent(15.0),
        Claim::new("no-backoff-kops", PLAIN_K, kilo(plain)).within_percent(15.0),
        Claim::new("no-backoff-retry-percent", PLAIN_RETRIES, plain.retry_percent).within_points(2.0),
    ]
}

fn backoff_claims(backoff: &Report) -> [Claim; 2] {
    [
        Claim::new("backoff-kops", BACKOFF_K, kilo(backoff)).within_factor(1.5).note(BACKOFF_NOTE),
        Claim::new("backoff-retry-percent", BACKOFF_RETRIES, backoff.retry_percent)
            .within_points(10.0)
            .note(BACKOFF_NOTE),
    ]
}

fn table(name: &str, reports: &[Report]) -> Table {
    let header = [
        "protocol",
        "clients",
        "cycles",
        "seconds",
        "goodput_kops",
        "retry_percent",
        "cas_per_cycle",
        "p50_us",
        "p99_us",
        "seed",
    ];
    let mut table = Table::new(name, &header);
    for report in reports {
        table.row([
            report.protocol.clone(),
            report.clients.to_string(),
            report.cycles.to_string(),
            format!("{:.2}", report.virtual_ns as f64 / 1e9),
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
