//! ShiftLock Table 4: where the time of ShiftLock, CAS and DSLR goes, with 240 clients.
//!
//! IA is the first verb; everything after it is one figure, "wait" (the paper's NP + WP + WR, WW or RT).

use super::prelude::*;
use super::shift::{CAS_B, CAS_NB, RI, SHIFTLOCK, WI, micro, of, us};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-tab4",
    title: "Latencies of ShiftLock, CAS and DSLR, step by step",
    source: "ShiftLock (FAST '25) Table 4, §4.6",
    run,
};

const DSLR: &str = "dslr";

/// Why DSLR's first verb is short here, write-intensive.
const DSLR_NOTE: &str = "in the paper DSLR's READs crowd the hottest locks and slow its atomics; here it makes a \
                         tenth of them (see shift-fig6)";
/// Why CAS without backoff waits longer here.
const CAS_NB_NOTE: &str = "retries of the hottest locks fill the NIC's parking slots, and then everybody waits; the \
                           model's stall is the harder one";

fn run(context: &Context) -> Result<Findings, LabError> {
    let run = |lock, writes| micro(context, lock, |plan| plan.writes_percent = writes);
    let runs = [
        run(SHIFTLOCK, WI),
        run(CAS_B, WI),
        run(CAS_NB, WI),
        run(DSLR, WI),
        run(SHIFTLOCK, RI),
        run(DSLR, RI),
    ];
    let reports = context.simulate(&runs)?;
    let (wi, ri) = reports.split_at(4);
    let mut table = Table::new(
        "breakdown-us",
        &["workload", "lock", "write_ia", "write_wait", "read_ia", "read_wait", "release", "mops", "seed"],
    );
    for (name, reports) in [("wi", wi), ("ri", ri)] {
        for report in reports {
            let first = report.first_verb;
            table.row([
                name.to_owned(),
                report.protocol.clone(),
                two(us(first.exclusive_ns)),
                two(write_wait(report)),
                two(us(first.shared_ns)),
                two(read_wait(report)),
                two(us(report.release.mean_ns)),
                two(report.goodput_per_s / 1e6),
                report.seed.to_string(),
            ]);
        }
    }
    Ok(Findings { tables: vec![table], plots: Vec::new(), claims: claims(context, wi, ri) })
}

fn write_wait(report: &Report) -> f64 {
    us(report.acquire_exclusive.mean_ns - report.first_verb.exclusive_ns)
}

fn read_wait(report: &Report) -> f64 {
    us(report.acquire_shared.mean_ns - report.first_verb.shared_ns)
}

/// Cycles per second that the paper's latencies amount to, in millions: 240 clients do nothing else.
fn implied_mops(write_us: f64, read_us: f64, release_us: f64, writes: f64) -> f64 {
    240.0 / (write_us * writes + read_us * (1.0 - writes) + release_us)
}

fn claims(context: &Context, wi: &[Report], ri: &[Report]) -> Vec<Claim> {
    let first = |reports: &[Report], lock| us(of(reports, lock).first_verb.exclusive_ns);
    let mops = |reports: &[Report], lock| of(reports, lock).goodput_per_s / 1e6;
    let dslr_ri = implied_mops(3.47 + 18.01, 3.46 + 20.26, 3.51, 0.05);
    let cas_nb = implied_mops(38.50 + 412.98, 38.50 + 412.98, 37.92, 0.5);
    let mut claims = vec![
        Claim::new("wi-shiftlock-first-atomic-us", 2.50, first(wi, SHIFTLOCK)).within_percent(20.0),
        Claim::new("wi-shiftlock-write-wait-us", 42.95, write_wait(of(wi, SHIFTLOCK))).within_percent(20.0),
        Claim::new("wi-shiftlock-read-wait-us", 2.87, read_wait(of(wi, SHIFTLOCK))).within_percent(20.0),
        Claim::new("wi-shiftlock-release-us", 2.85, us(of(wi, SHIFTLOCK).release.mean_ns))
            .within_percent(20.0),
        Claim::new("wi-cas-nb-first-atomic-us", 38.50, first(wi, CAS_NB)).within_percent(15.0),
        explained(Claim::new("wi-cas-nb-mops", cas_nb, mops(wi, CAS_NB)).within_percent(45.0), CAS_NB_NOTE),
        Claim::new("ri-dslr-mops", dslr_ri, mops(ri, DSLR)).within_percent(15.0),
        statement(
            "wi-dslr-waits-longer-than-shiftlock",
            read_wait(of(wi, DSLR)) > read_wait(of(wi, SHIFTLOCK)),
        ),
        explained(
            statement("wi-dslr-first-atomic-above-shiftlock", first(wi, DSLR) > first(wi, SHIFTLOCK)),
            DSLR_NOTE,
        ),
        statement("ri-dslr-first-atomic-below-shiftlock", first(ri, DSLR) < first(ri, SHIFTLOCK)),
        statement("ri-dslr-readers-wait-longer", read_wait(of(ri, DSLR)) > read_wait(of(ri, SHIFTLOCK))),
    ];
    if !context.quick() {
        let cas_b = implied_mops(2.48 + 37.23, 2.48 + 37.23, 2.34, 0.5);
        claims.extend([
            Claim::new("wi-cas-b-first-atomic-us", 2.48, first(wi, CAS_B)).within_percent(20.0),
            Claim::new("wi-cas-b-mops", cas_b, mops(wi, CAS_B)).within_percent(15.0),
            statement(
                "wi-cas-b-writers-wait-less",
                write_wait(of(wi, CAS_B)) < write_wait(of(wi, SHIFTLOCK)),
            ),
            statement(
                "wi-cas-b-readers-wait-longer",
                read_wait(of(wi, CAS_B)) > read_wait(of(wi, SHIFTLOCK)),
            ),
        ]);
    }
    claims
}
