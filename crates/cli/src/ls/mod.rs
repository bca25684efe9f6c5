//! `lockwright ls`: who holds what, who waits for what, and since when.

mod graph;

use crate::SpaceArg;
use anyhow::Result;
use lockwright::inspect::{Entry, EntryState, Inspector};
use lockwright_term::say;
use lockwright_term::{Outcome, grid};
use serde_json::json;
use std::io::Write;
use std::time::Duration;

/// List who holds locks and who waits for them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright ls                     everything in this user's default space
  lockwright ls backup              one lock
  lockwright ls --stuck             locks with waiters, and without a new grant for 10 seconds
  lockwright ls --stuck 60          the same, for a minute
  lockwright ls --holder 4711       what process 4711 holds or waits for
  lockwright ls --graph             who waits for whom, deadlocks marked
  lockwright ls --graph=dot | dot -Tsvg > waits.svg
  lockwright ls --json              one JSON object per line

The token of a line that says `held` is what `lockwright break` wants.")]
pub(crate) struct Args {
    /// Only this lock
    name: Option<std::ffi::OsString>,
    /// Only locks with waiters, and without a new grant for so many seconds
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "10")]
    stuck: Option<u64>,
    /// Only what this process holds or waits for
    #[arg(long, value_name = "PID")]
    holder: Option<u32>,
    /// Who waits for whom, with deadlocks marked, as text or for Graphviz
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, require_equals = true,
          default_missing_value = "text", conflicts_with_all = ["stuck", "holder", "json"])]
    graph: Option<graph::Form>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    space: SpaceArg,
}

/// The columns of a listing.
pub(crate) const HEAD: [&str; 9] =
    ["LOCK", "STATE", "MODE", "SINCE", "PID", "USER", "HOST", "PROGRAM", "TOKEN"];

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    let Some(inspector) = args.space.look()? else {
        if !args.json {
            say!("no lock space yet: nobody has taken a lock");
        }
        return Ok(Outcome::Clean);
    };
    let entries = chosen(args, &inspector)?;
    if let Some(form) = args.graph {
        write!(out, "{}", graph::graph(&entries, form))?;
        return Ok(Outcome::Clean);
    }
    if args.json {
        for entry in &entries {
            writeln!(out, "{}", to_json(entry))?;
        }
        return Ok(Outcome::Clean);
    }
    if entries.is_empty() {
        say!(
            "nobody holds or waits for anything{}",
            if args.stuck.is_some() { " that is stuck" } else { "" }
        );
        return Ok(Outcome::Clean);
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(entries.iter().map(to_row));
    grid(out, &rows)?;
    Ok(Outcome::Clean)
}

fn chosen(args: &Args, inspector: &Inspector) -> Result<Vec<Entry>> {
    let mut entries = inspector.entries()?;
    if let Some(name) = &args.name {
        entries.retain(|entry| entry.name.as_bytes() == name.as_encoded_bytes());
    }
    if let Some(secs) = args.stuck {
        let age = Duration::from_secs(secs);
        let is_stuck = |entry: &Entry| {
            let same = || entries.iter().filter(|other| other.name == entry.name);
            let moved = same().any(|other| other.state == EntryState::Held && other.age < age);
            let awaited = same().any(|other| other.state == EntryState::Waiting && other.age >= age);
            awaited && !moved
        };
        let stuck: Vec<_> = entries.iter().map(is_stuck).collect();
        let mut stuck = stuck.into_iter();
        entries.retain(|_| stuck.next().unwrap_or(false));
    }
    if let Some(pid) = args.holder {
        entries.retain(|entry| entry.pid == pid);
    }
    Ok(entries)
}

const fn state(entry: &Entry) -> &'static str {
    match (entry.state, entry.alive) {
        (EntryState::Held, true) => "held",
        (EntryState::Held, false) => "held by the dead",
        (EntryState::Retained, _) => "retained",
        (EntryState::Waiting, true) => "waiting",
        (EntryState::Waiting, false) => "waiting, dead",
        _ => "releasing",
    }
}

const fn mode(entry: &Entry) -> &'static str {
    if entry.shared { "shared" } else { "exclusive" }
}

/// A line's cells, one for each column of [`HEAD`].
pub(crate) fn to_row(entry: &Entry) -> [String; 9] {
    let range = entry.range.as_ref().map(|range| format!(" {}..{}", range.start, range.end));
    let how = match entry.permits {
        Some(permits) => format!("{} of {} permits", permits.held, permits.limit),
        None => format!("{}{}", mode(entry), range.unwrap_or_default()),
    };
    [
        entry.name.to_string(),
        format!("{}{}", state(entry), if entry.changing { ", changing" } else { "" }),
        how,
        lockwright_term::age(entry.age),
        entry.pid.to_string(),
        entry.user.clone(),
        entry.host.clone(),
        entry.program.clone(),
        entry.token.map(|token| token.to_string()).unwrap_or_default(),
    ]
}

fn to_json(entry: &Entry) -> serde_json::Value {
    json!({
        "lock": entry.name.to_text(),
        "state": match entry.state {
            EntryState::Held => "held",
            EntryState::Retained => "retained",
            EntryState::Waiting => "waiting",
            _ => "releasing",
        },
        "mode": mode(entry),
        "range": entry.range.as_ref().map(|range| [range.start, range.end]),
        "permits": entry.permits.map(|permits| json!({ "held": permits.held, "limit": permits.limit })),
        "token": entry.token,
        "since_seconds": entry.age.as_secs_f64(),
        "pid": entry.pid,
        "user": entry.user,
        "thread": entry.thread,
        "host": entry.host,
        "program": entry.program,
        "alive": entry.alive,
        "changing": entry.changing,
    })
}
