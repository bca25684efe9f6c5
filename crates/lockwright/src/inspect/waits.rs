//! Who waits for whom: the wait-for graph of a listing, with deadlocks marked.
//!
//! A lock is held by a thread and not by its process, so a circle of processes need not be a deadlock: of two threads of one program
//! one may hold what the other waits for, or what another program does. Marked is only what can never move on:
//!
//! | | moves on |
//! |---|---|
//! | a waiter | when all who are in its way do; for permits, when enough of their holders do |
//! | a holder | always, unless its thread is known, and waits; or `run` holds it for a command in which a waiter is |
//! | one that is dead, retained, or changed while it was read | always |
//!
//! Which thread asked is known of clients that block a thread, not of tasks. What is not known is not marked. A guard that is sent to
//! another thread is still taken for that of the thread that took it.

use super::{Entry, EntryState, Kind};
use crate::name::LockName;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

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
    /// Whose it is; empty: not known.
    pub user: String,
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
        let Entry { host, pid, user, program, .. } = entry.clone();
        Self { host, pid, user, program }
    }

    /// The process that calls itself so: pid, host with or without a user, program.
    #[doc(hidden)]
    pub fn of_label(label: &str) -> Self {
        let mut parts = label.splitn(3, ' ');
        let pid = parts.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
        let host = parts.next().unwrap_or_default();
        // A user's name may have the sign in it, a host's does not.
        let (user, host) = host.rsplit_once('@').unwrap_or(("", host));
        let program = parts.next().unwrap_or_default();
        Self { host: host.to_owned(), pid, user: user.to_owned(), program: program.to_owned() }
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
    /// For whom: perhaps another thread of the same process.
    pub blocker: Process,
    /// The lock, with its range; or what else they have to do with each other.
    pub why: String,
    /// Whether it is part of a circle of threads that wait for each other, and will for ever.
    pub deadlocked: bool,
}

/// Who waits for whom in a listing. A process waits for every holder that stands in its way, and for every client that the
/// lock is recalled from; one that none of them keeps out waits for those before it in the queue. On this host a `run` that holds a
/// lock waits for what runs under it, if that waits.
///
/// A wait is marked as a deadlock only if it surely is one: see [`Wait::deadlocked`]. That takes clients of which it is known which
/// thread asked; so programs that `.await` their locks are never marked.
///
/// ```
/// use lockwright::inspect::{Inspector, waits};
/// # let address = format!("shm:/dev/shm/lockwright-doc-waits-{}", std::process::id());
/// # let client = lockwright::Client::open(&address).wait()?;
/// let entries = Inspector::open(&address)?.entries()?;
/// for wait in waits(&entries) {
///     println!("{} waits for {} ({})", wait.waiter, wait.blocker, wait.why);
/// }
/// # std::fs::remove_file(&address["shm:".len()..])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn waits(entries: &[Entry]) -> Vec<Wait> {
    waits_among(entries, usize::MAX)
}

/// The same, where a listing may be long: of each lock at most so many waiters, and of each of them at most so many who are in its way.
/// What it takes grows with the entries, and not with their square. What is left out is not marked.
///
/// ```
/// # use lockwright::inspect::waits_among;
/// assert!(waits_among(&[], 64).is_empty());
/// ```
pub fn waits_among(entries: &[Entry], most: usize) -> Vec<Wait> {
    let mut ancestors = Ancestors::of_this_host();
    Graph::of(entries, most, |entry| ancestors.of(entry)).waits()
}

/// How much older a lock must seem than its holder's wait not to be part of it: servers of a cluster are asked one after the other.
const SLACK: Duration = Duration::from_millis(100);

/// The entries and what each of them waits for, by their places.
#[derive(Debug)]
struct Graph<'a> {
    entries: &'a [Entry],
    /// Per entry: all that must move on before it does; of a semaphore's waiter, enough of them.
    next: Vec<Vec<usize>>,
    /// Per entry, if it waits for permits: how many may stay where they are.
    spare: HashMap<usize, u64>,
    /// Of `next`, what is a wait to be shown, in order.
    shown: Vec<(usize, usize)>,
}

/// The entries of one lock.
#[derive(Debug, Default)]
struct OfLock {
    held: Vec<usize>,
    retained: Vec<usize>,
    /// Those who have waited longest first.
    waiting: Vec<usize>,
}

/// A thread, if it is known.
type Thread<'a> = (&'a str, u32, u32);

fn thread(entry: &Entry) -> Option<Thread<'_>> {
    Some((&entry.host, entry.pid, entry.thread?))
}

impl<'a> Graph<'a> {
    fn of(entries: &'a [Entry], most: usize, mut ancestors: impl FnMut(&Entry) -> Vec<u32>) -> Self {
        let mut waiting: HashMap<Thread<'_>, Vec<usize>> = HashMap::new();
        let mut held: HashMap<(&str, u32), Vec<usize>> = HashMap::new();
        for (at, entry) in entries.iter().enumerate() {
            match entry.state {
                EntryState::Waiting => {
                    thread(entry).into_iter().for_each(|thread| waiting.entry(thread).or_default().push(at));
                }
                EntryState::Held => held.entry((&entry.host, held_for(entry))).or_default().push(at),
                EntryState::Retained => {}
            }
        }
        let locks =
            locks(entries, most, |at| thread(&entries[at]).is_some_and(|it| waiting.contains_key(&it)));
        let next = vec![Vec::new(); entries.len()];
        let mut graph = Self { entries, next, spare: HashMap::new(), shown: Vec::new() };
        let (mut begun, mut above) = (HashMap::new(), Vec::new());
        for (at, waiter) in entries.iter().enumerate().filter(|(_, entry)| entry.state == EntryState::Waiting)
        {
            let lock = &locks[&(&waiter.name, waiter.kind())];
            let begun: &mut usize = begun.entry((&waiter.name, waiter.kind())).or_default();
            *begun += 1;
            if *begun > most {
                continue;
            }
            graph.add_waiter(at, lock, most);
            for pid in ancestors(waiter) {
                let holders = held.get(&(&*waiter.host, pid)).into_iter().flatten().take(most);
                let others = holders.filter(|holder| entries[**holder].pid != waiter.pid);
                above.extend(others.map(|holder| (*holder, at)));
            }
        }
        for (at, holder) in entries.iter().enumerate().filter(|(_, entry)| entry.state == EntryState::Held) {
            let waits = thread(holder).and_then(|thread| waiting.get(&thread)).into_iter().flatten();
            // A thread that got this one later does not wait for the other any more: they were not read at one moment.
            let before = waits.filter(|wait| holder.age + SLACK >= entries[**wait].age);
            graph.next[at].extend(before);
        }
        for (holder, waiter) in above {
            graph.next[holder].push(waiter);
            graph.shown.push((holder, waiter));
        }
        graph
    }

    /// Notes whom a waiter waits for.
    fn add_waiter(&mut self, at: usize, lock: &OfLock, most: usize) {
        let Self { entries, next, spare, shown } = self;
        let waiter = &entries[at];
        let in_the_way = |others: &[usize]| -> Vec<usize> {
            let others = others.iter().take(most).copied();
            others
                .filter(|other| conflict(waiter, &entries[*other]) && !is_own(waiter, &entries[*other]))
                .collect()
        };
        let mut blockers = in_the_way(&lock.held);
        blockers.extend(in_the_way(&lock.retained));
        if blockers.is_empty() && lock.held.len().max(lock.retained.len()) <= most {
            blockers = in_the_way(&lock.waiting);
            blockers.retain(|other| entries[*other].age > waiter.age);
        } else if let Some(wanted) = waiter.permits {
            spare.insert(at, wanted.limit.saturating_sub(wanted.held));
        }
        shown.extend(blockers.iter().map(|blocker| (at, *blocker)));
        next[at] = blockers;
    }

    /// What never moves on.
    fn stuck(&self) -> Vec<bool> {
        let Self { entries, next, spare, .. } = self;
        let mut behind = vec![Vec::new(); entries.len()];
        for (at, next) in next.iter().enumerate() {
            next.iter().for_each(|other| behind[*other].push(at));
        }
        // What has still to move on before each does: so many of them, or, of permits, those that they hold.
        let weight = |waiter: usize, blocker: usize| {
            let permits = entries[blocker].permits.filter(|_| spare.contains_key(&waiter));
            permits.map_or(1, |permits| permits.held)
        };
        let mut left: Vec<u64> = next
            .iter()
            .enumerate()
            .map(|(at, next)| next.iter().fold(0, |sum: u64, other| sum.saturating_add(weight(at, *other))))
            .collect();
        let moves_anyway =
            |entry: &Entry| entry.changing || !entry.alive || entry.state == EntryState::Retained;
        let enough = |at: usize| spare.get(&at).copied().unwrap_or(0);
        let mut stuck = vec![true; entries.len()];
        let mut moving: Vec<_> =
            (0..entries.len()).filter(|at| moves_anyway(&entries[*at]) || left[*at] <= enough(*at)).collect();
        moving.iter().for_each(|at| stuck[*at] = false);
        while let Some(at) = moving.pop() {
            for other in &behind[at] {
                left[*other] = left[*other].saturating_sub(weight(*other, at));
                if stuck[*other] && left[*other] <= enough(*other) {
                    stuck[*other] = false;
                    moving.push(*other);
                }
            }
        }
        stuck
    }

    /// Which circle each entry is in: those of one number can reach each other. What is not stuck is in none.
    fn circles(&self) -> Vec<Option<usize>> {
        let stuck = self.stuck();
        let mut before = vec![Vec::new(); self.entries.len()];
        for (at, next) in self.next.iter().enumerate().filter(|(at, _)| stuck[*at]) {
            next.iter().filter(|other| stuck[**other]).for_each(|other| before[*other].push(at));
        }
        // Twice depth first (Kosaraju): forwards for the order in which entries are left, backwards from the last of them.
        let mut order = Vec::new();
        let mut seen: Vec<bool> = stuck.iter().map(|stuck| !stuck).collect();
        for from in 0..self.entries.len() {
            let mut path = Vec::new();
            if !std::mem::replace(&mut seen[from], true) {
                path.push((from, 0));
            }
            while let Some((at, tried)) = path.last_mut() {
                match self.next[*at].get(*tried).copied() {
                    Some(other) => {
                        *tried += 1;
                        if !std::mem::replace(&mut seen[other], true) {
                            path.push((other, 0));
                        }
                    }
                    None => {
                        order.push(*at);
                        path.pop();
                    }
                }
            }
        }
        let mut circles = vec![None; self.entries.len()];
        for from in order.into_iter().rev() {
            let mut left = vec![from];
            while let Some(at) = left.pop() {
                if circles[at].is_none() {
                    circles[at] = Some(from);
                    left.extend(&before[at]);
                }
            }
        }
        circles
    }

    fn waits(&self) -> Vec<Wait> {
        let circles = self.circles();
        let wait = |(at, other): &(usize, usize)| {
            let (waiter, blocker) = (&self.entries[*at], &self.entries[*other]);
            let why = match (waiter.state, blocker.state) {
                (EntryState::Held, _) => format!("has {}, runs it", lock(waiter)),
                (_, EntryState::Retained) => format!("{}, retained", lock(waiter)),
                _ => lock(waiter),
            };
            let deadlocked = circles[*at].is_some() && circles[*at] == circles[*other];
            Wait { waiter: Process::of(waiter), blocker: Process::of(blocker), why, deadlocked }
        };
        self.shown.iter().map(wait).collect()
    }
}

/// The entries of each lock. Of one that has more than `most` holders, those that `waits` say something of come first.
fn locks(
    entries: &[Entry],
    most: usize,
    waits: impl Fn(usize) -> bool,
) -> HashMap<(&LockName, Kind), OfLock> {
    let mut locks: HashMap<_, OfLock> = HashMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let lock = locks.entry((&entry.name, entry.kind())).or_default();
        match entry.state {
            EntryState::Held => &mut lock.held,
            EntryState::Retained => &mut lock.retained,
            EntryState::Waiting => &mut lock.waiting,
        }
        .push(at);
    }
    for lock in locks.values_mut() {
        lock.waiting.sort_by_key(|at| std::cmp::Reverse(entries[*at].age));
        if lock.held.len() > most {
            lock.held.sort_by_key(|at| !waits(*at));
        }
    }
    locks
}

/// Whether `held` is what the waiter holds already, shared, and wants for itself alone; as far as that can be told.
fn is_own(waiter: &Entry, held: &Entry) -> bool {
    let of = |entry: &Entry| (entry.pid, entry.thread, entry.range.clone());
    waiter.upgrades && held.state == EntryState::Held && waiter.host == held.host && of(waiter) == of(held)
}

/// Whether two entries of one lock cannot hold what they want at a time.
fn conflict(one: &Entry, two: &Entry) -> bool {
    let overlap = match (&one.range, &two.range) {
        (Some(one), Some(two)) => one.start < two.end && two.start < one.end,
        _ => true,
    };
    !std::ptr::eq(one, two) && overlap && (one.permits.is_some() || !(one.shared && two.shared))
}

fn lock(entry: &Entry) -> String {
    match (&entry.range, entry.permits) {
        (Some(range), _) => format!("{} {}..{}", entry.name, range.start, range.end),
        (None, Some(permits)) => format!("{} {} of {}", entry.name, permits.held, permits.limit),
        (None, None) => entry.name.to_string(),
    }
}

/// For which process a lock is held: a `run` in the background holds it for another one.
fn held_for(entry: &Entry) -> u32 {
    let other = entry.program.strip_prefix("run --for ");
    other.and_then(|pid| pid.parse().ok()).unwrap_or(entry.pid)
}

/// Which processes started which, on this host.
#[derive(Debug)]
struct Ancestors {
    host: String,
    parents: BTreeMap<u32, Option<u32>>,
}

/// Processes whose parents are asked for, and generations.
const ASKED: usize = 4096;
const GENERATIONS: usize = 64;

impl Ancestors {
    fn of_this_host() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { host: host.trim().to_owned(), parents: BTreeMap::new() }
    }

    /// An entry's process, and those that it was started by, directly or not; none if it is not of this host.
    fn of(&mut self, entry: &Entry) -> Vec<u32> {
        if entry.host != self.host || self.parents.len() >= ASKED {
            return Vec::new();
        }
        let next = |pid: &u32| {
            let known = self.parents.get(pid).copied();
            known.unwrap_or_else(|| {
                let parent = parent(*pid);
                self.parents.insert(*pid, parent);
                parent
            })
        };
        std::iter::successors(Some(entry.pid), next).take(GENERATIONS).collect()
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_ascii_whitespace().nth(1)?.parse().ok()
}
#[cfg(test)]
mod tests;
