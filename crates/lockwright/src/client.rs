//! The client: one opened space, and handles for the locks in it.

use crate::error::{HandleError, OpenError};
use crate::home::{Home, Kind, mem::MemHome};
use crate::lock::core::Core;
use crate::lock::{Mutex, RangeLock, RwLock};
use crate::name::LockName;
use crate::progress::Progress;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// A client of one lock space. Cheap to clone; clones are the same client. `Send` and `Sync`.
///
/// ```
/// use lockwright::Client;
///
/// let client = Client::open("mem:")?; // "shm:" for all processes of this host
/// let guard = client.mutex("orders/42")?.lock().wait()?;
/// println!("alone, with token {}", guard.token());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    home: Arc<dyn Home>,
    progress: Arc<Progress>,
    /// Locks that somebody of this client has a handle for: one [`Core`] each.
    cores: std::sync::Mutex<HashMap<(LockName, Kind), Weak<Core>>>,
}

impl Client {
    /// Opens a space by its address, and makes it if it is not there.
    ///
    /// | address | space |
    /// |---|---|
    /// | `mem:` | a new one inside this process |
    ///
    /// # Errors
    /// If the address is none, or the space cannot be used.
    ///
    /// ```
    /// assert!(lockwright::Client::open("mem:").is_ok());
    /// ```
    pub fn open(address: &str) -> Result<Self, OpenError> {
        let home: Arc<dyn Home> = match address.split_once(':') {
            Some(("mem", "")) => Arc::new(MemHome::new()),
            _ => return Err(OpenError::Address(address.to_owned())),
        };
        Self::at(home, address)
    }

    fn at(home: Arc<dyn Home>, address: &str) -> Result<Self, OpenError> {
        let beating = Arc::clone(&home);
        let progress = Progress::start(move || beating.heartbeat())
            .map_err(|error| OpenError::Space { space: address.to_owned(), why: error.to_string() })?;
        let shared = Shared { home, progress: Arc::new(progress), cores: std::sync::Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn core(&self, name: impl AsRef<[u8]>, kind: Kind) -> Result<Arc<Core>, HandleError> {
        let name = LockName::new(name)?;
        let key = (name.clone(), kind);
        let Shared { home, progress, cores } = &*self.shared;
        let mut cores = cores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(core) = cores.get(&key).and_then(Weak::upgrade) {
            return Ok(core);
        }
        if cores.len() == cores.capacity() {
            cores.retain(|_, core| core.strong_count() > 0);
        }
        let id = home.bind(&name, kind)?;
        let core = Arc::new(Core { home: Arc::clone(home), progress: Arc::clone(progress), name, kind, id });
        cores.insert(key, Arc::downgrade(&core));
        Ok(core)
    }

    /// The mutex called `name`: up to 255 bytes, any but NUL.
    ///
    /// # Errors
    /// If the name cannot be one, or the space is full.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let lock = client.mutex("orders/42")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Result<Mutex, HandleError> {
        self.core(name, Kind::Keyed).map(Mutex::new)
    }

    /// The reader-writer lock called `name`. The [mutex](Self::mutex) of that name is the same lock.
    ///
    /// # Errors
    /// If the name cannot be one, or the space is full.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let lock = client.rwlock("config")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn rwlock(&self, name: impl AsRef<[u8]>) -> Result<RwLock, HandleError> {
        self.core(name, Kind::Keyed).map(RwLock::new)
    }

    /// The range lock called `name`. It has nothing to do with the mutex of that name.
    ///
    /// # Errors
    /// If the name cannot be one, the space is full, or it has no range locks.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let lock = client.range_lock("data.bin")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn range_lock(&self, name: impl AsRef<[u8]>) -> Result<RangeLock, HandleError> {
        self.core(name, Kind::Ranges).map(RangeLock::new)
    }

    /// Waits until whatever was given up half-way is done, for at most `patience`; says whether it is. Worth a call
    /// before a process ends: what it leaves in a queue, others have to clear away.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert!(client.settle(Duration::from_millis(100)));
    /// ```
    pub fn settle(&self, patience: Duration) -> bool {
        self.shared.progress.settle(patience)
    }
}
