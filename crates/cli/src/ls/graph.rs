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
    write(&waits(entries), form)
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
