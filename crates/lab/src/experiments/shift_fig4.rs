//! ShiftLock Fig. 4: goodput of all locks, for three mixes of reads and writes and two choices of lock.

use super::prelude::*;
use super::shift::{
    BASELINES, CAS_B, RI, RO, SHIFTLOCK, WI, ZIPF, all_locks, best_baseline, micro, mops, of,
};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-fig4",
    title: "Goodput of all locks in the microbenchmark",
    source: "ShiftLock (FAST '25) Fig. 4, §4.2",
    run,
};

/// The workloads, in the figure's order: name, writes in percent, Zipf exponent.
pub(super) const WORKLOADS: [(&str, f64, f64); 6] = [
    ("wi-unif", WI, 0.0),
    ("ri-unif", RI, 0.0),
    ("ro-unif", RO, 0.0),
    ("wi-zipf", WI, ZIPF),
    ("ri-zipf", RI, ZIPF),
    ("ro-zipf", RO, ZIPF),
];

/// Why DrTM is not below the four here, when it reads.
const UNIFORM_NOTE: &str = "at 50 % writes they are, DrTM by little; the less is written the more it gains, for its \
                            readers give nothing back: one verb less to them, in a pipeline that is full";

/// All locks under all workloads, workload by workload.
pub(super) fn simulate(context: &Context) -> Result<Vec<Vec<Report>>, LabError> {
    let mut runs = Vec::new();
    for (_, writes, zipf) in WORKLOADS {
        for lock in all_locks() {
            runs.push(micro(context, lock, |plan| {
                (plan.writes_percent, plan.zipf) = (writes, zipf);
                // DrTM's locks remember their last lease, which costs the next client a second CAS: each must have
                // been used before it counts, as in a run of ten seconds.
                if lock == "drtm" && zipf == 0.0 {
                    plan.warmup_ops = context.pick(2 * plan.locks, plan.warmup_ops);
                }
                // Without contention there is no ramp to wait for, and a mutex does not know a read from a write.
                if plan.duration_ns.is_some() && (zipf, writes) != (ZIPF, WI) {
                    plan.duration_ns = Some(context.pick(1_000_000_000, 20_000_000));
                }
            }));
        }
    }
    let reports = context.simulate(&runs)?;
    Ok(reports.chunks(BASELINES.len() + 1).map(<[Report]>::to_vec).collect())
}

fn run(context: &Context) -> Result<Findings, LabError> {
    let reports = simulate(context)?;
    let mut table = Table::new("goodput", &["workload", "lock", "mops", "of_shiftlock", "seed"]);
    for ((name, ..), reports) in WORKLOADS.iter().zip(&reports) {
        let shiftlock = of(reports, SHIFTLOCK).goodput_per_s;
        for report in reports {
            table.row([
                (*name).to_owned(),
                report.protocol.clone(),
                two(mops(report)),
                two(report.goodput_per_s / shiftlock),
                report.seed.to_string(),
            ]);
        }
    }
    Ok(Findings { tables: vec![table], plots: Vec::new(), claims: claims(context, &reports) })
}

fn claims(context: &Context, reports: &[Vec<Report>]) -> Vec<Claim> {
    let [wi_unif, ri_unif, ro_unif, wi, ri, ro] = reports else { unreachable!("six workloads") };
    let over = |reports: &[Report], lock: &str| {
        of(reports, SHIFTLOCK).goodput_per_s / of(reports, lock).goodput_per_s
    };
    let mut ri_mcs = Claim::new("ri-over-mcs", 3.62, over(ri, "mcs"));
    ri_mcs.band = (2.8, 3.8);
    let highest = |reports: &[Report]| over(reports, &best_baseline(reports).protocol) > 1.0;
    let slowest_of_four = |reports: &[Report]| {
        let four = [SHIFTLOCK, CAS_B, "dslr", "mcs"].map(|lock| mops(of(reports, lock)));
        four.into_iter().fold(f64::MAX, f64::min)
    };
    let fastest_of_rest = |reports: &[Report]| {
        ["drtm", "rma-rw", "rpc"].map(|lock| mops(of(reports, lock))).into_iter().fold(0.0, f64::max)
    };
    let four_lead = |reports: &[Report]| slowest_of_four(reports) > fastest_of_rest(reports);
    let serialised = [CAS_B, "mcs"].map(|lock| mops(of(ro, lock))).into_iter().fold(0.0, f64::max);
    let sharing = [SHIFTLOCK, "dslr", "rma-rw"].map(|lock| mops(of(ro, lock)));
    let mut claims = vec![
        Claim::new("wi-over-mcs", 1.65, over(wi, "mcs")).within_percent(10.0),
        Claim::new("wi-over-rma-rw", 1.27, over(wi, "rma-rw")).within_percent(15.0),
        ri_mcs,
        Claim::new("ri-over-rma-rw", 1.26, over(ri, "rma-rw")).within_percent(15.0),
        statement("wi-shiftlock-highest", highest(wi)),
        statement("ri-shiftlock-highest", highest(ri)),
        statement(
            "wi-others-below-rma-rw",
            ["drtm", "dslr", "rpc", CAS_B].iter().all(|lock| over(wi, lock) > over(wi, "rma-rw")),
        ),
        statement("ro-sharing-far-above-mutexes", sharing.iter().all(|mops| *mops > 2.0 * serialised)),
        statement(
            "rpc-low-even-without-contention",
            mops(of(wi_unif, "rpc")) < 0.5 * fastest_of_rest(wi_unif),
        ),
    ];
    if !context.quick() {
        let four_lead = [wi_unif, ri_unif, ro_unif].iter().all(|reports| four_lead(reports));
        claims.push(explained(statement("unif-four-together-above-the-rest", four_lead), UNIFORM_NOTE));
        // The least advantage over a baseline that is not named: CAS with backoff, by the latencies of Table 4.
        claims.push(Claim::new("wi-over-cas-b", 1.56, over(wi, CAS_B)).within_percent(15.0));
    }
    claims
}
