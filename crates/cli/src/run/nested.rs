//! A `run` inside the command of another: which locks it already runs under. Asking for one of those again would wait for
//! itself for ever.
//!
//! Every `run` tells its command by `LOCKWRIGHT_HELD`: one entry per lock, separated by blanks, each
//! `PID:START:MODE:RANGE:SPACE:NAME`: the `run` that holds it and when that was started, `s` or `x`, `A..B` or `-`, and space
//! and name in hexadecimal. An entry counts as long as its `run` lives: a daemon that a command left behind inherits the
//! variable, but not the lock.

use super::Args;
use lockwright_fabric::backend::shm::{Process, space_path};
use std::ffi::OsString;
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

pub(super) const VARIABLE: &str = "LOCKWRIGHT_HELD";

/// A lock that a `run` holds for its command.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    by: Process,
    shared: bool,
    range: Option<Range<u64>>,
    space: Vec<u8>,
    name: Vec<u8>,
}

impl Held {
    /// The locks that `args` asks for.
    fn all(args: &Args, by: Process) -> impl Iterator<Item = Self> {
        let space = identity(&args.space).into_bytes();
        // A permit more of a semaphore may well be free.
        args.names.iter().filter(|_| args.jobs.is_none()).map(move |name| {
            let (shared, range, name) = (args.shared, args.range.clone(), name.as_bytes().to_vec());
            Self { by, shared, range, space: space.clone(), name }
        })
    }

    /// Whether `wanted` would have to wait for this one.
    fn blocks(&self, wanted: &Self) -> bool {
        let overlap = match (&self.range, &wanted.range) {
            (None, None) => true,
            (Some(held), Some(wanted)) => held.start < wanted.end && wanted.start < held.end,
            // The range lock of a name is another lock.
            _ => false,
        };
        let same = self.space == wanted.space && self.name == wanted.name;
        same && overlap && !(self.shared && wanted.shared)
    }

    fn encode(&self) -> String {
        let range =
            self.range.as_ref().map_or("-".to_owned(), |range| format!("{}..{}", range.start, range.end));
        let mode = if self.shared { 's' } else { 'x' };
        let Process { pid, start } = self.by;
        format!("{pid}:{start}:{mode}:{range}:{}:{}", hex(&self.space), hex(&self.name))
    }

    fn decode(entry: &str) -> Option<Self> {
        let fields: Vec<_> = entry.split(':').collect();
        let [pid, start, mode, range, space, name] = fields[..] else { return None };
        let range = match range.split_once("..") {
            Some((start, end)) => Some(start.parse().ok()?..end.parse().ok()?),
            None => None,
        };
        let by = Process { pid: pid.parse().ok()?, start: start.parse().ok()? };
        Some(Self { by, shared: mode == "s", range, space: unhex(space)?, name: unhex(name)? })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<_>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    Some(digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

/// What two addresses of the same space have in common, as far as this machine can tell.
fn identity(space: &str) -> String {
    match space.split_once(':') {
        Some(("shm", name)) => {
            let path = match name {
                "" => space_path("default").ok(),
                path if path.starts_with('/') => Some(path.into()),
                name => space_path(name).ok(),
            };
            let file = path.and_then(|path| std::fs::metadata(path).ok());
            file.map_or(space.to_owned(), |file| format!("shm {} {}", file.dev(), file.ino()))
        }
        Some((scheme, rest)) => {
            let (server, name) =
                rest.trim_start_matches('/').split_once('/').unwrap_or((rest.trim_start_matches('/'), ""));
            let name = if name.is_empty() { "default" } else { name };
            let (host, port) = match server.rsplit_once(':') {
                Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
                _ => (server, if scheme == "rdma" { "5626" } else { "5625" }),
            };
            let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
            let here = host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback());
            format!("{scheme} {} {port} {name}", if here { "localhost" } else { host })
        }
        None => space.to_owned(),
    }
}

/// The locks that this process runs under, by what it inherited.
fn inherited() -> Vec<Held> {
    let variable = std::env::var(VARIABLE).unwrap_or_default();
    let entries = variable.split_ascii_whitespace().filter_map(Held::decode);
    entries.filter(|held| !held.by.has_ended()).collect()
}

/// A lock that this process already runs under and that stands in the way of one it asks for.
pub(super) fn would_wait_for_itself(args: &Args) -> Option<String> {
    let inherited = inherited();
    let held = Held::all(args, Process { pid: 0, start: 0 })
        .find(|wanted| inherited.iter().any(|held| held.blocks(wanted)))?;
    Some(String::from_utf8_lossy(&held.name).into_owned())
}

/// What the command is told: what was inherited, and the locks that are held now.
pub(super) fn with_own(args: &Args) -> OsString {
    let own = Process::with_pid(std::process::id()).ok().flatten();
    let own = own.into_iter().flat_map(|process| Held::all(args, process));
    let all: Vec<_> = inherited().into_iter().chain(own).map(|held| held.encode()).collect();
    all.join(" ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_its_encoding_and_nonsense_is_none() {
        let by = Process { pid: 7, start: 99 };
        let held = Held {
            by,
            shared: true,
            range: Some(3..9),
            space: b"shm 1 2".to_vec(),
            name: vec![0xff, b' ', b':'],
        };
        assert_eq!(Held::decode(&held.encode()), Some(held));
        let whole = Held { by, shared: false, range: None, space: b"x".to_vec(), name: b"a".to_vec() };
        assert_eq!(Held::decode(&whole.encode()), Some(whole));
        for nonsense in ["", "7", "a:b:c:d:e:f", "7:9:x:-:zz:61", "7:9:x:1..:61:61"] {
            assert_eq!(Held::decode(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn the_same_server_is_known_by_its_usual_names() {
        let same =
            ["tcp://localhost", "tcp://127.0.0.1:5625/", "tcp://[::1]/default", "tcp://127.0.0.1/default"];
        assert!(same.iter().all(|space| identity(space) == identity(same[0])), "{:?}", same.map(identity));
        for other in ["tcp://localhost/stock", "tcp://db7", "tcp://localhost:5626", "rdma://localhost"] {
            assert_ne!(identity(other), identity(same[0]));
        }
    }
}
