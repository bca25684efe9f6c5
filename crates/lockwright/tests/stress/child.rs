//! One process: takes locks, counts, and notes what it does.

use super::history::Log;
use super::{Dice, LEASE};
use lockwright::fabric::FabricError;
use lockwright::fenced::{FencedError, FencedFile};
use lockwright::{Client, Guard, GuardState, LockError, UnlockError};
use std::path::Path;
use std::time::Duration;

/// Units of the range lock, each with a counter of its own.
const UNITS: u64 = 6;

/// What is locked, in the words of the history.
struct Want {
    lock: &'static str,
    shared: bool,
    start: u64,
    end: u64,
}

impl Want {
    fn roll(dice: &mut Dice) -> Self {
        let shared = dice.below(3) == 0;
        match dice.below(3) {
            0 => Self { lock: "mutex", shared: false, start: 0, end: 1 },
            1 => Self { lock: "rwlock", shared, start: 0, end: 1 },
            _ => {
                let start = dice.below(UNITS);
                let end = (start + 1 + dice.below(3)).min(UNITS);
                Self { lock: "range", shared, start, end }
            }
        }
    }

    fn take(&self, client: &Client) -> Guard {
        loop {
            let acquire = match (self.lock, self.shared) {
                ("mutex", _) => client.mutex("mutex").unwrap().lock(),
                ("rwlock", false) => client.rwlock("rwlock").unwrap().write(),
                ("rwlock", true) => client.rwlock("rwlock").unwrap().read(),
                (_, false) => client.range_lock("range").unwrap().write(self.start..self.end),
                (_, true) => client.range_lock("range").unwrap().read(self.start..self.end),
            };
            match acquire.wait() {
                Ok(guard) => return guard,
                // Stopped past its lease time and again while it waited.
                Err(LockError::Space(FabricError::Expelled)) => {}
                Err(error) => panic!("{}: {error}", self.lock),
            }
        }
    }
}

/// Works until it is told to stop: the parts of `task` are the space, the folder and the seed.
pub(crate) fn work(task: &str) {
    let parts: Vec<_> = task.split('\n').collect();
    let (space, folder) = (parts[0], Path::new(parts[1]));
    let mut dice = Dice(parts[2].parse().unwrap());
    let client = Client::options().lease(LEASE).open(space).unwrap();
    let mut log = Log::open(folder, &std::process::id().to_string());
    while !folder.join("stop").exists() {
        let want = Want::roll(&mut dice);
        let guard = want.take(&client);
        let Want { lock, shared, start, end } = want;
        let mode = if shared { "s" } else { "x" };
        log.write(&format!("G {lock} {mode} {start} {end} {}", guard.token()));
        let files = (start..end).map(|unit| format!("{lock}-{unit}"));
        for name in files {
            let mut file = FencedFile::open(folder.join(&name)).unwrap();
            if shared {
                read_twice(&guard, &mut file, &mut dice);
            } else {
                count(&guard, &mut file, &name, &mut log, &mut dice);
            }
        }
        log.write("R");
        match guard.unlock().wait() {
            Ok(()) => log.write("U held"),
            Err(UnlockError::Lost { .. }) => log.write("U lost"),
            Err(error) => panic!("{lock}: {error}"),
        }
    }
}

/// Mostly for no time at all; sometimes long enough to be killed or stopped in the middle.
fn linger(dice: &mut Dice) {
    if dice.below(50) == 0 {
        std::thread::sleep(Duration::from_micros(dice.below(20_000)));
    }
}

fn number(content: Vec<u8>) -> u64 {
    let content = String::from_utf8(content).unwrap();
    if content.is_empty() { 0 } else { content.parse().unwrap() }
}

/// Readers see a counter that nobody changes meanwhile.
fn read_twice(guard: &Guard, file: &mut FencedFile, dice: &mut Dice) {
    let first = number(file.read().unwrap());
    linger(dice);
    let second = number(file.read().unwrap());
    if guard.state() == GuardState::Held {
        assert_eq!(first, second, "a reader saw a writer at work");
    }
}

/// Adds one.
fn count(guard: &Guard, file: &mut FencedFile, name: &str, log: &mut Log, dice: &mut Dice) {
    let token = guard.token();
    let next = match file.read_as(token) {
        Ok(content) => number(content) + 1,
        Err(error) => return fenced(guard, error, log),
    };
    linger(dice);
    match file.write(token, next.to_string().as_bytes()) {
        Ok(()) => log.write(&format!("W {name} {next} {token}")),
        Err(error) => fenced(guard, error, log),
    }
}

fn fenced(guard: &Guard, error: FencedError, log: &mut Log) {
    match error {
        FencedError::Stale(stale) => {
            let state = guard.state();
            assert_ne!(state, GuardState::Held, "{stale}, yet the lock counts as held");
            log.write("F");
        }
        error => panic!("{error}"),
    }
}
