//! Histories of real processes: what each of them noted, merged by time and shown to the checkers.
//!
//! Every process has a [`Log`] in one folder, and so has the parent that kills and stops them, called `parent`. A line is a
//! time in nanoseconds, of a clock that all of them share, and what happened then:
//!
//! | line | means |
//! |---|---|
//! | `G LOCK MODE START END TOKEN` | the process was granted this, in mode `x` or `s`: noted after it was |
//! | `X START TOKEN` | what starts there, and was shared, is exclusive: noted after it was |
//! | `D START`, `d START TOKEN` | what starts there is about to be made shared; it is, and has this token |
//! | `V START END` | it is about to give back these units and keep the rest |
//! | `R` | it is about to give it back |
//! | `U held`, `U lost` | it has, and was told whether it was held until then |
//! | `F` | its token was refused |
//! | `W COUNTER NUMBER TOKEN` | it wrote a counter |
//! | `K PID`, `S PID` | the parent is about to kill or stop the process whose log is called so |
//! | `C PID` | the parent has let it go on |
//!
//! So the lock was held from `G` to `R`, if it was not lost: shared up to `X` and exclusive from then on, exclusive up to `D`
//! and shared from then on, with no other holder in between. When a lost one ended is unknown, so those are left
//! out, but for their tokens; likewise what a process held that was killed after it had been stopped, and what it held between `D`
//! and a kill.
//!
//! Counters are there because a history can be merged wrongly and a counter cannot: under a lock, a number is read and the
//! next one written, so that two holders at once write the same.

use super::{Violation, Watch};
use crate::case::Checks;
use crate::check::Checker;
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::{Claim, Mode, Observation};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// What the files are called, before the name of their writer.
const PREFIX: &str = "log-";
/// The log of the process that kills and stops the others.
const PARENT: &str = "parent";

/// A file that one process writes.
#[derive(Debug)]
pub struct Log {
    file: File,
    now_ns: fn() -> u64,
}

impl Log {
    /// The log called `name`, with times of a clock that all processes share.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(folder: &Path, name: &str, now_ns: fn() -> u64) -> io::Result<Self> {
        let file =
            OpenOptions::new().create(true).append(true).open(folder.join(format!("{PREFIX}{name}")))?;
        Ok(Self { file, now_ns })
    }

    /// The log of the parent.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn of_parent(folder: &Path, now_ns: fn() -> u64) -> io::Result<Self> {
        Self::open(folder, PARENT, now_ns)
    }

    /// One line, with the time, in one call: a process that is killed leaves a whole line or none.
    ///
    /// # Panics
    /// If it cannot be written: a history with holes shows nothing.
    pub fn write(&mut self, what: &str) {
        let line = format!("{} {what}\n", (self.now_ns)());
        self.file.write_all(line.as_bytes()).expect("a log can be written");
    }
}

/// A lock that a client held.
#[derive(Clone, Copy, Debug)]
struct Hold {
    client: PeerId,
    claim: Claim,
    token: u64,
    /// The process was killed before it noted the new token, if there was one: it may have been about to ask.
    untold: bool,
    from: u64,
    /// `None`: unknown.
    to: Option<u64>,
}

/// What one process held from a grant to its end, through all changes.
#[derive(Debug)]
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
        let next = Hold { claim: Claim { mode, ..piece.claim }, token, untold: false, from: time, ..*piece };
        let before = Hold { to: Some(time), ..std::mem::replace(piece, next) };
        self.before.push(before);
    }

    /// These units are given back. What was one claim counts as three from its beginning, so that the pieces are no new
    /// grants.
    fn cut(&mut self, start: u64, end: u64, time: u64) {
        let at = self.pieces.iter().position(|piece| piece.claim.start <= start && end <= piece.claim.end);
        let whole = self.pieces.swap_remove(at.expect("only what is held is given back"));
        let part = |start, end, to| Hold { claim: Claim { start, end, ..whole.claim }, to, ..whole };
        self.before.push(part(start, end, Some(time)));
        let kept = [part(whole.claim.start, start, None), part(end, whole.claim.end, None)];
        self.pieces.extend(kept.into_iter().filter(|piece| piece.claim.start < piece.claim.end));
    }

    /// All holds; if `unknown`, without the time of their end.
    fn end(self, unknown: bool) -> impl Iterator<Item = Hold> {
        let holds = self.before.into_iter().chain(self.pieces);
        holds.map(move |hold| Hold { to: hold.to.filter(|_| !unknown), ..hold })
    }
}

/// What the parent did to a process, and when.
#[derive(Debug, Default)]
struct Process {
    /// From when to when it may have slept. A stop is noted before it is sent, so the process still runs at first.
    stopped: Vec<(u64, u64)>,
    killed: Option<u64>,
}

/// A counter that was written: its name, the number, and the token it was written with.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    counter: String,
    number: u64,
    token: u64,
}

/// What all clients noted.
///
/// ```
/// use lockwright_sim::check::history::History;
///
/// let one = "1 G stock x 0 1 7\n2 W count 1 7\n5 R\n6 U held\n";
/// let other = "3 G stock x 0 1 8\n4 R\n5 U held\n";
/// let history = History::of([("100", one), ("101", other)]).unwrap();
/// let violation = history.check().unwrap_err();
/// assert!(violation.to_string().starts_with("mutual exclusion"));
/// ```
#[derive(Debug, Default)]
pub struct History {
    /// By number in claims.
    locks: Vec<String>,
    numbers: BTreeMap<String, u64>,
    /// Of semaphores: claims are on permits.
    permits: bool,
    holds: Vec<Hold>,
    written: Vec<Written>,
    fenced: usize,
    lost: usize,
    changes: Changes,
}

/// How often held locks were changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// From shared to exclusive.
    pub upgrades: usize,
    /// From exclusive to shared.
    pub downgrades: usize,
    /// Given back in part.
    pub parts: usize,
}

impl History {
    /// Of semaphores, whose permits are counted: a claim on `start..end` is for `start` of the `end - 1` there are.
    pub fn of_semaphores() -> Self {
        Self { permits: true, ..Self::default() }
    }

    /// What the logs in `folder` say.
    ///
    /// # Errors
    /// As [`History::of`].
    ///
    /// # Panics
    /// As [`History::of`]; also if a log cannot be read.
    pub fn read(folder: &Path) -> Result<Self, Violation> {
        let mut logs = Vec::new();
        for file in fs::read_dir(folder).expect("there is a folder").flatten() {
            if let Some(name) = file.file_name().to_string_lossy().strip_prefix(PREFIX) {
                logs.push((name.to_owned(), fs::read_to_string(file.path()).expect("a log can be read")));
            }
        }
        Self::of(logs.iter().map(|(name, log)| (&**name, &**log)))
    }

    /// What these logs say, each with its name.
    ///
    /// # Errors
    /// If a process contradicts itself: its token was refused, and its lock held until the end.
    ///
    /// # Panics
    /// If a line is none.
    pub fn of<'a>(logs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Violation> {
        let (parent, children): (Vec<_>, Vec<_>) = logs.into_iter().partition(|(name, _)| *name == PARENT);
        let mut processes = BTreeMap::<&str, Process>::new();
        for line in parent.iter().flat_map(|(_, log)| log.lines()).map(Line::of) {
            let process = processes.entry(line.word(0)).or_default();
            match line.what {
                "K" => process.killed = Some(line.time),
                "S" => process.stopped.push((line.time, u64::MAX)),
                _ => process.stopped.last_mut().expect("only a stopped one goes on").1 = line.time,
            }
        }
        let mut history = Self::default();
        for (index, (name, log)) in children.into_iter().enumerate() {
            history.add(PeerId::client(index), log, &processes.remove(name).unwrap_or_default())?;
        }
        Ok(history)
    }

    fn add(&mut self, client: PeerId, log: &str, process: &Process) -> Result<(), Violation> {
        let mut open: Option<Chain> = None;
        for line in log.lines().map(Line::of) {
            match (line.what, open.as_mut()) {
                ("G", None) => {
                    let lock = self.lock(line.word(0));
                    let mode = if line.word(1) == "s" { Mode::Shared } else { Mode::Exclusive };
                    let claim = Claim { lock, mode, start: line.number(2), end: line.number(3) };
                    let (token, untold) = (line.number(4), false);
                    let hold = Hold { client, claim, token, untold, from: line.time, to: None };
                    let (before, pieces) = (Vec::new(), vec![hold]);
                    open = Some(Chain { from: line.time, before, pieces, fenced: false });
                }
                ("X", Some(chain)) => {
                    chain.change(line.number(0), Mode::Exclusive, line.number(1), line.time);
                    self.changes.upgrades += 1;
                }
                ("D", Some(chain)) => {
                    // Its token comes later. It is larger than that of everything before.
                    let start = line.number(0);
                    let token = chain.piece(start).token + 1;
                    chain.change(start, Mode::Shared, token, line.time);
                    chain.piece(start).untold = true;
                    self.changes.downgrades += 1;
                }
                ("d", Some(chain)) => {
                    // A server that was restarted meanwhile knows it by the old one.
                    let piece = chain.piece(line.number(0));
                    piece.token = piece.token.max(line.number(1));
                    piece.untold = false;
                }
                ("V", Some(chain)) => {
                    chain.cut(line.number(0), line.number(1), line.time);
                    self.changes.parts += 1;
                }
                ("R", Some(chain)) => chain.pieces.iter_mut().for_each(|piece| piece.to = Some(line.time)),
                ("F", Some(chain)) => {
                    self.fenced += 1;
                    chain.fenced = true;
                }
                ("U", Some(chain)) => {
                    let lost = line.word(0) == "lost";
                    if chain.fenced && !lost {
                        let what = "a token was refused, and the lock held until its end";
                        return Err(Violation::new(Checker::Tokens, format!("at {}: {what}", line.time)));
                    }
                    self.lost += usize::from(lost);
                    self.holds.extend(open.take().into_iter().flat_map(|chain| chain.end(lost)));
                }
                ("W", _) => {
                    let counter = line.word(0).to_owned();
                    self.written.push(Written { counter, number: line.number(1), token: line.number(2) });
                }
                _ => {}
            }
        }
        // Killed in the middle. If it was stopped before, it may have lost the lock in its sleep.
        if let Some(mut chain) = open {
            let (from, last) = (chain.from, chain.pieces.iter().map(|piece| piece.from).max().unwrap_or(0));
            // The kill is noted before it is sent: what was granted in between ended as it began.
            let killed = process.killed.map(|killed| killed.max(last));
            let end = chain.pieces.iter().find_map(|piece| piece.to).or(killed);
            let asleep = |(stop, on): &(u64, u64)| end.is_none_or(|end| *stop <= end) && from <= *on;
            let slept = end.is_none() || process.stopped.iter().any(asleep);
            chain.pieces.iter_mut().for_each(|piece| piece.to = end);
            self.holds.extend(chain.end(slept));
        }
        Ok(())
    }

    /// Adds what `client` held from one time to another, or to an unknown one: then only its token counts. Which lock it
    /// is in `claim` is filled in by its name.
    pub fn add_hold(
        &mut self,
        client: PeerId,
        lock: &str,
        claim: Claim,
        token: u64,
        (from, to): (u64, Option<u64>),
    ) {
        let claim = Claim { lock: self.lock(lock), ..claim };
        self.holds.push(Hold { client, claim, token, untold: false, from, to });
    }

    /// The number of a lock in claims.
    fn lock(&mut self, name: &str) -> u64 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.locks.len() as u64;
        self.locks.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// How often `lock` was held to an end that is known, so that there is something to check.
    pub fn held(&self, lock: &str) -> usize {
        let number = self.numbers.get(lock);
        self.holds.iter().filter(|hold| hold.to.is_some() && Some(&hold.claim.lock) == number).count()
    }

    /// How often held locks were changed.
    pub const fn changes(&self) -> Changes {
        self.changes
    }

    /// Shows everything to the checkers, in order of time.
    ///
    /// # Errors
    /// What a checker objects to.
    pub fn check(&self) -> Result<(), Violation> {
        let mut events = Vec::new();
        for hold in &self.holds {
            if let Some(to) = hold.to.filter(|_| !hold.untold) {
                events.push((hold.from, hold.client, Observation::Granted(hold.claim, Some(hold.token))));
                events.push((to, hold.client, Observation::Releasing(hold.claim)));
            }
        }
        events.sort_by_key(|(time, ..)| *time);
        // Permits that are out at once were granted in any order.
        let (permits, tokens) = (self.permits, !self.permits);
        let mut watch = Watch::new(Checks { finish: false, quiet: false, tokens, permits, bypass: None });
        for (time, client, what) in events {
            let seen = watch.on(client, what);
            seen.map_err(|Violation { checker, what }| {
                Violation::new(checker, format!("at {time}: {what} ({self})"))
            })?;
        }
        self.tokens_are_unique()
    }

    /// Also of those that were lost: no two writers of one lock ever have the same token.
    fn tokens_are_unique(&self) -> Result<(), Violation> {
        let mut writers: Vec<_> =
            self.holds.iter().filter(|hold| hold.claim.mode == Mode::Exclusive).collect();
        writers.sort_by_key(|hold| (hold.claim.lock, hold.token));
        for pair in writers.windows(2) {
            let (one, other) = (pair[0], pair[1]);
            if one.token == other.token && one.claim.conflicts(&other.claim) {
                let what = format!("two writers of {} had token {} ({self})", one.claim, one.token);
                return Err(Violation::new(Checker::Tokens, what));
            }
        }
        Ok(())
    }

    /// Looks at every counter, which `last` says the last number of: no number was written twice, and tokens rise with the
    /// numbers. Returns how many updates were not noted: a process that is killed between writing and noting leaves one.
    ///
    /// # Errors
    /// If an update was lost, or made with an old token.
    pub fn updates_missing(&self, mut last: impl FnMut(&str) -> u64) -> Result<u64, Violation> {
        let mut counters = BTreeMap::<&str, Vec<&Written>>::new();
        for written in &self.written {
            counters.entry(&written.counter).or_default().push(written);
        }
        let mut missing = 0;
        for (counter, mut written) in counters {
            written.sort();
            for pair in written.windows(2) {
                let (one, next) = (pair[0], pair[1]);
                if one.number == next.number {
                    let what = format!("{counter}: {} was written twice, and an update lost", one.number);
                    return Err(Violation::new(Checker::Exclusion, what));
                }
                if one.token >= next.token {
                    let what = format!("{counter}: {next:?} came after {one:?}, with no newer token");
                    return Err(Violation::new(Checker::Tokens, what));
                }
            }
            let (last, noted) = (last(counter), written.len() as u64);
            let gaps = last.checked_sub(noted).ok_or_else(|| {
                let what = format!("{counter} is {last} after {noted} updates");
                Violation::new(Checker::Exclusion, what)
            })?;
            missing += gaps;
        }
        Ok(missing)
    }
}

/// What there was to check, in one line.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut grants = vec![0_usize; self.locks.len()];
        self.holds.iter().for_each(|hold| grants[hold.claim.lock as usize] += 1);
        for (index, (lock, grants)) in self.locks.iter().zip(grants).enumerate() {
            write!(f, "L{index} is {lock}: {grants} grants; ")?;
        }
        let Changes { upgrades, downgrades, parts } = self.changes;
        write!(f, "{} of them lost, {} writes fenced off; ", self.lost, self.fenced)?;
        write!(f, "{upgrades} upgrades, {downgrades} downgrades, {parts} parts given back")
    }
}

/// A line, in words.
struct Line<'a> {
    line: &'a str,
    time: u64,
    what: &'a str,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let mut words = line.split(' ');
        let time = words.next().and_then(|time| time.parse().ok());
        let (Some(time), Some(what)) = (time, words.next()) else { panic!("no line of a history: {line:?}") };
        Self { line, time, what }
    }

    /// A word behind what happened.
    fn word(&self, index: usize) -> &'a str {
        let word = self.line.split(' ').nth(2 + index);
        word.unwrap_or_else(|| panic!("a line that ends too soon: {:?}", self.line))
    }

    fn number(&self, index: usize) -> u64 {
        let number = self.word(index).parse();
        number.unwrap_or_else(|_| panic!("no number where there should be one: {:?}", self.line))
    }
}

#[cfg(test)]
mod tests;
