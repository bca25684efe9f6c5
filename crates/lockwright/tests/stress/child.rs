//! One process: takes locks, counts, and notes what it does.

use super::{Dice, LEASE, now_ns};
use lockwright::fabric::FabricError;
use lockwright::fenced::{FencedError, FencedFile};
use lockwright::{Acquire, Client, Guard, GuardState, HandleError, LockError, UnlockError};
use lockwright_sim::check::history::Log;
use std::path::Path;
use std::time::{Duration, Instant};

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

    fn acquire(&self, client: &Client) -> Result<Acquire, HandleError> {
        Ok(match (self.lock, self.shared) {
            ("mutex", _) => client.mutex("mutex")?.lock(),
            ("rwlock", false) => client.rwlock("rwlock")?.write(),
            ("rwlock", true) => client.rwlock("rwlock")?.read(),
            (_, false) => client.range_lock("range")?.write(self.start..self.end),
            (_, true) => client.range_lock("range")?.read(self.start..self.end),
        })
    }

    /// Takes it, however often a server is away meanwhile; `None` if it is time to stop.
    fn take(&self, client: &Client, served: bool, folder: &Path) -> Option<Guard> {
        loop {
            match self.acquire(client).map(Acquire::wait) {
                Ok(Ok(guard)) => return Some(guard),
                // Stopped past its lease time and again while it waited.
                Ok(Err(LockError::Space(FabricError::Expelled))) => {}
                Ok(Err(_)) | Err(_) if served => std::thread::sleep(Duration::from_millis(5)),
                Ok(Err(error)) => panic!("{}: {error}", self.lock),
                Err(error) => panic!("{}: {error}", self.lock),
            }
            if served && folder.join("stop").exists() {
                return None;
            }
        }
    }
}

/// Works until it is told to stop: the parts of `task` are the space, the folder and the seed.
pub(crate) fn work(task: &str) {
    let parts: Vec<_> = task.split('\n').collect();
    let (space, folder) = (parts[0], Path::new(parts[1]));
    let mut dice = Dice(parts[2].parse().unwrap());
    let served = !space.starts_with("shm:");
    let client = open(space, served);
    let mut log = Log::open(folder, &std::process::id().to_string(), now_ns).unwrap();
    while !folder.join("stop").exists() {
        let want = Want::roll(&mut dice);
        let Some(guard) = want.take(&client, served, folder) else { return };
        let Want { lock, shared, start, end } = want;
        let mode = if shared { "s" } else { "x" };
        log.write(&format!("G {lock} {mode} {start} {end} {}", guard.token()));
        let files = (start..end).map(|unit| format!("{lock}-{unit}"));
        let mut changed = false;
        for name in files {
            let mut file = FencedFile::open(folder.join(&name)).unwrap();
            if shared {
                changed |= reads_differ(&mut file, &mut dice);
            } else {
                count(&guard, &mut file, &name, &mut log, &mut dice, served);
            }
        }
        log.write("R");
        match guard.unlock().wait() {
            Ok(()) => {
                log.write("U held");
                assert!(!changed, "a reader saw a writer at work");
            }
            Err(UnlockError::Lost { .. }) => log.write("U lost"),
            // The server went before it answered.
            Err(UnlockError::Space(_)) if served => log.write("U lost"),
            Err(error) => panic!("{lock}: {error}"),
        }
    }
}

/// The space; a server may be away for a while.
fn open(space: &str, served: bool) -> Client {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match Client::options().lease(LEASE).open(space) {
            Ok(client) => return client,
            Err(error) => assert!(served && Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
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

/// Whether a counter changed while it was read: not while a reader holds its lock.
fn reads_differ(file: &mut FencedFile, dice: &mut Dice) -> bool {
    let first = number(file.read().unwrap());
    linger(dice);
    first != number(file.read().unwrap())
}

/// Adds one.
fn count(guard: &Guard, file: &mut FencedFile, name: &str, log: &mut Log, dice: &mut Dice, served: bool) {
    let token = guard.token();
    let next = match file.read_as(token) {
        Ok(content) => number(content) + 1,
        Err(error) => return fenced(guard, error, log, served),
    };
    linger(dice);
    match file.write(token, next.to_string().as_bytes()) {
        Ok(()) => log.write(&format!("W {name} {next} {token}")),
        Err(error) => fenced(guard, error, log, served),
    }
}

/// On shared memory the guard knows at once; the client of a server may hear of it a little later.
fn fenced(guard: &Guard, error: FencedError, log: &mut Log, served: bool) {
    match error {
        FencedError::Stale(stale) => {
            let state = guard.state();
            assert!(served || state != GuardState::Held, "{stale}, yet the lock counts as held");
            log.write("F");
        }
        error => panic!("{error}"),
    }
}
