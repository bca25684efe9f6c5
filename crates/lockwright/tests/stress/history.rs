//! What everybody noted, merged by time and shown to the checkers.
//!
//! A line is a time, CLOCK_MONOTONIC in nanoseconds, and what happened then:
//!
//! | line | means |
//! |---|---|
//! | `G LOCK MODE START END TOKEN` | the process was granted this: noted after it was |
//! | `X START TOKEN` | what starts there, and was shared, is exclusive: noted after it was |
//! | `D START`, `d START TOKEN` | what starts there is about to be made shared; it is, and has this token |
//! | `V START END` | it is about to give back these units and keep the rest |
//! | `R` | it is about to give it back |
//! | `U held`, `U lost` | it has, and was told whether it was held until then |
//! | `F` | its token was refused |
//! | `W COUNTER NUMBER TOKEN` | it wrote a counter |
//! | `K PID`, `S PID` | the parent is about to kill or stop that process |
//! | `C PID` | the parent has let it go on |
//!
//! So the lock was held from `G` to `R`, if it was not lost: shared up to `X` and exclusive from then on, exclusive up to `D` and
//! shared from then on, with nobody else in between. When a lost one went away nobody knows, so those are left
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
#[derive(Clone, Copy)]
struct Hold {
    client: PeerId,
    claim: Claim,
    token: u64,
    from: u64,
    /// `None`: nobody knows.
    to: Option<u64>,
}

/// What one process held from a grant to its end, through all changes.
struct Chain {
    from: u64,
    /// As it was before it was changed.
    before: Vec<Hold>,
    /// As it is: one, or the pieces that are left.
    pieces: Vec<Hold>,
    fenced: bool,
}

impl Chain {
    fn piece(&mut self, start: u64) -> &mut Hold {
        self.pieces.iter_mut().find(|piece| piece.claim.start == start).expect("only what is held is changed")
    }

    /// The piece that starts there is held in another mode from now on.
    fn change(&mut self, start: u64, mode: Mode, token: u64, time: u64) {
        let piece = self.piece(start);
        let next = Hold { claim: Claim { mode, ..piece.claim }, token, from: time, ..*piece };
        let before = Hold { to: Some(time), ..std::mem::replace(piece, next) };
        self.before.push(before);
    }

    /// These units are given back. What was one claim counts as three from its beginning, so that the pieces are no new grants.
    fn cut(&mut self, start: u64, end: u64, time: u64) {
        let at = self.pieces.iter().position(|piece| piece.claim.start <= start && end <= piece.claim.end);
        let whole = self.pieces.swap_remove(at.expect("only what is held is given back"));
        let part = |start, end, to| Hold { claim: Claim { start, end, ..whole.claim }, to, ..whole };
        self.before.push(part(start, end, Some(time)));
        let kept = [part(whole.claim.start, start, None), part(end, whole.claim.end, None)];
        self.pieces.extend(kept.into_iter().filter(|piece| piece.claim.start < piece.claim.end));
    }

    /// All holds; when they ended nobody knows, if `unknown`.
    fn end(self, unknown: bool) -> impl Iterator<Item = Hold> {
        let holds = self.before.into_iter().chain(self.pieces);
        holds.map(move |hold| Hold { to: hold.to.filter(|_| !unknown), ..hold })
    }
}

#[derive(Default)]
pub(crate) struct History {
    holds: Vec<Hold>,
    fenced: usize,
    lost: usize,
    /// Upgrades, downgrades and parts.
    changes: [usize; 3],
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
        let mut open: Option<Chain> = None;
        for line in log.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let time: u64 = words[0].parse().unwrap();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match (words[1], open.as_mut()) {
                ("G", None) => {
                    let claim = claim(words[2], words[3], words[4], words[5]);
                    let pieces = vec![Hold { client, claim, token: number(6), from: time, to: None }];
                    open = Some(Chain { from: time, before: Vec::new(), pieces, fenced: false });
                }
                ("X", Some(chain)) => {
                    chain.change(number(2), Mode::Exclusive, number(3), time);
                    self.changes[0] += 1;
                }
                ("D", Some(chain)) => {
                    // Its token comes later. It is larger than that of everything before.
                    let token = chain.piece(number(2)).token + 1;
                    chain.change(number(2), Mode::Shared, token, time);
                    self.changes[1] += 1;
                }
                ("d", Some(chain)) => {
                    // A server that was restarted meanwhile knows it by the old one.
                    let piece = chain.piece(number(2));
                    piece.token = piece.token.max(number(3));
                }
                ("V", Some(chain)) => {
                    chain.cut(number(2), number(3), time);
                    self.changes[2] += 1;
                }
                ("R", Some(chain)) => chain.pieces.iter_mut().for_each(|piece| piece.to = Some(time)),
                ("F", Some(chain)) => {
                    self.fenced += 1;
                    chain.fenced = true;
                }
                ("U", Some(chain)) => {
                    let lost = words[2] == "lost";
                    assert!(
                        lost || !chain.fenced,
                        "{line}: a token was refused, and the lock held until its end"
                    );
                    self.lost += usize::from(lost);
                    self.holds.extend(open.take().into_iter().flat_map(|chain| chain.end(lost)));
                }
                _ => {}
            }
        }
        // Killed in the middle. If it was stopped before, it may have lost the lock in its sleep.
        if let Some(mut chain) = open {
            let (from, last) = (chain.from, chain.pieces.iter().map(|piece| piece.from).max().unwrap_or(0));
            // The kill is noted before it is sent: what was granted in between ended as it began.
            let killed = fate.killed.map(|killed| killed.max(last));
            let end = chain.pieces.iter().find_map(|piece| piece.to).or(killed);
            let asleep = |(stop, on): &(u64, u64)| end.is_none_or(|end| *stop <= end) && from <= *on;
            let slept = end.is_none() || fate.stopped.iter().any(asleep);
            chain.pieces.iter_mut().for_each(|piece| piece.to = end);
            self.holds.extend(chain.end(slept));
        }
    }

    pub(crate) fn summary(&self) -> String {
        let of = |lock| self.holds.iter().filter(|hold| hold.claim.lock == lock).count();
        let [mutex, rwlock, range] = [0, 1, 2].map(of);
        let [upgrades, downgrades, parts] = self.changes;
        format!(
            "{mutex} grants of the mutex, {rwlock} of the reader-writer lock, {range} of ranges, {} of them lost, \
             {} writes fenced off; {upgrades} upgrades, {downgrades} downgrades, {parts} parts given back",
            self.lost, self.fenced
        )
    }

    /// Whether locks were changed in every way.
    #[allow(dead_code, reason = "not every space can")]
    pub(crate) fn has_all_changes(&self) -> bool {
        self.changes.iter().all(|times| *times > 0)
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
