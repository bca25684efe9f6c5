//! Grants per second of a cluster's servers, and what their processes take of the processors for each.

use super::Bench;
use anyhow::{Context, Result};
use lockwright::Client;
use nix::unistd::{SysconfVar, sysconf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const CLIENTS: usize = 8;
/// One round; there is one for so many trials, and one more.
const ROUND: Duration = Duration::from_millis(600);
const TRIALS_PER_ROUND: usize = 4;

/// What so many servers did.
pub(super) struct Rate {
    pub(super) servers: usize,
    pub(super) per_second: f64,
    /// Nanoseconds of all servers for a lock and unlock.
    pub(super) cpu_ns: f64,
}

/// Clients with names of their own, in all shards.
pub(super) fn rate(bench: &Bench, trials: usize) -> Result<Rate> {
    let clients = (0..CLIENTS).map(|_| Client::open(&bench.space).wait()).collect::<Result<Vec<_>, _>>()?;
    let (mut rates, mut costs) = (Vec::new(), Vec::new());
    for round in 0..=1 + trials / TRIALS_PER_ROUND {
        let (began, before) = (Instant::now(), processor(bench)?);
        let cycles = cycles(&clients)?;
        let (took, used) = (began.elapsed(), processor(bench)? - before);
        // The first round warms up.
        if round > 0 {
            rates.push(cycles as f64 / took.as_secs_f64());
            costs.push(used.as_nanos() as f64 / cycles.max(1) as f64);
        }
    }
    let median = crate::bench::measure::median;
    Ok(Rate { servers: bench.servers.len(), per_second: median(rates), cpu_ns: median(costs) })
}

/// How many locks and unlocks all clients did in a round.
fn cycles(clients: &[Client]) -> Result<u64> {
    let stop = AtomicBool::new(false);
    let work = |number: usize, client: &Client| -> Result<u64> {
        let locks = (0..12).map(|at| client.mutex(format!("rate-{number}-{at}")));
        let locks = locks.collect::<Result<Vec<_>, _>>()?;
        let mut cycles = 0;
        while !stop.load(Relaxed) {
            for lock in &locks {
                drop(lock.lock().wait()?);
                cycles += 1;
            }
        }
        Ok(cycles)
    };
    std::thread::scope(|threads| {
        let work = &work;
        let start = |(number, client)| threads.spawn(move || work(number, client));
        let running: Vec<_> = clients.iter().enumerate().map(start).collect();
        std::thread::sleep(ROUND);
        stop.store(true, Relaxed);
        running.into_iter().map(|client| client.join().expect("it does not panic")).sum()
    })
}

/// What the servers have used of the processors so far.
fn processor(bench: &Bench) -> Result<Duration> {
    let ticks = sysconf(SysconfVar::CLK_TCK)?.context("the clock ticks")?.unsigned_abs();
    let mut all = 0;
    for server in &bench.servers {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.process.id()))?;
        // Behind the name, which may have anything in it, come the state and ten others first.
        let (_, rest) = stat.rsplit_once(')').context("a process has a name")?;
        let used = rest.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap_or(0));
        all += used.sum::<u64>();
    }
    Ok(Duration::from_nanos(all * 1_000_000_000 / ticks))
}
