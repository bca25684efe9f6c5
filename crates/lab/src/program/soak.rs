//! `lockwright-lab sim --soak`: servers and their clients with faults at random, for as long as one likes.
//!
//! Every seed is a world of its own, which a thread takes through so many steps; threads share the seeds. Worlds come by turns:
//! clients of a keyed lock, of ranges, of locks that stay with them, and of a cluster. A failure is shrunk to the steps that
//! matter, and repeated by its seed.

use anyhow::Result;
use lockwright_proofs::cluster::Cluster;
use lockwright_proofs::retained::Retained;
use lockwright_proofs::served::Served;
use lockwright_sim::model::{Model, Soaked, shrink, soak};
use lockwright_term::units::grouped;
use lockwright_term::{Outcome, spinner};
use serde::Serialize;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Steps of one world.
const STEPS: u64 = 10_000;
/// Runs of a cluster, which has two clients and a handful of steps, per world.
const CLUSTERS: u64 = 128;
/// The most clients of a server: more only make each other's steps rarer.
pub(crate) const MOST_CLIENTS: u32 = 8;
/// And without a word on it.
pub(crate) const CLIENTS: u32 = 4;

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
    world: &'static str,
    what: String,
    /// As few steps as were found to lead there.
    steps: Vec<String>,
}

/// What became of one world.
#[derive(Debug, Default)]
struct World {
    steps: u64,
    virtual_ns: u64,
    failed: Option<Failed>,
}

impl World {
    /// Goes on in `model`.
    fn go<M: Model>(&mut self, world: &'static str, model: &M, seed: u64, salt: u64) {
        let Soaked { steps, virtual_ns, found, .. } = soak(model, seed ^ salt << 48, STEPS, |_, _| {});
        (self.steps, self.virtual_ns) = (self.steps + steps, self.virtual_ns + virtual_ns);
        self.failed = found.map(|found| {
            let found = shrink(model, found);
            let steps = found.trace.iter().map(ToString::to_string).collect();
            Failed { seed, world, what: found.violation.to_string(), steps }
        });
    }

    /// That of `seed`.
    fn of(seed: u64, clients: usize) -> Self {
        let mut world = Self::default();
        match seed % 4 {
            0 => world.go("a keyed lock", &Served::soak(clients), seed, 0),
            1 => world.go("ranges", &Served::soak_of_ranges(clients), seed, 0),
            2 => world.go("locks that stay with their clients", &Retained::soak(clients), seed, 0),
            _ => {
                for run in 0..CLUSTERS {
                    world.go("a cluster", &Cluster::soak(run), seed, run);
                    if world.failed.is_some() {
                        break;
                    }
                }
            }
        }
        world
    }
}

/// Goes on for `lasts`, from `seed` on.
pub(crate) fn run(
    lasts: Duration,
    seed: u64,
    clients: usize,
    json: bool,
    out: &mut impl Write,
) -> Result<Outcome> {
    let (next, events, virtual_ns) = (AtomicU64::new(seed), AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<Option<Failed>> = Mutex::new(None);
    let (began, bar) = (Instant::now(), spinner(format!("soak from seed {seed}")));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let is_over = || began.elapsed() >= lasts || failed.lock().is_ok_and(|failed| failed.is_some());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over() {
                    let seed = next.fetch_add(1, Relaxed);
                    let world = World::of(seed, clients);
                    let events = events.fetch_add(world.steps, Relaxed) + world.steps;
                    let days = days(virtual_ns.fetch_add(world.virtual_ns, Relaxed) + world.virtual_ns);
                    bar.set_message(format!(
                        "seed {seed}, {} events, {days:.1} virtual days",
                        grouped(events)
                    ));
                    if let (Some(bad), Ok(mut failed)) = (world.failed, failed.lock()) {
                        failed.get_or_insert(bad);
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let report = SoakReport {
        first_seed: seed,
        seeds: next.into_inner() - seed,
        events: events.into_inner(),
        virtual_days: days(virtual_ns.into_inner()),
        seconds: began.elapsed().as_secs_f64(),
        violation: failed.into_inner().ok().flatten(),
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
    if let Some(Failed { seed, world, what, steps }) = violation {
        writeln!(out, "VIOLATION  {what}, in the world of {world} with seed {seed}, after these steps:")?;
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
