//! Citron Fig. 12: how often wait mode aborts, by number of clients, m and T_wait; and handshake mode, which never does.
//!
//! The paper's mixed-size microbenchmark (§4.2): a third of the clients each lock ranges of 1, 16 and 256 units, left
//! borders Zipf 0.9 over 2²⁸ units. Beside it, one client alone, for what an acquire costs in either mode.
//!
//! The paper's numbers in words: from 3 to 192 clients the abort rate rises from the level of 10⁻⁵ to that of 10⁻². Its
//! aborts come from a NIC under load and from "occasional long-lasting RDMA verbs", which the testbed has as many of as make
//! three clients abort as often as published.

use super::citron::{NOTE, T_WAIT_NS, micro, micros, wait_mode};
use super::prelude::*;
use lockwright_proofs::subject::Tunable;
use lockwright_sim::{Plan, Report};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "citron-fig12",
    title: "Citron: aborts of wait mode, and handshake mode, which has none",
    source: "Citron (FAST '23) §4.7, Fig. 12",
    run,
};

const CLIENTS: usize = 96;
/// Handshake mode: as it comes.
const HANDSHAKE: &[Tunable] = &[];

fn run(context: &Context) -> Result<Findings, LabError> {
    let counts: &[usize] = context.pick(&[3, 12, 24, 48, 96, 144, 192], &[3, 48, 192]);
    let ms: &[u64] = context.pick(&[1, 2, 4, 6], &[1, 4]);
    let waits: &[u64] = context.pick(&[5_000, 10_000, 15_000, 20_000, 30_000], &[5_000, 15_000]);
    // An abort in 10⁵ requests needs that many to be seen.
    let plan = |clients, lengths: &[u64]| {
        let mut plan = micro(context, clients, lengths);
        if clients == 3 {
            plan.duration_ns = Some(400_000_000);
        }
        plan
    };
    let mixed = |clients| plan(clients, &[1, 16, 256]);
    // A tunable that is named twice is what it is named last.
    let with = |more: &[Tunable]| [&wait_mode(T_WAIT_NS), more].concat();
    let mut runs = Vec::new();
    let mut add = |plan: Plan, tunables: &[Tunable]| {
        runs.push(Run { tunables: tunables.to_vec(), ..Run::new("citron", plan) });
    };
    counts.iter().for_each(|clients| add(mixed(*clients), &wait_mode(T_WAIT_NS)));
    counts.iter().for_each(|clients| add(mixed(*clients), HANDSHAKE));
    ms.iter().for_each(|m| add(mixed(CLIENTS), &with(&[("m", *m)])));
    waits.iter().for_each(|ns| add(mixed(CLIENTS), &with(&[("t-wait-ns", *ns)])));
    for length in [16, 16_384] {
        add(plan(1, &[length]), &wait_mode(T_WAIT_NS));
        add(plan(1, &[length]), HANDSHAKE);
    }
    let reports = context.simulate(&runs)?;
    let mut table = Table::new(
        "aborts",
        &["mode", "clients", "m", "t_wait_us", "kops", "abort_rate", "retries", "p50_us", "p99_us", "seed"],
    );
    runs.iter().zip(&reports).for_each(|(run, report)| row(&mut table, run, report));

    let (wait, rest) = reports.split_at(counts.len());
    let (handshake, rest) = rest.split_at(counts.len());
    let (by_m, rest) = rest.split_at(ms.len());
    let (by_wait, alone) = rest.split_at(waits.len());
    let mut claims = claims(wait, handshake, alone);
    claims.extend(tuning_claims(by_m, by_wait));
    Ok(Findings { tables: vec![table], plots: vec![plot(wait, handshake)], claims })
}

/// Aborts per lock request.
fn abort_rate(report: &Report) -> f64 {
    report.aborts as f64 / (report.cycles + report.aborts) as f64
}

fn row(table: &mut Table, run: &Run, report: &Report) {
    let tuned = |name| run.tunables.iter().rfind(|(other, _)| *other == name).map(|(_, value)| *value);
    let wait = tuned("t-wait-ns");
    table.row([
        if wait.is_some() { "wait" } else { "handshake" }.to_owned(),
        report.clients.to_string(),
        tuned("m").unwrap_or(4).to_string(),
        wait.map_or_else(|| "-".to_owned(), |ns| micros(ns).to_string()),
        format!("{:.1}", report.goodput_per_s / 1e3),
        format!("{:.2e}", abort_rate(report)),
        report.retries.to_string(),
        format!("{:.2}", micros(report.acquire.p50_ns)),
        format!("{:.2}", micros(report.acquire.p99_ns)),
        report.seed.to_string(),
    ]);
}

fn claims(wait: &[Report], handshake: &[Report], alone: &[Report]) -> Vec<Claim> {
    let most = &wait[wait.len() - 1];
    let peak = wait.iter().map(|report| report.goodput_per_s).fold(0.0, f64::max);
    let p50 = |report: &Report| micros(report.acquire.p50_ns);
    let aborts: u64 = handshake.iter().map(|report| report.aborts).sum();
    let mut small = Claim::new("ours-small-range-median-of-wait-mode", 0.6, p50(&alone[1]) / p50(&alone[0]));
    small.band = (0.0, 0.6);
    let mut large = Claim::new("ours-large-range-median-saved-us", 10.0, p50(&alone[2]) - p50(&alone[3]));
    large.band = (10.0, f64::INFINITY);
    vec![
        Claim::new("ours-handshake-aborts", 0.0, aborts as f64),
        small,
        large,
        Claim::new("wait-abort-rate-192-clients", 1e-2, abort_rate(most))
            .within_factor(10.0)
            .note("the paper gives the level, not the figure"),
        Claim::new("wait-abort-rate-3-clients", 1e-5, abort_rate(&wait[0]))
            .within_factor(10.0)
            .note("the paper gives the level, not the figure"),
        statement("wait-aborts-rise-with-clients", wait.is_sorted_by(|a, b| abort_rate(a) <= abort_rate(b))),
        // "does not drop ... after reaching the maximum"
        explained(statement("wait-goodput-does-not-drop", most.goodput_per_s > 0.9 * peak), NOTE),
    ]
}

/// What the paper says of m and T_wait.
fn tuning_claims(by_m: &[Report], by_wait: &[Report]) -> Vec<Claim> {
    let last = by_wait.len() - 1;
    let papers = &by_m[by_m.len().min(3) - 1];
    let claims = [
        statement("small-m-costs-goodput", by_m[0].goodput_per_s < papers.goodput_per_s),
        statement("small-m-aborts-more", abort_rate(&by_m[0]) > abort_rate(papers)),
        statement("long-wait-aborts-less", abort_rate(&by_wait[last]) < abort_rate(&by_wait[0])),
        statement("long-wait-costs-goodput", by_wait[last].goodput_per_s < by_wait[0].goodput_per_s),
    ];
    claims.into_iter().map(|claim| explained(claim, NOTE)).collect()
}

fn plot(wait: &[Report], handshake: &[Report]) -> Plot {
    let kops = |reports: &[Report]| {
        reports.iter().map(|report| (report.clients as f64, report.goodput_per_s / 1e3)).collect()
    };
    Plot {
        name: "goodput".into(),
        title: "Mixed ranges of 1, 16 and 256 units: goodput by clients".into(),
        note: "simulated".into(),
        x: Axis::linear("clients"),
        y: Axis::linear("thousand locks per second"),
        series: vec![
            Series::new("wait", Style::Line, kops(wait)),
            Series::new("handshake", Style::Line, kops(handshake)),
        ],
    }
}
