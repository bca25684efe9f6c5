//! Citron Fig. 7: throughput by range size when a third of the clients each lock 1, 16 and 256 units.

use super::citron::{Handshake, IT, LLC, Lld, Lock, MT, NOTE, Ss, Wait, kops, largest, micro, row, table};
use super::prelude::*;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "citron-fig7",
    title: "Citron: throughput under a mix of range sizes",
    source: "Citron (FAST '23) §4.2, Fig. 7",
    run,
};

const LENGTHS: [u64; 3] = [1, 16, 256];
const LOCKS: [Lock; 9] = [Wait, Handshake, MT, IT, LLC, Lld, Ss(1), Ss(16), Ss(256)];
/// Clients, and how far Citron is ahead of the best baseline.
const CLIENTS: [(usize, f64); 3] = [(63, 1.277), (129, 1.517), (192, 1.559)];

fn run(context: &Context) -> Result<Findings, LabError> {
    let mut runs = Vec::new();
    for lock in LOCKS {
        runs.extend(CLIENTS.iter().map(|(clients, _)| lock.run(micro(context, *clients, &LENGTHS), 1)));
    }
    let reports = context.simulate(&runs)?;
    let by_lock: Vec<&[Report]> = reports.chunks(CLIENTS.len()).collect();
    let mut table = table("mixed", &["l1_kops", "l16_kops", "l256_kops"]);
    for (lock, reports) in LOCKS.iter().zip(&by_lock) {
        for report in *reports {
            let parts: Vec<_> =
                report.kinds.iter().map(|kind| format!("{:.1}", kind.goodput_per_s / 1e3)).collect();
            row(&mut table, &parts, &lock.label(), report);
        }
    }
    Ok(Findings { claims: claims(&by_lock), plots: vec![plot(&by_lock)], tables: vec![table] })
}

fn claims(by_lock: &[&[Report]]) -> Vec<Claim> {
    let baselines = &by_lock[2..];
    let mut claims = Vec::new();
    for (place, (clients, paper)) in CLIENTS.iter().enumerate() {
        let best = largest(baselines.iter().map(|reports| kops(&reports[place])));
        let over = |lock: usize| kops(&by_lock[lock][place]) / best;
        claims
            .push(Claim::new(&format!("over-best-baseline-{clients}"), *paper, over(0)).within_percent(15.0));
        claims.push(statement(&format!("ahead-of-all-{clients}"), over(0) > 1.0));
        claims.push(statement(&format!("ours-handshake-ahead-of-all-{clients}"), over(1) > 1.0));
        let parts = |lock: usize| -> Vec<f64> {
            by_lock[lock][place].kinds.iter().map(|kind| kind.goodput_per_s).collect()
        };
        let fair = |parts: &[f64]| parts.is_sorted_by(|a, b| a >= b) && parts.iter().all(|part| *part > 0.0);
        claims.push(statement(&format!("small-first-none-starved-{clients}"), fair(&parts(0))));
        let ours = statement(&format!("ours-handshake-small-first-none-starved-{clients}"), fair(&parts(1)));
        claims
            .push(explained(ours, "the lower request yields to the upper; see docs/experiments.md, Citron"));
    }
    let aborts: u64 = by_lock[1].iter().map(|report| report.aborts).sum();
    claims.push(Claim::new("ours-handshake-aborts", 0.0, aborts as f64));
    let noted = |claim: Claim| if claim.note.is_empty() { explained(claim, NOTE) } else { claim };
    claims.into_iter().map(noted).collect()
}

fn plot(by_lock: &[&[Report]]) -> Plot {
    let series = LOCKS.iter().zip(by_lock).map(|(lock, reports)| {
        let points = reports.iter().map(|report| (report.clients as f64, kops(report)));
        Series::new(&lock.label(), Style::Line, points.collect())
    });
    Plot {
        name: "mixed".into(),
        title: "Ranges of 1, 16 and 256 units, a third of the clients each".into(),
        note: "simulated".into(),
        x: Axis::linear("clients"),
        y: Axis::linear("thousand locks per second"),
        series: series.collect(),
    }
}
