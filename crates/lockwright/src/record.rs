//! Records of what happened to locks: who asked, was granted, gave back, lost, with tokens and times, to be judged later by
//! `lockwright-lab check --history`.
//!
//! A client writes one ([`ClientOptions::record`](crate::ClientOptions::record), `lockwright run --record`), and so does a
//! server (`lockwright serve --record`). A record is a file of JSON lines. The first says who writes:
//!
//! | field | |
//! |---|---|
//! | `record` | 1, the version of this format |
//! | `by` | `client` or `server` |
//! | `boot` | the boot of the host: times of one boot can be compared |
//! | `process` | pid, user and host (`ann@db7`), and program |
//! | `missed` | of a server that came to more events than it could write: so many are missing before this line |
//!
//! The last line of a server that was stopped in order is `{"ended":1}`. Every other line is one event:
//!
//! | field | |
//! |---|---|
//! | `at` | nanoseconds, of the clock that all processes of the host share |
//! | `event` | see below |
//! | `client` | whose: pid, user and host, and program, since several can share a file; in a server's record with the number of the session |
//! | `space`, `lock`, `kind` | which lock; `kind` is `keyed`, `ranges` or `semaphore` |
//! | `mode`, `start`, `end` | `exclusive` or `shared`; the units of a range; of a semaphore, `start` of its `end - 1` permits |
//! | `token` | of what is held |
//! | `held` | of `released`: whether it was held until then |
//!
//! | event | written |
//! |---|---|
//! | `asks` | before the request |
//! | `granted`, `refused` | after it was |
//! | `upgraded` | after the grant became exclusive; `token` is the new one |
//! | `downgrades`, `downgraded` | before and after it becomes shared; then `token` is the new one |
//! | `gives` | before these units are given back and the rest kept |
//! | `releases`, `released` | before and after it is given back |
//! | `lost` | when it was found to be, or taken away |
//! | `claimed` | by a server, after a restart: it is held as before |
//! | `retained` | by a server, behind `granted`: it stays with its client, whose further grants have the tokens from `start` up to `end` |
//!
//! A server writes `released` and not `releases`, and no `asks`. So a lock was surely held from `granted` to `releases`, and by
//! the server's order from `granted` to `released` or `lost`. Lines are written one by one, and whole: a process that is killed
//! leaves a record that ends early, and no more.

use crate::backend::Kind;
use crate::name::LockName;
use lockwright_fabric::backend::shm::{boot_id, monotonic_ns};
use lockwright_fabric::observe::{Claim, Mode};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A record that is being written. Clones write the same one.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Mutex<File>>);

/// One event. What is `None` is left out.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Its name.
    pub event: &'a str,
    /// Whose.
    pub client: Option<&'a str>,
    /// The space.
    pub space: &'a str,
    /// The lock.
    pub name: &'a LockName,
    /// Which table of locks it is in.
    pub kind: Kind,
    /// Mode and units; which lock is not looked at.
    pub claim: Claim,
    /// The token.
    pub token: Option<u64>,
    /// Whether it was held until then.
    pub held: Option<bool>,
}

impl Recorder {
    /// Goes on with the record at `path`, which only this user can read, or begins it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn open(path: &Path, by: &str, process: &str) -> io::Result<Self> {
        let recorder = Self(Arc::new(Mutex::new(create(path)?)));
        recorder.write(&head(by, process, 0)?)?;
        Ok(recorder)
    }

    fn write(&self, line: &str) -> io::Result<()> {
        // One call, so that a process that is killed leaves a whole line or none.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())
    }

    /// Writes an event. One that cannot be written is missing, and its record ends there: the next lines are not written
    /// either, and the file is left as it is.
    pub fn note(&self, event: &Event<'_>) {
        let _ = self.write(&line_now(event));
    }
}

/// The file at `path`, to be written behind what is there. Only this user can read it.
///
/// # Errors
/// If it cannot be written.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The first line. `missed`: so many events are missing before it.
///
/// # Errors
/// If the system does not say which boot this is.
pub fn head(by: &str, process: &str, missed: u64) -> io::Result<String> {
    let boot = boot_id().map_err(io::Error::other)?;
    let mut line = format!("{{\"record\":1,\"by\":\"{by}\",\"boot\":\"{boot:032x}\",\"process\":");
    put_string(&mut line, process);
    if missed > 0 {
        let _ = write!(line, ",\"missed\":{missed}");
    }
    line.push_str("}\n");
    Ok(line)
}

/// What a space of a server is called in records.
pub fn served_space(server: u128, space: &[u8]) -> String {
    let space = if space.is_empty() { "default".into() } else { String::from_utf8_lossy(space) };
    format!("served/{server:x}/{space}")
}

/// The line of an event that happens now.
pub fn line_now(event: &Event<'_>) -> String {
    line(monotonic_ns(), event)
}

fn line(at: u64, event: &Event<'_>) -> String {
    let Event { event, client, space, name, kind, claim, token, held } = event;
    let mut line = format!("{{\"at\":{at},\"event\":\"{event}\"");
    if let Some(client) = client {
        line.push_str(",\"client\":");
        put_string(&mut line, client);
    }
    line.push_str(",\"space\":");
    put_string(&mut line, space);
    line.push_str(",\"lock\":");
    put_string(&mut line, &name.to_string());
    let (kind, is_range) = match kind {
        Kind::Keyed => ("keyed", false),
        Kind::Ranges => ("ranges", true),
        Kind::Semaphores => ("semaphore", true),
    };
    let mode = if claim.mode == Mode::Shared { "shared" } else { "exclusive" };
    let _ = write!(line, ",\"kind\":\"{kind}\",\"mode\":\"{mode}\"");
    if is_range || *event == "retained" {
        let _ = write!(line, ",\"start\":{},\"end\":{}", claim.start, claim.end);
    }
    if let Some(token) = token {
        let _ = write!(line, ",\"token\":{token}");
    }
    if let Some(held) = held {
        let _ = write!(line, ",\"held\":{held}");
    }
    line.push_str("}\n");
    line
}

/// A JSON string.
fn put_string(line: &mut String, text: &str) {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(line, "\\u{:04x}", c as u32);
            }
            c => line.push(c),
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json_whatever_the_lock_is_called() {
        let name = LockName::new(b"a\"b\\c\n\xff").unwrap();
        let claim = Claim { lock: 3, mode: Mode::Shared, start: 1, end: 9 };
        let event = Event {
            event: "granted",
            client: Some("7 host prog"),
            space: "served/stock",
            name: &name,
            kind: Kind::Ranges,
            claim,
            token: Some(5),
            held: None,
        };
        let expected = concat!(
            r#"{"at":12,"event":"granted","client":"7 host prog","space":"served/stock","lock":"a\"b\\c\\n\\xff","#,
            r#""kind":"ranges","mode":"shared","start":1,"end":9,"token":5}"#,
            "\n"
        );
        assert_eq!(line(12, &event), expected);
    }
}
