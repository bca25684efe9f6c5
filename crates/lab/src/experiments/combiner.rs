//! What the combiner's experiments share: the locks compared, and one line of a table for each run.

use super::prelude::*;
use crate::testbeds;
use crate::testbeds::combiner::{COMBINER_THREADS, TREE_THREADS};
use lockwright_proofs::subject::Tunable;
use lockwright_sim::{Oltp, Pattern, Plan, Ranges, Report};

/// Units of the lock in all of the thesis's experiments.
const UNITS: u64 = 1 << 16;

/// A lock of the comparison.
pub(super) struct Lock {
    /// What it is called in tables and claims.
    pub(super) key: &'static str,
    /// Its name in the catalog.
    name: &'static str,
    tunables: &'static [Tunable],
    /// What plots call it.
    pub(super) label: &'static str,
    /// Threads of its server.
    server_threads: usize,
}

const fn lock(name: &'static str, label: &'static str, server_threads: usize) -> Lock {
    Lock { key: name, name, tunables: &[], label, server_threads }
}

/// The thesis's five, and ours. Segments have 2^8 units (§5.2.2). Where clients do all there is no server, and any number of threads
/// will do.
pub(super) const LOCKS: [Lock; 8] = [
    lock("combiner", "combiner, pushed (ours)", COMBINER_THREADS),
    lock("combiner-poll-rpc", "combiner, polled by RPC", COMBINER_THREADS),
    lock("combiner-poll-flag", "combiner, polled by READ", COMBINER_THREADS),
    Lock {
        key: "combiner-poll-flag-unpadded",
        tunables: &[("padded", 0)],
        ..lock("combiner-poll-flag", "combiner, polled by READ, unpadded", COMBINER_THREADS)
    },
    lock("interval-tree", "interval tree", TREE_THREADS),
    Lock { tunables: &[("segment-units", SEGMENT)], ..lock(SS, "static segmentation", NO_SERVER) },
    lock("citron", "Citron", NO_SERVER),
    // Without fencing tokens, which nothing else here has.
    Lock { tunables: &[("token-level", 0)], ..lock("citron-rw", "Citron with readers (ours)", NO_SERVER) },
];

const NO_SERVER: usize = 1;
const SS: &str = "ss";
const SEGMENT: u64 = 256;

/// Ranges between two random units (§5.2.2).
pub(super) const RANDOM: Pattern = Pattern::Between;

/// Filebench's OLTP (§5.2.3): eight data files and a log, all stretches of one lock; 100 writes of each writer for 1000
/// reads, one of the log for 3200. The thesis counts 39 readers, 9 writers and a log writer among 48 clients, which is
/// one too many; there are 38 readers here.
pub(super) fn oltp() -> Pattern {
    Pattern::Oltp(Oltp {
        readers: 38,
        writers: 9,
        files: 8,
        io_units: 64,
        log_units: 2_048,
        aligned: false,
        reads_per_write: 10,
        reads_per_log_write: 3_200,
        reads_ahead: u64::MAX,
    })
}

/// Runs every lock with each number of clients; reports by lock, then by number.
pub(super) fn run_all(
    context: &Context,
    clients: &[usize],
    pattern: &Pattern,
    writes_percent: f64,
) -> Result<Vec<Vec<Report>>, LabError> {
    let run = |lock: &Lock, clients: usize| run_of(context, lock, clients, pattern, writes_percent);
    let runs: Vec<_> =
        LOCKS.iter().flat_map(|lock| clients.iter().map(move |clients| run(lock, *clients))).collect();
    let reports = context.simulate(&runs)?;
    Ok(reports.chunks(clients.len()).map(<[_]>::to_vec).collect())
}

/// One lock with so many clients.
pub(super) fn run_of(
    context: &Context,
    lock: &Lock,
    clients: usize,
    pattern: &Pattern,
    writes_percent: f64,
) -> Run {
    // Without that "the throughput would be close to zero" (§5.2.2, footnote): at most eight segments. All but a
    // sixteenth of ranges between two random units are longer than that, and so cut to eight: "only two segments [...]
    // compared to eight before" (§5.2.3).
    let few = Pattern::Borders { lengths: vec![7 * SEGMENT + 1], step: 1 };
    let pattern = if lock.name == SS && *pattern == RANDOM { &few } else { pattern };
    let plan = Plan {
        clients,
        locks: 1,
        ranges: Some(Ranges::of(UNITS, pattern.clone())),
        writes_percent,
        zipf: 0.0,
        duration_ns: Some(context.pick(20_000_000, 4_000_000)),
        warmup_ops: 2 * clients as u64,
        nic: testbeds::combiner::nic(lock.server_threads),
        ..Plan::default()
    };
    Run { tunables: lock.tunables.to_vec(), ..Run::new(lock.name, plan) }
}

/// The runs as a table.
pub(super) fn table(clients: &[usize], reports: &[Vec<Report>]) -> Table {
    let header =
        ["lock", "clients", "ops_per_s", "p50_us", "p99_us", "messages_per_op", "verbs_per_op", "seed"];
    let mut table = Table::new("throughput", &header);
    for (lock, reports) in LOCKS.iter().zip(reports) {
        for (clients, report) in clients.iter().zip(reports) {
            let per = &report.per_cycle;
            table.row([
                lock.key.to_owned(),
                clients.to_string(),
                format!("{:.0}", report.goodput_per_s),
                format!("{:.2}", report.acquire.p50_ns as f64 / 1e3),
                format!("{:.2}", report.acquire.p99_ns as f64 / 1e3),
                format!("{:.2}", per.messages),
                format!("{:.2}", per.reads + per.writes + per.atomics),
                "1".to_owned(),
            ]);
        }
    }
    table
}

/// Where a lock stands in [`LOCKS`].
pub(super) fn place(key: &str) -> usize {
    LOCKS.iter().position(|lock| lock.key == key).expect("a lock of the list")
}
