//! One process: takes locks, changes them where it can, counts, and notes what it does.

use super::changes::Held;
use super::{LEASE, now_ns};
use lockwright::{Acquire, AnyGuard, Client, HandleError, LockError, UnlockError};
use lockwright_fabric::random::SplitMix;
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
    /// Whether it is one of a space that has no ranges.
    whole: bool,
}

impl Want {
    fn roll(dice: &mut SplitMix, whole: bool) -> Self {
        let shared = dice.below(3) == 0;
        match dice.below(3) {
            0 => Self { lock: "mutex", shared: false, start: 0, end: 1, whole },
            1 => Self { lock: "rwlock", shared, start: 0, end: 1, whole },
            _ if whole => Self { lock: "range", shared, start: 0, end: 1, whole },
            _ => {
                let start = dice.below(UNITS);
                let end = (start + 1 + dice.below(3)).min(UNITS);
                Self { lock: "range", shared, start, end, whole }
            }
        }
    }

    fn acquire(&self, client: &Client) -> Result<Acquire<AnyGuard>, HandleError> {
        Ok(match (self.lock, self.shared) {
            ("mutex", _) => client.mutex("mutex")?.lock().into_any(),
            ("rwlock", false) => client.rwlock("rwlock")?.write().into_any(),
            ("rwlock", true) => client.rwlock("rwlock")?.read().into_any(),
            (name, false) if self.whole => client.rwlock(name)?.write().into_any(),
            (name, true) if self.whole => client.rwlock(name)?.read().into_any(),
            (_, false) => client.range_lock("range")?.write(self.start..self.end).into_any(),
            (_, true) => client.range_lock("range")?.read(self.start..self.end).into_any(),
        })
    }

    /// Takes it, however often a server is away meanwhile; `None` if it is time to stop.
    fn take(&self, client: &Client, served: bool, folder: &Path) -> Option<AnyGuard> {
        loop {
            match self.acquire(client).map(Acquire::wait) {
                Ok(Ok(guard)) => return Some(guard),
                // Stopped past its lease time and again while it waited.
                Ok(Err(LockError::Evicted)) => {}
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

/// Works until it is told to stop: the parts of `task` are the space, the folder, the seed, and what it does wrong, if anything.
pub(crate) fn work(task: &str) {
    let parts: Vec<_> = task.split('\n').collect();
    let (space, folder) = (parts[0], Path::new(parts[1]));
    let lets_go = parts.get(3) == Some(&LETS_GO);
    let mut dice = SplitMix::new(parts[2].parse().unwrap());
    // Of a one-sided space of this host the server makes the file.
    let served = !space.starts_with("shm:") || space.contains("lent:");
    let whole = space.contains(WHOLE);
    // By way of a server, only its own spaces can.
    let changes = !served || (!space.contains("shm:") && !space.contains("lent:"));
    let client = open(space, served);
    let mut log = Log::open(folder, &std::process::id().to_string(), now_ns).unwrap();
    while !folder.join("stop").exists() {
        let want = Want::roll(&mut dice, whole);
        let Some(guard) = want.take(&client, served, folder) else { return };
        let Want { lock, shared, start, end, .. } = want;
        let mode = if shared { "s" } else { "x" };
        log.write(&format!("G {lock} {mode} {start} {end} {}", guard.token()));
        let mut held = Held::new(&client, (lock, guard), folder, &mut log, &mut dice, served);
        held.work(0);
        if changes {
            held.change_some(lets_go);
        }
        let Held { guards, broken, .. } = held;
        log.write("R");
        let outcome = guards.into_iter().map(|guard| guard.unlock().wait()).find(Result::is_err);
        match outcome.unwrap_or(Ok(())) {
            Ok(()) => {
                log.write("U held");
                assert!(broken.is_none() || lets_go, "{}", broken.unwrap_or_default());
            }
            Err(UnlockError::Lost { .. }) => log.write("U lost"),
            // The server went before it answered.
            Err(UnlockError::Disconnected(_)) if served => log.write("U lost"),
            Err(error) => panic!("{lock}: {error}"),
        }
    }
}

/// What the names of spaces without ranges begin with.
pub(crate) const WHOLE: &str = "lent:whole-";

/// A process that is told this unlocks and locks again instead of upgrading.
pub(crate) const LETS_GO: &str = "lets go";

/// The space; a server may be away for a while.
fn open(space: &str, served: bool) -> Client {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match Client::options().lease(LEASE).open(space).wait() {
            Ok(client) => return client,
            Err(error) => assert!(served && Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
