//! `lockwright bench --against redis,etcd,…`: locks of a server beside those that people use today, in one run on one machine.
//!
//! Each peer is one file, and used as its own documentation recommends. Servers are started on free ports of the loopback with a
//! folder of their own, and stopped afterwards; one that is not installed is left out, and a line says so. All contenders take
//! turns, round by round, so that whatever disturbs the machine disturbs all alike; figures are medians of rounds. Servers and
//! clients share all cores of the machine; nothing is pinned.
//!
//! | file | |
//! |---|---|
//! | `workload` | what clients do |
//! | `faults` | what becomes of locks whose holders are killed or paused |
//! | `failover` | what becomes of locks whose server is killed |
//! | `report` | tables, goals, JSON |
//! | `process` | servers of others |
//! | the rest | a peer each |
//!
//! What it must not do: give a peer a configuration that its documentation does not recommend.

mod etcd;
#[cfg(feature = "cluster")]
pub(super) mod failover;
mod faults;
mod file;
mod memory;
mod own;
mod postgres;
mod process;
mod pthread;
mod pthread_rwlocks;
mod redis;
mod redlock;
mod report;
mod workload;
mod zookeeper;

use self::report::{Rates, Report};
use self::workload::{Workload, rate};
use super::measure::busy;
use anyhow::{Context, Result, bail};
use lockwright_term::{Outcome, say, spinner};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// All that can be named, in the order of the table.
pub(super) const NAMES: [&str; 9] =
    ["redis", "redlock", "etcd", "postgres", "zookeeper", "flock", "fcntl", "pthread", "parking_lot"];

/// What a peer has besides locks that are taken and given back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offers {
    /// It is meant for locks that several want at once.
    waits: bool,
    readers: bool,
    ranges: bool,
}

/// How a lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Exclusive,
    Shared,
}

/// Something that has locks.
pub(super) trait Peer: Sync {
    /// What it is called.
    fn name(&self) -> &'static str;
    /// Whether its locks are a server's, for clients on any machine.
    fn is_remote(&self) -> bool;
    fn offers(&self) -> Offers;
    /// Where another process finds it; empty if none can.
    fn address(&self) -> String;
    /// Whether it notices by itself that a client's process has ended.
    fn sees_ends(&self) -> bool {
        false
    }
    /// How long it keeps the lock of a client that is silent, as it is set up here; `None`: for ever.
    fn lets_go_after(&self) -> Option<Duration>;
    /// What a reader of its figures has to know.
    fn note(&self) -> Option<&'static str> {
        None
    }
    /// Connects one client.
    fn connect(&self) -> Result<Box<dyn Locker>>;
}

/// One client of a peer.
pub(super) trait Locker {
    /// Waits for the lock called `name`. Several can be held at a time.
    fn lock(&mut self, name: &str, mode: Mode) -> Result<()>;
    /// Gives it back.
    fn unlock(&mut self, name: &str, mode: Mode) -> Result<()>;
    /// Waits for all of these, which are in order.
    fn lock_all(&mut self, names: &[String]) -> Result<()> {
        names.iter().try_for_each(|name| self.lock(name, Mode::Exclusive))
    }
    /// Gives them back.
    fn unlock_all(&mut self, names: &[String]) -> Result<()> {
        names.iter().rev().try_for_each(|name| self.unlock(name, Mode::Exclusive))
    }
    /// Waits for a range.
    fn lock_range(&mut self, _: &Range<u64>) -> Result<()> {
        bail!("there are no ranges")
    }
    /// Gives it back.
    fn unlock_range(&mut self, _: &Range<u64>) -> Result<()> {
        bail!("there are no ranges")
    }
    /// Whether the client library believes that it still has the lock, if it can tell.
    fn believes(&mut self, _: &str) -> bool {
        true
    }
}

/// What is measured: the workloads, how long each in a round, and how many rounds.
struct Plan {
    workloads: Vec<Workload>,
    time: Duration,
    rounds: usize,
    /// The same of comparisons of ours with ours, which come down to a few per cent.
    close_time: Duration,
    close_rounds: usize,
}

impl Plan {
    fn new(quick: bool) -> Self {
        let zipf = |writes_percent| Workload::Zipf { clients: 64, writes_percent };
        let mut workloads = vec![Workload::Own(1), Workload::Own(32)];
        workloads.extend([2, 8, 64].map(Workload::Hot));
        workloads.extend([zipf(50), zipf(5), Workload::Ranges(8), Workload::Bank(8)]);
        let (time, rounds, close_time, close_rounds) =
            if quick { (60, 3, 100, 3) } else { (500, 3, 2000, 9) };
        let [time, close_time] = [time, close_time].map(Duration::from_millis);
        Self { workloads, time, rounds, close_time, close_rounds }
    }

    /// How long `peer` does this in a round, and in how many rounds.
    fn of(&self, workload: Workload, peer: &dyn Peer) -> (Duration, usize) {
        let is_close = matches!(workload, Workload::Zipf { .. });
        match peer.name() {
            own::RETAINED | own::ASKED if is_close => (self.close_time, self.close_rounds),
            _ => (self.time, self.rounds),
        }
    }
}

/// Runs the comparison with those that are named.
pub(super) fn run(against: &[String], quick: bool, as_json: bool, out: &mut impl Write) -> Result<Outcome> {
    let busy = busy();
    let (mut peers, mut left_out) = (own::start()?, Vec::new());
    for name in against {
        match start(name)? {
            Ok(peer) => peers.push(peer),
            Err(why) => left_out.push(format!("{name}: {why}")),
        }
    }
    for line in &left_out {
        say!("left out: {line}");
    }
    let plan = Plan::new(quick);
    let bar = spinner("bench".to_owned());
    let mut rates: Vec<Vec<Rates>> = vec![vec![Rates::new(); peers.len()]; plan.workloads.len()];
    for round in 0..=plan.rounds.max(plan.close_rounds) {
        for (workload, rates) in plan.workloads.iter().zip(&mut rates) {
            let mut turns: Vec<_> = peers.iter().zip(rates).collect();
            // Who comes first changes from round to round.
            if round % 2 == 1 {
                turns.reverse();
            }
            for (peer, rates) in turns.into_iter().filter(|(peer, _)| workload.runs_on(&***peer)) {
                let (time, rounds) = plan.of(*workload, &**peer);
                if round > rounds {
                    continue;
                }
                bar.set_message(format!("round {round} of {rounds}: {}, {}", workload.text(), peer.name()));
                let rate = rate(&**peer, *workload, time)
                    .with_context(|| format!("{}, {}", peer.name(), workload.text()))?;
                // The first round warms up.
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
    }
    bar.set_message("holders that are killed or paused");
    let faults = faults::run(&peers, quick)?;
    bar.finish_and_clear();
    let workloads = &plan.workloads;
    let report = Report { peers: &peers, workloads, rates: &rates, faults: &faults, busy: busy.as_deref() };
    report.print(as_json, out)
}

/// Starts a peer; `Err` if it is not there.
fn start(name: &str) -> Result<Result<Box<dyn Peer>, String>> {
    Ok(match name {
        "redis" => redis::start()?,
        "redlock" => redlock::start()?,
        "etcd" => etcd::start()?,
        "postgres" => postgres::start()?,
        "zookeeper" => zookeeper::start()?,
        "flock" => Ok(Box::new(file::Files::new(file::Call::Flock)?)),
        "fcntl" => Ok(Box::new(file::Files::new(file::Call::Fcntl)?)),
        "pthread" => Ok(Box::new(pthread::Pthread::new()?)),
        "parking_lot" => Ok(Box::new(memory::Memory::default())),
        other => bail!("{other} is none of {}", NAMES.join(", ")),
    })
}

/// Holds a lock of a peer that another process has started: see [`faults`].
pub(super) fn hold(name: &str, address: &str, lock: &str, file: &str) -> Result<()> {
    let peer = match name {
        "redis" => redis::at(address)?,
        "redlock" => redlock::at(address)?,
        "etcd" => etcd::at(address)?,
        "postgres" => postgres::at(address)?,
        "zookeeper" => zookeeper::at(address)?,
        "flock" => file::at(file::Call::Flock, address),
        "fcntl" => file::at(file::Call::Fcntl, address),
        "pthread" => pthread::at(address),
        own => own::at(own, address)?,
    };
    faults::hold(&*peer, lock, Path::new(file))
}

/// Waits until a client can be connected: ports are open before servers admit clients.
fn until_connected(peer: &dyn Peer) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match peer.connect() {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
