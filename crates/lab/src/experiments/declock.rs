//! DecLock's queue-notify lock beside the locks it was compared with, and ShiftLock: on ShiftLock's testbed, because of DecLock's
//! own hardware we know no more than its artifact's scripts, and on ShiftLock's workload, with fewer locks, since a queue at the
//! memory node has an entry for every client.
//!
//! The abstract's headlines are "up to": over a spin lock without backoff and over a queue of clients, ShiftLock in the artifact,
//! on microbenchmarks whose coroutines, memory nodes and lock counts differ from these. Not public as figures: which point each
//! headline belongs to. Not modelled: several clients of one machine that share a place in the queue, which is a part of the
//! published gain, and the application's own verbs, for which the lock saves the memory node's NIC.

use super::prelude::*;
use super::shift::{CAS_B, CAS_NB, RI, SHIFTLOCK, WI, micro, mops, of};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "declock",
    title: "DecLock's queue-notify lock beside spin locks, MCS and ShiftLock",
    source: "DecLock (arXiv 2505.17641), abstract",
    run,
};

const DECLOCK: &str = "declock";
const LOCKS: [&str; 6] = [DECLOCK, SHIFTLOCK, "mcs", "dslr", CAS_B, CAS_NB];
/// Locks, so many that queues build at the hottest only.
const MANY: u64 = 10_000;
/// Writes in percent.
const MIXES: [(&str, f64); 3] = [("wo", 100.0), ("wi", WI), ("ri", RI)];

/// What is known of why the headlines are another system's.
const PARTS: &str = "the published gain has parts that are not here: clients of one machine that share a place in the queue, and \
                     an application whose verbs the lock leaves room for";

fn run(context: &Context) -> Result<Findings, LabError> {
    let runs: Vec<_> = MIXES
        .iter()
        .flat_map(|(_, writes)| {
            LOCKS.map(|lock| {
                micro(context, lock, |plan| {
                    (plan.locks, plan.writes_percent) = (MANY, *writes);
                    plan.duration_ns = plan.duration_ns.map(|ns| ns.min(50_000_000));
                })
            })
        })
        .collect();
    let reports = context.simulate(&runs)?;
    let rows: Vec<&[Report]> = reports.chunks(LOCKS.len()).collect();
    let header =
        ["mix", "lock", "mops", "atomics", "reads", "writes", "messages", "p50_us", "p99_us", "seed"];
    let mut table = Table::new("goodput", &header);
    for ((mix, _), row) in MIXES.iter().zip(&rows) {
        for report in *row {
            let per = &report.per_cycle;
            table.row([
                (*mix).to_owned(),
                report.protocol.clone(),
                two(mops(report)),
                two(per.atomics),
                two(per.reads),
                two(per.writes),
                two(per.messages),
                two(report.acquire.p50_ns as f64 / 1e3),
                two(report.acquire.p99_ns as f64 / 1e3),
                report.seed.to_string(),
            ]);
        }
    }
    Ok(Findings { tables: vec![table], plots: Vec::new(), claims: claims(&rows) })
}

fn claims(rows: &[&[Report]]) -> Vec<Claim> {
    let over = |row: &[Report], lock: &str| mops(of(row, DECLOCK)) / mops(of(row, lock));
    let most = |lock: &str| rows.iter().map(|row| over(row, lock)).fold(0.0, f64::max);
    let atomics = of(rows[0], DECLOCK).per_cycle.atomics;
    vec![
        explained(Claim::new("over-spin-lock-at-most", 43.37, most(CAS_NB)).within_factor(2.0), PARTS),
        explained(
            Claim::new("over-queue-of-clients-at-most", 1.81, most(SHIFTLOCK)).within_percent(25.0),
            PARTS,
        ),
        Claim::new("atomics-per-cycle", 2.0, atomics).within_percent(1.0),
        statement(
            "above-spin-locks",
            rows.iter().all(|row| over(row, CAS_NB) > 1.0 && over(row, CAS_B) > 1.0),
        ),
    ]
}
