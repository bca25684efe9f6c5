//! What Citron's experiments share: the locks compared (Table 1), the microbenchmark (§4.2), and rows of tables.
//!
//! Citron itself runs twice: in wait mode, which is the paper's, and which the paper's figures are held against; and in
//! handshake mode, which is ours.

use super::prelude::*;
use crate::testbeds;
pub(super) use crate::testbeds::citron::T_WAIT_NS;
use lockwright_proofs::subject::Tunable;
use lockwright_sim::{Pattern, Plan, Ranges, Report};

/// Units of a lock (§4.1: a terabyte in pages of 4 KiB).
pub(super) const UNITS: u64 = 1 << 28;
/// What is known of why figures come out otherwise, in few words; the rest stands in the document.
pub(super) const NOTE: &str = "on hot stretches it decides how often a waiter looks, which the paper does not say; see docs/experiments.md";

/// A lock of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// Citron as published.
    Wait,
    /// Citron in handshake mode.
    Handshake,
    /// Kept at the server: its name in the catalog.
    Served(&'static str),
    /// The list by one-sided verbs.
    Lld,
    /// Static segmentation: segments that fit, eight times as long, an eighth as long.
    SsExact,
    SsOver,
    SsUnder,
    /// Static segmentation with segments of so many units.
    Ss(u64),
    /// One mutex for everything.
    Mutex,
}

pub(super) use Lock::{Handshake, Lld, Mutex, Served, Ss, SsExact, SsOver, SsUnder, Wait};

/// What keeps ranges at a server: maple tree, interval tree, list.
pub(super) const MT: Lock = Served("mt");
pub(super) const IT: Lock = Served("it");
pub(super) const LLC: Lock = Served("llc");
pub(super) const SERVED: [Lock; 3] = [MT, IT, LLC];

impl Lock {
    /// What tables and legends call it.
    pub(super) fn label(self) -> String {
        match self {
            Wait => "citron-wait".to_owned(),
            Handshake => "citron-handshake".to_owned(),
            Served(name) => name.to_owned(),
            Lld => "lld".to_owned(),
            SsExact => "ss-exact".to_owned(),
            SsOver => "ss-over".to_owned(),
            SsUnder => "ss-under".to_owned(),
            Ss(units) => format!("ss-{units}"),
            Mutex => "mutex".to_owned(),
        }
    }

    /// A run of this lock, where ranges have `length` units.
    pub(super) fn run(self, mut plan: Plan, length: u64) -> Run {
        let (protocol, tunables) = match self {
            Wait => ("citron", wait_mode(T_WAIT_NS)),
            Handshake => ("citron", Vec::new()),
            Served(name) => (name, Vec::new()),
            Lld => {
                // With many clients a walk through the list takes milliseconds.
                plan.duration_ns = plan.duration_ns.map(|ns| 10 * ns);
                plan.warmup_ops = 0;
                ("lld", Vec::new())
            }
            SsExact => ("ss", segments(length)),
            SsOver => ("ss", segments(8 * length)),
            SsUnder if length < 8 => {
                // A unit cannot be cut, so it becomes eight: that many fewer left borders fit into the same memory.
                plan.ranges =
                    Some(Ranges::of(UNITS, Pattern::Borders { lengths: vec![8 * length], step: 8 }));
                ("ss", segments(length))
            }
            SsUnder => ("ss", segments(length / 8)),
            Ss(units) => ("ss", segments(units)),
            Mutex => ("dslr", Vec::new()),
        };
        Run { tunables, ..Run::new(protocol, plan) }
    }
}

fn segments(units: u64) -> Vec<Tunable> {
    vec![("segment-units", units)]
}

/// The paper's mode. It has no fencing tokens, and its recovery costs clients that are well no verb.
pub(super) fn wait_mode(t_wait_ns: u64) -> Vec<Tunable> {
    vec![("t-wait-ns", t_wait_ns), ("token-level", 0), ("lease-ns", 0)]
}

/// One lock and so many clients, for so long; what is under way in the end does not count.
pub(super) fn timed(context: &Context, clients: usize, ranges: Ranges) -> Plan {
    Plan {
        clients,
        locks: 1,
        zipf: 0.9,
        ranges: Some(ranges),
        duration_ns: Some(context.pick(20_000_000, 5_000_000)),
        cut_off: true,
        warmup_ops: clients as u64,
        nic: testbeds::citron::nic(),
        ..Plan::default()
    }
}

/// The microbenchmark (§4.2): lock, unlock, again; left borders Zipf 0.9.
pub(super) fn micro(context: &Context, clients: usize, lengths: &[u64]) -> Plan {
    timed(context, clients, Ranges::borders(UNITS, lengths))
}

/// Thousands of cycles per second.
pub(super) fn kops(report: &Report) -> f64 {
    report.goodput_per_s / 1e3
}

/// Microseconds.
pub(super) fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Median of acquire in microseconds. A lock that granted nothing in its time takes for ever.
pub(super) fn p50(report: &Report) -> f64 {
    if report.cycles == 0 { f64::INFINITY } else { micros(report.acquire.p50_ns) }
}

/// 99th percentile of acquire in microseconds, likewise.
pub(super) fn p99(report: &Report) -> f64 {
    if report.cycles == 0 { f64::INFINITY } else { micros(report.acquire.p99_ns) }
}

/// The mean of what there is.
pub(super) fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}

/// The largest.
pub(super) fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::MIN, f64::max)
}

/// A table of runs: what is special about each in `columns`, and what came out.
pub(super) fn table(name: &str, columns: &[&str]) -> Table {
    let mut header = columns.to_vec();
    header.extend(["lock", "clients", "kops", "p50_us", "p99_us", "verbs", "messages", "aborts", "seed"]);
    Table::new(name, &header)
}

/// A row of it.
pub(super) fn row(table: &mut Table, special: &[String], label: &str, report: &Report) {
    let per = &report.per_cycle;
    let mut cells = special.to_vec();
    cells.extend([
        label.to_owned(),
        report.clients.to_string(),
        format!("{:.1}", kops(report)),
        format!("{:.2}", p50(report)),
        format!("{:.2}", p99(report)),
        format!("{:.2}", per.reads + per.writes + per.atomics),
        format!("{:.2}", per.messages),
        report.aborts.to_string(),
        report.seed.to_string(),
    ]);
    assert_eq!(cells.len(), table.header.len(), "a row is as long as its header");
    table.rows.push(cells);
}
