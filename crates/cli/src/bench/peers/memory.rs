//! parking_lot's mutex and reader-writer lock: what a lock costs that only the threads of one process share.

use super::workload::ZIPF;
use super::{Locker, Mode, Offers, Peer};
use anyhow::{Context, Result};
use parking_lot::{
    ArcMutexGuard, ArcRwLockReadGuard, ArcRwLockWriteGuard, Mutex, RawMutex, RawRwLock, RwLock,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Locks by name.
type Named<T> = HashMap<String, Arc<T>>;

#[derive(Debug, Default)]
pub(super) struct Memory {
    mutexes: Arc<Mutex<Named<Mutex<()>>>>,
    rwlocks: Arc<Mutex<Named<RwLock<()>>>>,
}

impl Peer for Memory {
    fn name(&self) -> &'static str {
        "parking_lot"
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, readers: true, ranges: false }
    }

    /// No other process finds it.
    fn address(&self) -> String {
        String::new()
    }

    fn lets_go_after(&self) -> Option<Duration> {
        None
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        let all = Self { mutexes: Arc::clone(&self.mutexes), rwlocks: Arc::clone(&self.rwlocks) };
        Ok(Box::new(Client { all, mutexes: HashMap::new(), rwlocks: HashMap::new(), held: Vec::new() }))
    }
}

/// What is held, as long as this is kept.
#[expect(dead_code, reason = "dropping the guard is all that is done with it")]
enum Held {
    Mutex(ArcMutexGuard<RawMutex, ()>),
    Read(ArcRwLockReadGuard<RawRwLock, ()>),
    Write(ArcRwLockWriteGuard<RawRwLock, ()>),
}

struct Client {
    all: Memory,
    mutexes: Named<Mutex<()>>,
    rwlocks: Named<RwLock<()>>,
    /// Two at most: found without hashing.
    held: Vec<Held>,
}

/// The lock called `name`, from those that this client knows, or from all.
fn find<'a, T: Default>(known: &'a mut Named<T>, all: &Mutex<Named<T>>, name: &str) -> &'a Arc<T> {
    if !known.contains_key(name) {
        let lock = Arc::clone(all.lock().entry(name.to_owned()).or_default());
        known.insert(name.to_owned(), lock);
    }
    &known[name]
}

impl Locker for Client {
    fn lock(&mut self, name: &str, mode: Mode) -> Result<()> {
        let held = if mode == Mode::Shared || name.starts_with(ZIPF) {
            let lock = find(&mut self.rwlocks, &self.all.rwlocks, name);
            match mode {
                Mode::Shared => Held::Read(lock.read_arc()),
                Mode::Exclusive => Held::Write(lock.write_arc()),
            }
        } else {
            Held::Mutex(find(&mut self.mutexes, &self.all.mutexes, name).lock_arc())
        };
        self.held.push(held);
        Ok(())
    }

    /// Names are unlocked in the reverse order of that in which they were locked.
    fn unlock(&mut self, _: &str, _: Mode) -> Result<()> {
        self.held.pop().context("it is held").map(drop)
    }
}
