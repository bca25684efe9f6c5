//! FissLock Fig. 16: a hotspot that moves, and more locks than the switch holds.
//!
//! The paper moves its hotspot every 300 ms. Nothing in any of the managers depends on that time (NetLock's profile is
//! taken before the run), so here it moves every 20 ms of virtual time.

use super::fiss::{FISSLOCK, below, cdf, of};
use super::prelude::*;
use crate::rack::{RackReport, RackRun, simulate_all};
use crate::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "fiss-fig16",
    title: "A hotspot that moves; more locks than the switch holds",
    source: "FissLock (OSDI '24) Fig. 16, §7.5, §7.6",
    run,
};

const MANAGERS: [&str; 3] = [FISSLOCK, "netlock", "srvlock"];
/// Slices per stay of the hotspot.
const SLICES: usize = 10;
/// Millions of locks. A million of them are in the switch, so that a tenth of the largest is.
const SCALES: [u64; 4] = [1, 2, 5, 10];

fn run(context: &Context) -> Result<Findings, LabError> {
    let stay_ns = context.pick(20_000_000, 2_000_000);
    let hotspot = Workload::Hotspot { locks: 1_000_000, hot: 2_500, change_ns: stay_ns, reads_percent: 90.0 };
    let moving = MANAGERS.map(|manager| {
        let mut run = RackRun::new(manager, hotspot.clone());
        run.slice_ns = Some(stay_ns / SLICES as u64);
        (run.warmup_ns, run.duration_ns) = (0, 3 * stay_ns);
        if manager == "netlock" {
            run.tunables = vec![("hot_locks", 2_500)];
        }
        run
    });
    let scaled = SCALES.iter().map(|millions| (FISSLOCK, *millions)).chain([("parlock", 10)]);
    let scaled = scaled.map(|(manager, millions)| {
        let locks = millions * 1_000_000;
        let mut run = RackRun::new(manager, Workload::Micro { locks, zipf: 0.0, reads_percent: 90.0 });
        run.duration_ns = context.pick(20_000_000, 2_000_000);
        if manager == FISSLOCK {
            run.tunables = vec![("switch_locks", 1_000_000)];
        }
        run
    });
    let runs: Vec<_> = moving.into_iter().chain(scaled).collect();
    let reports = simulate_all(&runs, context.threads())?;
    let (moving, scaled) = reports.split_at(MANAGERS.len());
    let slice_ms = stay_ns as f64 / SLICES as f64 / 1e6;
    let timeline = |report: &RackReport| -> Vec<f64> {
        report.slices.iter().take(3 * SLICES).map(|grants| *grants as f64 / slice_ms / 1e3).collect()
    };
    let mut slices = Table::new("hotspot", &["manager", "ms", "mrps"]);
    let mut series = Vec::new();
    for report in moving {
        let points: Vec<_> =
            timeline(report).iter().enumerate().map(|(n, mrps)| (n as f64 * slice_ms, *mrps)).collect();
        for (ms, mrps) in &points {
            slices.row([report.protocol.clone(), two(*ms), two(*mrps)]);
        }
        series.push(Series::new(&report.protocol, Style::Line, points));
    }
    let mut scales = Table::new("scale", &["manager", "million_locks", "mrps", "p20_us", "p50_us", "p90_us"]);
    let names = ["fisslock-1m", "fisslock-2m", "fisslock-5m", "fisslock-10m", "parlock-10m"];
    for (report, millions) in scaled.iter().zip(SCALES.into_iter().chain([10])) {
        scales.row([
            report.protocol.clone(),
            millions.to_string(),
            two(report.mrps()),
            two(report.grant_us(0.2)),
            two(report.grant_us(0.5)),
            two(report.grant_us(0.9)),
        ]);
    }
    let curves: Vec<_> =
        names.iter().zip(scaled).map(|(name, report)| (*name, &report.acquire_ns[..])).collect();
    let plot = Plot {
        name: "hotspot".to_owned(),
        title: "A hotspot that moves".to_owned(),
        note: "simulated".to_owned(),
        x: Axis::linear("ms"),
        y: Axis::linear("million requests per second"),
        series,
    };
    let scale = cdf("scale", "Lock grant time by number of locks", &curves);
    let claims = claims(moving, &timeline, scaled);
    Ok(Findings { tables: vec![slices, scales], plots: vec![plot, scale], claims })
}

fn claims(
    moving: &[RackReport],
    timeline: &dyn Fn(&RackReport) -> Vec<f64>,
    scaled: &[RackReport],
) -> Vec<Claim> {
    let mean = |manager: &str, stay: usize| {
        // The first slice of a stay has requests of the one before.
        let slices = &timeline(of(moving, manager))[stay * SLICES + 1..(stay + 1) * SLICES];
        slices.iter().sum::<f64>() / slices.len() as f64
    };
    let drop = |manager: &str| below(mean(manager, 1), mean(manager, 0));
    let (fiss, par) = (&scaled[3], &scaled[4]);
    vec![
        statement("fisslock-flat-when-the-hotspot-moves", drop(FISSLOCK).abs() < 3.0),
        explained(
            Claim::new(
                "netlock-over-srvlock-before-the-move",
                4.0 / 3.0,
                mean("netlock", 0) / mean("srvlock", 0),
            )
            .within_percent(35.0),
            "the switch takes half of the requests off the server, which is then twice as fast here",
        ),
        Claim::new("netlock-over-srvlock-after-the-move", 1.0, mean("netlock", 1) / mean("srvlock", 1))
            .within_percent(10.0),
        statement("netlock-recovers-when-the-hotspot-returns", mean("netlock", 2) > 1.1 * mean("netlock", 1)),
        statement(
            "fisslock-above-netlock-throughout",
            (0..3).all(|stay| mean(FISSLOCK, stay) > mean("netlock", stay)),
        ),
        statement(
            "more-locks-are-slower",
            scaled[..4].is_sorted_by(|a, b| a.grant_us(0.5) <= 1.02 * b.grant_us(0.5)),
        ),
        explained(
            Claim::new(
                "ten-million-p20-below-parlock-percent",
                39.9,
                below(fiss.grant_us(0.2), par.grant_us(0.2)),
            )
            .within_points(20.0),
            "both are near their capacity, where queues are sensitive to every nanosecond of service",
        ),
        explained(
            Claim::new(
                "ten-million-p90-below-parlock-percent",
                9.9,
                below(fiss.grant_us(0.9), par.grant_us(0.9)),
            )
            .within_points(15.0),
            "both are near their capacity, where queues are sensitive to every nanosecond of service",
        ),
    ]
}
