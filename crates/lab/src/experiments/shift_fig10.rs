//! ShiftLock Fig. 10: TATP and TPC-C on one-sided locks, their locks taken in one order so that no client has to give up.
//!
//! The paper has no word on which client works for which warehouse. Here every transaction of TPC-C is for any of those
//! of its client's machine: with a warehouse of its own for every client hardly a client would ever wait.

use super::fiss::{below, of};
use super::prelude::*;
use super::shift::{CAS_B, CLIENTS, SHIFTLOCK};
use crate::rack::{RackReport, RackRun, quantile_us, simulate_all};
use crate::testbeds;
use crate::workload::tatp::Tatp;
use crate::workload::tpcc::Tpcc;
use crate::workload::{Profile, Workload};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-fig10",
    title: "Transactions on one-sided locks",
    source: "ShiftLock (FAST '25) Fig. 10, §4.4",
    run,
};

const LOCKS: [&str; 5] = [SHIFTLOCK, CAS_B, "dslr", "mcs", "rma-rw"];

fn benchmarks() -> [(&'static str, Workload); 2] {
    let tpcc = Tpcc { roams: true, ..Tpcc::new(Profile::Paper, 7_000) };
    [("tatp", Workload::Tatp(Tatp::new(Profile::Paper, 2_800))), ("tpcc", Workload::Tpcc(tpcc))]
}

fn run(context: &Context) -> Result<Findings, LabError> {
    let runs: Vec<_> = benchmarks()
        .into_iter()
        .flat_map(|(_, workload)| {
            LOCKS.map(|protocol| {
                let mut run = RackRun::new(protocol, workload.clone());
                (run.clients, run.in_order) = (CLIENTS, true);
                run.nic = testbeds::shiftlock::nic();
                run.duration_ns = context.pick(20_000_000, 3_000_000);
                run
            })
        })
        .collect();
    let reports = simulate_all(&runs, context.threads())?;
    let rows: Vec<_> = reports.chunks(LOCKS.len()).collect();
    let mut table = Table::new(
        "transactions",
        &["benchmark", "lock", "mtps", "of_shiftlock", "type", "p50_us", "p99_us"],
    );
    for ((name, _), row) in benchmarks().iter().zip(&rows) {
        for report in *row {
            for kind in ["GS", "UL", "DLY", "NEW"] {
                let Some(ns) = report.txn_ns.get(kind) else { continue };
                table.row([
                    (*name).to_owned(),
                    report.protocol.clone(),
                    format!("{:.3}", report.mtps()),
                    two(report.mtps() / of(row, SHIFTLOCK).mtps()),
                    kind.to_owned(),
                    two(quantile_us(ns, 0.5)),
                    two(quantile_us(ns, 0.99)),
                ]);
            }
        }
    }
    Ok(Findings { tables: vec![table], plots: Vec::new(), claims: claims(rows[0], rows[1]) })
}

/// What most misses come to.
const FULL: &str = "240 clients fill the NIC of the one node that has all locks here, and a lock that nobody waits for is two verbs \
                    with each of these: goodput is what the NIC allows, and medians are the length of its queue";
const MCS_AHEAD: &str = "the NIC is full, and MCS, which has no modes, does as much with fewer verbs where clients wait: a guess from \
                         goodput alone";

fn claims(tatp: &[RackReport], tpcc: &[RackReport]) -> Vec<Claim> {
    let over = |row: &[RackReport], lock: &str| of(row, SHIFTLOCK).mtps() / of(row, lock).mtps();
    let median = |lock: &str, kind: &str| quantile_us(&of(tatp, lock).txn_ns[kind], 0.5);
    let lower = |kind: &str| below(median(SHIFTLOCK, kind), median("dslr", kind));
    let highest =
        |row: &[RackReport]| row.iter().all(|report| report.mtps() <= 1.005 * of(row, SHIFTLOCK).mtps());
    let contention = "how many clients meet at a warehouse is not printed";
    vec![
        explained(statement("tatp-shiftlock-highest", highest(tatp)), FULL),
        Claim::new("tatp-over-cas", 1.069, over(tatp, CAS_B)).within_percent(10.0),
        Claim::new("tatp-over-mcs", 1.069, over(tatp, "mcs")).within_percent(10.0),
        explained(
            Claim::new("tatp-gs-median-below-dslr-percent", 19.6, lower("GS")).within_points(10.0),
            FULL,
        ),
        explained(
            Claim::new("tatp-ul-median-below-dslr-percent", 16.8, lower("UL")).within_points(10.0),
            FULL,
        ),
        explained(statement("tpcc-shiftlock-highest", highest(tpcc)), MCS_AHEAD),
        explained(Claim::new("tpcc-over-mcs", 1.09, over(tpcc, "mcs")).within_percent(15.0), MCS_AHEAD),
        explained(
            Claim::new("tpcc-over-rma-rw", 2.14, over(tpcc, "rma-rw")).within_percent(35.0),
            contention,
        ),
        statement("tpcc-rma-rw-lowest", tpcc.iter().all(|report| report.mtps() >= of(tpcc, "rma-rw").mtps())),
    ]
}
