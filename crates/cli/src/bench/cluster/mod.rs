//! `bench --cluster`: how long locks cannot be had when their server is killed, beside others in the same run; and what a grant costs
//! beside that of one server, by itself and with one, two and three servers.
//!
//! Servers are started on the etcd that is named, and stopped at the end. In every trial the owner of a shard is killed
//! (SIGKILL), and a client that has used the shard before asks for a lock of it that nobody holds. What is measured is all of it, from
//! the signal until the lock is granted: etcd's lease, the takeover, the claims of all clients, and the client's way to the new owner.

mod grants;

use super::peers::failover::{self, Failover};
use anyhow::{Context, Result, bail};
use lockwright::Client;
use lockwright::inspect::ClusterInfo;
use lockwright_term::{Outcome, grid, say, spinner};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Servers, and ports between two of them: room for their shards.
const SERVERS: u16 = 3;
const APART: u16 = 50;
/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first new grant should come within this.
const GOAL: Duration = Duration::from_secs(3);
/// A grant should cost at most so many times that of one server.
const COST: f64 = 1.05;
/// Locks and unlocks of one round, and rounds.
const LOCKS: u32 = 500;
const ROUNDS: usize = 15;

/// A server; killed when this is dropped.
struct Served {
    listen: String,
    process: Child,
}

impl Served {
    fn start(listen: &str, more: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--log", "error", "--listen", listen]).args(more);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("it has an output")?).read_line(&mut line)?;
        let listen = line.strip_prefix("listening on ").and_then(|rest| rest.split_once(';'));
        let Some((listen, _)) = listen else { bail!("a server did not start: {}", line.trim()) };
        Ok(Self { listen: listen.to_owned(), process })
    }

    fn port(&self) -> u16 {
        self.listen.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default()
    }

    fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The servers, and how clients find them.
struct Bench {
    etcd: String,
    space: String,
    servers: Vec<Served>,
}

impl Bench {
    /// So many servers, of a cluster of their own.
    fn start(etcd: &str, servers: u16) -> Result<Self> {
        let rest = etcd.strip_prefix("etcd:").context("say --cluster etcd://HOST:PORT,HOST:PORT")?;
        // Of this run alone: what it leaves in etcd is in nobody's way.
        let cluster = format!("{}/bench-{}-{servers}", rest.trim_end_matches('/'), std::process::id());
        let (etcd, space) = (format!("etcd:{cluster}"), format!("cluster:{cluster}/bench"));
        let first = 20_000 + (std::process::id() % 8_000) as u16 + servers * SERVERS * APART;
        let mut bench = Self { etcd, space, servers: Vec::new() };
        for at in 0..servers {
            let server = bench.serve(&format!("127.0.0.1:{}", first + at * APART))?;
            bench.servers.push(server);
        }
        bench.until_even()?;
        Ok(bench)
    }

    fn serve(&self, listen: &str) -> Result<Served> {
        Served::start(listen, &["--cluster", &self.etcd])
    }

    /// Waits until all shards are open, and every server has its part of them.
    fn until_even(&self) -> Result<ClusterInfo> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let info = ClusterInfo::of(&self.space, &Client::options())?;
            let is_open = info.served.len() == usize::from(info.shards);
            let share = |server: &Served| info.served.iter().filter(|shard| owns(server, &shard.at)).count();
            let least = self.servers.iter().map(share).min().unwrap_or(0);
            if is_open
                && info.served.iter().all(|shard| !shard.recovering)
                && least >= share_of(info.shards, self.servers.len())
            {
                return Ok(info);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("the servers did not share the shards out within {PATIENCE:?}")
    }

    /// Kills the owner of a lock's shard and returns how long the lock could not be had.
    fn trial(&mut self, number: usize) -> Result<Duration> {
        let client = Client::open(&self.space).wait()?;
        let info = self.until_even()?;
        let name = format!("free-{number}");
        let lock = client.mutex(&name)?;
        drop(lock.lock().wait()?);
        let shard = info.shard_of(b"bench", name.as_bytes());
        let at = info.served.iter().find(|served| served.number == shard).context("it is served")?.at.clone();
        let owner = self.servers.iter().position(|server| owns(server, &at)).context("by one of them")?;
        // Not always at the same moment of its lease.
        std::thread::sleep(Duration::from_millis(number as u64 * 37 % 500));
        self.servers[owner].kill()?;
        let killed = Instant::now();
        drop(lock.lock().wait()?);
        let took = killed.elapsed();
        let listen = self.servers[owner].listen.clone();
        self.servers[owner] = self.serve(&listen)?;
        Ok(took)
    }
}

/// How many shards a server has at least, when they are shared out.
fn share_of(shards: u16, servers: usize) -> usize {
    usize::from(shards) / servers.max(1)
}

/// Whether a shard's listener is this server's.
fn owns(server: &Served, at: &str) -> bool {
    let port = at.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()).unwrap_or_default();
    (server.port()..server.port() + APART).contains(&port)
}

/// Nanoseconds of one lock and unlock by each client, as medians of rounds that take turns.
fn costs(clients: [&Client; 2]) -> Result<[f64; 2]> {
    let locks = [clients[0].mutex("cost")?, clients[1].mutex("cost")?];
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (lock, round) in locks.iter().zip(&mut rounds) {
            let began = Instant::now();
            for _ in 0..LOCKS {
                drop(lock.lock().wait()?);
            }
            round.push(began.elapsed().as_nanos() as f64 / f64::from(LOCKS));
        }
    }
    Ok(rounds.map(|mut round| {
        round.sort_by(f64::total_cmp);
        round[round.len() / 2]
    }))
}

/// Times of one kind of failover, in order.
struct Times(Vec<Duration>);

impl Times {
    fn new(mut took: Vec<Duration>) -> Self {
        took.sort();
        Self(took)
    }

    fn at(&self, part: usize, of: usize) -> Duration {
        self.0[(self.0.len() * part / of).min(self.0.len() - 1)]
    }

    fn row(&self, name: String, bound: &str, verdict: &str) -> [String; 6] {
        let secs = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let longest = self.0[self.0.len() - 1];
        [name, secs(self.at(1, 2)), secs(self.at(9, 10)), secs(longest), bound.to_owned(), verdict.to_owned()]
    }

    fn to_json(&self, name: &str) -> serde_json::Value {
        let seconds: Vec<_> = self.0.iter().map(Duration::as_secs_f64).collect();
        let (median, p90) = (self.at(1, 2).as_secs_f64(), self.at(9, 10).as_secs_f64());
        json!({ "what": "failover", "of": name, "seconds": seconds, "median": median, "p90": p90 })
    }
}

const OURS: &str = "this cluster, a server killed";

/// What came of it.
struct Report {
    ours: Times,
    others: Vec<Failover>,
    /// Nanoseconds of a lock and unlock, of a cluster and of one server.
    costs: [f64; 2],
    rates: Vec<grants::Rate>,
    busy: Option<String>,
}

pub(super) fn run(etcd: &str, trials: usize, json: bool, out: &mut impl Write) -> Result<Outcome> {
    let (bar, busy) = (spinner("bench".to_owned()), super::measure::busy());
    bar.set_message("three servers are started");
    let mut bench = Bench::start(etcd, SERVERS)?;
    let mut took = Vec::new();
    for number in 0..trials {
        bar.set_message(format!("a server is killed, {} of {trials}", number + 1));
        took.push(bench.trial(number)?);
    }
    let ours = Times::new(took);
    let others = failover::all(trials, |message| bar.set_message(message))?;
    bar.set_message("what a grant costs");
    bench.until_even()?;
    let single = Served::start("127.0.0.1:0", &["--retain-off"])?;
    let clients = [
        Client::open(&bench.space).wait()?,
        Client::open(&format!("tcp://{}/bench?retain=off", single.listen)).wait()?,
    ];
    let costs = costs([&clients[0], &clients[1]])?;
    drop((clients, single, bench));
    let mut rates = Vec::new();
    for servers in 1..=SERVERS {
        bar.set_message(format!("grants of {servers} servers"));
        rates.push(grants::rate(&Bench::start(etcd, servers)?, trials)?);
    }
    bar.finish_and_clear();
    Report { ours, others, costs, rates, busy }.print(json, out)
}

impl Report {
    fn print(&self, json: bool, out: &mut impl Write) -> Result<Outcome> {
        let [ours, one] = self.costs;
        let (is_soon, is_cheap) = (self.ours.at(9, 10) <= GOAL, ours <= COST * one);
        if json {
            self.write_json(is_soon, is_cheap, out)?;
        } else {
            self.write_tables(is_soon, is_cheap, out)?;
        }
        Ok(Outcome::clean_if(is_soon && is_cheap))
    }

    fn write_json(&self, is_soon: bool, is_cheap: bool, out: &mut impl Write) -> Result<()> {
        let [ours, one] = self.costs;
        let mut first = self.ours.to_json(OURS);
        (first["goal"], first["holds"]) = (json!(GOAL.as_secs_f64()), json!(is_soon));
        writeln!(out, "{first}")?;
        for other in &self.others {
            let line = match &other.took {
                Ok(took) => Times::new(took.clone()).to_json(other.name),
                Err(why) => json!({ "what": "failover", "of": other.name, "left_out": why }),
            };
            writeln!(out, "{line}")?;
        }
        let cost = json!({
            "what": "grant", "ns": ours, "one_server_ns": one, "ratio": ours / one, "bound": COST, "holds": is_cheap,
        });
        writeln!(out, "{cost}")?;
        for rate in &self.rates {
            let grants::Rate { servers, per_second, cpu_ns } = rate;
            let line = json!({ "what": "rate", "servers": servers, "cycles_per_second": per_second, "server_cpu_ns": cpu_ns });
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    fn write_tables(&self, is_soon: bool, is_cheap: bool, out: &mut impl Write) -> Result<()> {
        let verdict = |holds| if holds { "ok" } else { "MISS" };
        let [ours, one] = self.costs;
        let trials = self.ours.0.len();
        let head = format!("first grant after a kill, {trials} trials");
        let mut rows = vec![[&head, "median", "p90", "longest", "bound", ""].map(str::to_owned)];
        let goal = format!("p90 at most {} s", GOAL.as_secs());
        rows.push(self.ours.row(OURS.to_owned(), &goal, verdict(is_soon)));
        for other in &self.others {
            match &other.took {
                Ok(took) => rows.push(Times::new(took.clone()).row(other.name.to_owned(), "", "")),
                Err(why) => say!("left out: {}: {why}", other.name),
            }
        }
        grid(out, &rows)?;
        let mut rows = vec![["", "of a cluster", "of one server", "ratio", "bound", ""].map(str::to_owned)];
        rows.push([
            "lock and unlock".to_owned(),
            super::time(ours),
            super::time(one),
            format!("{:.2}", ours / one),
            format!("at most {COST}"),
            verdict(is_cheap).to_owned(),
        ]);
        grid(out, &rows)?;
        let mut rows = vec![["servers", "cycles/s", "processor of the servers per cycle"].map(str::to_owned)];
        for rate in &self.rates {
            let per_second = lockwright_term::units::scaled(rate.per_second);
            rows.push([rate.servers.to_string(), per_second, super::time(rate.cpu_ns)]);
        }
        grid(out, &rows)?;
        writeln!(
            out,
            "Clients, servers and etcd share this machine's processors: more servers are no more of them."
        )?;
        let why = self
            .busy
            .as_deref()
            .unwrap_or("three servers, etcd and the client share this machine's processors");
        if !is_soon {
            writeln!(out, "MISS first grant after a kill: {why}")?;
        }
        if !is_cheap {
            writeln!(out, "MISS lock and unlock: {why}")?;
        }
        Ok(())
    }
}
