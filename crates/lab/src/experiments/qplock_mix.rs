//! Local and remote clients in every proportion: the asymmetric lock against what one does without it.
//!
//! Where CPU and NIC atomics do not exclude each other, a CAS or MCS lock is only safe if local clients go through their
//! own NIC (loopback), and an RPC lock if they ask the server's thread; the filter lock needs no atomics at all, but
//! every client watches all others. Loopback here costs what any other way through the NIC does: the model has no figure of
//! its own for it. The paper prints no measurements, so the claims are orderings, where it argues for one (§1, §3). What
//! it does not claim is in the table too: all remote, a lock with one queue and one atomic to enter it is faster.

use super::prelude::*;
use crate::two_sides::{SidesReport, SidesRun, simulate_sides};
use lockwright_baselines::{cas::Cas, filter::Filter, mcs::Mcs, rpc::Rpc};
use lockwright_locks::Protocol;
use lockwright_locks::qplock::leased::Leased;
use lockwright_locks::qplock::{AsPrinted, InOrder, QpLock, QpParams};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "qplock-mix",
    title: "Local and remote clients in every proportion",
    source: "Asymmetric Mutual Exclusion for RDMA, §1, §3",
    run,
};

/// Clients of both sides together.
const CLIENTS: usize = 16;

type Simulate = fn(&SidesRun) -> Result<SidesReport, LabError>;

fn with_defaults<P: Protocol>(sides: &SidesRun) -> Result<SidesReport, LabError> {
    simulate_sides::<P>(sides, &P::Params::default())
}

/// The asymmetric lock where the NIC has fetch-and-store.
fn with_swap(sides: &SidesRun) -> Result<SidesReport, LabError> {
    simulate_sides::<QpLock>(sides, &QpParams { swap: true, ..QpParams::default() })
}

/// A lock whose local clients use their NIC.
fn by_loopback<P: Protocol>(sides: &SidesRun) -> Result<SidesReport, LabError> {
    simulate_sides::<P>(&SidesRun { loopback: true, ..*sides }, &P::Params::default())
}

const LOCKS: [(&str, Simulate); 9] = [
    ("qplock", with_defaults::<QpLock>),
    ("qplock, swap", with_swap),
    ("qplock-printed", with_defaults::<QpLock<AsPrinted>>),
    ("cas, loopback", by_loopback::<Cas>),
    ("mcs, loopback", by_loopback::<Mcs>),
    ("rpc", with_defaults::<Rpc>),
    ("filter", with_defaults::<Filter>),
    ("qplock-fifo", with_defaults::<QpLock<InOrder>>),
    ("qplock-leased", with_defaults::<Leased>),
];

fn run(context: &Context) -> Result<Findings, LabError> {
    let locals: &[usize] = context.pick(&[0, 2, 4, 6, 8, 10, 12, 14, CLIENTS], &[0, 8, CLIENTS]);
    let until_ns = context.pick(20_000_000, 1_000_000);
    let header = [
        "lock",
        "locks",
        "local_percent",
        "kops",
        "p50_us",
        "p99_us",
        "local_p99_us",
        "remote_p99_us",
        "remote_share_percent",
    ];
    let mut table = Table::new("mix", &header);
    let mut findings = Findings::default();
    // One lock that all clients want, and so many that hardly two meet.
    for locks in [1, 1_000] {
        let mut curves = Vec::new();
        for (name, lock) in LOCKS {
            let mut curve = Vec::new();
            for &locals in locals {
                let sides = SidesRun {
                    locals,
                    remotes: CLIENTS - locals,
                    loopback: false,
                    locks,
                    hold_ns: [0; 2],
                    think_ns: 50,
                    until_ns,
                    seed: 1,
                };
                let outcome = lock(&sides)?;
                let percent = 100.0 * locals as f64 / CLIENTS as f64;
                curve.push((percent, outcome.kops()));
                row(&mut table, name, locks, percent, &outcome);
            }
            curves.push(Series::new(name, Style::Line, curve));
        }
        let at = |lock: usize, last: bool| {
            let points = &curves[lock].points;
            if last { points[points.len() - 1].1 } else { points[0].1 }
        };
        let kind = if locks == 1 { "one-lock" } else { "many-locks" };
        let at_least = |id: &str, least: f64, ours: f64| Claim {
            band: (least, 1e6),
            ..Claim::new(&format!("{kind}-{id}"), least, ours)
                .expected()
                .note("an ordering: the paper argues for it and prints no figure")
        };
        // Orderings: how many times the baseline's throughput, at least once.
        findings.claims.push(at_least("all-local-over-cas-loopback", 1.0, at(0, true) / at(3, true)));
        findings.claims.push(at_least("all-local-over-mcs-loopback", 1.0, at(0, true) / at(4, true)));
        findings.claims.push(at_least("all-local-over-rpc", 1.0, at(0, true) / at(5, true)));
        findings.claims.push(at_least("all-remote-over-filter", 1.0, at(0, false) / at(6, false)));
        findings.plots.push(Plot {
            name: kind.into(),
            title: format!("{CLIENTS} clients, {locks} lock{}", if locks == 1 { "" } else { "s" }),
            note: "simulated".into(),
            x: Axis::linear("percent of clients on the locks' node"),
            y: Axis::log("thousand grants per second"),
            series: curves,
        });
    }
    findings.tables.push(table);
    Ok(findings)
}

fn row(table: &mut Table, name: &str, locks: u64, percent: f64, outcome: &SidesReport) {
    let all = outcome.together();
    let share = 100.0 * outcome.remote.grants() as f64 / all.grants().max(1) as f64;
    table.row([
        name.into(),
        locks.to_string(),
        format!("{percent:.1}"),
        format!("{:.1}", outcome.kops()),
        format!("{:.2}", all.quantile_us(0.5)),
        format!("{:.2}", all.quantile_us(0.99)),
        format!("{:.2}", outcome.local.quantile_us(0.99)),
        format!("{:.2}", outcome.remote.quantile_us(0.99)),
        format!("{share:.1}"),
    ]);
}
