//! Redis, as "Distributed Locks with Redis" has it for one instance: `SET name random NX PX 30000`, and a script that deletes the key
//! only if it still has that value. A client that finds it taken tries again after a random delay.

use super::process::{Daemon, Folder, find, free_port, quiet};
use super::{Locker, Mode, Offers, Peer};
use anyhow::{Context, Result, bail};
use lockwright_fabric::random::SplitMix;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// From the page, word for word.
const UNLOCK: &str =
    r#"if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end"#;

/// How long a lock lasts, as on that page, in milliseconds.
pub(super) const LASTS_MS: u64 = 30_000;

#[derive(Debug)]
struct Redis {
    port: u16,
    _daemon: Option<Daemon>,
}

pub(super) fn at(address: &str) -> Result<Box<dyn Peer>> {
    Ok(Box::new(Redis { port: address.parse()?, _daemon: None }))
}

pub(super) fn start() -> Result<Result<Box<dyn Peer>, String>> {
    let daemon = instance("redis")?;
    Ok(daemon.map(|daemon| -> Box<dyn Peer> { Box::new(Redis { port: daemon.port, _daemon: Some(daemon) }) }))
}

/// Starts a Redis.
pub(super) fn instance(name: &str) -> Result<Result<Daemon, String>> {
    let Some(program) = find("redis-server", &[]) else {
        return Ok(Err("redis-server is not installed".to_owned()));
    };
    let (folder, port) = (Folder::new(name)?, free_port()?);
    let mut command = quiet(&program, None);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(&folder.0);
    Ok(Ok(Daemon::start(command, folder, port)?))
}

impl Peer for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, ..Offers::default() }
    }

    fn address(&self) -> String {
        self.port.to_string()
    }

    fn lets_go_after(&self) -> Option<Duration> {
        Some(Duration::from_millis(LASTS_MS))
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        Ok(Box::new(Client::new(self.port)?))
    }
}

/// A connection to one Redis.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
    value: String,
    script: String,
    random: SplitMix,
}

impl Client {
    pub(super) fn new(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let value = format!("{:?}", stream.local_addr()?);
        let random = SplitMix::new(stream.local_addr()?.port().into());
        let mut client = Self { stream: BufReader::new(stream), value, script: String::new(), random };
        client.script = client.ask(&["SCRIPT", "LOAD", UNLOCK])?.context("the script has a name")?;
        Ok(client)
    }

    /// Tries to take the lock.
    pub(super) fn set(&mut self, name: &str) -> Result<bool> {
        let value = self.value.clone();
        let lasts = LASTS_MS.to_string();
        Ok(self.ask(&["SET", name, &value, "NX", "PX", &lasts])?.is_some())
    }

    /// Gives it back, if this client has it.
    pub(super) fn delete(&mut self, name: &str) -> Result<()> {
        let (script, value) = (self.script.clone(), self.value.clone());
        self.ask(&["EVALSHA", &script, "1", name, &value])?;
        Ok(())
    }

    /// The random delay before the next attempt.
    pub(super) fn pause(&mut self) {
        std::thread::sleep(Duration::from_micros(100 + self.random.below(900)));
    }

    /// Says a command, and reads its answer: a string, a number, or nothing.
    fn ask(&mut self, words: &[&str]) -> Result<Option<String>> {
        let mut said = format!("*{}\r\n", words.len());
        for word in words {
            said.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(said.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.trim_end();
        match line.split_at_checked(1) {
            Some(("+" | ":", rest)) => Ok(Some(rest.to_owned())),
            Some(("$", "-1")) => Ok(None),
            Some(("$", len)) => {
                let mut bytes = vec![0; len.parse::<usize>()? + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            }
            _ => bail!("redis answered {line}"),
        }
    }
}

impl Locker for Client {
    fn lock(&mut self, name: &str, _: Mode) -> Result<()> {
        while !self.set(name)? {
            self.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, name: &str, _: Mode) -> Result<()> {
        self.delete(name)
    }
}
