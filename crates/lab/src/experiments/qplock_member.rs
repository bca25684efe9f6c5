//! What membership costs the asymmetric lock: the lock whose holders only lose it when they are dead, beside the printed one,
//! ours without recovery, and ours with leases.
//!
//! A simulated client waits for the WRITEs of its record, which a real one only posts: round trips and latencies of
//! `qplock-member` are upper bounds, its verbs are exact. Waiters poll, where those of the others are told. The paper has no
//! such lock, so the claims are orderings that were expected beforehand.

use super::after_a_death::{self, Scene, recoveries, recovery_us};
use super::prelude::*;
use crate::testbeds;
use crate::two_sides::{Cost, SideReport, SidesReport, SidesRun, simulate_sides};
use lockwright_fabric::{AtomicScope, Capabilities, NodeId};
use lockwright_locks::qplock::leased::Leased;
use lockwright_locks::qplock::{AsPrinted, QpLock};
use lockwright_locks::{Protocol, Space, Want};
use lockwright_proofs::qplock_member::{MemberParams, QpMember};
use lockwright_sim::NicModel;
use std::collections::BTreeMap;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "qplock-member",
    title: "What membership costs the asymmetric lock",
    source: "ours, after Asymmetric Mutual Exclusion for RDMA",
    run,
};

/// How long the others pause between two cycles while one is waited for that is dead.
const THINK_NS: u64 = 100_000;

type Simulate = fn(&SidesRun) -> Result<SidesReport, LabError>;

fn with_defaults<P: Protocol>(sides: &SidesRun) -> Result<SidesReport, LabError> {
    simulate_sides::<P>(sides, &P::Params::default())
}

fn member(sides: &SidesRun) -> Result<SidesReport, LabError> {
    let (locals, clients) = (sides.locals as u64, (sides.locals + sides.remotes) as u64);
    simulate_sides::<QpMember>(sides, &MemberParams { locals, clients, ..MemberParams::default() })
}

/// The one with membership is the last.
const LOCKS: [(&str, Simulate); 4] = [
    ("qplock-printed", with_defaults::<QpLock<AsPrinted>>),
    ("qplock", with_defaults::<QpLock>),
    ("qplock-leased", with_defaults::<Leased>),
    ("qplock-member", member),
];
const MEMBER: usize = LOCKS.len() - 1;

fn run(context: &Context) -> Result<Findings, LabError> {
    let clients: &[usize] = context.pick(&[8, 32, 96, 192], &[8, 32]);
    let until_ns = context.pick(5_000_000, 500_000);
    let header = [
        "lock",
        "locks",
        "clients",
        "kops",
        "local_p99_us",
        "remote_p99_us",
        "local_verbs",
        "remote_verbs",
        "remote_round_trips",
        "longest_bypass",
    ];
    let mut table = Table::new("costs", &header);
    let mut findings = Findings::default();
    let mut worst_local: f64 = 0.0;
    for locks in [1, 1_000] {
        let mut curves = Vec::new();
        for (index, (name, lock)) in LOCKS.into_iter().enumerate() {
            let mut curve = Vec::new();
            for &clients in clients {
                let sides = SidesRun {
                    locals: clients / 2,
                    remotes: clients / 2,
                    loopback: false,
                    locks,
                    hold_ns: [0; 2],
                    think_ns: 500,
                    until_ns,
                    seed: 1,
                };
                let outcome = lock(&sides)?;
                if index == MEMBER {
                    worst_local = worst_local.max(verbs(&outcome.local));
                }
                curve.push((clients as f64, outcome.kops()));
                row(&mut table, name, locks, clients, &outcome);
            }
            curves.push(Series::new(name, Style::Line, curve));
        }
        let kind = if locks == 1 { "one-lock" } else { "many-locks" };
        let last = |lock: usize| curves[lock].points.last().map_or(f64::NAN, |(_, kops)| *kops);
        if locks > 1 {
            let id = format!("{kind}-goodput-of-leased");
            let of_leased = last(MEMBER) / last(2);
            let claim = Claim { band: (0.5, 1e6), ..Claim::new(&id, 1.0, of_leased).expected() };
            findings.claims.push(claim.note("a simulated client waits for its records"));
        }
        findings.plots.push(Plot {
            name: kind.into(),
            title: format!("Half of the clients local, {locks} lock{}", if locks == 1 { "" } else { "s" }),
            note: "simulated".into(),
            x: Axis::log("clients"),
            y: Axis::log("thousand grants per second"),
            series: curves,
        });
    }
    let lone = member(&SidesRun {
        locals: 0,
        remotes: 1,
        loopback: false,
        locks: 1,
        hold_ns: [0; 2],
        think_ns: 500,
        until_ns,
        seed: 1,
    })?;
    let most = |costs: &BTreeMap<Cost, u64>| {
        costs.keys().map(|cost| cost.cas).max().map_or(f64::NAN, |most| most as f64)
    };
    findings.claims.push(Claim::new("local-verbs", 0.0, worst_local));
    findings.claims.push(Claim::new("lone-remote-atomics-to-lock", 1.0, most(&lone.remote.acquires)));
    findings
        .claims
        .push(Claim::new("lone-remote-atomics-to-unlock", 0.0, most(&lone.remote.releases)).expected());
    let mut after = recoveries();
    let mut times = [f64::NAN; 2];
    for &clients in clients {
        for (place, think_ns) in [None, Some(THINK_NS)].into_iter().enumerate() {
            times[place] = recovery(clients, think_ns)?;
            after_a_death::row(&mut after, clients, think_ns, times[place]);
        }
    }
    findings.claims.extend(after_a_death::claims(times[0], times[1]));
    findings.tables.extend([table, after]);
    Ok(findings)
}

/// Microseconds until a lock is granted in each of whose two queues a dead client stands first, while the others, half of them local, take
/// locks of their own.
fn recovery(clients: usize, think_ns: Option<u64>) -> Result<f64, LabError> {
    let (locals, remotes) = (clients / 2, clients - clients / 2);
    let nodes = 1 + remotes as u64;
    let params = MemberParams {
        locals: locals as u64,
        clients: clients as u64,
        left_by_the_dead: [1, 1],
        ..MemberParams::default()
    };
    // Locks go round robin over the nodes; those that the number of nodes divides are at the local clients'.
    let lock = |index: u64| Want::exclusive(nodes * index);
    let offers = Capabilities { scope: AtomicScope::Nic, ..Capabilities::CPU };
    recovery_us::<QpMember>(&Scene {
        space: Space::of(nodes * clients as u64).over(nodes as u16),
        params: &params,
        nic: NicModel { offers, ..testbeds::qplock::nic() },
        clients,
        home: &|index| Some(NodeId(index.checked_sub(locals).map_or(0, |remote| 1 + remote as u16))),
        held: lock(0),
        beside: &|index| lock(index as u64),
        think_ns,
    })
}

/// Verbs and messages of a cycle, on average.
fn verbs(side: &SideReport) -> f64 {
    per_cycle(side, |cost| cost.cas + cost.writes + cost.reads + cost.messages)
}

fn per_cycle(side: &SideReport, what: fn(&Cost) -> u64) -> f64 {
    let all = side.acquires.iter().chain(&side.releases);
    all.map(|(cost, times)| what(cost) * times).sum::<u64>() as f64 / side.grants().max(1) as f64
}

fn row(table: &mut Table, name: &str, locks: u64, clients: usize, outcome: &SidesReport) {
    table.row([
        name.into(),
        locks.to_string(),
        clients.to_string(),
        format!("{:.1}", outcome.kops()),
        two(outcome.local.quantile_us(0.99)),
        two(outcome.remote.quantile_us(0.99)),
        two(verbs(&outcome.local)),
        two(verbs(&outcome.remote)),
        two(per_cycle(&outcome.remote, |cost| cost.round_trips)),
        outcome.longest_bypass.to_string(),
    ]);
}
