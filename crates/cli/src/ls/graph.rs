//! Who waits for whom: the wait-for graph of a listing, as text or for Graphviz, with deadlocks marked.
//!
//! A process waits for every holder that stands in its way. One that no holder keeps out waits for those before it in the queue.
//! A `run` waits for its command, and so for every `run` that was started below it.

use lockwright::inspect::{Entry, EntryState};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A process, as a listing knows it.
type Process<'a> = (&'a str, u32);

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Form {
    Text,
    Dot,
}

/// `from` waits for `to`, who has, or stands before it in the queue of, the lock.
struct Edge<'a> {
    from: Process<'a>,
    to: Process<'a>,
    lock: String,
    /// It is part of a circle of processes that wait for each other.
    deadlocked: bool,
}

/// The graph.
pub(super) struct Graph<'a> {
    programs: BTreeMap<Process<'a>, &'a str>,
    edges: Vec<Edge<'a>>,
}

fn process(entry: &Entry) -> Process<'_> {
    (&entry.host, entry.pid)
}

/// Whether both can hold what they want at a time.
fn conflict(one: &Entry, two: &Entry) -> bool {
    let overlap = match (&one.range, &two.range) {
        (Some(one), Some(two)) => one.start < two.end && two.start < one.end,
        (one, two) => one.is_none() && two.is_none(),
    };
    one.name == two.name && overlap && !(one.shared && two.shared)
}

impl<'a> Graph<'a> {
    /// The graph of a listing. `is_below(one, two)`: process `one` was started, directly or not, by the command of `two`.
    pub(super) fn new(entries: &'a [Entry], is_below: impl Fn(&Entry, &Entry) -> bool) -> Self {
        let mut edges = Vec::new();
        for waiter in entries.iter().filter(|entry| entry.state == EntryState::Waiting) {
            let in_the_way = |state| {
                let others = entries.iter().filter(move |other| other.state == state);
                others.filter(|other| conflict(waiter, other) && !std::ptr::eq(*other, waiter))
            };
            let mut blockers: Vec<_> = in_the_way(EntryState::Held).collect();
            if blockers.is_empty() {
                blockers.extend(in_the_way(EntryState::Waiting).filter(|other| other.age > waiter.age));
            }
            for blocker in blockers {
                let (from, to) = (process(waiter), process(blocker));
                edges.push(Edge { from, to, lock: lock(waiter), deadlocked: false });
            }
        }
        let holders = || entries.iter().filter(|entry| entry.state == EntryState::Held);
        for waiter in entries.iter().filter(|entry| entry.state == EntryState::Waiting) {
            for holder in
                holders().filter(|holder| process(holder) != process(waiter) && is_below(waiter, holder))
            {
                let lock = format!("has {}, runs it", lock(holder));
                edges.push(Edge { from: process(holder), to: process(waiter), lock, deadlocked: false });
            }
        }
        let mut graph = Self { programs: BTreeMap::new(), edges };
        graph.programs.extend(entries.iter().map(|entry| (process(entry), entry.program.as_str())));
        graph.mark_deadlocks();
        graph
    }

    fn mark_deadlocks(&mut self) {
        let mut next: BTreeMap<Process<'_>, BTreeSet<Process<'_>>> = BTreeMap::new();
        for edge in &self.edges {
            next.entry(edge.from).or_default().insert(edge.to);
        }
        let reaches = |from: Process<'a>, to: Process<'a>| {
            let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
            while let Some(at) = left.pop() {
                if at == to {
                    return true;
                }
                if seen.insert(at) {
                    left.extend(next.get(&at).into_iter().flatten());
                }
            }
            false
        };
        for edge in &mut self.edges {
            edge.deadlocked = reaches(edge.to, edge.from);
        }
    }

    fn name(&self, process: Process<'_>) -> String {
        let program = self.programs.get(&process).copied().unwrap_or_default();
        let (host, pid) = process;
        format!("{program} {pid}@{host}")
    }

    /// The graph as text.
    pub(super) fn write(&self, form: Form) -> String {
        let mut out = String::new();
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        if form == Form::Dot {
            out.push_str("digraph waits {\n");
        }
        for edge in &self.edges {
            let (from, to) = (self.name(edge.from), self.name(edge.to));
            let _ = match form {
                Form::Text => {
                    let mark = if edge.deadlocked { "  DEADLOCK" } else { "" };
                    writeln!(out, "{from} waits for {to} ({}){mark}", edge.lock)
                }
                Form::Dot => {
                    let colour = if edge.deadlocked { ", color=red" } else { "" };
                    writeln!(
                        out,
                        "  {} -> {} [label={}{colour}];",
                        quoted(&from),
                        quoted(&to),
                        quoted(&edge.lock)
                    )
                }
            };
        }
        if form == Form::Dot {
            out.push_str("}\n");
        }
        out
    }
}

fn lock(entry: &Entry) -> String {
    match &entry.range {
        Some(range) => format!("{} {}..{}", entry.name, range.start, range.end),
        None => entry.name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright::LockName;
    use std::time::Duration;

    fn entry(name: &str, state: EntryState, pid: u32, age: u64, shared: bool) -> Entry {
        let mut entry = Entry::new(LockName::new(name).unwrap(), state);
        (entry.pid, entry.host, entry.program) = (pid, "db7".into(), "job".into());
        (entry.age, entry.shared) = (Duration::from_secs(age), shared);
        entry
    }

    #[test]
    fn two_who_wait_for_each_other_are_marked_and_a_third_is_not() {
        use EntryState::{Held, Waiting};
        let entries = [
            entry("a", Held, 1, 9, false),
            entry("b", Held, 2, 9, false),
            entry("b", Waiting, 1, 8, false),
            entry("a", Waiting, 2, 7, false),
            entry("a", Waiting, 3, 6, true),
        ];
        let text = Graph::new(&entries, |_, _| false).write(Form::Text);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "job 1@db7 waits for job 2@db7 (b)  DEADLOCK",
                "job 2@db7 waits for job 1@db7 (a)  DEADLOCK",
                "job 3@db7 waits for job 1@db7 (a)",
            ]
        );
        let dot = Graph::new(&entries, |_, _| false).write(Form::Dot);
        assert!(dot.starts_with("digraph") && dot.matches("color=red").count() == 2, "{dot}");
    }

    #[test]
    fn a_reader_behind_a_writer_that_waits_for_readers_waits_for_the_writer() {
        use EntryState::{Held, Waiting};
        let entries =
            [entry("a", Held, 1, 9, true), entry("a", Waiting, 2, 8, false), entry("a", Waiting, 3, 7, true)];
        let text = Graph::new(&entries, |_, _| false).write(Form::Text);
        assert_eq!(text, "job 2@db7 waits for job 1@db7 (a)\njob 3@db7 waits for job 2@db7 (a)\n");
    }

    #[test]
    fn names_are_quoted_for_graphviz() {
        use EntryState::{Held, Waiting};
        let entries = [entry("a\"b\\", Held, 1, 9, false), entry("a\"b\\", Waiting, 2, 8, false)];
        let dot = Graph::new(&entries, |_, _| false).write(Form::Dot);
        assert!(dot.contains(r#"[label="a\"b\\\\"]"#) || dot.contains(r#"[label="a\"b\\"]"#), "{dot}");
    }
}
