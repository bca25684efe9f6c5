//! parking_lot's mutex: what a lock costs that only the threads of one process share.

use super::{Locker, Peer};
use anyhow::Result;
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use std::collections::HashMap;
use std::sync::Arc;

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

    fn connect(&self) -> Result<Box<dyn Locker>> {
        Ok(Box::new(Client { all: Arc::clone(&self.0), known: HashMap::new(), guard: None }))
    }
}

struct Client {
    all: Locks,
    known: HashMap<String, Arc<Mutex<()>>>,
    guard: Option<ArcMutexGuard<RawMutex, ()>>,
}

impl Locker for Client {
    fn lock(&mut self, name: &str) -> Result<()> {
        if !self.known.contains_key(name) {
            let lock = Arc::clone(self.all.lock().entry(name.to_owned()).or_default());
            self.known.insert(name.to_owned(), lock);
        }
        self.guard = Some(self.known[name].lock_arc());
        Ok(())
    }

    fn unlock(&mut self, _: &str) -> Result<()> {
        self.guard = None;
        Ok(())
    }
}
