//! ShiftLock Table 3: where ShiftLock's time goes, by the number of clients.
//!
//! IA is the first verb. What a writer waits after it (the paper's NP, WP and WR) is one figure here, and so is what a
//! reader waits (WW) and all of a release (IA and NS).

use super::prelude::*;
use super::shift::{RI, SHIFTLOCK, WI, micro, us};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-tab3",
    title: "ShiftLock's latencies, step by step",
    source: "ShiftLock (FAST '25) Table 3, §4.6",
    run,
};

/// One row of the paper's table: clients; a writer's IA and NP + WP + WR; a reader's IA and WW; a release's IA + NS.
type Row = (usize, f64, f64, f64, f64, f64);

const PAPER_WI: [Row; 8] = [
    (5, 2.05, 0.03, 2.03, 0.01, 2.07),
    (20, 2.24, 0.22, 2.22, 0.20, 2.35),
    (40, 2.27, 0.47, 2.25, 0.78, 2.45),
    (80, 2.41, 2.20, 2.38, 2.00, 2.67),
    (120, 2.41, 10.45, 2.38, 2.14, 2.69),
    (160, 2.43, 19.82, 2.40, 2.32, 2.73),
    (200, 2.49, 32.07, 2.46, 2.63, 2.82),
    (240, 2.50, 42.95, 2.47, 2.87, 2.85),
];

const PAPER_RI: [Row; 8] = [
    (5, 2.41, 0.78, 2.32, 0.00, 2.29),
    (20, 2.49, 1.57, 2.41, 0.01, 2.38),
    (40, 2.64, 2.84, 2.49, 0.04, 2.48),
    (80, 3.60, 6.10, 2.68, 0.24, 2.77),
    (120, 5.14, 8.95, 3.44, 0.59, 3.62),
    (160, 5.91, 10.22, 4.52, 0.87, 4.76),
    (200, 6.96, 12.19, 5.79, 1.21, 6.08),
    (240, 7.84, 14.78, 6.95, 1.66, 7.27),
];

/// Why short waits are hard to hit.
const SHORT_WAIT: &str = "hundredths of a microsecond: how rarely two clients meet, which hangs on the last digit of \
                          the choice of lock and the jitter";
/// Why queues begin to build at another number of clients.
const KNEE: &str = "between 40 and 120 clients the hottest lock's queue begins to build, and a little more or less \
                    load moves the wait by a factor";
/// What Table 3 says about few clients and few writes.
const ODD: &str = "the paper's own figures are odd here: slower with 5 clients and few writes than with many";
/// Why writers among many readers wait less here.
const RARE: &str = "in the model a writer meets readers on the hottest locks only; the paper prints 0.78 µs already \
                    for five clients on ten million locks, who hardly ever meet";
/// Why the NIC is not as loaded as the paper's at 120 to 200 clients.
const LOAD: &str =
    "the model's NIC is busy all at once where the pipeline is full; the paper's fills up gradually";

fn run(context: &Context) -> Result<Findings, LabError> {
    let chosen = |row: &&Row| !context.quick() || [80, 240].contains(&row.0);
    let rows: Vec<(f64, &Row)> = PAPER_WI
        .iter()
        .filter(chosen)
        .map(|row| (WI, row))
        .chain(PAPER_RI.iter().filter(chosen).map(|row| (RI, row)))
        .collect();
    let runs: Vec<_> = rows
        .iter()
        .map(|(writes, row)| {
            micro(context, SHIFTLOCK, |plan| (plan.writes_percent, plan.clients) = (*writes, row.0))
        })
        .collect();
    let reports = context.simulate(&runs)?;
    let header = ["workload", "clients", "write_ia", "write_wait", "read_ia", "read_wait", "release", "seed"];
    let (mut ours, mut paper) = (Table::new("ours-us", &header), Table::new("paper-us", &header));
    let mut claims = Vec::new();
    for ((writes, row), report) in rows.iter().zip(&reports) {
        let found = breakdown(report);
        let name = if *writes == WI { "wi" } else { "ri" };
        for (table, row, seed) in
            [(&mut ours, &found, report.seed.to_string()), (&mut paper, *row, String::new())]
        {
            table.row([
                name.to_owned(),
                row.0.to_string(),
                two(row.1),
                two(row.2),
                two(row.3),
                two(row.4),
                two(row.5),
                seed,
            ]);
        }
        claims.extend(if *writes == WI { wi_claims(row, &found) } else { ri_claims(row, &found) });
    }
    Ok(Findings { tables: vec![ours, paper], plots: Vec::new(), claims })
}

/// The row that `report` makes.
fn breakdown(report: &Report) -> Row {
    let first = report.first_verb;
    (
        report.clients,
        us(first.exclusive_ns),
        us(report.acquire_exclusive.mean_ns - first.exclusive_ns),
        us(first.shared_ns),
        us(report.acquire_shared.mean_ns - first.shared_ns),
        us(report.release.mean_ns),
    )
}

fn wi_claims(paper: &Row, ours: &Row) -> Vec<Claim> {
    let clients = paper.0;
    let claim = |what: &str, paper, ours, percent| {
        Claim::new(&format!("wi-{clients}-{what}"), paper, ours).within_percent(percent)
    };
    let few = if clients < 40 { SHORT_WAIT } else { KNEE };
    vec![
        claim("write-first-atomic-us", paper.1, ours.1, 20.0),
        explained(claim("write-wait-us", paper.2, ours.2, if clients >= 120 { 20.0 } else { 45.0 }), few),
        explained(claim("read-wait-us", paper.4, ours.4, 20.0), few),
        claim("release-us", paper.5, ours.5, 20.0),
    ]
}

fn ri_claims(paper: &Row, ours: &Row) -> Vec<Claim> {
    let clients = paper.0;
    let claim = |what: &str, paper, ours| {
        Claim::new(&format!("ri-{clients}-{what}"), paper, ours).within_percent(20.0)
    };
    let note = if clients <= 20 { ODD } else { LOAD };
    let wait = Claim::new(&format!("ri-{clients}-write-wait-us"), paper.2, ours.2).within_percent(45.0);
    vec![
        explained(wait, RARE),
        explained(claim("read-first-atomic-us", paper.3, ours.3), note),
        explained(claim("release-us", paper.5, ours.5), note),
    ]
}
