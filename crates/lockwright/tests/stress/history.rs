//! What everybody noted, merged by time and shown to the checkers.
//!
//! A line is a time, CLOCK_MONOTONIC in nanoseconds, and what happened then:
//!
//! | line | means |
//! |---|---|
//! | `G LOCK MODE START END TOKEN` | the process was granted this: noted after it was |
//! | `R` | it is about to give it back |
//! | `U held`, `U lost` | it has, and was told whether it was held until then |
//! | `F` | its token was refused |
//! | `W COUNTER NUMBER TOKEN` | it wrote a counter |
//! | `K PID`, `S PID` | the parent is about to kill or stop that process |
//! | `C PID` | the parent has let it go on |
//!
//! So the lock was held from `G` to `R`, if it was not lost. When a lost one went away nobody knows, so those are left
//! out, but for their tokens; likewise what a process held that was killed after it had been stopped.

use super::{logs, now_ns};
use lockwright::fabric::PeerId;
use lockwright::fabric::observe::{Claim, Mode, Observation};
use lockwright::locks::case::Checks;
use lockwright_sim::check::Watch;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// A file that one process writes.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(folder: &Path, name: &str) -> Self {
        Self(OpenOptions::new().create(true).append(true).open(folder.join(format!("log-{name}"))).unwrap())
    }

    /// One line, with the time, in one call: a process that is killed leaves a whole line or none.
    pub(crate) fn write(&mut self, what: &str) {
        self.0.write_all(format!("{} {what}\n", now_ns()).as_bytes()).unwrap();
    }
}

/// A lock that somebody held.
struct Hold {
    client: PeerId,
    claim: Claim,
    token: u64,
    from: u64,
    /// `None`: nobody knows.
    to: Option<u64>,
}

#[derive(Default)]
pub(crate) struct History {
    holds: Vec<Hold>,
    fenced: usize,
    lost: usize,
}

/// What the parent did to a process, and when.
#[derive(Default)]
struct Fate {
    /// From when to when it may have slept. A stop is noted before it is sent, so the process still runs at first.
    stopped: Vec<(u64, u64)>,
    killed: Option<u64>,
}

impl History {
    pub(crate) fn read(folder: &Path) -> Self {
        let mut fates: HashMap<String, Fate> = HashMap::new();
        let (parent, children): (Vec<_>, Vec<_>) = logs(folder).partition(|(name, _)| name == "parent");
        for line in parent.iter().flat_map(|(_, log)| log.lines()) {
            let words: Vec<_> = line.split(' ').collect();
            let (time, fate) = (words[0].parse().unwrap(), fates.entry(words[2].to_owned()).or_default());
            match words[1] {
                "K" => fate.killed = Some(time),
                "S" => fate.stopped.push((time, u64::MAX)),
                _ => fate.stopped.last_mut().expect("only a stopped one goes on").1 = time,
            }
        }
        let mut history = Self::default();
        for (index, (pid, log)) in children.iter().enumerate() {
            let fate = fates.remove(pid).unwrap_or_default();
            history.add(PeerId::client(index), log, &fate);
        }
        history
    }

    fn add(&mut self, client: PeerId, log: &str, fate: &Fate) {
        let mut open: Option<(Hold, bool)> = None;
        for line in log.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let time: u64 = words[0].parse().unwrap();
            match (words[1], open.take()) {
                ("G", None) => {
                    let claim = claim(words[2], words[3], words[4], words[5]);
                    let token = words[6].parse().unwrap();
                    open = Some((Hold { client, claim, token, from: time, to: None }, false));
                }
                ("R", Some((hold, fenced))) => open = Some((Hold { to: Some(time), ..hold }, fenced)),
                ("F", Some((hold, _))) => {
                    self.fenced += 1;
                    open = Some((hold, true));
                }
                ("U", Some((hold, fenced))) => {
                    let lost = words[2] == "lost";
                    assert!(lost || !fenced, "{line}: a token was refused, and the lock held until its end");
                    self.lost += usize::from(lost);
                    self.holds.push(Hold { to: hold.to.filter(|_| !lost), ..hold });
                }
                (_, still) => open = still,
            }
        }
        // Killed in the middle. If it was stopped before, it may have lost the lock in its sleep.
        if let Some((hold, _)) = open {
            // The kill is noted before it is sent: what was granted in between ended as it began.
            let (from, end) = (hold.from, hold.to.or(fate.killed.map(|killed| killed.max(hold.from))));
            let asleep = |(stop, on): &(u64, u64)| end.is_none_or(|end| *stop <= end) && from <= *on;
            let slept = end.is_none() || fate.stopped.iter().any(asleep);
            self.holds.push(Hold { to: end.filter(|_| !slept), ..hold });
        }
    }

    pub(crate) fn summary(&self) -> String {
        let of = |lock| self.holds.iter().filter(|hold| hold.claim.lock == lock).count();
        let [mutex, rwlock, range] = [0, 1, 2].map(of);
        format!(
            "{mutex} grants of the mutex, {rwlock} of the reader-writer lock, {range} of ranges, {} of them lost, \
             {} writes fenced off",
            self.lost, self.fenced
        )
    }

    /// Whether locks of every kind were granted and given back, so that there was something to check.
    pub(crate) fn has_all_kinds(&self) -> bool {
        (0..3).all(|lock| self.holds.iter().any(|hold| hold.claim.lock == lock && hold.to.is_some()))
    }

    /// Shows everything to the checkers, in order of time.
    pub(crate) fn check(mut self) {
        let mut events = Vec::new();
        for hold in &self.holds {
            if let Some(to) = hold.to {
                events.push((hold.from, hold.client, Observation::Granted(hold.claim, Some(hold.token))));
                events.push((to, hold.client, Observation::Releasing(hold.claim)));
            }
        }
        events.sort_by_key(|(time, ..)| *time);
        let mut watch = Watch::new(Checks { finish: false, quiet: false, tokens: true, bypass: None });
        for (time, client, what) in events {
            if let Err(violation) = watch.on(client, what) {
                panic!("at {time}: {violation}");
            }
        }
        self.tokens_are_unique();
    }

    /// Also of those that were lost: no two writers of one lock ever have the same token.
    fn tokens_are_unique(&mut self) {
        self.holds.retain(|hold| hold.claim.mode == Mode::Exclusive);
        self.holds.sort_by_key(|hold| (hold.claim.lock, hold.token));
        for pair in self.holds.windows(2) {
            let same = pair[0].token == pair[1].token && pair[0].claim.conflicts(&pair[1].claim);
            assert!(!same, "two writers of {} had token {}", pair[0].claim, pair[0].token);
        }
    }
}

fn claim(lock: &str, mode: &str, start: &str, end: &str) -> Claim {
    let lock = match lock {
        "mutex" => 0,
        "rwlock" => 1,
        _ => 2,
    };
    let mode = if mode == "s" { Mode::Shared } else { Mode::Exclusive };
    Claim { lock, mode, start: start.parse().unwrap(), end: end.parse().unwrap() }
}
