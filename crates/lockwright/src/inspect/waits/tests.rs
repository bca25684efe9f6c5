//! Who waits for whom in listings made by hand.

use super::*;
use crate::inspect::Permits;
use EntryState::{Held, Retained, Waiting};

/// Of a process whose first thread asks.
fn entry(name: &str, state: EntryState, pid: u32, age: u64, shared: bool) -> Entry {
    let mut entry = Entry::new(LockName::new(name).unwrap(), state);
    (entry.pid, entry.host, entry.program) = (pid, "db7".into(), "job".into());
    (entry.age, entry.shared, entry.thread) = (Duration::from_secs(age), shared, Some(0));
    entry
}

/// Of another thread of it; `None`: of one that is not known.
fn of_thread(thread: impl Into<Option<u32>>, entry: Entry) -> Entry {
    Entry { thread: thread.into(), ..entry }
}

fn lines(entries: &[Entry]) -> Vec<String> {
    lines_of(&Graph::of(entries, usize::MAX, |_| Vec::new()))
}

fn lines_of(graph: &Graph<'_>) -> Vec<String> {
    let line = |wait: &Wait| {
        let mark = if wait.deadlocked { " deadlock" } else { "" };
        format!("{} {} {}{mark}", wait.waiter.pid, wait.blocker.pid, wait.why)
    };
    graph.waits().iter().map(line).collect()
}

#[test]
fn two_who_wait_for_each_other_are_marked_and_a_third_is_not() {
    let entries = [
        entry("a", Held, 1, 9, false),
        entry("b", Held, 2, 9, false),
        entry("b", Waiting, 1, 8, false),
        entry("a", Waiting, 2, 7, false),
        entry("a", Waiting, 3, 6, true),
    ];
    assert_eq!(lines(&entries), ["1 2 b deadlock", "2 1 a deadlock", "3 1 a"]);
}

#[test]
fn a_thread_that_waits_for_another_of_its_process_is_no_deadlock() {
    let entries = [entry("a", Held, 1, 9, false), of_thread(1, entry("a", Waiting, 1, 8, false))];
    assert_eq!(lines(&entries), ["1 1 a"]);
    let unknown = entries.map(|entry| of_thread(None, entry));
    assert_eq!(lines(&unknown), ["1 1 a"]);
}

#[test]
fn two_threads_of_one_process_that_wait_for_each_other_are_a_deadlock() {
    let entries = [
        entry("a", Held, 1, 9, false),
        of_thread(1, entry("b", Held, 1, 9, false)),
        entry("b", Waiting, 1, 8, false),
        of_thread(1, entry("a", Waiting, 1, 7, false)),
    ];
    assert_eq!(lines(&entries), ["1 1 b deadlock", "1 1 a deadlock"]);
    let alone = [entry("a", Held, 1, 9, false), entry("a", Waiting, 1, 8, false)];
    assert_eq!(lines(&alone), ["1 1 a deadlock"], "a thread that waits for itself");
}

#[test]
fn processes_whose_other_threads_hold_what_is_waited_for_are_no_deadlock() {
    let entries = [
        entry("a", Held, 1, 9, false),
        entry("b", Held, 2, 9, false),
        of_thread(1, entry("b", Waiting, 1, 8, false)),
        of_thread(1, entry("a", Waiting, 2, 7, false)),
    ];
    assert_eq!(lines(&entries), ["1 2 b", "2 1 a"]);
    let tasks = entries.map(|entry| of_thread(None, entry));
    assert_eq!(lines(&tasks), ["1 2 b", "2 1 a"], "nobody knows which task holds what");
}

#[test]
fn a_lock_that_a_thread_got_after_its_wait_began_was_read_later_and_is_not_waited_under() {
    let entries = [
        entry("a", Held, 1, 5, false),
        entry("b", Held, 2, 9, false),
        entry("b", Waiting, 1, 8, false),
        entry("a", Waiting, 2, 7, false),
    ];
    assert_eq!(lines(&entries), ["1 2 b", "2 1 a"]);
}

#[test]
fn a_circle_with_a_dead_holder_or_a_lock_that_changes_moves_on() {
    let circle = || {
        [
            entry("a", Held, 1, 9, false),
            entry("b", Held, 2, 9, false),
            entry("b", Waiting, 1, 8, false),
            entry("a", Waiting, 2, 7, false),
        ]
    };
    let (mut dead, mut changing) = (circle(), circle());
    (dead[1].alive, changing[1].changing) = (false, true);
    for moves in [dead, changing] {
        assert_eq!(lines(&moves), ["1 2 b", "2 1 a"]);
    }
}

#[test]
fn who_waits_for_permits_waits_for_ever_only_if_too_few_can_come_back() {
    let of = |entry: Entry, held| Entry { permits: Some(Permits { held, limit: 3 }), ..entry };
    let entries = |weight| {
        [
            of(entry("gpu", Held, 1, 9, false), 1),
            of(entry("gpu", Held, 3, 9, false), 2),
            entry("a", Held, 2, 9, false),
            entry("a", Waiting, 1, 8, false),
            of(entry("gpu", Waiting, 2, 7, false), weight),
        ]
    };
    let one = ["1 2 a", "2 1 gpu 1 of 3", "2 3 gpu 1 of 3"];
    assert_eq!(lines(&entries(1)), one, "process 3 has two of them, and waits for nobody");
    let all = ["1 2 a deadlock", "2 1 gpu 3 of 3 deadlock", "2 3 gpu 3 of 3"];
    assert_eq!(lines(&entries(3)), all);
}

#[test]
fn a_reader_that_waits_to_be_alone_does_not_wait_for_itself() {
    let upgrade = Entry { upgrades: true, ..entry("a", Waiting, 1, 8, false) };
    let entries = [entry("a", Held, 1, 9, true), entry("a", Held, 2, 9, true), upgrade.clone()];
    assert_eq!(lines(&entries), ["1 2 a"]);
    let other = Entry { pid: 2, ..upgrade.clone() };
    let both = [entries[0].clone(), entries[1].clone(), upgrade, other];
    assert_eq!(lines(&both), ["1 2 a deadlock", "2 1 a deadlock"]);
}

#[test]
fn a_run_waits_for_what_runs_under_it() {
    let nobody_knows = |entry: Entry| of_thread(None, entry);
    let entries = [
        entry("a", Held, 1, 9, false),
        entry("b", Held, 2, 8, false),
        entry("a", Waiting, 4, 7, false),
        entry("b", Waiting, 3, 6, false),
    ]
    .map(nobody_knows);
    // Process 1 runs 3, and 2 runs 4.
    let ancestors = |entry: &Entry| vec![entry.pid, entry.pid.saturating_sub(2)];
    let lines = lines_of(&Graph::of(&entries, usize::MAX, ancestors));
    let all = ["4 1 a", "3 2 b", "2 4 has b, runs it", "1 3 has a, runs it"];
    assert_eq!(lines, all.map(|line| format!("{line} deadlock")));
}

#[test]
fn of_a_lock_that_many_hold_and_many_want_a_few_waits_are_looked_at_and_the_deadlock_is_one_of_them() {
    let mut entries: Vec<_> = (10..50_000).map(|pid| entry("a", Held, pid, 9, true)).collect();
    entries.push(entry("a", Held, 1, 9, true));
    entries.push(entry("b", Held, 2, 9, false));
    entries.push(entry("b", Waiting, 1, 8, false));
    entries.extend([2].into_iter().chain(60_000..99_000).map(|pid| entry("a", Waiting, pid, 8, false)));
    let waits = waits_among(&entries, 16);
    assert!(waits.len() <= 2 * 16 * 16, "{}", waits.len());
    let marked: Vec<_> =
        waits.iter().filter(|wait| wait.deadlocked).map(|wait| (wait.waiter.pid, wait.blocker.pid)).collect();
    assert_eq!(marked, [(1, 2), (2, 1)]);
}

#[test]
fn a_reader_behind_a_writer_that_waits_for_readers_waits_for_the_writer() {
    let entries =
        [entry("a", Held, 1, 9, true), entry("a", Waiting, 2, 8, false), entry("a", Waiting, 3, 7, true)];
    assert_eq!(lines(&entries), ["2 1 a", "3 2 a"]);
}

#[test]
fn a_client_that_keeps_what_is_waited_for_is_waited_for() {
    let entries = [
        entry("a", Retained, 1, 9, true),
        entry("a", Waiting, 2, 8, false),
        entry("a", Waiting, 3, 7, false),
        entry("b", Retained, 1, 9, true),
        entry("b", Waiting, 2, 8, true),
    ];
    assert_eq!(lines(&entries), ["2 1 a, retained", "3 1 a, retained"]);
}

#[test]
fn a_label_says_whose_the_process_is_if_its_client_says_so() {
    let of = |label| {
        let Process { host, pid, user, program } = Process::of_label(label);
        (pid, user, host, program)
    };
    let text = |text: &str| text.to_owned();
    assert_eq!(of("7 db7 job 1"), (7, text(""), text("db7"), text("job 1")));
    assert_eq!(of("7 ann@corp@db7 job@night"), (7, text("ann@corp"), text("db7"), text("job@night")));
    assert_eq!(of(""), (0, text(""), text(""), text("")));
}
