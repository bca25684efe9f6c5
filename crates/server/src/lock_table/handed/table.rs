//! A table as text, as one server says it to another.
//!
//! ```text
//! table SHARD EPOCH SERVER BELOW PROOF
//! session KEY SPACE LABEL
//! held SESSION ID KIND MODE START END TOKEN BEFORE KEPT THREAD AGE NAME
//! waits …
//! ```
//!
//! Requests stand in the order in which they are to be had: first what is held, then what waits. What is not there is `-`.

use crate::durable::{hex, unhex};
use lockwright::LockName;
use lockwright::wire::{Kind, RequestId, Units};
use lockwright_cluster::keys::{Owner, SessionKey};
use lockwright_cluster::shard::handover::Handover;
use lockwright_fabric::observe::Mode;
use std::fmt::Write;
use std::str::FromStr;
use std::time::Duration;

/// A session that holds or wants something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HandedSession {
    pub(super) key: SessionKey,
    pub(super) space: Vec<u8>,
    pub(super) label: String,
}

/// What a session holds or wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HandedRequest {
    /// Which of the table's.
    pub(super) session: usize,
    pub(super) id: RequestId,
    pub(super) kind: Kind,
    pub(super) name: LockName,
    pub(super) units: Units,
    /// If it is held.
    pub(super) token: Option<u64>,
    pub(super) before: Option<u64>,
    pub(super) kept: Option<u64>,
    /// Since when it is held or waits.
    pub(super) age: Duration,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandedTable {
    pub(crate) of: Handover,
    /// As it stands in etcd: it was said by the last owner.
    pub(crate) proof: u128,
    pub(super) sessions: Vec<HandedSession>,
    pub(super) requests: Vec<HandedRequest>,
}

fn or_dash(number: Option<impl ToString>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

/// A number, or nothing; `None`: neither.
fn number<T: FromStr>(text: &str) -> Option<Option<T>> {
    if text == "-" { Some(None) } else { text.parse().ok().map(Some) }
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::Keyed, "name"), (Kind::Ranges, "range"), (Kind::Semaphores, "permits")];

impl HandedTable {
    /// As it is said.
    pub(crate) fn text(&self) -> String {
        let Handover { number, owner: Owner { epoch, server }, tokens_below, .. } = self.of;
        let mut text = format!("table {number} {epoch} {server:x} {tokens_below} {:x}\n", self.proof);
        for HandedSession { key, space, label } in &self.sessions {
            let _ = writeln!(text, "session {key:x} {} {}", hex(space), hex(label.as_bytes()));
        }
        for HandedRequest { session, id, kind, name, units, token, before, kept, age } in &self.requests {
            let stage = if token.is_some() { "held" } else { "waits" };
            let kind = KINDS.iter().find(|(of, _)| of == kind).map_or("", |(_, text)| text);
            let mode = if units.mode == Mode::Exclusive { "alone" } else { "shared" };
            let [token, before, kept] = [token, before, kept].map(|token| or_dash(*token));
            let (Units { start, end, .. }, thread) = (units, or_dash(units.thread));
            let _ = writeln!(
                text,
                "{stage} {session} {id} {kind} {mode} {start} {end} {token} {before} {kept} {thread} {} {}",
                age.as_nanos(),
                hex(name.as_bytes())
            );
        }
        text
    }

    /// As it was said.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let head: Vec<_> = lines.next()?.split(' ').collect();
        let ["table", number, epoch, server, below, proof] = head[..] else { return None };
        let owner = Owner { epoch: epoch.parse().ok()?, server: u64::from_str_radix(server, 16).ok()? };
        let (mut sessions, mut requests) = (Vec::new(), Vec::new());
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["session", key, space, label] => sessions.push(HandedSession {
                    key: u128::from_str_radix(key, 16).ok()?,
                    space: unhex(space)?,
                    label: String::from_utf8(unhex(label)?).ok()?,
                }),
                ["held" | "waits", ref rest @ ..] => {
                    let request = request(rest)?;
                    if request.token.is_some() != (words[0] == "held") {
                        return None;
                    }
                    requests.push(request);
                }
                _ => return None,
            }
        }
        let of = Handover {
            number: number.parse().ok()?,
            owner,
            sessions: sessions.iter().map(|session| session.key).collect(),
            tokens_below: below.parse().ok()?,
        };
        Some(Self { of, proof: u128::from_str_radix(proof, 16).ok()?, sessions, requests })
    }
}

/// What stands behind its stage.
fn request(words: &[&str]) -> Option<HandedRequest> {
    let [session, id, kind, mode, start, end, token, before, kept, thread, ns, name] = *words else {
        return None;
    };
    let mode = match mode {
        "alone" => Mode::Exclusive,
        "shared" => Mode::Shared,
        _ => return None,
    };
    let (start, end) = (start.parse().ok()?, end.parse().ok()?);
    Some(HandedRequest {
        session: session.parse().ok()?,
        id: id.parse().ok()?,
        kind: KINDS.iter().find(|(_, text)| *text == kind)?.0,
        name: LockName::new(unhex(name)?).ok()?,
        units: Units { handle: 0, mode, start, end, thread: number(thread)? },
        token: number(token)?,
        before: number(before)?,
        kept: number(kept)?,
        age: Duration::from_nanos(ns.parse().ok()?),
    })
}
