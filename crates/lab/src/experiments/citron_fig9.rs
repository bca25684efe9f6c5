//! Citron Fig. 9: what the fast paths of §3.8 are worth, by skew, for ranges of 16 and 256 units, with 96 clients.
//!
//! Wait mode with its fast paths, and without (tunable `fast-path`). Handshake mode is its own fast path.

use super::citron::{Handshake, NOTE, Wait, kops, mean, micro, p50, row, table};
use super::prelude::*;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "citron-fig9",
    title: "Citron: effects of the fast path",
    source: "Citron (FAST '23) §4.4, Fig. 9",
    run,
};

const CLIENTS: usize = 96;
const LENGTHS: [u64; 2] = [16, 256];

fn run(context: &Context) -> Result<Findings, LabError> {
    let alphas: &[f64] = context.pick(&[0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99], &[0.0, 0.7, 0.99]);
    let modes = ["citron-wait", "citron-wait-slow", "citron-handshake"];
    let mut runs = Vec::new();
    for length in LENGTHS {
        for mode in modes {
            for alpha in alphas {
                let plan = lockwright_sim::Plan { zipf: *alpha, ..micro(context, CLIENTS, &[length]) };
                let lock = match mode {
                    "citron-handshake" => Handshake,
                    _ => Wait,
                };
                let mut run: Run = lock.run(plan, length);
                if mode == "citron-wait-slow" {
                    run.tunables.push(("fast-path", 0));
                }
                runs.push(run);
            }
        }
    }
    let reports = context.simulate(&runs)?;
    let curves: Vec<&[Report]> = reports.chunks(alphas.len()).collect();
    let mut table = table("fast-path", &["length", "alpha"]);
    for (place, curve) in curves.iter().enumerate() {
        for (alpha, report) in alphas.iter().zip(*curve) {
            let special = [LENGTHS[place / modes.len()].to_string(), alpha.to_string()];
            row(&mut table, &special, modes[place % modes.len()], report);
        }
    }
    let plots = (0..LENGTHS.len())
        .map(|i| plot(LENGTHS[i], alphas, &modes, &curves[i * modes.len()..][..modes.len()]))
        .collect();
    Ok(Findings { claims: claims(alphas, &modes, &curves), plots, tables: vec![table] })
}

/// How much one curve is above the other, in percent, on average over the skews up to `most`.
fn change(alphas: &[f64], most: f64, one: &[Report], other: &[Report], figure: fn(&Report) -> f64) -> f64 {
    let pairs = alphas.iter().zip(one.iter().zip(other)).filter(|(alpha, _)| **alpha <= most);
    100.0 * mean(pairs.map(|(_, (one, other))| figure(one) / figure(other) - 1.0))
}

fn claims(alphas: &[f64], modes: &[&str], curves: &[&[Report]]) -> Vec<Claim> {
    let curve = |length: usize, mode: &str| {
        modes.iter().position(|other| *other == mode).map(|place| curves[length * modes.len() + place])
    };
    let (small, large) = (0, 1);
    let by = |length: usize, most: f64, figure: fn(&Report) -> f64| match (
        curve(length, "citron-wait"),
        curve(length, "citron-wait-slow"),
    ) {
        (Some(fast), Some(slow)) => change(alphas, most, fast, slow, figure),
        _ => f64::NAN,
    };
    let points = |id: &str, paper: f64, ours: f64| Claim::new(id, paper, ours).within_points(10.0);
    let ours = |length: usize, figure: fn(&Report) -> f64| {
        let (wait, ours) = (curve(length, "citron-wait"), curve(length, "citron-handshake"));
        change(alphas, 1.0, ours.expect("was run"), wait.expect("was run"), figure)
    };
    let below = |id: &str, ours: f64| Claim { band: (f64::NEG_INFINITY, 0.0), ..Claim::new(id, 0.0, ours) };
    let above = |id: &str, ours: f64| Claim { band: (0.0, f64::INFINITY), ..Claim::new(id, 0.0, ours) };
    let aborts: u64 = (0..LENGTHS.len())
        .filter_map(|length| curve(length, "citron-handshake"))
        .flatten()
        .map(|report| report.aborts)
        .sum();
    vec![
        explained(points("l16-median-percent", -21.5, by(small, 1.0, p50)), NOTE),
        explained(points("l256-throughput-percent", 34.3, by(large, 1.0, kops)), NOTE),
        explained(points("l256-median-percent-to-0.7", -39.4, by(large, 0.7, p50)), NOTE),
        below("ours-l16-handshake-median-percent-of-wait", ours(small, p50)),
        above("ours-l256-handshake-throughput-percent-over-wait", ours(large, kops)),
        Claim::new("ours-handshake-aborts", 0.0, aborts as f64),
    ]
}

fn plot(length: u64, alphas: &[f64], modes: &[&str], curves: &[&[Report]]) -> Plot {
    let series = modes.iter().zip(curves).map(|(mode, curve)| {
        let points = alphas.iter().zip(*curve).map(|(alpha, report)| (*alpha, p50(report)));
        Series::new(mode, Style::Line, points.collect())
    });
    Plot {
        name: format!("median-l{length}"),
        title: format!("Ranges of {length} units, 96 clients: median of acquire"),
        note: "simulated".into(),
        x: Axis::linear("Zipf exponent"),
        y: Axis::linear("microseconds"),
        series: series.collect(),
    }
}
