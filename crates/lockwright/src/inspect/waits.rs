//! Who waits for whom: the wait-for graph of a listing, with deadlocks marked.

use super::{Entry, EntryState};
use std::collections::{BTreeMap, BTreeSet};

/// A process, as a listing knows it.
///
/// ```
/// # use lockwright::{LockName, inspect::{Entry, EntryState, Process}};
/// # let entry = Entry::new(LockName::new("a")?, EntryState::Held);
/// let process = Process::of(&entry);
/// assert_eq!(process.pid, entry.pid);
/// # Ok::<(), lockwright::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Process {
    /// Its host.
    pub host: String,
    /// Its number there.
    pub pid: u32,
    /// Its program.
    pub program: String,
}

impl Process {
    /// The process of an entry.
    ///
    /// ```
    /// # use lockwright::{LockName, inspect::{Entry, EntryState, Process}};
    /// let entry = Entry::new(LockName::new("a")?, EntryState::Held);
    /// assert_eq!(Process::of(&entry).to_string(), " 0@");
    /// # Ok::<(), lockwright::NameError>(())
    /// ```
    pub fn of(entry: &Entry) -> Self {
        Self { host: entry.host.clone(), pid: entry.pid, program: entry.program.clone() }
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}@{}", self.program, self.pid, self.host)
    }
}

/// One process that waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// Who waits.
    pub waiter: Process,
    /// For whom.
    pub blocker: Process,
    /// The lock, with its range; or what else they have to do with each other.
    pub why: String,
    /// Whether it is part of a circle of processes that wait for each other.
    pub deadlocked: bool,
}

/// Who waits for whom in a listing. A process waits for every holder that stands in its way, and for every client that the
/// lock is recalled from; one that none of them keeps out waits for those before it in the queue. `is_below(one, two)` says whether process `one` was started under the lock that `two`
/// holds: then `two` waits for `one` to end.
///
/// ```
/// use lockwright::inspect::{Inspector, waits};
/// # let address = format!("shm:/dev/shm/lockwright-doc-waits-{}", std::process::id());
/// # let client = lockwright::Client::open(&address).wait()?;
/// let entries = Inspector::open(&address)?.entries()?;
/// for wait in waits(&entries, |_, _| false) {
///     println!("{} waits for {} ({})", wait.waiter, wait.blocker, wait.why);
/// }
/// # std::fs::remove_file(&address["shm:".len()..])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn waits(entries: &[Entry], is_below: impl Fn(&Entry, &Entry) -> bool) -> Vec<Wait> {
    let in_state = |state| entries.iter().filter(move |entry| entry.state == state);
    let wait = |waiter: &Entry, blocker: &Entry, why: String| Wait {
        waiter: Process::of(waiter),
        blocker: Process::of(blocker),
        why,
        deadlocked: false,
    };
    let mut waits = Vec::new();
    for waiter in in_state(EntryState::Waiting) {
        let in_the_way =
            |state| in_state(state).filter(|other| conflict(waiter, other) && !std::ptr::eq(*other, waiter));
        let mut blockers: Vec<_> = in_the_way(EntryState::Held).collect();
        blockers.extend(in_the_way(EntryState::Retained));
        if blockers.is_empty() {
            blockers.extend(in_the_way(EntryState::Waiting).filter(|other| other.age > waiter.age));
        }
        waits.extend(blockers.into_iter().map(|blocker| {
            let retained = if blocker.state == EntryState::Retained { ", retained" } else { "" };
            wait(waiter, blocker, format!("{}{retained}", lock(waiter)))
        }));
        for holder in in_state(EntryState::Held) {
            if (&holder.host, holder.pid) != (&waiter.host, waiter.pid) && is_below(waiter, holder) {
                waits.push(wait(holder, waiter, format!("has {}, runs it", lock(holder))));
            }
        }
    }
    mark_deadlocks(&mut waits);
    waits
}

/// Whether the two cannot hold what they want at a time.
fn conflict(one: &Entry, two: &Entry) -> bool {
    let overlap = match (&one.range, &two.range) {
        (Some(one), Some(two)) => one.start < two.end && two.start < one.end,
        (one, two) => one.is_none() && two.is_none(),
    };
    let in_the_way = match (one.permits, two.permits) {
        (None, None) => overlap && !(one.shared && two.shared),
        (one, two) => one.is_some() && two.is_some(),
    };
    one.name == two.name && in_the_way
}

fn lock(entry: &Entry) -> String {
    match (&entry.range, entry.permits) {
        (Some(range), _) => format!("{} {}..{}", entry.name, range.start, range.end),
        (None, Some(permits)) => format!("{} {} of {}", entry.name, permits.held, permits.limit),
        (None, None) => entry.name.to_string(),
    }
}

/// A wait is part of a circle exactly if who is waited for can reach who waits.
fn mark_deadlocks(waits: &mut [Wait]) {
    let mut next: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for wait in &*waits {
        next.entry(wait.waiter.clone()).or_default().insert(wait.blocker.clone());
    }
    let reaches = |from: &Process, to: &Process| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(at) = left.pop() {
            if at == to {
                return true;
            }
            if seen.insert(at) {
                left.extend(next.get(at).into_iter().flatten());
            }
        }
        false
    };
    for wait in waits {
        wait.deadlocked = reaches(&wait.blocker, &wait.waiter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockName;
    use std::time::Duration;

    fn entry(name: &str, state: EntryState, pid: u32, age: u64, shared: bool) -> Entry {
        let mut entry = Entry::new(LockName::new(name).unwrap(), state);
        (entry.pid, entry.host, entry.program) = (pid, "db7".into(), "job".into());
        (entry.age, entry.shared) = (Duration::from_secs(age), shared);
        entry
    }

    fn lines(entries: &[Entry]) -> Vec<String> {
        let waits = waits(entries, |_, _| false);
        let line = |wait: &Wait| {
            let mark = if wait.deadlocked { " deadlock" } else { "" };
            format!("{} {} {}{mark}", wait.waiter.pid, wait.blocker.pid, wait.why)
        };
        waits.iter().map(line).collect()
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
        assert_eq!(lines(&entries), ["1 2 b deadlock", "2 1 a deadlock", "3 1 a"]);
    }

    #[test]
    fn a_reader_behind_a_writer_that_waits_for_readers_waits_for_the_writer() {
        use EntryState::{Held, Waiting};
        let entries =
            [entry("a", Held, 1, 9, true), entry("a", Waiting, 2, 8, false), entry("a", Waiting, 3, 7, true)];
        assert_eq!(lines(&entries), ["2 1 a", "3 2 a"]);
    }

    #[test]
    fn a_client_that_keeps_what_is_waited_for_is_waited_for() {
        use EntryState::{Retained, Waiting};
        let entries = [
            entry("a", Retained, 1, 9, true),
            entry("a", Waiting, 2, 8, false),
            entry("a", Waiting, 3, 7, false),
            entry("b", Retained, 1, 9, true),
            entry("b", Waiting, 2, 8, true),
        ];
        assert_eq!(lines(&entries), ["2 1 a, retained", "3 1 a, retained"]);
    }
}
