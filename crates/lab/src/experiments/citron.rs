//! What Citron's experiments share: the locks compared (Table 1), the microbenchmark (§4.2), and rows of tables.
//!
//! Citron itself runs twice: in wait mode, which is the paper's, and in handshake mode, which is ours. The paper's
//! figures are held against wait mode.

use crate::context::Run;
use crate::subject::{self, Tunable};
use crate::table::Table;
use lockwright_sim::{NicModel, Pattern, Plan, Ranges, Report};

/// Units of a lock (§4.1: a terabyte in pages of 4 KiB).
pub(super) const UNITS: u64 = 1 << 28;
/// T_wait (§3.5.5).
pub(super) const T_WAIT_NS: u64 = 15_000;
/// Threads of the server, for locks that have one (§4.1).
const SERVER_THREADS: usize = 18;

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
        plan.nic = NicModel { role_threads: SERVER_THREADS, ..plan.nic };
        let (protocol, tunables) = match self {
            Wait => ("citron", wait_mode()),
            Handshake => ("citron", Vec::new()),
            Served(name) => (name, Vec::new()),
            Lld => ("lld", Vec::new()),
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

/// The paper's mode. It has no fencing tokens, so where they can be left out they are.
pub(super) fn wait_mode() -> Vec<Tunable> {
    let mut tunables = vec![("t-wait-ns", T_WAIT_NS)];
    tunables.extend(if_there(("token-level", 0)));
    tunables
}

/// A tunable of Citron, if it has that.
pub(super) fn if_there(tunable: Tunable) -> Option<Tunable> {
    let citron = subject::find("citron").expect("Citron is in the catalog");
    citron.can_tune(tunable).then_some(tunable)
}

/// The microbenchmark (§4.2): lock, unlock, again; left borders Zipf 0.9.
pub(super) fn micro(clients: usize, lengths: &[u64], ops: u64) -> Plan {
    Plan {
        clients,
        machines: 3,
        locks: 1,
        zipf: 0.9,
        ranges: Some(Ranges::borders(UNITS, lengths)),
        ops,
        warmup_ops: ops / 10,
        ..Plan::default()
    }
}

/// Thousands of cycles per second.
pub(super) fn kops(report: &Report) -> f64 {
    report.goodput_per_s / 1e3
}

/// Microseconds.
pub(super) fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
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
        format!("{:.2}", micros(report.acquire.p50_ns)),
        format!("{:.2}", micros(report.acquire.p99_ns)),
        format!("{:.2}", per.reads + per.writes + per.atomics),
        format!("{:.2}", per.messages),
        report.aborts.to_string(),
        report.seed.to_string(),
    ]);
    assert_eq!(cells.len(), table.header.len(), "a row is as long as its header");
    table.rows.push(cells);
}
