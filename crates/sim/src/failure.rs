//! How a run fails: what was wrong, the seed, how to see it again, and what happened just before.

use crate::check::Violation;
use crate::plan::Plan;
use lockwright_fabric::fault::{ClientFault, When};
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
    /// Everybody is done, but a lock word is not as it was in the beginning.
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
///
/// ```
/// let plan = lockwright_sim::Plan { clients: 4, seed: 7, ..Default::default() };
/// let line = lockwright_sim::replay_line("mcs", &plan);
/// assert_eq!(line, "lockwright sim mcs --clients 4 --locks 1000 --ops 100000 --seed 7");
/// ```
pub fn replay_line(protocol: &str, plan: &Plan) -> String {
    let usual = Plan::default();
    let mut line = format!(
        "lockwright sim {protocol} --clients {} --locks {} --ops {} --seed {}",
        plan.clients, plan.locks, plan.ops, plan.seed
    );
    let mut flag = |name: &str, value: String, usual: String| {
        if value != usual {
            let _ = write!(line, " --{name} {value}");
        }
    };
    let mut number = |name: &str, value: f64, usual: f64| flag(name, value.to_string(), usual.to_string());
    number("machines", plan.machines as f64, usual.machines as f64);
    number("nodes", f64::from(plan.nodes), f64::from(usual.nodes));
    number("local-clients", plan.local_clients as f64, usual.local_clients as f64);
    number("zipf", plan.zipf, usual.zipf);
    number("writes", plan.writes_percent, usual.writes_percent);
    number("warmup", plan.warmup_ops as f64, usual.warmup_ops as f64);
    number("hold-ns", plan.hold_ns as f64, usual.hold_ns as f64);
    number("think-ns", plan.think_ns as f64, usual.think_ns as f64);
    number("max-virtual-ns", plan.max_virtual_ns as f64, usual.max_virtual_ns as f64);
    let (faults, network) = (&plan.faults, &plan.faults.network);
    number("crash-rate", faults.crash_rate, 0.0);
    number("pause-rate", faults.pause_rate, 0.0);
    number("pause-ns", faults.pause_ns as f64, 0.0);
    number("loss", network.loss, 0.0);
    number("duplication", network.duplication, 0.0);
    number("reorder", network.reorder, 0.0);
    number("extra-delay-ns", network.extra_delay_ns as f64, 0.0);
    number("drift-ppm", f64::from(faults.clock_drift_ppm), 0.0);
    for at in &faults.crashes {
        let _ = write!(line, " --crash {}", place(at));
    }
    for pause in &faults.pauses {
        let _ = write!(line, " --pause {}:{}", place(&pause.at), pause.ns);
    }
    for (node, at_ns) in &faults.node_deaths {
        let _ = write!(line, " --node-death {}@{at_ns}", node.0);
    }
    if plan.nic.offers.scope == lockwright_fabric::AtomicScope::Nic {
        line.push_str(" --weak-scope");
    }
    line
}

/// `CLIENT@STEP:before` or `:after`.
fn place(at: &ClientFault) -> String {
    let when = match at.when {
        When::Before => "before",
        When::After => "after",
    };
    format!("{}@{}:{when}", at.client.index().0, at.verb)
}
