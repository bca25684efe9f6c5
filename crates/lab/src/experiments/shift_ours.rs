//! What our own changes to ShiftLock gain and cost: asking for readers before the mode changes (the optimisation that
//! §3.5.2 leaves as future work), each with and without it, and the portable entry beside the paper's.
//!
//! No figure of the paper: claims here say what the documentation says, so that it stays true.

use super::prelude::*;
use super::shift::{RI, RO, SHIFTLOCK, WI, ZIPF, micro, mops, us};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-ours",
    title: "What asking for readers first gains, and what the portable entry costs",
    source: "ours; ShiftLock (FAST '25) §3.5.2",
    run,
};

const PORTABLE: &str = "shiftlock-portable";
/// Few locks, so that hot ones are handed over nearly always.
const FEW_LOCKS: u64 = 1_000;
/// All writes: no reader ever waits.
const WO: f64 = 100.0;

fn run(context: &Context) -> Result<Findings, LabError> {
    let (asking, mut claims) = asks_first(context)?;
    let (layouts, costs) = layouts(context)?;
    claims.extend(costs);
    Ok(Findings { tables: vec![asking, layouts], plots: Vec::new(), claims })
}

/// The optimisation, on and off.
fn asks_first(context: &Context) -> Result<(Table, Vec<Claim>), LabError> {
    let thresholds: &[u64] = context.pick(&[1, 2, 4, 16], &[1, 16]);
    let mut runs = Vec::new();
    for writes in [WO, WI] {
        for threshold in thresholds {
            for asks in [0, 1] {
                let run = micro(context, SHIFTLOCK, |plan| {
                    (plan.locks, plan.writes_percent) = (FEW_LOCKS, writes);
                });
                let tunables = vec![("threshold", *threshold), ("skips-idle-readers", asks)];
                runs.push(Run { tunables, ..run });
            }
        }
    }
    let reports = context.simulate(&runs)?;
    let header = [
        "writes_percent",
        "n",
        "mops_off",
        "mops_on",
        "gain_percent",
        "reads_off",
        "reads_on",
        "p99_us_off",
        "p99_us_on",
        "seed",
    ];
    let mut table = Table::new("asks-first", &header);
    let points = [WO, WI].into_iter().flat_map(|writes| thresholds.iter().map(move |n| (writes, *n)));
    let mut gains = Vec::new();
    for ((writes, n), pair) in points.zip(reports.chunks(2)) {
        let [off, on] = pair else { unreachable!("each with and without") };
        let gain = 100.0 * (mops(on) / mops(off) - 1.0);
        gains.push((writes, n, gain));
        table.row([
            format!("{writes}"),
            n.to_string(),
            two(mops(off)),
            two(mops(on)),
            format!("{gain:+.1}"),
            two(off.per_cycle.reads),
            two(on.per_cycle.reads),
            two(us(off.acquire.p99_ns as f64)),
            two(us(on.acquire.p99_ns as f64)),
            off.seed.to_string(),
        ]);
    }
    let gain =
        |writes, n| gains.iter().find(|gain| (gain.0, gain.1) == (writes, n)).map_or(0.0, |gain| gain.2);
    let claims = vec![
        statement("asking-first-gains-where-nobody-reads", gain(WO, 1) > gain(WO, 16) && gain(WO, 16) > 0.0),
        statement("asking-first-never-costs-more-than-noise", gains.iter().all(|gain| gain.2 > -2.0)),
    ];
    Ok((table, claims))
}

/// The two entries, side by side.
fn layouts(context: &Context) -> Result<(Table, Vec<Claim>), LabError> {
    let workloads =
        [("lonely-writers", WO, 0.0), ("wi-zipf", WI, ZIPF), ("ri-zipf", RI, ZIPF), ("ro-zipf", RO, ZIPF)];
    let mut runs = Vec::new();
    for (_, writes, zipf) in workloads {
        for lock in [SHIFTLOCK, PORTABLE] {
            runs.push(micro(context, lock, |plan| {
                (plan.writes_percent, plan.zipf) = (writes, zipf);
            }));
        }
    }
    let reports = context.simulate(&runs)?;
    let header =
        ["workload", "lock", "mops", "atomics", "reads", "write_us", "write_p99_us", "read_us", "seed"];
    let mut table = Table::new("layouts", &header);
    for ((name, ..), pair) in workloads.iter().zip(reports.chunks(2)) {
        for report in pair {
            table.row([
                (*name).to_owned(),
                report.protocol.clone(),
                two(mops(report)),
                two(report.per_cycle.atomics),
                two(report.per_cycle.reads),
                two(us(report.acquire_exclusive.mean_ns)),
                two(us(report.acquire_exclusive.p99_ns as f64)),
                two(us(report.acquire_shared.mean_ns)),
                report.seed.to_string(),
            ]);
        }
    }
    let portable = |workload: usize| -> &Report { &reports[2 * workload + 1] };
    let claims = vec![
        Claim::new("portable-lonely-writer-reads", 2.0, portable(0).per_cycle.reads).within_percent(3.0),
        Claim::new("portable-lonely-writer-atomics", 2.0, portable(0).per_cycle.atomics).within_percent(3.0),
        Claim::new("portable-reader-atomics", 2.0, portable(3).per_cycle.atomics).within_percent(1.0),
        statement("portable-reader-reads-nothing", portable(3).per_cycle.reads == 0.0),
    ];
    Ok((table, claims))
}
