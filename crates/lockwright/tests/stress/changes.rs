//! What one process does under a lock: counts, looks that no other process does, and changes what it holds, which must let no
//! other in.

use lockwright::fenced::{FencedError, FencedFile};
use lockwright::{AnyGuard, ChangeError, Client, GuardState};
use lockwright_fabric::random::SplitMix;
use lockwright_sim::check::history::Log;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// For so long a broken upgrade waits.
const QUEUES: Duration = Duration::from_secs(1);

/// What was read, and with which token.
struct Counters {
    token: u64,
    numbers: BTreeMap<u64, u64>,
}

/// What is held: one guard, or the pieces that are left of it.
pub(crate) struct Held<'a> {
    client: &'a Client,
    lock: &'static str,
    pub(crate) guards: Vec<AnyGuard>,
    folder: &'a Path,
    log: &'a mut Log,
    dice: &'a mut SplitMix,
    served: bool,
    /// What was seen that must not be, if the lock was held to its end.
    pub(crate) broken: Option<String>,
}

impl<'a> Held<'a> {
    pub(crate) fn new(
        client: &'a Client,
        (lock, guard): (&'static str, AnyGuard),
        folder: &'a Path,
        log: &'a mut Log,
        dice: &'a mut SplitMix,
        served: bool,
    ) -> Self {
        Self { client, lock, guards: vec![guard], folder, log, dice, served, broken: None }
    }

    /// First unit and the one past the last of a piece.
    fn units(&self, at: usize) -> (u64, u64) {
        self.guards[at].range().map_or((0, 1), |range| (range.start, range.end))
    }

    fn path(&self, unit: u64) -> PathBuf {
        self.folder.join(format!("{}-{unit}", self.lock))
    }

    fn file(&self, unit: u64) -> FencedFile {
        FencedFile::open(self.path(unit)).unwrap()
    }

    fn saw(&mut self, what: &str) {
        self.broken = Some(format!("{}: {what}", self.lock));
    }

    /// Reads or counts, under one of the guards.
    pub(crate) fn work(&mut self, at: usize) {
        let (start, end) = self.units(at);
        for unit in start..end {
            if self.guards[at].is_shared() {
                let before = self.read(at);
                linger(self.dice);
                if self.has_changed(at, &before) {
                    self.saw("a reader saw a writer at work");
                }
            } else {
                self.count(at, unit);
            }
        }
    }

    /// Adds one.
    fn count(&mut self, at: usize, unit: u64) {
        let (token, mut file) = (self.guards[at].token(), self.file(unit));
        let next = match file.read_as(token) {
            Ok(content) => number(content) + 1,
            Err(error) => return self.fenced(at, error),
        };
        linger(self.dice);
        match file.write(token, next.to_string().as_bytes()) {
            Ok(()) => self.log.write(&format!("W {}-{unit} {next} {token}", self.lock)),
            Err(error) => self.fenced(at, error),
        }
    }

    /// On shared memory the guard knows at once; the client of a server may hear of it a little later.
    fn fenced(&mut self, at: usize, error: FencedError) {
        match error {
            FencedError::Stale(stale) => {
                let state = self.guards[at].state();
                assert!(self.served || state != GuardState::Held, "{stale}, yet the lock counts as held");
                self.log.write("F");
            }
            error => panic!("{error}"),
        }
    }

    /// Every counter of a piece, and the piece's token.
    fn read(&self, at: usize) -> Counters {
        let (start, end) = self.units(at);
        let numbers = (start..end).map(|unit| (unit, number(self.file(unit).read().unwrap()))).collect();
        Counters { token: self.guards[at].token(), numbers }
    }

    /// Whether somebody wrote since. A writer that was stopped past its lease can do so once more, with its old token: readers
    /// share, so none of them can show a token that would fence it off.
    fn has_changed(&self, at: usize, before: &Counters) -> bool {
        self.read(at).numbers.iter().any(|(unit, number)| {
            let file = std::fs::read_to_string(self.path(*unit)).unwrap();
            let writer = file.split_once('\n').map_or(0, |(token, _)| token.parse::<u64>().unwrap());
            before.numbers[unit] != *number && writer > before.token
        })
    }

    /// Changes what is held, a few times, and works under what is left.
    pub(crate) fn change_some(&mut self, lets_go: bool) {
        for _ in 0..self.dice.below(4) {
            let at = self.dice.below(self.guards.len() as u64) as usize;
            let before = self.read(at);
            let went_well = match (self.dice.below(3), self.guards[at].is_shared()) {
                (0, _) if self.guards[at].range().is_some_and(|range| range.end - range.start > 1) => {
                    // No counting: what is kept has the token that has counted there.
                    self.give_back_part(at).map(|()| false)
                }
                (_, true) => self.upgrade(at, lets_go).map(|()| true),
                (_, false) => self.downgrade(at).map(|()| true),
            };
            match went_well {
                Ok(works) => {
                    self.unchanged(at, &before);
                    if works {
                        self.work(at);
                    }
                }
                // Nothing has changed, and it goes on as it was.
                Err(ChangeError::Busy | ChangeError::TimedOut | ChangeError::WouldDeadlock) => {
                    assert!(self.guards[at].is_shared());
                    self.unchanged(at, &before);
                }
                Err(ChangeError::Lost { .. }) => return,
                Err(error) => panic!("{}: {error}", self.lock),
            }
        }
    }

    /// Nobody wrote, while a lock was changed, what it still covers.
    fn unchanged(&mut self, at: usize, before: &Counters) {
        if self.has_changed(at, before) {
            self.saw("another wrote while the lock was changed");
        }
    }

    fn upgrade(&mut self, at: usize, lets_go: bool) -> Result<(), ChangeError> {
        let (start, _) = self.units(at);
        if lets_go {
            self.let_go(at)?;
        } else {
            // With several pieces, two can wait for each other, as with any two locks each.
            let may_wait = self.guards.len() == 1;
            let guard = &mut self.guards[at];
            match self.dice.below(6) {
                0 => guard.try_upgrade().wait()?,
                1 => guard.upgrade_timeout(Duration::from_micros(self.dice.below(5_000))).wait()?,
                2 => {
                    // Given up, sometimes before the server has heard of it, sometimes after it was granted.
                    let ended = begin(pin!(guard.upgrade()));
                    linger(self.dice);
                    ended.unwrap_or(Err(ChangeError::TimedOut))?;
                }
                _ if may_wait => guard.upgrade().wait()?,
                _ => guard.upgrade_timeout(Duration::from_millis(20)).wait()?,
            }
        }
        self.log.write(&format!("X {start} {}", self.guards[at].token()));
        Ok(())
    }

    /// The broken upgrade: queues again behind the others, perhaps behind a waiter for another piece of the same range, which
    /// only a timeout ends.
    fn let_go(&mut self, at: usize) -> Result<(), ChangeError> {
        let guard = self.guards.swap_remove(at);
        let (token, range) = (guard.token(), guard.range());
        drop(guard);
        let again = match (self.lock, range) {
            (_, Some(range)) => {
                self.client.range_lock("range").map(|lock| lock.write_timeout(range, QUEUES).into_any())
            }
            (lock, None) => self.client.rwlock(lock).map(|lock| lock.write_timeout(QUEUES).into_any()),
        };
        let again = again.ok().and_then(|again| again.wait().ok());
        self.guards.push(again.ok_or(ChangeError::Lost { token })?);
        let last = self.guards.len() - 1;
        self.guards.swap(at, last);
        Ok(())
    }

    fn downgrade(&mut self, at: usize) -> Result<(), ChangeError> {
        let (start, _) = self.units(at);
        self.log.write(&format!("D {start}"));
        if self.dice.below(4) == 0 {
            // Nobody waits for it, and it happens all the same.
            begin(pin!(self.guards[at].downgrade())).unwrap_or(Ok(()))?;
            linger(self.dice);
        } else {
            self.guards[at].downgrade().wait()?;
        }
        self.log.write(&format!("d {start} {}", self.guards[at].token()));
        Ok(())
    }

    /// From either end, or from the middle.
    fn give_back_part(&mut self, at: usize) -> Result<(), ChangeError> {
        let (start, end) = self.units(at);
        let from = start + self.dice.below(end - start);
        let to = (from + 1 + self.dice.below(end - from)).min(end);
        if (from, to) == (start, end) {
            return Ok(());
        }
        self.log.write(&format!("V {from} {to}"));
        let rest = self.guards[at].unlock_part(from..to)?;
        self.guards.extend(rest);
        Ok(())
    }
}

/// Asks for a change once. What it says at once counts: the lock may be lost already, and then nothing has changed.
fn begin(change: Pin<&mut impl Future<Output = Result<(), ChangeError>>>) -> Option<Result<(), ChangeError>> {
    match change.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ended) => Some(ended),
        Poll::Pending => None,
    }
}

/// Mostly for no time at all; sometimes long enough to be killed or stopped in the middle.
fn linger(dice: &mut SplitMix) {
    if dice.below(50) == 0 {
        std::thread::sleep(Duration::from_micros(dice.below(20_000)));
    }
}

fn number(content: Vec<u8>) -> u64 {
    let content = String::from_utf8(content).unwrap();
    if content.is_empty() { 0 } else { content.parse().unwrap() }
}
