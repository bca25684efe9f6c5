//! Lockwright's own: a server as `lockwright serve` starts it, with locks that stay with their client and with locks that do not;
//! and shared memory.

use super::process::{Daemon, Folder, free_port, quiet};
use super::{Locker, Peer};
use anyhow::Result;
use lockwright::{Client, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// What they are called in the table.
pub(super) const RETAINED: &str = "lockwright, tcp";
pub(super) const ASKED: &str = "lockwright, tcp, retain=off";
const SHARED_MEMORY: &str = "lockwright, shm";

struct Own {
    name: &'static str,
    address: String,
    retain: bool,
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
    let served = |name, retain| Own {
        name,
        address: format!("tcp://127.0.0.1:{port}"),
        retain,
        _daemon: Some(Arc::clone(&daemon)),
        _folder: None,
    };
    let folder = Folder::new("shm")?;
    let address = format!("shm:{}", folder.0.join("space").display());
    let local = Own { name: SHARED_MEMORY, address, retain: false, _daemon: None, _folder: Some(folder) };
    Ok(vec![Box::new(served(RETAINED, true)), Box::new(served(ASKED, false)), Box::new(local)])
}

impl Peer for Own {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_remote(&self) -> bool {
        self._daemon.is_some()
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        let client = Client::options().retain(self.retain).open(&self.address).wait()?;
        Ok(Box::new(Session { client, locks: HashMap::new(), guard: None }))
    }
}

struct Session {
    client: Client,
    locks: HashMap<String, Mutex>,
    guard: Option<MutexGuard>,
}

impl Locker for Session {
    fn lock(&mut self, name: &str) -> Result<()> {
        if !self.locks.contains_key(name) {
            self.locks.insert(name.to_owned(), self.client.mutex(name)?);
        }
        self.guard = Some(self.locks[name].lock().wait()?);
        Ok(())
    }

    fn unlock(&mut self, _: &str) -> Result<()> {
        self.guard = None;
        Ok(())
    }
}
