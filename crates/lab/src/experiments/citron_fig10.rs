//! Citron Fig. 10: the locks of IO500's hard write, 64 writers side by side in one growing file.
//!
//! Records of 47008 bytes on units of 4 KiB: neighbours share a page, and a client that writes the next record waits for it. In
//! the figure the tree begins with 2¹⁰ units and grows with the file; a client that finds it too small lets it grow here, where
//! the paper has a thread that looks every 10 ms; in handshake mode. Beside it, the same writers on trees of several sizes, of
//! which each would be the right one for a while.

use super::citron::{Handshake, Lock, NOTE, Wait, kops, micros, row, table, timed};
use super::prelude::*;
use lockwright_sim::{Pattern, Plan, Ranges, Report};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "citron-fig10",
    title: "Citron: the locks of IO500's hard write, by size of the tree",
    source: "Citron (FAST '23) §4.5, Fig. 10",
    run,
};

const CLIENTS: usize = 64;
const LOCKS: [Lock; 2] = [Wait, Handshake];

fn run(context: &Context) -> Result<Findings, LabError> {
    let bits: &[u32] = context.pick(&[10, 12, 14, 16, 18, 20, 22, 24, 26, 28], &[10, 20, 26, 28]);
    let pattern = Pattern::Interleaved { record_bytes: 47_008, unit_bytes: 4_096 };
    let plan = |units: u64| timed(context, CLIENTS, Ranges::of(units, pattern.clone()));
    let mut runs = Vec::new();
    for lock in LOCKS {
        runs.extend(bits.iter().map(|bits| lock.run(plan(1 << bits), 12)));
    }
    // Trees that begin with 2^10 units and grow, beside one that has 2^28 from the start; and one client alone, one of
    // whose acquires is the growth.
    let growing = |plan: Plan| {
        let mut run = Handshake.run(plan, 12);
        run.tunables.extend([("start-units", 1 << 10), ("growth", 1)]);
        run
    };
    runs.push(growing(plan(1 << 28)));
    runs.push(growing(Plan { clients: 1, duration_ns: None, ops: 500, warmup_ops: 0, ..plan(1 << 28) }));
    let mut reports = context.simulate(&runs)?;
    let alone = reports.pop().expect("was run");
    let grown = reports.pop().expect("was run");
    let by_lock: Vec<&[Report]> = reports.chunks(bits.len()).collect();
    let mut table = table("hard-write", &["units"]);
    row(&mut table, &["2^10, grows".to_owned()], &Handshake.label(), &grown);
    for (lock, reports) in LOCKS.iter().zip(&by_lock) {
        for (bits, report) in bits.iter().zip(*reports) {
            row(&mut table, &[format!("2^{bits}")], &lock.label(), report);
        }
    }
    Ok(Findings {
        claims: claims(&by_lock, &grown, &alone),
        plots: vec![plot(bits, &by_lock)],
        tables: vec![table],
    })
}

fn claims(by_lock: &[&[Report]], grown: &Report, alone: &Report) -> Vec<Claim> {
    let [wait, handshake] = by_lock else { unreachable!("two modes") };
    let most = wait.len() - 1;
    // The tree before the largest is a quarter of it: one level less.
    let gain = |reports: &[Report]| 100.0 * (kops(&reports[most - 1]) / kops(&reports[most]) - 1.0);
    let aborts: u64 = handshake.iter().map(|report| report.aborts).sum();
    let grows = "in handshake mode; the longest acquire of one client, one of which lets the tree grow";
    vec![
        Claim::new("smaller-tree-gains-percent", 7.4, gain(wait))
            .within_points(10.0)
            .note("published is the advantage of a tree that has grown six times; ours is one level"),
        explained(statement("smaller-tree-is-faster", gain(wait) > 0.0), NOTE),
        statement("ours-handshake-smaller-tree-is-faster", gain(handshake) > 0.0),
        Claim::new("scale-up-throughput-of-large-tree", 1.0, kops(grown) / kops(&handshake[most]))
            .within_percent(10.0)
            .note("in handshake mode"),
        Claim { band: (10.0, 100.0), ..Claim::new("scale-up-us", 50.0, micros(alone.acquire.max_ns)) }
            .note(grows),
        Claim::new("ours-handshake-aborts", 0.0, aborts as f64),
        statement("ours-handshake-ahead-of-wait", kops(&handshake[most]) > kops(&wait[most])),
    ]
}

fn plot(bits: &[u32], by_lock: &[&[Report]]) -> Plot {
    let series = LOCKS.iter().zip(by_lock).map(|(lock, reports)| {
        let points = bits.iter().zip(*reports).map(|(bits, report)| (f64::from(1 << bits), kops(report)));
        Series::new(&lock.label(), Style::Line, points.collect())
    });
    Plot {
        name: "hard-write".into(),
        title: "IO500 hard write, 64 writers: locks by size of the tree".into(),
        note: "simulated, locks only".into(),
        x: Axis::log("units of the tree"),
        y: Axis::linear("thousand locks per second"),
        series: series.collect(),
    }
}
