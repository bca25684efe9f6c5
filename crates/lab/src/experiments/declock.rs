//! DecLock's queue-notify lock beside the locks it was compared with, ShiftLock, and ours: on ShiftLock's testbed, because of
//! DecLock's own hardware we know no more than its artifact's scripts, and on the workload that these set by default (dracit7/declock,
//! `getresults.sh`): 256 clients, a hundred thousand locks, Zipf 0.99, half reads, and one READ or WRITE of eight bytes on the
//! memory node while a lock is held. Two more shares of reads, from the range of its sweep.
//!
//! The abstract's headlines are "up to": over a spin lock without backoff and over a queue of clients, ShiftLock in the artifact. Not
//! public as figures: which point each belongs to. Not modelled: several clients of one machine that share a place in the queue,
//! which is a part of the published gain; and the queue read by one verb. A verb of the fabric is a word or two, so a client that
//! leaves reads an entry by a READ each, up to one for every client in the queue.

use super::prelude::*;
use super::shift::{CAS_B, CAS_NB, SHIFTLOCK, micro, mops, of};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "declock",
    title: "DecLock's queue-notify lock beside spin locks, MCS and ShiftLock",
    source: "DecLock (arXiv 2505.17641), abstract; scripts of its artifact",
    run,
};

const DECLOCK: &str = "declock";
/// ShiftLock with our entry of eight bytes: DecLock's verbs are as wide.
const OURS: &str = "shiftlock-portable";
const LOCKS: [&str; 7] = [DECLOCK, SHIFTLOCK, OURS, "mcs", "dslr", CAS_B, CAS_NB];
/// Eight machines, sixteen threads on each, two coroutines a thread.
const CLIENTS: usize = 256;
const MANY: u64 = 100_000;
/// Writes in percent.
const MIXES: [(&str, f64); 3] = [("wo", 100.0), ("wi", 50.0), ("ri", 10.0)];

/// Why the headlines are another system's.
const PARTS: &str = "a client that leaves reads entries one by one where the published one reads the queue by one READ; and there, \
                     clients of one machine share a place in it";

fn run(context: &Context) -> Result<Findings, LabError> {
    let runs: Vec<_> = MIXES
        .iter()
        .flat_map(|(_, writes)| {
            LOCKS.map(|lock| {
                micro(context, lock, |plan| {
                    (plan.clients, plan.locks, plan.writes_percent) = (CLIENTS, MANY, *writes);
                    plan.data = true;
                    plan.duration_ns = plan.duration_ns.map(|ns| ns.min(50_000_000));
                })
            })
        })
        .collect();
    let reports = context.simulate(&runs)?;
    let rows: Vec<&[Report]> = reports.chunks(LOCKS.len()).collect();
    let header = [
        "mix",
        "lock",
        "mops",
        "atomics",
        "reads",
        "writes",
        "messages",
        "p50_us",
        "p99_us",
        "longest_bypass",
        "seed",
    ];
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
                report.longest_bypass.to_string(),
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
    let p99 = |row: &[Report], lock: &str| of(row, lock).acquire.p99_ns as f64;
    let saved = |row: &&[Report]| 100.0 * (1.0 - p99(row, DECLOCK) / p99(row, CAS_NB));
    let bypass = |row: &[Report], lock: &str| of(row, lock).longest_bypass;
    let claims = [
        Claim::new("over-spin-lock-at-most", 43.37, most(CAS_NB)).within_factor(2.0),
        Claim::new("over-queue-of-clients-at-most", 1.81, most(SHIFTLOCK)).within_percent(25.0),
        Claim::new("atomics-per-cycle", 2.0, atomics).within_percent(1.0),
        statement(
            "above-spin-locks",
            rows.iter().all(|row| over(row, CAS_NB) > 1.0 && over(row, CAS_B) > 1.0),
        ),
        // The abstract has it of an object store, whose objects are such data under such locks.
        Claim::new("p99-below-spin-lock-at-most-percent", 98.8, rows.iter().map(saved).fold(0.0, f64::max))
            .within_points(5.0),
        // "Ensures fairness".
        statement(
            "overtakes-less-than-spin-locks",
            rows.iter().all(|row| bypass(row, DECLOCK) < bypass(row, CAS_NB).min(bypass(row, CAS_B))),
        )
        .expected(),
    ];
    claims.into_iter().map(|claim| explained(claim, PARTS)).collect()
}
