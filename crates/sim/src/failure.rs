//! How a run fails: what was wrong, the seed, how to see it again, and what happened just before.

use crate::check::Violation;
use crate::fault::{ClientFault, CrashPoint, FaultPlan};
use crate::plan::Plan;
use lockwright_fabric::{Addr, Mismatch, PeerId};
use std::fmt::Write;

/// A run that failed. Prints as a person wants to read it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{protocol}: {cause}\nseed {seed}; replay with\n    {replay}\n{timeline}")]
pub struct Failure {
    /// The protocol.
    pub protocol: &'static str,
    /// What was wrong.
    pub cause: Cause,
    /// The seed that repeats the run.
    pub seed: u64,
    /// The command line that repeats the run.
    pub replay: Box<str>,
    /// What the clients concerned did last.
    pub timeline: Box<str>,
}

/// What was wrong with a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Cause {
    /// The run could not even start.
    #[error("{0}")]
    BadPlan(String),
    /// The protocol needs what the modelled fabric lacks.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A checker objects.
    #[error("{0}")]
    Violation(Violation),
    /// Nothing moves any more, or not in time, and clients have not finished.
    #[error("stuck at {}.{:03} µs: {} never finished{}", at_ns / 1000, at_ns % 1000, names(clients), if *moving { " in time, though things still move" } else { "" })]
    Stuck {
        /// When.
        at_ns: u64,
        /// Who.
        clients: Vec<PeerId>,
        /// Whether events were still happening.
        moving: bool,
    },
    /// All clients are done, but a lock word is not as it was in the beginning.
    #[error(
        "lock memory is not free when all is quiet: the word at {addr} is {is:#x}, was {was:#x} (mask {mask:#x})"
    )]
    NotFree {
        /// Which word.
        addr: Addr,
        /// What it was in the beginning.
        was: u64,
        /// What it is now.
        is: u64,
        /// Which bits count.
        mask: u64,
    },
}

fn names(clients: &[PeerId]) -> String {
    let shown: Vec<_> = clients.iter().take(8).map(ToString::to_string).collect();
    let more = clients.len().saturating_sub(shown.len());
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

/// The command line that repeats `plan` with `protocol`: what differs from the defaults, and always the seed.
/// It is what `lockwright-lab sim` reads; a test there holds the two together.
///
/// ```
/// let plan = lockwright_sim::Plan { clients: 4, seed: 7, ..Default::default() };
/// let line = lockwright_sim::replay_line("mcs", &plan);
/// assert_eq!(line, "lockwright-lab sim mcs --clients 4 --locks 1000 --ops 100000 --seed 7");
/// ```
pub fn replay_line(protocol: &str, plan: &Plan) -> String {
    let usual = Plan::default();
    let mut line = format!(
        "lockwright-lab sim {protocol} --clients {} --locks {} --ops {} --seed {}",
        plan.clients, plan.locks, plan.ops, plan.seed
    );
    let mut flag = |name: &str, value: String, usual: String| {
        if value != usual {
            let _ = write!(line, " --{name} {value}");
        }
    };
    flag("nodes", plan.nodes.to_string(), usual.nodes.to_string());
    flag("local-clients", plan.local_clients.to_string(), usual.local_clients.to_string());
    flag("zipf", plan.zipf.to_string(), usual.zipf.to_string());
    flag("writes", plan.writes_percent.to_string(), usual.writes_percent.to_string());
    flag("duration", duration(plan), duration(&usual));
    flag("abandon", plan.abandon_rate.to_string(), usual.abandon_rate.to_string());
    flag("warmup", plan.warmup_ops.to_string(), usual.warmup_ops.to_string());
    flag("hold", plan.hold_ns.to_string(), usual.hold_ns.to_string());
    flag("think", plan.think_ns.to_string(), usual.think_ns.to_string());
    flag("max-virtual", plan.max_virtual_ns.to_string(), usual.max_virtual_ns.to_string());
    if plan.nic.offers.scope == lockwright_fabric::AtomicScope::Nic {
        line.push_str(" --weak-scope");
    }
    for fault in faults(&plan.faults) {
        let _ = write!(line, " --fault {fault}");
    }
    line
}

fn duration(plan: &Plan) -> String {
    plan.duration_ns.map(|ns| ns.to_string()).unwrap_or_default()
}

/// Everything that goes wrong, each as one `--fault`.
fn faults(plan: &FaultPlan) -> Vec<String> {
    let mut faults = Vec::new();
    faults.extend(plan.crashes.iter().map(|at| format!("crash={}", place(at))));
    faults.extend(plan.pauses.iter().map(|pause| format!("pause={}:{}ns", place(&pause.at), pause.ns)));
    faults.extend(plan.node_deaths.iter().map(|(node, at_ns)| format!("node-death={}@{at_ns}ns", node.0)));
    faults.extend(plan.restarts.iter().map(|(role, at_ns)| format!("restart={role}@{at_ns}ns")));
    let network = &plan.network;
    for (name, rate) in [
        ("crash-rate", plan.crash_rate),
        ("loss", network.loss),
        ("dup", network.duplication),
        ("reorder", network.reorder),
    ] {
        if rate != 0.0 {
            faults.push(format!("{name}={rate}"));
        }
    }
    if plan.pause_rate != 0.0 {
        faults.push(format!("pause-rate={}:{}ns", plan.pause_rate, plan.pause_ns));
    }
    if network.extra_delay_ns != 0 {
        faults.push(format!("delay={}ns", network.extra_delay_ns));
    }
    if plan.clock_drift_ppm != 0 {
        faults.push(format!("drift={}ppm", plan.clock_drift_ppm));
    }
    faults
}

/// `CLIENT@STEP:before` or `:after`.
fn place(at: &ClientFault) -> String {
    let when = match at.when {
        CrashPoint::Before => "before",
        CrashPoint::After => "after",
    };
    format!("{}@{}:{when}", at.client.index().0, at.verb)
}
