//! `lockwright-lab sim --soak`: a server and its clients with faults at random, for as long as one likes.
//!
//! Every seed is a world of its own, which a thread takes through so many steps; threads share the seeds. A failure is shrunk to
//! the steps that matter, and repeated by its seed.

use anyhow::Result;
use lockwright_proofs::served::{Served, Step};
use lockwright_sim::model::{Found, Soaked, shrink, soak};
use lockwright_term::units::grouped;
use lockwright_term::{Outcome, spinner};
use serde::Serialize;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Steps of one world.
const STEPS: u64 = 10_000;

/// What was seen, of all worlds together.
#[derive(Debug, Default, Serialize)]
struct SoakReport {
    first_seed: u64,
    seeds: u64,
    events: u64,
    /// Of simulated clusters.
    virtual_days: f64,
    seconds: f64,
    violation: Option<Failed>,
}

/// What went wrong, and how to see it again.
#[derive(Debug, Serialize)]
struct Failed {
    seed: u64,
    what: String,
    /// As few steps as were found to lead there.
    steps: Vec<String>,
}

/// Goes on for `lasts`, from `seed` on.
pub(crate) fn run(
    lasts: Duration,
    seed: u64,
    clients: usize,
    json: bool,
    out: &mut impl Write,
) -> Result<Outcome> {
    let model = Served::soak(clients);
    let (next, events, virtual_ns) = (AtomicU64::new(seed), AtomicU64::new(0), AtomicU64::new(0));
    let found: Mutex<Option<(u64, Found<Step>)>> = Mutex::new(None);
    let (began, bar) = (Instant::now(), spinner(format!("soak from seed {seed}")));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let is_over = || began.elapsed() >= lasts || found.lock().is_ok_and(|found| found.is_some());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over() {
                    let seed = next.fetch_add(1, Relaxed);
                    let Soaked { steps, virtual_ns: ns, found: bad, .. } =
                        soak(&model, seed, STEPS, |_, _| {});
                    let events = events.fetch_add(steps, Relaxed) + steps;
                    let days = days(virtual_ns.fetch_add(ns, Relaxed) + ns);
                    bar.set_message(format!(
                        "seed {seed}, {} events, {days:.1} virtual days",
                        grouped(events)
                    ));
                    if let (Some(bad), Ok(mut found)) = (bad, found.lock()) {
                        found.get_or_insert((seed, bad));
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let violation = found.into_inner().ok().flatten().map(|(seed, found)| {
        let Found { violation, trace } = shrink(&model, found);
        Failed { seed, what: violation.to_string(), steps: trace.iter().map(Step::to_string).collect() }
    });
    let report = SoakReport {
        first_seed: seed,
        seeds: next.into_inner() - seed,
        events: events.into_inner(),
        virtual_days: days(virtual_ns.into_inner()),
        seconds: began.elapsed().as_secs_f64(),
        violation,
    };
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        print(&report, out)?;
    }
    Ok(Outcome::clean_if(report.violation.is_none()))
}

fn days(ns: u64) -> f64 {
    ns as f64 / 86_400e9
}

fn print(report: &SoakReport, out: &mut impl Write) -> Result<()> {
    let SoakReport { first_seed, seeds, events, virtual_days, seconds, violation } = report;
    if let Some(Failed { seed, what, steps }) = violation {
        writeln!(out, "VIOLATION  {what}, with seed {seed}, after these steps:")?;
        for (number, step) in steps.iter().enumerate() {
            writeln!(out, "  {:>3}  {step}", number + 1)?;
        }
    }
    let faster = virtual_days * 86_400.0 / seconds.max(1e-9);
    writeln!(
        out,
        "soak: seeds={first_seed}..{} events={events} virtual={virtual_days:.1} days in {seconds:.0} s ({faster:.0} times as fast as time) violations={}",
        first_seed + seeds,
        usize::from(violation.is_some()),
    )?;
    Ok(())
}
