//! Citron Fig. 8: BT-IO, class D.
//!
//! BT-IO (Wong and Van der Wijngaart 2003) writes a grid of 408³ points of 40 bytes, fifty times, into one file of 135.8
//! GB. Of P = q² processes each writes rows of 408 / q points, so records of 16320 / q bytes that lie side by side: none
//! conflicts with another. Units are 510 bytes here, of which every record is a multiple and the file has 2²⁸.
//!
//! The paper measures the file system's bandwidth. A lock is held here for as long as its record takes to be read or written
//! (`testbeds/citron.rs`); what else the file system does is not here. Static segmentation has segments of exactly one record, and
//! every record is one.

use super::citron::{
    Handshake, IT, LLC, Lld, Lock, MT, SERVED, SsExact, UNITS, Wait, kops, largest, mean, p99, row, table,
    timed,
};
use super::prelude::*;
use crate::testbeds::citron::data_ns;
use lockwright_sim::{Pattern, Plan, Ranges, Report};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "citron-fig8",
    title: "Citron: BT-IO class D",
    source: "Citron (FAST '23) §4.3.1, Fig. 8",
    run,
};

/// Why ratios differ.
const FILE_SYSTEM: &str = "a record at 64 processes takes 33 µs in the paper (3.90 GB/s), of which lock and data are a third; an exact \
                           segment takes one round trip here, Citron two";

const UNIT_BYTES: u64 = 510;
/// Processes, and bytes of a record.
const RECORDS: [(usize, u64); 4] = [(1, 16_320), (4, 8_160), (16, 4_080), (64, 2_040)];
const LOCKS: [Lock; 7] = [Wait, Handshake, MT, IT, LLC, Lld, SsExact];

fn run(context: &Context) -> Result<Findings, LabError> {
    let mut runs = Vec::new();
    for lock in LOCKS {
        for (clients, record_bytes) in RECORDS {
            let pattern = Pattern::Interleaved { record_bytes, unit_bytes: UNIT_BYTES };
            let plan = timed(context, clients, Ranges::of(UNITS, pattern));
            let plan = Plan { hold_ns: data_ns(record_bytes), ..plan };
            runs.push(lock.run(plan, record_bytes / UNIT_BYTES));
        }
    }
    let reports = context.simulate(&runs)?;
    let by_lock: Vec<&[Report]> = reports.chunks(RECORDS.len()).collect();
    let mut table = table("bt-io", &["record_bytes", "gb_per_s"]);
    for (lock, reports) in LOCKS.iter().zip(&by_lock) {
        for ((_, record_bytes), report) in RECORDS.iter().zip(*reports) {
            let rate = format!("{:.2}", report.goodput_per_s * *record_bytes as f64 / 1e9);
            row(&mut table, &[record_bytes.to_string(), rate], &lock.label(), report);
        }
    }
    Ok(Findings { claims: claims(&by_lock), plots: plots(&by_lock), tables: vec![table] })
}

fn claims(by_lock: &[&[Report]]) -> Vec<Claim> {
    let of = |lock: Lock| by_lock[LOCKS.iter().position(|other| *other == lock).expect("of the list")];
    let over = |one: Lock, other: Lock| -> Vec<f64> {
        of(one).iter().zip(of(other)).map(|(one, other)| kops(one) / kops(other)).collect()
    };
    let ratio = |id: &str, paper: f64, ours: f64| Claim::new(id, paper, ours).within_percent(15.0);
    let p99_served = |lock: Lock| {
        mean(SERVED.iter().flat_map(|served| of(lock).iter().zip(of(*served)).map(|(a, b)| p99(a) / p99(b))))
    };
    let best = |lock: Lock| largest(of(lock).iter().map(kops));
    let aborts: u64 = of(Handshake).iter().map(|report| report.aborts).sum();
    let claims = [
        ratio("over-llc-at-most", 3.05, largest(over(Wait, LLC))),
        ratio("over-llc-on-average", 1.89, mean(over(Wait, LLC))),
        ratio("over-ss-exact-at-most", 2.13, largest(over(Wait, SsExact))),
        ratio("over-ss-exact-on-average", 1.52, mean(over(Wait, SsExact))),
        ratio("p99-of-served-on-average", 0.266, p99_served(Wait)),
        statement("llc-best-of-served", best(LLC) >= best(MT) && best(LLC) >= best(IT)),
        statement("ahead-of-served", SERVED.iter().all(|lock| best(Wait) > best(*lock))),
        statement("ahead-of-lld", best(Wait) > best(Lld)),
        statement("ahead-of-ss-exact", best(Wait) > best(SsExact)),
        statement("ours-handshake-ahead-of-served", SERVED.iter().all(|lock| best(Handshake) > best(*lock))),
        statement("ours-handshake-ahead-of-wait", best(Handshake) > best(Wait)),
        Claim::new("ours-handshake-aborts", 0.0, aborts as f64),
    ];
    claims.into_iter().map(|claim| explained(claim, FILE_SYSTEM)).collect()
}

fn plots(by_lock: &[&[Report]]) -> Vec<Plot> {
    let plot = |name: &str, title: &str, y, figure: fn(&Report) -> f64| Plot {
        name: name.into(),
        title: title.into(),
        note: "simulated, locks and data".into(),
        x: Axis::linear("processes"),
        y,
        series: LOCKS
            .iter()
            .zip(by_lock)
            .map(|(lock, reports)| {
                let points = reports.iter().map(|report| (report.clients as f64, figure(report)));
                Series::new(&lock.label(), Style::Line, points.collect())
            })
            .collect(),
    };
    vec![
        plot("throughput", "BT-IO class D: locks", Axis::log("thousand locks per second"), kops),
        plot("p99", "BT-IO class D: 99th percentile of acquire", Axis::log("microseconds"), p99),
    ]
}
