//! Redlock, as "Distributed Locks with Redis" has it for several instances that know nothing of each other: a client holds the lock
//! once it has set it at most of them, one after the other, before a good part of its time is over. A client that fails gives back what
//! it set, and tries again after a random delay.

use super::process::Daemon;
use super::redis::{Client, LASTS_MS, instance};
use super::{Locker, Mode, Offers, Peer};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// Instances: the smallest number of which most are more than one.
const INSTANCES: usize = 3;

#[derive(Debug)]
struct Redlock {
    ports: Vec<u16>,
    _daemons: Vec<Daemon>,
}

pub(super) fn at(address: &str) -> Result<Box<dyn Peer>> {
    let ports = address.split(',').map(str::parse).collect::<Result<_, _>>()?;
    Ok(Box::new(Redlock { ports, _daemons: Vec::new() }))
}

pub(super) fn start() -> Result<Result<Box<dyn Peer>, String>> {
    let mut daemons = Vec::new();
    for number in 0..INSTANCES {
        match instance(&format!("redlock-{number}"))? {
            Ok(daemon) => daemons.push(daemon),
            Err(why) => return Ok(Err(why)),
        }
    }
    let ports = daemons.iter().map(|daemon| daemon.port).collect();
    Ok(Ok(Box::new(Redlock { ports, _daemons: daemons })))
}

impl Peer for Redlock {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, ..Offers::default() }
    }

    fn address(&self) -> String {
        self.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
    }

    fn lets_go_after(&self) -> Option<Duration> {
        Some(Duration::from_millis(LASTS_MS))
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        Ok(Box::new(Instances(self.ports.iter().map(|port| Client::new(*port)).collect::<Result<_>>()?)))
    }
}

/// A client, connected to all of them.
pub(super) struct Instances(pub(super) Vec<Client>);

impl Locker for Instances {
    fn lock(&mut self, name: &str, mode: Mode) -> Result<()> {
        loop {
            let (began, mut had, mut heard) = (Instant::now(), 0, 0);
            for instance in &mut self.0 {
                // One that is not there counts as one that has refused.
                if let Ok(is_set) = instance.set(name) {
                    had += usize::from(is_set);
                    heard += 1;
                }
            }
            ensure!(heard > self.0.len() / 2, "most instances of Redis cannot be reached");
            // A hundredth of its time and two milliseconds are for clocks that differ, as there.
            let drift = Duration::from_millis(LASTS_MS / 100 + 2);
            if had > self.0.len() / 2 && began.elapsed() + drift < Duration::from_millis(LASTS_MS) {
                return Ok(());
            }
            self.unlock(name, mode)?;
            self.0[0].pause();
        }
    }

    fn unlock(&mut self, name: &str, _: Mode) -> Result<()> {
        for instance in &mut self.0 {
            let _ = instance.delete(name);
        }
        Ok(())
    }
}
