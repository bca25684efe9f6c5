//! FissLock Fig. 17 (left): ten million objects behind few locks or many.

use super::fiss::{FISSLOCK, ZIPF};
use super::prelude::*;
use crate::rack::{RackRun, simulate_all};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "fiss-fig17",
    title: "Coarse and fine locks for ten million objects",
    source: "FissLock (OSDI '24) Fig. 17 left, §7.7",
    run,
};

const OBJECTS: u64 = 10_000_000;
const LOCKS: [u64; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
const MANAGERS: [&str; 2] = [FISSLOCK, "netlock"];
const SHAPES: [(&str, f64); 2] = [("uniform", 0.0), ("zipf", ZIPF)];

fn run(context: &Context) -> Result<Findings, LabError> {
    let mut runs = Vec::new();
    for (_, zipf) in SHAPES {
        for manager in MANAGERS {
            for locks in LOCKS {
                let workload = Workload::Objects { objects: OBJECTS, locks, zipf, reads_percent: 90.0 };
                let mut run = RackRun::new(manager, workload);
                run.duration_ns = context.pick(10_000_000, 2_000_000);
                if manager == "netlock" {
                    // As many as fit with queues for that much contention: the peak is at about a thousand (§7.7).
                    run.tunables = vec![("hot_locks", 1_000)];
                }
                runs.push(run);
            }
        }
    }
    let reports = simulate_all(&runs, context.threads())?;
    let mut table = Table::new("granularity", &["shape", "manager", "locks", "mrps"]);
    let mut series = Vec::new();
    let mut peaks = Vec::new();
    let mut coarse = Vec::new();
    for (index, row) in reports.chunks(LOCKS.len()).enumerate() {
        let ((shape, _), manager) = (SHAPES[index / MANAGERS.len()], MANAGERS[index % MANAGERS.len()]);
        let points: Vec<_> =
            LOCKS.iter().zip(row).map(|(locks, report)| (*locks as f64, report.mrps())).collect();
        for (locks, mrps) in &points {
            table.row([shape.to_owned(), manager.to_owned(), format!("{locks}"), two(*mrps)]);
        }
        peaks.push(points.iter().map(|(_, mrps)| *mrps).fold(0.0, f64::max));
        coarse.push(points[0].1);
        series.push(Series::new(&format!("{manager} {shape}"), Style::Line, points));
    }
    let plot = Plot {
        name: "granularity".to_owned(),
        title: "Ten million objects behind few locks or many".to_owned(),
        note: "simulated".to_owned(),
        x: Axis::log("locks"),
        y: Axis::linear("million requests per second"),
        series,
    };
    let note = "published is a peak of 5.65 M at about a thousand locks, for contention; 160 clients hardly meet on a thousand locks \
                here, and a switch passes several billion packets a second (§2.2)";
    let claims = vec![
        explained(
            Claim::new("uniform-fisslock-fine-over-coarse", 5.40, peaks[0] / coarse[0]).within_factor(2.0),
            "contention on a hundred locks depends on how long each is held",
        ),
        explained(
            Claim::new("uniform-peak-over-netlock", 1.99, peaks[0] / peaks[1]).within_percent(35.0),
            note,
        ),
        explained(Claim::new("zipf-peak-over-netlock", 1.26, peaks[2] / peaks[3]).within_percent(35.0), note),
        statement("fine-locks-beat-coarse-ones", peaks[0] > coarse[0] && peaks[2] > coarse[2]),
    ];
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}
