//! The combiner thesis's Table 6: 48 clients in the pattern of Filebench's OLTP. Its headline, 1.76 times the best
//! client-side lock, is the first row over Citron's.
//!
//! The thesis's system is an order of magnitude slower than the NIC model here (156.8 µs at the median for a server that
//! answers in 3.5 µs), so ratios are compared, not times. Its Citron locks whole nodes, having no masked compare-and-swap.

use super::combiner::{LOCKS, oltp, place, run_all, table};
use crate::claim::Claim;
use crate::context::{Context, LabError};
use crate::experiment::{Experiment, Findings};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "combiner-tab6",
    title: "Filebench OLTP: 48 clients on ranges of 64 units",
    source: "Dezalos (EPFL 2024) Table 6",
    run,
};

/// Operations per second in the thesis: combiner by eRPC, combiner by RDMA, interval tree, Citron.
const ERPC: f64 = 286_491.0;
const RDMA: f64 = 147_576.0;
const TREE: f64 = 124_603.0;
const CITRON: f64 = 162_720.0;

/// Readers share; in this pattern nothing else is asked of it.
const WRITES_PERCENT: f64 = 0.0;

const NOTE: &str =
    "the thesis's Citron had no masked atomics and its server's threads were far slower than the model's";

fn run(context: &Context) -> Result<Findings, LabError> {
    let clients = [48];
    let reports = run_all(context, &clients, &oltp(), WRITES_PERCENT)?;
    debug_assert_eq!(reports.len(), LOCKS.len());
    let ops = |name: &str| reports[place(name)][0].goodput_per_s;
    let ratio = |id: &str, paper: (f64, f64), ours: (&str, &str)| {
        Claim::new(id, paper.0 / paper.1, ops(ours.0) / ops(ours.1)).within_percent(15.0).note(NOTE)
    };
    let claims = vec![
        ratio("combiner-over-best-client-side", (ERPC, CITRON), ("combiner-poll-rpc", "citron")),
        ratio("combiner-over-interval-tree", (ERPC, TREE), ("combiner-poll-rpc", "interval-tree")),
        ratio("rdma-polling-over-rpc-polling", (RDMA, ERPC), ("combiner-poll-flag", "combiner-poll-rpc")),
    ];
    Ok(Findings { tables: vec![table(&clients, &reports)], plots: Vec::new(), claims })
}
