//! Lockwright's own: a server as `lockwright serve` starts it, with locks that stay with their client and with locks that do not;
//! and shared memory.

use super::process::{Daemon, Folder, free_port, quiet};
use super::workload::ZIPF;
use super::{Locker, Mode, Offers, Peer};
use anyhow::{Context, Result, bail};
use lockwright::{AnyGuard, Client, GuardState, LockSet, Mutex, RangeLock, RwLock, SetGuard};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What they are called in the table.
pub(super) const RETAINED: &str = "lockwright, tcp";
pub(super) const ASKED: &str = "lockwright, tcp, retain=off";
const SHARED_MEMORY: &str = "lockwright, shm";
/// Handles that a client keeps.
const HANDLES: usize = 4096;
/// What a server unless told otherwise keeps for a client that is silent, and what shared memory does.
const SILENT: Duration = Duration::from_secs(8);
const SILENT_HERE: Duration = Duration::from_secs(10);

struct Own {
    name: &'static str,
    address: String,
    /// What it needs as long as it is used.
    _daemon: Option<Arc<Daemon>>,
    _folder: Option<Folder>,
}

/// All of them.
pub(super) fn start() -> Result<Vec<Box<dyn Peer>>> {
    let (folder, port) = (Folder::new("serve")?, free_port()?);
    let mut command = quiet(&std::env::current_exe()?, None);
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--state"]);
    command.arg(folder.0.join("state"));
    let daemon = Arc::new(Daemon::start(command, folder, port)?);
    let served = |name| {
        let address = format!("tcp://127.0.0.1:{port}");
        Own { name, address, _daemon: Some(Arc::clone(&daemon)), _folder: None }
    };
    let folder = Folder::new("shm")?;
    let address = format!("shm:{}", folder.0.join("space").display());
    let local = Own { name: SHARED_MEMORY, address, _daemon: None, _folder: Some(folder) };
    Ok(vec![Box::new(served(RETAINED)), Box::new(served(ASKED)), Box::new(local)])
}

pub(super) fn at(name: &str, address: &str) -> Result<Box<dyn Peer>> {
    let Some(name) = [RETAINED, ASKED, SHARED_MEMORY].into_iter().find(|own| *own == name) else {
        bail!("{name} is no peer");
    };
    Ok(Box::new(Own { name, address: address.to_owned(), _daemon: None, _folder: None }))
}

impl Peer for Own {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_remote(&self) -> bool {
        self.address.starts_with("tcp:")
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, readers: true, ranges: true }
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn sees_ends(&self) -> bool {
        true
    }

    fn lets_go_after(&self) -> Option<Duration> {
        Some(if self.is_remote() { SILENT } else { SILENT_HERE })
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        let client = Client::options().retain(self.name == RETAINED).open(&self.address).wait()?;
        let ranges = client.range_lock("ranges")?;
        let (mutexes, rwlocks) = (HashMap::new(), HashMap::new());
        Ok(Box::new(Session { client, mutexes, rwlocks, ranges, guards: Vec::new(), range: None, set: None }))
    }
}

struct Session {
    client: Client,
    /// Most clients use a mutex; those that also read use the other.
    mutexes: HashMap<String, Mutex>,
    rwlocks: HashMap<String, RwLock>,
    ranges: RangeLock,
    /// Two at most: found without hashing.
    guards: Vec<AnyGuard>,
    range: Option<AnyGuard>,
    set: Option<SetGuard>,
}

impl Session {
    fn rwlock(&mut self, name: &str) -> Result<&RwLock> {
        if !self.rwlocks.contains_key(name) {
            if self.rwlocks.len() >= HANDLES {
                self.rwlocks.clear();
            }
            self.rwlocks.insert(name.to_owned(), self.client.rwlock(name)?);
        }
        Ok(&self.rwlocks[name])
    }

    fn mutex(&mut self, name: &str) -> Result<&Mutex> {
        if !self.mutexes.contains_key(name) {
            self.mutexes.insert(name.to_owned(), self.client.mutex(name)?);
        }
        Ok(&self.mutexes[name])
    }
}

impl Locker for Session {
    fn lock(&mut self, name: &str, mode: Mode) -> Result<()> {
        let guard = if mode == Mode::Shared || name.starts_with(ZIPF) {
            let lock = self.rwlock(name)?;
            if mode == Mode::Shared { lock.read().wait()?.into() } else { lock.write().wait()?.into() }
        } else {
            self.mutex(name)?.lock().wait()?.into()
        };
        self.guards.push(guard);
        Ok(())
    }

    /// Names are unlocked in the reverse order of that in which they were locked.
    fn unlock(&mut self, _: &str, _: Mode) -> Result<()> {
        self.guards.pop().context("it is held").map(drop)
    }

    fn lock_all(&mut self, names: &[String]) -> Result<()> {
        let mut set = LockSet::new();
        for name in names {
            set = set.lock(self.mutex(name)?);
        }
        self.set = Some(set.acquire().wait()?);
        Ok(())
    }

    fn unlock_all(&mut self, _: &[String]) -> Result<()> {
        self.set = None;
        Ok(())
    }

    fn lock_range(&mut self, range: &Range<u64>) -> Result<()> {
        self.range = Some(self.ranges.write(range.clone()).wait()?.into());
        Ok(())
    }

    fn unlock_range(&mut self, _: &Range<u64>) -> Result<()> {
        self.range = None;
        Ok(())
    }

    fn believes(&mut self, _: &str) -> bool {
        self.guards.last().is_some_and(|guard| guard.state() == GuardState::Held)
    }
}
