//! Who waits for whom, as text or for Graphviz.

use lockwright::inspect::{Entry, Wait, waits};
use std::fmt::Write;

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Form {
    Text,
    Dot,
}

/// The wait-for graph of a listing.
pub(super) fn graph(entries: &[Entry], form: Form) -> String {
    write(&waits(entries, is_below), form)
}

fn write(waits: &[Wait], form: Form) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let mut out = String::new();
    for Wait { waiter, blocker, why, deadlocked, .. } in waits {
        let _ = match form {
            Form::Text => {
                let mark = if *deadlocked { "  DEADLOCK" } else { "" };
                writeln!(out, "{waiter} waits for {blocker} ({why}){mark}")
            }
            Form::Dot => {
                let colour = if *deadlocked { ", color=red" } else { "" };
                let [from, to, why] =
                    [&waiter.to_string(), &blocker.to_string(), why].map(|text| quoted(text));
                writeln!(out, "  {from} -> {to} [label={why}{colour}];")
            }
        };
    }
    match form {
        Form::Text => out,
        Form::Dot => format!("digraph waits {{\n{out}}}\n"),
    }
}

/// Whether the process of `one` was started, directly or not, under the lock of `two`: as far as this host can tell.
fn is_below(one: &Entry, two: &Entry) -> bool {
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if one.host != here.trim() || two.host != here.trim() {
        return false;
    }
    // A `run` in the background holds the lock for another process.
    let held_for = two.program.strip_prefix("run --for ").and_then(|pid| pid.parse().ok()).unwrap_or(two.pid);
    let parent = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_ascii_whitespace().nth(1)?.parse::<u32>().ok()
    };
    std::iter::successors(Some(one.pid), |pid| parent(*pid)).take(64).any(|pid| pid == held_for)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright::LockName;
    use lockwright::inspect::EntryState;
    use std::time::Duration;

    #[test]
    fn names_are_quoted_for_graphviz() {
        let name = LockName::new("a\"b").unwrap();
        let mut entries =
            [EntryState::Held, EntryState::Waiting].map(|state| Entry::new(name.clone(), state));
        (entries[1].pid, entries[1].age) = (7, Duration::from_secs(1));
        let dot = graph(&entries, Form::Dot);
        assert!(dot.starts_with("digraph") && dot.contains(r#"[label="a\"b"]"#), "{dot}");
    }
}
