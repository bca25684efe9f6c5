//! What the combiner's experiments share: the locks compared, and one line of a table for each run.

use crate::context::{Context, LabError, Run};
use crate::table::Table;
use lockwright_sim::{NicModel, Oltp, Pattern, Plan, Ranges, Report};

/// Units of the lock in all of the thesis's experiments.
const UNITS: u64 = 1 << 16;

/// A lock of the comparison: its name in the catalog, what the thesis calls it, threads of its server.
pub(super) struct Lock {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) server_threads: usize,
}

/// The thesis's five, as far as they exist here, and ours. Combiners have 18 server threads, of which one combines
/// (§5.1); the interval tree is fastest with one.
pub(super) const LOCKS: [Lock; 6] = [
    Lock { name: "combiner", label: "combiner, pushed (ours)", server_threads: 17 },
    Lock { name: "combiner-poll-rpc", label: "combiner, polled by RPC", server_threads: 17 },
    Lock { name: "combiner-poll-flag", label: "combiner, polled by READ", server_threads: 17 },
    Lock { name: "interval-tree", label: "interval tree", server_threads: 1 },
    Lock { name: "citron", label: "Citron", server_threads: 1 },
    Lock { name: "citron-rw", label: "Citron with readers (ours)", server_threads: 1 },
];

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
    let run = |lock: &Lock, clients: usize| {
        let plan = Plan {
            clients,
            locks: 1,
            ranges: Some(Ranges::of(UNITS, pattern.clone())),
            writes_percent,
            duration_ns: Some(context.pick(20_000_000, 4_000_000)),
            warmup_ops: 2 * clients as u64,
            nic: NicModel { role_threads: lock.server_threads, ..NicModel::default() },
            ..Plan::default()
        };
        Run::new(lock.name, plan)
    };
    let runs: Vec<_> =
        LOCKS.iter().flat_map(|lock| clients.iter().map(move |clients| run(lock, *clients))).collect();
    let reports = context.simulate(&runs)?;
    Ok(reports.chunks(clients.len()).map(<[_]>::to_vec).collect())
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
                lock.name.to_owned(),
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
pub(super) fn place(name: &str) -> usize {
    LOCKS.iter().position(|lock| lock.name == name).expect("a lock of the list")
}
