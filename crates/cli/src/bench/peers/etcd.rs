//! etcd's own lock service (`v3lock`): a lease per client, `Lock` with a name, `Unlock` with the key that it answered. It waits in the
//! order of revisions. The lease is renewed as by the session of its Go client: every third of its time to live, by a thread and a
//! connection of its own; if no renewal came in that time, or etcd has none to renew, the session is over. Spoken to by the JSON
//! gateway that every etcd has.

use super::process::{Daemon, Folder, find, free_port, quiet};
use super::{Locker, Mode, Offers, Peer, until_connected};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A lease's time to live, in seconds: that of a session of its Go client, unless told otherwise.
const TTL: u64 = 60;
/// How often a session looks whether its lease is over.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Etcd {
    port: u16,
    _daemon: Option<Daemon>,
}

pub(super) fn at(address: &str) -> Result<Box<dyn Peer>> {
    Ok(Box::new(Etcd { port: address.parse()?, _daemon: None }))
}

pub(super) fn start() -> Result<Result<Box<dyn Peer>, String>> {
    let Some(program) = find("etcd", &[]) else { return Ok(Err("etcd is not installed".to_owned())) };
    let (folder, port, peers) = (Folder::new("etcd")?, free_port()?, free_port()?);
    let (clients, peers) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
    let mut command = quiet(&program, None);
    command.arg("--data-dir").arg(folder.0.join("data"));
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    let etcd = Etcd { port, _daemon: Some(Daemon::start(command, folder, port)?) };
    until_connected(&etcd)?;
    Ok(Ok(Box::new(etcd)))
}

impl Peer for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn note(&self) -> Option<&'static str> {
        Some("spoken to by its JSON gateway, which passes every call on by gRPC: a Go client saves that step")
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, ..Offers::default() }
    }

    fn address(&self) -> String {
        self.port.to_string()
    }

    fn lets_go_after(&self) -> Option<Duration> {
        Some(Duration::from_secs(TTL))
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        let mut client = Client::open(self.port, Duration::ZERO)?;
        client.join()?;
        let renewer = Client::open(self.port, Duration::from_secs(TTL))?;
        client.session = Some(Session::start(renewer, &client.lease)?);
        Ok(Box::new(client))
    }
}

/// A lease that a thread renews. Dropped, the thread ends, and the lease with its time.
struct Session {
    is_over: Arc<AtomicBool>,
    _end: mpsc::Sender<()>,
}

impl Session {
    fn start(mut renewer: Client, lease: &str) -> Result<Self> {
        lease.clone_into(&mut renewer.lease);
        let (end, ended) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let renews = move || {
            let (every, lasts) = (Duration::from_secs(TTL / 3), Duration::from_secs(TTL));
            let mut renewed = Instant::now();
            while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK) {
                let asked = Instant::now();
                if renewed.elapsed() > lasts {
                    break;
                }
                if renewed.elapsed() >= every {
                    match renewer.renew() {
                        Ok(true) => renewed = asked,
                        Ok(false) => break,
                        // Tried again until the time is over.
                        Err(_) => {}
                    }
                }
            }
            over.store(true, Relaxed);
        };
        std::thread::Builder::new().name("etcd-session".to_owned()).spawn(renews)?;
        Ok(Self { is_over, _end: end })
    }
}

pub(super) struct Client {
    stream: BufReader<TcpStream>,
    lease: String,
    session: Option<Session>,
    /// Of the locks that are held.
    keys: HashMap<String, String>,
}

impl Client {
    /// Connects, and waits so long for an answer; with no time, for ever.
    pub(super) fn open(port: u16, patience: Duration) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout((!patience.is_zero()).then_some(patience))?;
        Ok(Self { stream: BufReader::new(stream), lease: String::new(), session: None, keys: HashMap::new() })
    }

    /// Gets a lease.
    pub(super) fn join(&mut self) -> Result<()> {
        let granted = self.post("/v3/lease/grant", &json!({ "TTL": TTL }))?;
        granted["ID"].as_str().context("a lease has a number")?.clone_into(&mut self.lease);
        Ok(())
    }

    /// Renews the lease. `false`: etcd has it no more.
    fn renew(&mut self) -> Result<bool> {
        let renewed = self.post("/v3/lease/keepalive", &json!({ "ID": self.lease }))?;
        Ok(renewed["result"]["TTL"].is_string())
    }

    #[cfg(feature = "cluster")]
    pub(super) fn lease(&self) -> &str {
        &self.lease
    }

    /// Goes on with the lease of an earlier connection.
    #[cfg(feature = "cluster")]
    pub(super) fn go_on(&mut self, lease: &str) {
        lease.clone_into(&mut self.lease);
    }

    /// Whether this member leads.
    #[cfg(feature = "cluster")]
    pub(super) fn leads(&mut self) -> Result<bool> {
        let status = self.post("/v3/maintenance/status", &json!({}))?;
        Ok(!status["leader"].is_null() && status["leader"] == status["header"]["member_id"])
    }

    fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let said =
            format!("POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        self.stream.get_mut().write_all(said.as_bytes())?;
        let (mut length, mut status, mut chunked) = (0, String::new(), false);
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                bail!("etcd closed the connection");
            }
            let line = line.trim_end();
            if status.is_empty() {
                line.clone_into(&mut status);
            }
            let (name, value) = line.split_once(':').unwrap_or(("", ""));
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
            chunked |= name.eq_ignore_ascii_case("transfer-encoding");
            if line.is_empty() {
                break;
            }
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        while chunked {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16)?;
            let mut chunk = vec![0; length + 2];
            self.stream.read_exact(&mut chunk)?;
            bytes.extend_from_slice(&chunk[..length]);
            chunked = length > 0;
        }
        if !status.contains(" 200") {
            bail!("etcd answered {status}: {}", String::from_utf8_lossy(&bytes));
        }
        Ok(serde_json::from_slice(&bytes)?)
    }
}

impl Locker for Client {
    fn lock(&mut self, name: &str, _: Mode) -> Result<()> {
        let asked = json!({ "name": base64(name.as_bytes()), "lease": self.lease });
        let answer = self.post("/v3/lock/lock", &asked)?;
        let key = answer["key"].as_str().context("a lock has a key")?;
        self.keys.insert(name.to_owned(), key.to_owned());
        Ok(())
    }

    fn unlock(&mut self, name: &str, _: Mode) -> Result<()> {
        let key = self.keys.remove(name).context("it is held")?;
        self.post("/v3/lock/unlock", &json!({ "key": key })).map(|_| ())
    }

    fn believes(&mut self, _: &str) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_over.load(Relaxed))
    }
}

/// As JSON carries bytes.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let at = (word >> (18 - 6 * digit) & 63) as usize;
            text.push(if digit <= chunk.len() { char::from(DIGITS[at]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn bytes_are_carried_as_others_read_them() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
