//! The combiner thesis's Table 6: 48 clients in the pattern of Filebench's OLTP. Its headline, 1.76 times the best
//! client-side lock, is the first row over Citron's.
//!
//! Clients do nothing but lock, as the thesis's do. A time outside the lock, as Citron's file system has (`citron_tab2.rs`), would have
//! to be 147 µs for segments (48 / 161,530 − 150.1 at the median) and 19 µs for the interval tree (48 / 124,603 − 366.4), of the same
//! clients: there is no one time to fit.
//!
//! The thesis's system is an order of magnitude slower than the NIC model here (156.8 µs at the median where an RPC takes
//! 3.5 µs), so ratios are compared, not times. How much hangs on the speed of the server's threads, for which there is
//! no published figure, is shown by a table of its own. Of what a server does, the part of its one combining thread is
//! charged one request at a time: a cache line for each request and each grant in the thesis's combiners, one for a
//! lock and its unlock in ours, which carries several requests in a node of its list.

use super::combiner::{LOCKS, oltp, place, run_all, run_of, table};
use super::prelude::*;
use crate::testbeds::combiner::CLIENTS;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "combiner-tab6",
    title: "Filebench OLTP: 48 clients on ranges of 64 units",
    source: "Dezalos (EPFL 2024) Table 6",
    run,
};

/// Operations per second in the thesis: combiner by eRPC, combiner by RDMA, interval tree, static segmentation, Citron.
const ERPC: f64 = 286_491.0;
const RDMA: f64 = 147_576.0;
const TREE: f64 = 124_603.0;
const SEGMENTS: f64 = 161_530.0;
const CITRON: f64 = 162_720.0;

/// Readers share; in this pattern nothing else is asked of it.
const WRITES_PERCENT: f64 = 0.0;

/// What a message may cost a thread of the server; the first is the model's.
const SERVICE_NS: [u64; 5] = [200, 500, 1_000, 2_000, 4_000];

const SEGMENTED: &str = "two or three verbs of 2.8 µs here; the thesis contradicts itself: 48 clients at 161,530 operations/s take \
                         297 µs each, while 99 % take at most 232.8";
const SPEED: &str = "what a message costs the server's threads decides: see the table server_speed";
const FLAGS: &str = "a READ is shorter than an RPC, here and there, and the model has no cache lines for flags to share; \
                     that the thesis's flags cost it so much because they lie side by side is its own guess";
const WHOLE: &str = "the thesis contradicts itself: 48 clients at 162,720 operations/s take 295 µs each, while half take 26.1 and 99 % \
                     at most 223.4, so that the slowest hundredth would take 7 ms";

fn run(context: &Context) -> Result<Findings, LabError> {
    let reports = run_all(context, &[CLIENTS], &oltp(), WRITES_PERCENT)?;
    let ops = |key: &str| reports[place(key)][0].goodput_per_s;
    let client_side = ops("citron").max(ops("ss"));
    let ratio = |id: &str, (paper, to): (f64, f64), (ours, than): (f64, f64), note: &str| {
        Claim::new(id, paper / to, ours / than).within_percent(15.0).note(note)
    };
    let (rpc, flag) = (ops("combiner-poll-rpc"), ops("combiner-poll-flag"));
    let claims = vec![
        ratio("combiner-over-best-client-side", (ERPC, CITRON), (rpc, client_side), SEGMENTED),
        ratio("combiner-over-citron", (ERPC, CITRON), (rpc, ops("citron")), WHOLE),
        ratio("combiner-over-interval-tree", (ERPC, TREE), (rpc, ops("interval-tree")), SPEED),
        ratio("rdma-polling-over-rpc-polling", (RDMA, ERPC), (flag, rpc), FLAGS),
        ratio("segments-over-citron", (SEGMENTS, CITRON), (ops("ss"), ops("citron")), SEGMENTED),
    ];
    let tables = vec![table(&[CLIENTS], &reports), server_speed(context, client_side)?];
    Ok(Findings { tables, plots: Vec::new(), claims })
}

/// The locks with a server, with slower and slower servers, and what they are worth against the best without one.
fn server_speed(context: &Context, client_side: f64) -> Result<Table, LabError> {
    let locks = ["combiner", "combiner-poll-rpc", "combiner-poll-flag", "interval-tree"];
    let with = |service_ns: u64| {
        locks.map(|key| {
            let mut run = run_of(context, &LOCKS[place(key)], CLIENTS, &oltp(), WRITES_PERCENT);
            run.plan.nic.server.service_ns = service_ns;
            run
        })
    };
    let runs: Vec<_> = SERVICE_NS.into_iter().flat_map(with).collect();
    let reports = context.simulate(&runs)?;
    let header = ["lock", "service_ns", "ops_per_s", "p50_us", "over_best_client_side", "seed"];
    let mut table = Table::new("server_speed", &header);
    let settings = SERVICE_NS.iter().flat_map(|service_ns| locks.map(|key| (key, service_ns)));
    for ((key, service_ns), report) in settings.zip(&reports) {
        table.row([
            key.to_owned(),
            service_ns.to_string(),
            format!("{:.0}", report.goodput_per_s),
            format!("{:.2}", report.acquire.p50_ns as f64 / 1e3),
            format!("{:.2}", report.goodput_per_s / client_side),
            "1".to_owned(),
        ]);
    }
    Ok(table)
}
