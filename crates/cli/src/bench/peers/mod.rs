//! `lockwright bench --against redis,etcd,…`: locks of a server beside those that people use today, in one run on one machine.
//!
//! Each peer is one file, and used as its own documentation recommends. Servers are started on free ports of the loopback with a
//! folder of their own, and stopped afterwards; one that is not installed is left out, and a line says so. All contenders take
//! turns, round by round, so that whatever disturbs the machine disturbs all alike; figures are medians of rounds.
//!
//! | workload | each client |
//! |---|---|
//! | own name | locks and unlocks a name of its own |
//! | hot name | locks and unlocks the same name as all others |
//!
//! What it must not do: give a peer a configuration that its documentation does not recommend.

mod etcd;
mod file;
mod memory;
mod own;
mod postgres;
mod process;
mod redis;

use super::measure::{busy, median};
use anyhow::{Context, Result, bail};
use lockwright_term::{Outcome, grid, say, spinner};
use serde_json::json;
use std::io::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// All that can be named, in the order of the table.
pub(super) const NAMES: [&str; 6] = ["redis", "etcd", "postgres", "flock", "fcntl", "parking_lot"];

/// Something that has locks.
pub(super) trait Peer: Sync {
    /// What it is called.
    fn name(&self) -> &'static str;
    /// Whether its locks are a server's, for clients on any machine.
    fn is_remote(&self) -> bool;
    /// Connects one client.
    fn connect(&self) -> Result<Box<dyn Locker>>;
}

/// One client of a peer.
pub(super) trait Locker {
    /// Waits for the lock called `name`.
    fn lock(&mut self, name: &str) -> Result<()>;
    /// Gives it back.
    fn unlock(&mut self, name: &str) -> Result<()>;
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    Own(usize),
    Hot(usize),
}

impl Workload {
    const fn clients(self) -> usize {
        match self {
            Self::Own(clients) | Self::Hot(clients) => clients,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Own(clients) => format!("own name, {clients}"),
            Self::Hot(clients) => format!("hot name, {clients}"),
        }
    }

    fn lock_of(self, client: usize) -> String {
        match self {
            Self::Own(_) => format!("own-{client}"),
            Self::Hot(_) => "hot".to_owned(),
        }
    }
}

/// Rates of one contender in one workload: cycles per second, by round.
type Rates = Vec<f64>;

/// A claim: this contender against the best of those, at least so many times.
struct Goal {
    what: &'static str,
    workload: Workload,
    ours: &'static str,
    against: &'static [&'static str],
    times: f64,
}

const GOALS: [Goal; 4] = [
    Goal {
        what: "a lock that stays with its client, against redis",
        workload: Workload::Own(1),
        ours: own::RETAINED,
        against: &["redis"],
        times: 100.0,
    },
    Goal {
        what: "one round trip, against etcd",
        workload: Workload::Own(1),
        ours: own::ASKED,
        against: &["etcd"],
        times: 20.0,
    },
    Goal {
        what: "32 clients with names of their own, against redis",
        workload: Workload::Own(32),
        ours: own::ASKED,
        against: &["redis"],
        times: 2.0,
    },
    Goal {
        what: "a hot name, against the best",
        workload: Workload::Hot(8),
        ours: own::RETAINED,
        against: &["redis", "etcd", "postgres"],
        times: 2.0,
    },
];

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
    let (time, rounds) = if quick { (100, 3) } else { (1000, 7) };
    let mut workloads = vec![Workload::Own(1), Workload::Own(32), Workload::Hot(2), Workload::Hot(8)];
    workloads.extend((!quick).then_some(Workload::Hot(64)));
    let bar = spinner("bench".to_owned());
    let mut rates: Vec<Vec<Rates>> = vec![vec![Rates::new(); peers.len()]; workloads.len()];
    for round in 0..=rounds {
        for (workload, rates) in workloads.iter().zip(&mut rates) {
            for (peer, rates) in peers.iter().zip(rates) {
                bar.set_message(format!("round {round} of {rounds}: {}, {}", workload.text(), peer.name()));
                let rate = rate(&**peer, *workload, Duration::from_millis(time))
                    .with_context(|| format!("{}, {}", peer.name(), workload.text()))?;
                // The first round warms up.
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
    }
    bar.finish_and_clear();
    let table = Table { peers: &peers, workloads: &workloads, rates: &rates };
    table.print(as_json, busy.as_deref(), out)
}

/// Starts a peer; `Err` if it is not there.
fn start(name: &str) -> Result<Result<Box<dyn Peer>, String>> {
    Ok(match name {
        "redis" => redis::start()?,
        "etcd" => etcd::start()?,
        "postgres" => postgres::start()?,
        "flock" => Ok(Box::new(file::Files::new(file::Call::Flock)?)),
        "fcntl" => Ok(Box::new(file::Files::new(file::Call::Fcntl)?)),
        "parking_lot" => Ok(Box::new(memory::Memory::default())),
        other => bail!("{other} is none of {}", NAMES.join(", ")),
    })
}

/// Locks and unlocks per second of all clients together.
fn rate(peer: &dyn Peer, workload: Workload, time: Duration) -> Result<f64> {
    let (begun, stop) = (Barrier::new(workload.clients() + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..workload.clients())
            .map(|number| {
                let (begun, stop) = (&begun, &stop);
                scope.spawn(move || -> Result<u64> {
                    let name = workload.lock_of(number);
                    let locker = peer.connect();
                    begun.wait();
                    let (mut locker, mut cycles) = (locker?, 0);
                    while !stop.load(Relaxed) {
                        locker.lock(&name)?;
                        locker.unlock(&name)?;
                        cycles += 1;
                    }
                    Ok(cycles)
                })
            })
            .collect();
        begun.wait();
        let began = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        let took = began.elapsed().as_secs_f64();
        let mut all = 0;
        for client in clients {
            all += client.join().expect("it does not panic")?;
        }
        Ok(all as f64 / took)
    })
}

/// What came of it.
struct Table<'a> {
    peers: &'a [Box<dyn Peer>],
    workloads: &'a [Workload],
    rates: &'a [Vec<Rates>],
}

impl Table<'_> {
    fn median(&self, workload: Workload, peer: &str) -> Option<f64> {
        let row = self.workloads.iter().position(|other| *other == workload)?;
        let column = self.peers.iter().position(|other| other.name() == peer)?;
        Some(median(self.rates[row][column].clone()))
    }

    /// How often ours is the best of the others, if there are any.
    fn ratio(&self, goal: &Goal) -> Option<f64> {
        let others = goal.against.iter().filter_map(|peer| self.median(goal.workload, peer));
        let best =
            others.fold(None, |best: Option<f64>, rate| Some(best.map_or(rate, |best| best.max(rate))))?;
        Some(self.median(goal.workload, goal.ours)? / best)
    }

    fn print(&self, as_json: bool, busy: Option<&str>, out: &mut impl Write) -> Result<Outcome> {
        let cells = || {
            self.workloads.iter().zip(self.rates).flat_map(|(workload, rates)| {
                self.peers.iter().zip(rates).map(move |(peer, rates)| (*workload, peer, rates))
            })
        };
        let least = |rates: &Rates| rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = |rates: &Rates| rates.iter().copied().fold(0.0, f64::max);
        if as_json {
            for (workload, peer, rates) in cells() {
                let line = json!({
                    "workload": workload.text(), "peer": peer.name(), "remote": peer.is_remote(),
                    "cycles_per_second": median(rates.clone()), "least": least(rates), "most": most(rates),
                });
                writeln!(out, "{line}")?;
            }
        } else {
            let mut rows = vec![["workload, clients", "", "cycles/s", "least", "most"].map(str::to_owned)];
            rows.extend(cells().map(|(workload, peer, rates)| {
                let figures = [median(rates.clone()), least(rates), most(rates)];
                let [middle, least, most] = figures.map(lockwright_term::units::scaled);
                [workload.text(), peer.name().to_owned(), middle, least, most]
            }));
            grid(out, &rows)?;
        }
        let mut clean = true;
        for goal in &GOALS {
            let Some(ratio) = self.ratio(goal) else { continue };
            let holds = ratio >= goal.times;
            clean &= holds;
            if as_json {
                let line =
                    json!({ "goal": goal.what, "ratio": ratio, "at_least": goal.times, "holds": holds });
                writeln!(out, "{line}")?;
            } else {
                let verdict = if holds { "ok" } else { "MISS" };
                let why = busy.filter(|_| !holds).map(|busy| format!("; {busy}")).unwrap_or_default();
                writeln!(out, "{verdict} {}: {ratio:.1} times, at least {}{why}", goal.what, goal.times)?;
            }
        }
        Ok(Outcome::clean_if(clean))
    }
}
