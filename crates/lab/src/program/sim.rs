//! `lockwright-lab sim`: one simulated run of one protocol.

use crate::fault::{self, Fault};
use crate::{names, soak};
use anyhow::{Result, bail};
use lockwright_fabric::{AtomicScope, PeerId};
use lockwright_lab::Table;
use lockwright_proofs::subject;
use lockwright_sim::{Cause, Latency, Plan, Report};
use lockwright_term::units::{counted, duration_ns, grouped, micros, scaled};
use lockwright_term::{Outcome, say, spinner};
use std::io::Write;
use std::time::Duration;

/// What a soak chooses by itself.
const NOT_SOAKED: [&str; 15] = [
    "protocol",
    "locks",
    "nodes",
    "zipf",
    "writes",
    "ops",
    "duration",
    "abandon",
    "warmup",
    "hold",
    "think",
    "local_clients",
    "weak_scope",
    "max_virtual",
    "fault",
];

/// Simulate many clients of one protocol, with faults if wanted, under the checkers' eyes
///
/// Time is virtual, and the same seed gives the same run. Exits with 1 if a checker objects.
#[derive(Debug, clap::Args)]
#[command(after_help = examples())]
pub(crate) struct Args {
    /// The protocol (`lockwright-lab check --list` names them), or a mutant that shows in a plain run
    #[arg(required_unless_present = "soak")]
    protocol: Option<String>,
    /// Instead: servers and their clients, the shipped state machines, with faults at random, for so long (60s, 1h); seeds go up
    /// from --seed, a server has as many --clients as are asked for, at most 8, and a failure is shrunk to a short replay
    #[arg(long, value_name = "TIME", conflicts_with_all = NOT_SOAKED, value_parser = duration_ns)]
    soak: Option<u64>,
    /// Clients, 16 of them if not said otherwise
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: Option<u32>,
    /// Locks
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    locks: u64,
    /// Memory nodes the locks are spread over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    nodes: u16,
    /// Zipf exponent of the choice of lock; 0 is uniform
    #[arg(long, value_name = "S", default_value_t = 0.99, value_parser = zipf)]
    zipf: f64,
    /// Percent of acquires in exclusive mode
    #[arg(long, value_name = "PCT", default_value_t = 100.0, value_parser = percent)]
    writes: f64,
    /// Acquire+release cycles of all clients together
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    ops: u64,
    /// Go on for so much virtual time, instead of a number of cycles; in ns or with a unit
    #[arg(long, value_name = "NS", value_parser = duration_ns)]
    duration: Option<u64>,
    /// The chance that a client never releases what it was granted
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    abandon: f64,
    /// Cycles that are run first and not counted
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u64,
    /// How long a lock is held, in ns or with a unit
    #[arg(long, value_name = "NS", default_value = "0", value_parser = duration_ns)]
    hold: u64,
    /// Time between a release and the next acquire, in ns or with a unit
    #[arg(long, value_name = "NS", default_value = "0", value_parser = duration_ns)]
    think: u64,
    /// So many of the clients run on the memory nodes
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    local_clients: u32,
    /// Atomics of a CPU and of a NIC on the same word do not exclude each other
    #[arg(long)]
    weak_scope: bool,
    /// Virtual time after which a run that is not done counts as stuck, in ns or with a unit
    #[arg(long, value_name = "NS", default_value = "600s", value_parser = duration_ns)]
    max_virtual: u64,
    /// Everything random comes from here
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Something that goes wrong; may be given several times
    #[arg(long, value_name = "SPEC")]
    fault: Vec<Fault>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn examples() -> String {
    format!(
        "{}\n\nExamples:\n  \
         lockwright-lab sim mcs --clients 240 --locks 1\n  \
         lockwright-lab sim --soak 60s\n  \
         lockwright-lab sim cas-backoff --clients 64 --hold 2us --json\n  \
         lockwright-lab sim mcs --clients 8 --fault pause=2@50:after:10ms --seed 7",
        fault::HELP
    )
}

fn zipf(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(exponent),
        _ => Err("a Zipf exponent lies between 0 and 10".into()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("a percentage lies between 0 and 100".into()),
    }
}

/// Clients of a simulation, if not said otherwise.
const CLIENTS: u32 = 16;

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    if let Some(ns) = args.soak {
        let clients = args.clients.unwrap_or(soak::CLIENTS);
        if clients > soak::MOST_CLIENTS {
            bail!(
                "--soak has at most {} clients: more only make each other's steps rarer",
                soak::MOST_CLIENTS
            );
        }
        return soak::run(Duration::from_nanos(ns), args.seed, clients as usize, args.json, out);
    }
    let protocol = args.protocol.as_deref().unwrap_or_default();
    let Some(subject) = subject::find(protocol) else {
        let subjects = subject::all();
        return Err(names::unknown("protocol", protocol, subjects.iter().map(|subject| subject.info.name)));
    };
    if !subject.can_be_simulated() {
        let name = subject.info.name;
        if subject.mutant.is_none() {
            bail!("{name} is for the explorer alone: `lockwright-lab check {name}`");
        }
        bail!(
            "what is wrong with {name} does not show in a plain run; `lockwright-lab check --mutant {name}` shows it"
        );
    }
    let plan = plan(args)?;
    let bar = spinner(protocol.to_owned());
    let result = subject.simulate_with(&plan, &mut |progress| {
        let (ms, events) = (progress.virtual_ns / 1_000_000, progress.events);
        bar.set_message(format!("{ms} ms of virtual time, {events} events"));
    });
    bar.finish_and_clear();
    match result {
        Ok(report) if args.json => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        Ok(report) => print(out, &report)?,
        Err(failure) => match failure.cause {
            Cause::BadPlan(_) | Cause::Mismatch(_) => bail!("{}", failure.cause),
            _ => {
                say!("{}", failure.to_string().trim_end());
                return Ok(Outcome::Found);
            }
        },
    }
    Ok(Outcome::Clean)
}

fn plan(args: &Args) -> Result<Plan> {
    let mut plan = Plan {
        clients: args.clients.unwrap_or(CLIENTS) as usize,
        local_clients: args.local_clients as usize,
        locks: args.locks,
        nodes: args.nodes,
        zipf: args.zipf,
        writes_percent: args.writes,
        ops: args.ops,
        duration_ns: args.duration,
        abandon_rate: args.abandon,
        warmup_ops: args.warmup,
        hold_ns: args.hold,
        think_ns: args.think,
        seed: args.seed,
        max_virtual_ns: args.max_virtual,
        ..Plan::default()
    };
    if args.weak_scope {
        plan.nic.offers.scope = AtomicScope::Nic;
    }
    if plan.local_clients > plan.clients {
        bail!("--local-clients {} is more than the {} clients there are", plan.local_clients, plan.clients);
    }
    for fault in &args.fault {
        fault.add_to(&mut plan.faults);
    }
    let faults = &plan.faults;
    let pauses = faults.pauses.iter().map(|pause| &pause.at);
    if let Some(fault) = faults
        .crashes
        .iter()
        .chain(pauses)
        .find(|fault| (0..plan.clients).all(|client| PeerId::client(client) != fault.client))
    {
        bail!("--fault names {}, but there are only {} clients, counted from C0", fault.client, plan.clients);
    }
    if let Some((node, _)) = faults.node_deaths.iter().find(|(node, _)| node.0 >= plan.nodes) {
        bail!("--fault names node {}, but there are only {} nodes, counted from 0", node.0, plan.nodes);
    }
    Ok(plan)
}

fn print(out: &mut impl Write, report: &Report) -> Result<()> {
    let Report { protocol, clients, locks, seed, .. } = report;
    let (clients, locks) = (counted(*clients as u64, "client"), counted(*locks, "lock"));
    writeln!(out, "{protocol}: {clients}, {locks}, seed {seed} (simulated)\n")?;

    let mut latency = Table::new("latency", &["simulated µs", "count", "mean", "p50", "p99", "p99.9", "max"]);
    for (name, what) in [
        ("acquire", &report.acquire),
        ("  exclusive", &report.acquire_exclusive),
        ("  shared", &report.acquire_shared),
        ("release", &report.release),
    ] {
        if what.count > 0 {
            latency.row(latency_row(name, what));
        }
    }
    writeln!(out, "{latency}")?;

    let per = &report.per_cycle;
    let mut counts = Table::new(
        "counts",
        &["per cycle", "READ", "WRITE", "CAS", "FAA", "messages", "round trips", "bytes"],
    );
    let two = |value: f64| format!("{value:.2}");
    counts.row([
        String::new(),
        two(per.reads),
        two(per.writes),
        two(per.cas),
        two(per.fetch_adds),
        two(per.messages),
        two(per.round_trips),
        two(per.bytes),
    ]);
    writeln!(out, "{counts}")?;

    for (number, what) in [
        (report.aborts, "acquires undone and started over"),
        (report.denied, "acquires denied or timed out"),
        (report.crashed as u64, "clients crashed"),
        (report.recoveries, "locks recovered"),
        (report.lost, "grants turned out to be void"),
    ] {
        if number > 0 {
            writeln!(out, "{} {what}", grouped(number))?;
        }
    }
    let Report { cycles, retries, retry_percent, longest_bypass, .. } = report;
    writeln!(
        out,
        "retries={retries} ({retry_percent:.1} % of CAS) longest-bypass={longest_bypass} verbs={}",
        report.total_verbs
    )?;
    writeln!(
        out,
        "simulated: {} cycles/s ({} cycles in {} ms), violations=0",
        scaled(report.goodput_per_s),
        grouped(*cycles),
        micros(report.virtual_ns as f64 / 1e3),
    )?;
    Ok(())
}

fn latency_row(name: &str, latency: &Latency) -> [String; 7] {
    [
        name.to_owned(),
        latency.count.to_string(),
        micros(latency.mean_ns),
        micros(latency.p50_ns as f64),
        micros(latency.p99_ns as f64),
        micros(latency.p999_ns as f64),
        micros(latency.max_ns as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use lockwright_fabric::NodeId;
    use lockwright_sim::fault::{ClientFault, CrashPoint, FaultPlan, NetworkFaults, Pause};
    use lockwright_sim::replay_line;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(line: &str) -> Plan {
        let words = line.strip_prefix("lockwright-lab ").expect("it starts with the command").split(' ');
        plan(&Line::try_parse_from(words).expect("it is understood").args).expect("it makes sense")
    }

    #[test]
    fn the_defaults_are_the_plans() {
        assert_eq!(read("lockwright-lab sim mcs"), Plan::default());
    }

    #[test]
    fn a_replay_line_leads_back_to_its_plan() {
        let at = |client, verb, when| ClientFault { client: PeerId::client(client), verb, when };
        let mut plan = Plan {
            clients: 24,
            local_clients: 2,
            locks: 7,
            nodes: 2,
            zipf: 0.5,
            writes_percent: 12.5,
            ops: 999,
            duration_ns: Some(5_000_000),
            abandon_rate: 0.001,
            warmup_ops: 10,
            hold_ns: 1_500,
            think_ns: 3,
            seed: 42,
            max_virtual_ns: 1_000_000_007,
            faults: FaultPlan {
                crashes: vec![at(3, 120, CrashPoint::Before), at(4, 0, CrashPoint::After)],
                pauses: vec![Pause { at: at(2, 50, CrashPoint::After), ns: 10_000_001 }],
                crash_rate: 1e-5,
                pause_rate: 0.001,
                pause_ns: 12_345,
                node_deaths: vec![(NodeId(1), 5_000_000)],
                restarts: vec![(3, 6_000_000)],
                network: NetworkFaults { loss: 0.01, duplication: 0.02, reorder: 0.03, extra_delay_ns: 77 },
                clock_drift_ppm: 100,
            },
            ..Plan::default()
        };
        plan.nic.offers.scope = AtomicScope::Nic;
        assert_eq!(read(&replay_line("mcs", &plan)), plan);
    }
}
