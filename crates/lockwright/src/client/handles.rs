//! The locks of a space, by name and kind.

use super::Client;
use crate::backend::Kind;
use crate::error::HandleError;
use crate::lock::{Mutex, RangeLock, RwLock, Semaphore};

impl Client {
    /// The mutex called `name`: up to 255 bytes, any but NUL. Does not wait: a server is told of the name with the first
    /// request. (In `lent:` spaces it takes a round trip.)
    ///
    /// # Errors
    /// If the name cannot be one, or the space is full.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.mutex("orders/42")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Result<Mutex, HandleError> {
        self.core(name, Kind::Keyed).map(Mutex::new)
    }

    /// The reader-writer lock called `name`. The [mutex](Self::mutex) of that name is the same lock. Waits as
    /// little as that.
    ///
    /// # Errors
    /// If the name cannot be one, or the space is full.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.rwlock("config")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn rwlock(&self, name: impl AsRef<[u8]>) -> Result<RwLock, HandleError> {
        self.core(name, Kind::Keyed).map(RwLock::new)
    }

    /// The range lock called `name`. It has nothing to do with the mutex of that name. Waits as little
    /// as [`mutex`](Self::mutex).
    ///
    /// # Errors
    /// If the name cannot be one, the space is full, or it has no range locks.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.range_lock("data.bin")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn range_lock(&self, name: impl AsRef<[u8]>) -> Result<RangeLock, HandleError> {
        self.core(name, Kind::Ranges).map(RangeLock::new)
    }

    /// The semaphore called `name`, with `limit` permits. It has nothing to do with the other locks of that name. Waits as little
    /// as [`mutex`](Self::mutex).
    ///
    /// # Errors
    /// If the name cannot be one, the limit is 0 or above [`Semaphore::MAX_PERMITS`], the space is full, or it has no semaphores.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let gpus = client.semaphore("gpu", 4)?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn semaphore(&self, name: impl AsRef<[u8]>, limit: u64) -> Result<Semaphore, HandleError> {
        if !(1..=Semaphore::MAX_PERMITS).contains(&limit) {
            return Err(HandleError::Limit(limit));
        }
        self.core(name, Kind::Semaphores).map(|core| Semaphore::new(core, limit))
    }
}
