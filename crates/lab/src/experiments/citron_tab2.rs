//! Citron Table 2: Filebench's OLTP on range locks.
//!
//! Three clients, each with one writer of the log, ten writers of data and fifty readers; ten data files and a log, all of
//! ten megabytes, a lock each. Reads and writes of 8 KiB at multiples of that, 256 KiB to the log; in each client ten
//! writes of every writer for 1000 reads and one to the log for 3200. As in Filebench, readers that are too far ahead of a
//! writer wait for it (its semaphores have a high water mark; 1000 here). Units are pages.
//!
//! A lock is held for as long as the data takes, and the rest of an operation takes its time outside the lock, the same for all
//! locks (`testbeds/citron.rs`). Readers lock exclusively, as writers do, for that is what the locks compared have in common (DSLR
//! is a mutex in Table 1); Citron with readers, which no other lock has, stands beside it.

use super::citron::{Handshake, IT, LLC, Lld, Lock, MT, Mutex, Ss, Wait, kops, micros, row, table, timed};
use super::prelude::*;
use crate::testbeds::citron::{FILEBENCH_REST_NS, data_ns};
use lockwright_sim::{Oltp, Pattern, Plan, Ranges, Report};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "citron-tab2",
    title: "Citron: Filebench OLTP",
    source: "Citron (FAST '23) §4.3.2, Table 2",
    run,
};

/// The locks, and what the paper has for them: thousand operations per second, and a reader's 99th percentile.
const LOCKS: [(Lock, f64, f64); 7] = [
    (Wait, 781.4, 59.6),
    (MT, 220.6, 2043.4),
    (IT, 503.1, 118.7),
    (LLC, 847.5, 430.9),
    (Lld, 144.8, 442.0),
    (Ss(1), 575.3, 56.1),
    (Mutex, 173.8, 295.2),
];

/// Why ratios differ.
const FILE_SYSTEM: &str = "outside the lock all operations take the same time here; the paper names caches and the log writer as what \
                           sets locks apart";

const UNIT_BYTES: u64 = 4_096;
/// Ten megabytes in pages.
const FILE_UNITS: u64 = 2_560;
const FILES: u64 = 10;

fn plan(context: &Context) -> Plan {
    let oltp = Oltp {
        readers: 50,
        writers: 10,
        files: FILES,
        io_units: 2,
        log_units: 64,
        aligned: true,
        reads_per_write: 100,
        reads_per_log_write: 3_200,
        reads_ahead: 1_000,
    };
    let hold_per_unit_ns = data_ns(UNIT_BYTES) - data_ns(0);
    let ranges = Ranges { hold_per_unit_ns, ..Ranges::of(FILE_UNITS, Pattern::Oltp(oltp)) };
    Plan { locks: FILES + 1, hold_ns: data_ns(0), think_ns: FILEBENCH_REST_NS, ..timed(context, 183, ranges) }
}

fn run(context: &Context) -> Result<Findings, LabError> {
    let mut runs: Vec<Run> = LOCKS.iter().map(|(lock, ..)| lock.run(plan(context), 2)).collect();
    runs.push(Handshake.run(plan(context), 2));
    runs.push(Run::new("citron-rw", Plan { writes_percent: 0.0, ..plan(context) }));
    let reports = context.simulate(&runs)?;
    let mut labels: Vec<_> = LOCKS.iter().map(|(lock, ..)| lock.label()).collect();
    labels.extend([Handshake.label(), "citron-rw".to_owned()]);
    let mut table = table("oltp", &["reader_p99_us", "reader_kops"]);
    for (label, report) in labels.iter().zip(&reports) {
        let reads = report.kinds[2].goodput_per_s / 1e3;
        row(&mut table, &[format!("{:.1}", reader_p99(report)), format!("{reads:.1}")], label, report);
    }
    Ok(Findings { claims: claims(&reports), plots: Vec::new(), tables: vec![table] })
}

fn reader_p99(report: &Report) -> f64 {
    let reader = &report.kinds[2].acquire;
    if reader.count == 0 { f64::INFINITY } else { micros(reader.p99_ns) }
}

/// Everything relative to Citron's row: a file system's operations are not a lock's, but both stand in the same order.
fn claims(reports: &[Report]) -> Vec<Claim> {
    let (citron, handshake) = (&reports[0], &reports[LOCKS.len()]);
    let mut claims = Vec::new();
    for ((lock, paper_kops, paper_p99), report) in LOCKS.iter().zip(reports).skip(1) {
        let (label, of_kops) = (lock.label(), kops(report) / kops(citron));
        let id = |what: &str| format!("{label}-{what}");
        if *lock == LLC {
            claims.push(Claim::new(&id("kops"), *paper_kops, kops(report)).within_percent(5.0));
        }
        let ratio = Claim::new(&id("of-citron"), paper_kops / LOCKS[0].1, of_kops).within_percent(15.0);
        claims.push(ratio);
        let order = if *paper_kops > LOCKS[0].1 { of_kops > 1.0 } else { of_kops < 1.0 };
        claims.push(statement(&id("throughput-order"), order));
        let of_p99 = reader_p99(report) / reader_p99(citron);
        claims.push(
            Claim::new(&id("reader-p99-of-citron"), paper_p99 / LOCKS[0].2, of_p99).within_percent(20.0),
        );
        let order = if *paper_p99 > LOCKS[0].2 { of_p99 > 1.0 } else { of_p99 < 1.0 };
        claims.push(statement(&id("reader-p99-order"), order));
        let of_ours = kops(report) / kops(handshake);
        let order = if *paper_kops > LOCKS[0].1 { of_ours > 1.0 } else { of_ours < 1.0 };
        claims.push(statement(&format!("ours-handshake-{label}-throughput-order"), order));
    }
    claims.push(Claim::new("ours-handshake-aborts", 0.0, handshake.aborts as f64));
    claims.push(statement("ours-handshake-ahead-of-wait", kops(handshake) > kops(citron)));
    claims
        .push(statement("ours-handshake-reader-p99-below-wait", reader_p99(handshake) < reader_p99(citron)));
    claims.into_iter().map(|claim| explained(claim, FILE_SYSTEM)).collect()
}
