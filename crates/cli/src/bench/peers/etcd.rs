//! etcd's own lock service (`v3lock`): a lease per client, `Lock` with a name, `Unlock` with the key that it answered. It waits in the
//! order of revisions. Spoken to by the JSON gateway that every etcd has.

use super::process::{Daemon, Folder, find, free_port, quiet};
use super::{Locker, Peer};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Etcd(Daemon);

pub(super) fn start() -> Result<Result<Box<dyn Peer>, String>> {
    let Some(program) = find("etcd", &[]) else { return Ok(Err("etcd is not installed".to_owned())) };
    let (folder, port, peers) = (Folder::new("etcd")?, free_port()?, free_port()?);
    let (clients, peers) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
    let mut command = quiet(&program, None);
    command.arg("--data-dir").arg(folder.0.join("data"));
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    let etcd = Etcd(Daemon::start(command, folder, port)?);
    // Its port is open before it has elected itself.
    let until = Instant::now() + Duration::from_secs(20);
    while let Err(error) = etcd.connect() {
        if Instant::now() > until {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(Ok(Box::new(etcd)))
}

impl Peer for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        let stream = TcpStream::connect(("127.0.0.1", self.0.port))?;
        stream.set_nodelay(true)?;
        let mut client = Client { stream: BufReader::new(stream), lease: String::new(), key: String::new() };
        let granted = client.post("/v3/lease/grant", &json!({ "TTL": 600 }))?;
        client.lease = granted["ID"].as_str().context("a lease has a number")?.to_owned();
        Ok(Box::new(client))
    }
}

struct Client {
    stream: BufReader<TcpStream>,
    lease: String,
    key: String,
}

impl Client {
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
    fn lock(&mut self, name: &str) -> Result<()> {
        let asked = json!({ "name": base64(name.as_bytes()), "lease": self.lease });
        let answer = self.post("/v3/lock/lock", &asked)?;
        answer["key"].as_str().context("a lock has a key")?.clone_into(&mut self.key);
        Ok(())
    }

    fn unlock(&mut self, _: &str) -> Result<()> {
        let key = std::mem::take(&mut self.key);
        self.post("/v3/lock/unlock", &json!({ "key": key })).map(|_| ())
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
