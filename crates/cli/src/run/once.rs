//! `run --once-per`: at most one start in a period, however many hosts fire it.
//!
//! The holder of the lock looks when the command was last started, and records the new start before it starts it. So of any
//! two starts the second one has seen the record of the first, and a run that dies counts as one. Where the record is:
//!
//! | space | record | clock | kept |
//! |---|---|---|---|
//! | a server's own | the value of the lock | the server's | in the server's state, over restarts; a server without state is refused |
//! | a cluster's | the same | that of whichever server has the lock | in etcd |
//! | `shm:` | a file, see `once_file` | the host's | over reboots of the host |
//! | others | none: refused | | |
//!
//! A clock that is set back makes the period longer. One that is set forward can make it shorter.

use super::args::Args;
use super::held::Held;
use super::{once_file, signals, supervise};
use anyhow::{Context, bail};
use lockwright::ValueError;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// What a record begins with, as the value of a lock.
const MARK: &[u8] = b"run by ";
/// The longest value of a lock.
const MAX_VALUE: usize = 64;

/// Whether the command is to be started.
pub(super) enum Turn {
    /// Yes, and that is written down.
    Due,
    /// It was started in this period: when and by whom, in words.
    Taken(String),
}

/// Says whether it is this run's turn, and if so writes that down. The inner error is a signal that came meanwhile.
pub(super) fn take_turn(
    args: &Args,
    period: Duration,
    held: &Held,
    inbox: &mut signals::Inbox,
) -> anyhow::Result<Result<Turn, u8>> {
    let by = this_process();
    let cannot = || format!("cannot tell when {} was last run", args.shown());
    if args.space.starts_with("shm:") {
        let file = once_file::OnceFile::open(args)?;
        return Ok(Ok(match file.last().with_context(cannot)? {
            Some((ago, who)) if ago < period => Turn::Taken(in_words(ago, &who)),
            _ if !can_be_found(&args.command[0]) => Turn::Due,
            _ => {
                file.add(&by).context("cannot write down that it is run now")?;
                Turn::Due
            }
        }));
    }
    let guard = held.only();
    let value = match supervise::wait(guard.value(), inbox, || {})? {
        Ok(value) => value.map_err(explained).with_context(cannot)?,
        Err(signal) => return Ok(Err(signal)),
    };
    if !value.is_durable() {
        bail!(
            "the server keeps no state, and would forget this run when it is restarted: --once-per needs `serve --state FILE`"
        );
    }
    match value.bytes().strip_prefix(MARK) {
        Some(who) if value.age() < period => {
            return Ok(Ok(Turn::Taken(in_words(value.age(), &String::from_utf8_lossy(who)))));
        }
        None if !value.bytes().is_empty() => {
            bail!("the lock {} has a value that is no record of --once-per: use another name", args.shown());
        }
        _ => {}
    }
    if can_be_found(&args.command[0]) {
        let mut record = [MARK, by.as_bytes()].concat();
        record.truncate(MAX_VALUE);
        match supervise::wait(guard.set_value(&record), inbox, || {})? {
            Ok(set) => set.map_err(explained).context("cannot write down that it is run now")?,
            Err(signal) => return Ok(Err(signal)),
        }
    }
    Ok(Ok(Turn::Due))
}

fn explained(error: ValueError) -> anyhow::Error {
    match error {
        ValueError::Unsupported(by) => {
            anyhow::anyhow!(
                "--once-per is not offered by {by}: shm:, a server's own spaces (tcp://HOST/NAME) and clusters offer it"
            )
        }
        error => error.into(),
    }
}

fn in_words(ago: Duration, who: &str) -> String {
    format!("it was run {} ago by {who}", lockwright_term::age(ago))
}

/// Host and process, in one word each.
fn this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| c.is_ascii_graphic()).take(40).collect();
    format!("{}:{}", if host.is_empty() { "?" } else { &host }, std::process::id())
}

/// Whether there is such a program. A name that is misspelt does not count as a run.
fn can_be_found(program: &OsStr) -> bool {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.as_encoded_bytes().contains(&b'/') {
        return is_program(Path::new(program));
    }
    let paths = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&paths).any(|folder| is_program(&folder.join(program)))
}
