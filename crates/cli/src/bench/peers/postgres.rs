//! PostgreSQL's advisory locks of a session: `pg_advisory_lock` and `pg_advisory_unlock`, with a number for each name.

use super::process::{Daemon, Folder, find, free_port, quiet, user};
use super::{Locker, Mode, Offers, Peer, until_connected};
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug)]
struct Postgres {
    port: u16,
    _daemon: Option<Daemon>,
}

pub(super) fn at(address: &str) -> Result<Box<dyn Peer>> {
    Ok(Box::new(Postgres { port: address.parse()?, _daemon: None }))
}

/// Where Debian has its programs, the newest first.
fn folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<_> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    folders
}

pub(super) fn start() -> Result<Result<Box<dyn Peer>, String>> {
    let folders = folders();
    let (Some(initdb), Some(program)) = (find("initdb", &folders), find("postgres", &folders)) else {
        return Ok(Err("postgresql is not installed".to_owned()));
    };
    // It refuses to run as root.
    let is_root = nix::unistd::geteuid().is_root();
    let owner = if is_root { user("postgres").or_else(|| user("nobody")) } else { None };
    let (folder, port) = (Folder::new("postgres")?, free_port()?);
    if let Some((user, group)) = owner {
        std::os::unix::fs::chown(&folder.0, Some(user), Some(group))?;
    }
    let data = folder.0.join("data");
    let mut made = quiet(&initdb, owner);
    made.current_dir(&folder.0).arg("-D").arg(&data).args(["-U", "bench", "-A", "trust", "--no-sync"]);
    if !made.status()?.success() {
        return Ok(Err("initdb failed".to_owned()));
    }
    let mut command = quiet(&program, owner);
    command.current_dir(&folder.0).arg("-D").arg(&data).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
    command.arg("-k").arg(&folder.0).args(["-c", "max_connections=200"]);
    let postgres = Postgres { port, _daemon: Some(Daemon::start(command, folder, port)?) };
    until_connected(&postgres)?;
    Ok(Ok(Box::new(postgres)))
}

impl Peer for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, readers: true, ranges: false }
    }

    fn address(&self) -> String {
        self.port.to_string()
    }

    fn sees_ends(&self) -> bool {
        true
    }

    fn lets_go_after(&self) -> Option<Duration> {
        None
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        let mut client = Client { stream };
        let mut hello = 196_608_u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"user\0bench\0database\0postgres\0\0");
        client.stream.write_all(&(hello.len() as u32 + 4).to_be_bytes())?;
        client.stream.write_all(&hello)?;
        client.until_ready()?;
        Ok(Box::new(client))
    }
}

struct Client {
    stream: TcpStream,
}

impl Client {
    /// Reads answers until the server is ready for the next question.
    fn until_ready(&mut self) -> Result<()> {
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head)?;
            let [kind, length @ ..] = head;
            let length = u32::from_be_bytes(length).checked_sub(4).context("a message has a length")?;
            let mut body = vec![0; length as usize];
            self.stream.read_exact(&mut body)?;
            match kind {
                b'Z' => return Ok(()),
                b'E' => bail!("postgres answered {}", String::from_utf8_lossy(&body).replace('\0', " ")),
                _ => {}
            }
        }
    }

    fn call(&mut self, function: &str, name: &str) -> Result<()> {
        // A number of 64 bits for each name, as its users make one.
        let number = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let query = format!("SELECT {function}({})\0", number as i64);
        let mut said = vec![b'Q'];
        said.extend_from_slice(&(query.len() as u32 + 4).to_be_bytes());
        said.extend_from_slice(query.as_bytes());
        self.stream.write_all(&said)?;
        self.until_ready()
    }
}

impl Locker for Client {
    fn lock(&mut self, name: &str, mode: Mode) -> Result<()> {
        let shared = if mode == Mode::Shared { "_shared" } else { "" };
        self.call(&format!("pg_advisory_lock{shared}"), name)
    }

    fn unlock(&mut self, name: &str, mode: Mode) -> Result<()> {
        let shared = if mode == Mode::Shared { "_shared" } else { "" };
        self.call(&format!("pg_advisory_unlock{shared}"), name)
    }
}
