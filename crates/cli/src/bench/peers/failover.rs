//! How long others cannot be had when a server of theirs is killed: three etcds that lose their leader, and a Redlock that loses one
//! of its three instances. As for ours: the clock starts with the signal, and stops when a lock that nobody holds is granted to a
//! client that has used the service before.

use super::process::{Daemon, Folder, find, free_port, quiet};
use super::redlock::Instances;
use super::{Locker, Mode, etcd, redis};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

/// How long something may take that has to happen, and how long a client waits for one answer.
const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(1);

/// What came of the trials with one of the others.
pub(in crate::bench) struct Failover {
    pub(in crate::bench) name: &'static str,
    /// The times, or why there are none.
    pub(in crate::bench) took: Result<Vec<Duration>, String>,
}

/// So many trials with each.
pub(in crate::bench) fn all(trials: usize, mut say: impl FnMut(String)) -> Result<Vec<Failover>> {
    let mut run = |name: &'static str, trial: &mut dyn FnMut(usize) -> Result<Duration>| {
        let mut took = Vec::new();
        for number in 0..trials {
            say(format!("{name}: {} of {trials}", number + 1));
            took.push(trial(number)?);
        }
        Ok::<_, anyhow::Error>(Failover { name, took: Ok(took) })
    };
    let missing = |name, why: &str| Failover { name, took: Err(why.to_owned()) };
    let mut all = Vec::new();
    let name = "etcd's own lock, its leader killed";
    all.push(match Etcds::start()? {
        Some(mut etcds) => run(name, &mut |number| etcds.trial(number))?,
        None => missing(name, "etcd is not installed"),
    });
    let name = "Redlock of three, one instance killed";
    all.push(match redlock()? {
        Some(mut instances) => run(name, &mut |number| instances.trial(number))?,
        None => missing(name, "redis-server is not installed"),
    });
    Ok(all)
}

/// Three members of etcd, with settings as they are unless told otherwise.
struct Etcds {
    program: PathBuf,
    folder: Folder,
    /// Ports for clients and for each other.
    ports: Vec<(u16, u16)>,
    members: Vec<Child>,
}

impl Drop for Etcds {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

impl Etcds {
    fn start() -> Result<Option<Self>> {
        let Some(program) = find("etcd", &[]) else { return Ok(None) };
        let ports = (0..3).map(|_| Ok((free_port()?, free_port()?))).collect::<Result<Vec<_>>>()?;
        let mut etcds = Self { program, folder: Folder::new("etcds")?, ports, members: Vec::new() };
        for at in 0..3 {
            let member = etcds.member(at)?;
            etcds.members.push(member);
        }
        Ok(Some(etcds))
    }

    fn member(&self, at: usize) -> Result<Child> {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let all: Vec<_> =
            self.ports.iter().enumerate().map(|(at, (_, peer))| format!("m{at}={}", url(*peer))).collect();
        let (client, peer) = self.ports[at];
        let mut command = quiet(&self.program, None);
        command.args(["--name", &format!("m{at}"), "--initial-cluster", &all.join(",")]);
        command.arg("--data-dir").arg(self.folder.0.join(format!("m{at}")));
        command.args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)]);
        command.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
        command.spawn().context("etcd cannot be started")
    }

    fn leader(&self) -> Result<usize> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let leads = |port: u16| etcd::Client::open(port, ANSWER).and_then(|mut client| client.leads());
            // All of them, so that the next trial begins with three.
            let leads: Vec<_> = self.ports.iter().map(|(port, _)| leads(*port).ok()).collect();
            if let (true, Some(leader)) =
                (leads.iter().all(Option::is_some), leads.iter().position(|leads| *leads == Some(true)))
            {
                return Ok(leader);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("etcd has no leader after {} s", PATIENCE.as_secs())
    }

    fn trial(&mut self, number: usize) -> Result<Duration> {
        let leader = self.leader()?;
        let name = format!("free-{number}");
        let lease = {
            let mut client = etcd::Client::open(self.ports[leader].0, ANSWER)?;
            client.join()?;
            client.lock(&name, Mode::Exclusive)?;
            client.unlock(&name, Mode::Exclusive)?;
            client.lease().to_owned()
        };
        std::thread::sleep(Duration::from_millis(number as u64 * 37 % 500));
        self.members[leader].kill()?;
        let killed = Instant::now();
        self.members[leader].wait()?;
        let took = loop {
            if killed.elapsed() > PATIENCE {
                bail!("etcd granted nothing for {} s after its leader was killed", PATIENCE.as_secs());
            }
            // The client goes on with its lease at the next member.
            let others = (0..3).filter(|at| *at != leader).map(|at| self.ports[at].0);
            let mut tried = others.map(|port| {
                let mut client = etcd::Client::open(port, ANSWER)?;
                client.go_on(&lease);
                client.lock(&name, Mode::Exclusive)?;
                Ok::<_, anyhow::Error>(client)
            });
            if let Some(Ok(mut client)) = tried.find(Result::is_ok) {
                let took = killed.elapsed();
                client.unlock(&name, Mode::Exclusive)?;
                break took;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.members[leader] = self.member(leader)?;
        Ok(took)
    }
}

/// Instances of Redis that know nothing of each other.
struct Redises(Vec<Daemon>);

fn redlock() -> Result<Option<Redises>> {
    let mut all = Vec::new();
    for number in 0..3 {
        match redis::instance(&format!("failover-{number}"))? {
            Ok(daemon) => all.push(daemon),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(Redises(all)))
}

impl Redises {
    fn trial(&mut self, number: usize) -> Result<Duration> {
        let clients = self.0.iter().map(|daemon| redis::Client::new(daemon.port));
        let mut client = Instances(clients.collect::<Result<_>>()?);
        let name = format!("free-{number}");
        client.lock(&name, Mode::Exclusive)?;
        client.unlock(&name, Mode::Exclusive)?;
        let at = number % self.0.len();
        self.0[at].kill();
        let killed = Instant::now();
        client.lock(&name, Mode::Exclusive)?;
        let took = killed.elapsed();
        client.unlock(&name, Mode::Exclusive)?;
        self.0[at] = redis::instance(&format!("failover-{at}-{number}"))?.map_err(anyhow::Error::msg)?;
        Ok(took)
    }
}
