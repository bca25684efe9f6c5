//! parking_lot's mutex: what a lock costs that only the threads of one process share.

use super::{Locker, Mode, Offers, Peer};
use anyhow::{Context, Result};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

type Locks = Arc<Mutex<HashMap<String, Arc<Mutex<()>>>>>;

#[derive(Debug, Default)]
pub(super) struct Memory(Locks);

impl Peer for Memory {
    fn name(&self) -> &'static str {
        "parking_lot"
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, ..Offers::default() }
    }

    /// No other process finds it.
    fn address(&self) -> String {
        String::new()
    }

    fn lets_go_after(&self) -> Option<Duration> {
        None
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        Ok(Box::new(Client { all: Arc::clone(&self.0), known: HashMap::new(), held: Vec::new() }))
    }
}

struct Client {
    all: Locks,
    known: HashMap<String, Arc<Mutex<()>>>,
    /// Two at most: found without hashing.
    held: Vec<ArcMutexGuard<RawMutex, ()>>,
}

impl Locker for Client {
    fn lock(&mut self, name: &str, _: Mode) -> Result<()> {
        if !self.known.contains_key(name) {
            let lock = Arc::clone(self.all.lock().entry(name.to_owned()).or_default());
            self.known.insert(name.to_owned(), lock);
        }
        self.held.push(self.known[name].lock_arc());
        Ok(())
    }

    /// Names are unlocked in the reverse order of that in which they were locked.
    fn unlock(&mut self, _: &str, _: Mode) -> Result<()> {
        self.held.pop().context("it is held").map(drop)
    }
}
