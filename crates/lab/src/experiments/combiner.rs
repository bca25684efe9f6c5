//! What the combiner's experiments share: the locks compared, and one line of a table for each run.

use crate::context::{Context, LabError};
use crate::ranges::{Pattern, RangeReport, RangeRun, simulate};
use crate::table::Table;

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

/// Runs every lock with each number of clients; reports by lock, then by number.
pub(super) fn run_all(
    context: &Context,
    clients: &[usize],
    pattern: Pattern,
) -> Result<Vec<Vec<RangeReport>>, LabError> {
    let duration_ns = context.pick(20_000_000, 4_000_000);
    let one = |lock: &Lock, clients: usize| {
        let (protocol, server_threads) = (lock.name, lock.server_threads);
        simulate(&RangeRun { protocol, server_threads, clients, pattern, duration_ns, seed: 1 })
    };
    LOCKS.iter().map(|lock| clients.iter().map(|clients| one(lock, *clients)).collect()).collect()
}

/// The runs as a table.
pub(super) fn table(clients: &[usize], reports: &[Vec<RangeReport>]) -> Table {
    let header =
        ["lock", "clients", "ops_per_s", "p50_us", "p99_us", "messages_per_op", "verbs_per_op", "seed"];
    let mut table = Table::new("throughput", &header);
    for (lock, reports) in LOCKS.iter().zip(reports) {
        for (clients, report) in clients.iter().zip(reports) {
            table.row([
                lock.name.to_owned(),
                clients.to_string(),
                format!("{:.0}", report.ops_per_s),
                format!("{:.2}", report.p50_us),
                format!("{:.2}", report.p99_us),
                format!("{:.2}", report.messages_per_op),
                format!("{:.2}", report.verbs_per_op),
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
