//! ShiftLock Fig. 6: verbs that an acquire and its release take, write-intensive and read-intensive.
//!
//! Counts are free of hardware, as far as who meets whom is.

use super::prelude::*;
use super::shift::{BASELINES, CAS_B, CAS_NB, RI, SHIFTLOCK, WI, micro, of};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-fig6",
    title: "Verbs per acquire and release",
    source: "ShiftLock (FAST '25) Fig. 6, §4.2",
    run,
};

/// Why DSLR polls less here, write-intensive.
const DSLR_NOTE: &str = "published is 7.92 READs, with the wait between two READs as long as the number of waiters \
                         asks for; in the model that wait is right nearly always, so that a waiter looks about \
                         twice. At 5 % writes the counts agree";

/// Why CAS without backoff retries more here.
const CAS_NB_NOTE: &str = "published are 8.8 CAS per cycle without backoff, in the model they are 14: the hottest \
                           locks take more retries (those of one lock with 240 clients agree, see shift-sec2-3)";

fn run(context: &Context) -> Result<Findings, LabError> {
    let locks: Vec<_> =
        [SHIFTLOCK, CAS_NB].into_iter().chain(BASELINES.into_iter().filter(|lock| *lock != "rpc")).collect();
    let mut runs = Vec::new();
    for writes in [WI, RI] {
        // A mutex does not know a read from a write.
        let tells = |lock: &&&str| writes == WI || ![CAS_B, CAS_NB, "mcs"].contains(lock);
        runs.extend(
            locks.iter().filter(tells).map(|lock| micro(context, lock, |plan| plan.writes_percent = writes)),
        );
    }
    let reports = context.simulate(&runs)?;
    let (wi, ri) = reports.split_at(locks.len());
    let mut table = Table::new(
        "verbs",
        &["workload", "lock", "atomics", "cas", "faa", "reads", "messages", "round_trips", "seed"],
    );
    for (name, reports) in [("wi", wi), ("ri", ri)] {
        for report in reports {
            let per = report.per_cycle;
            table.row([
                name.to_owned(),
                report.protocol.clone(),
                two(per.atomics),
                two(per.cas),
                two(per.fetch_adds),
                two(per.reads),
                two(per.messages),
                two(per.round_trips),
                report.seed.to_string(),
            ]);
        }
    }
    Ok(Findings { tables: vec![table], plots: Vec::new(), claims: claims(context, wi, ri) })
}

fn claims(context: &Context, wi: &[Report], ri: &[Report]) -> Vec<Claim> {
    let atomics = |reports: &[Report], lock| of(reports, lock).per_cycle.atomics;
    let reads = |reports: &[Report], lock| of(reports, lock).per_cycle.reads;
    let mut claims = vec![
        Claim::new("wi-shiftlock-atomics", 2.01, atomics(wi, SHIFTLOCK)).within_percent(3.0),
        Claim::new("ri-shiftlock-atomics", 2.01, atomics(ri, SHIFTLOCK)).within_percent(3.0),
        Claim::new("wi-shiftlock-reads", 0.36, reads(wi, SHIFTLOCK)).within_percent(35.0),
        Claim::new("ri-shiftlock-reads", 0.20, reads(ri, SHIFTLOCK)).within_percent(35.0),
        Claim::new("wi-rma-rw-atomics", 2.95, atomics(wi, "rma-rw")).within_percent(3.0),
        Claim::new("wi-rma-rw-reads", 1.61, reads(wi, "rma-rw")).within_percent(35.0),
        // ShiftLock saves 0.80 READs, 79.7 %, of what DSLR takes.
        Claim::new("ri-dslr-reads", 0.80 / 0.797, reads(ri, "dslr")).within_percent(35.0),
        statement("wi-dslr-reads-above-shiftlock", reads(wi, "dslr") > reads(wi, SHIFTLOCK)),
        explained(
            statement("wi-dslr-reads-above-rma-rw", reads(wi, "dslr") > reads(wi, "rma-rw")),
            DSLR_NOTE,
        ),
        statement("wi-drtm-atomics-above-cas-b", atomics(wi, "drtm") > atomics(wi, CAS_B)),
        statement(
            "wi-fewest-reads-of-those-that-read",
            reads(wi, SHIFTLOCK) < reads(wi, "dslr").min(reads(wi, "rma-rw")),
        ),
        statement(
            "ri-fewest-reads-of-those-that-read",
            reads(ri, SHIFTLOCK) < reads(ri, "dslr").min(reads(ri, "rma-rw")),
        ),
    ];
    if !context.quick() {
        let saved = 100.0 * (1.0 - atomics(wi, CAS_B) / atomics(wi, CAS_NB));
        claims.push(Claim::new("wi-cas-b-atomics", 2.36, atomics(wi, CAS_B)).within_percent(3.0));
        claims.push(explained(
            Claim::new("wi-backoff-saves-percent-of-cas", 73.1, saved).within_percent(3.0),
            CAS_NB_NOTE,
        ));
    }
    claims
}
