//! Handles: a lock by its name, looked up once and then as fast as the lock itself.
//!
//! All of them are views: a [`Mutex`] and a [`RwLock`] of the same name are the same lock, which is what `flock -x` and
//! `flock -s` have taught people. A [`RangeLock`] is a lock of its own kind, with its own names.

use super::acquire::Acquire;
use super::core::Core;
use super::guard::Guard;
use crate::error::{LockError, TryLockError};
use crate::home::whole;
use crate::name::LockName;
use lockwright_fabric::observe::{Claim, Mode};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A lock that one holder has at a time. Made by [`Client::mutex`](crate::Client::mutex); cheap to clone.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").unwrap();
/// let lock = client.mutex("orders/42").unwrap();
/// {
///     let _guard = lock.lock().wait().unwrap();
///     assert!(lock.try_lock().is_err());
/// }
/// assert!(lock.try_lock().is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(super) core: Arc<Core>,
}

impl Mutex {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    #[inline(always)]
    pub(super) fn claim(&self) -> Claim {
        whole(Mode::Exclusive)
    }

    /// The lock's name.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert_eq!(client.mutex("a").unwrap().name().to_string(), "a");
    /// ```
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    /// Takes the lock, however long that takes.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait()?; // or .await?
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    #[inline(always)]
    pub fn lock(&self) -> Acquire {
        Acquire::new(Arc::clone(&self.core), self.claim(), None)
    }

    /// Takes the lock, or gives up after `patience`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.mutex("a").unwrap().lock_timeout(Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn lock_timeout(&self, patience: Duration) -> Acquire {
        Acquire::new(Arc::clone(&self.core), self.claim(), Some(patience))
    }

    /// Takes the lock if it is free; never waits and never queues.
    ///
    /// # Errors
    /// [`TryLockError::Busy`] if somebody has it.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert!(client.mutex("a").unwrap().try_lock().is_ok());
    /// ```
    #[inline]
    pub fn try_lock(&self) -> Result<Guard, TryLockError> {
        Acquire::at_once(&self.core, self.claim())
    }
}

/// A lock that many readers or one writer have. Made by [`Client::rwlock`](crate::Client::rwlock); cheap to clone.
///
/// A reader cannot become a writer, nor a writer a reader: unlock, and lock again. (Two readers who both wait to
/// become writers would wait for each other for ever.)
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").unwrap();
/// let lock = client.rwlock("config").unwrap();
/// let one = lock.read().wait().unwrap();
/// let two = lock.read().wait().unwrap();
/// assert!(lock.try_write().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    pub(super) core: Arc<Core>,
}

impl RwLock {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    #[inline(always)]
    fn acquire(&self, mode: Mode, patience: Option<Duration>) -> Acquire {
        Acquire::new(Arc::clone(&self.core), whole(mode), patience)
    }

    /// The lock's name.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert_eq!(client.rwlock("a").unwrap().name().to_string(), "a");
    /// ```
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    /// Takes the lock together with other readers.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.rwlock("a").unwrap().read().wait()?;
    /// assert!(guard.is_shared());
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn read(&self) -> Acquire {
        self.acquire(Mode::Shared, None)
    }

    /// Takes the lock alone.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.rwlock("a").unwrap().write().wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn write(&self) -> Acquire {
        self.acquire(Mode::Exclusive, None)
    }

    /// [`read`](Self::read) that gives up after `patience`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.rwlock("a").unwrap().read_timeout(Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn read_timeout(&self, patience: Duration) -> Acquire {
        self.acquire(Mode::Shared, Some(patience))
    }

    /// [`write`](Self::write) that gives up after `patience`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.rwlock("a").unwrap().write_timeout(Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn write_timeout(&self, patience: Duration) -> Acquire {
        self.acquire(Mode::Exclusive, Some(patience))
    }

    /// Takes the lock as a reader if no writer has it or waits for it.
    ///
    /// # Errors
    /// [`TryLockError::Busy`] if one does.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert!(client.rwlock("a").unwrap().try_read().is_ok());
    /// ```
    pub fn try_read(&self) -> Result<Guard, TryLockError> {
        Acquire::at_once(&self.core, whole(Mode::Shared))
    }

    /// Takes the lock as a writer if nobody has it.
    ///
    /// # Errors
    /// [`TryLockError::Busy`] if somebody does.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert!(client.rwlock("a").unwrap().try_write().is_ok());
    /// ```
    pub fn try_write(&self) -> Result<Guard, TryLockError> {
        Acquire::at_once(&self.core, whole(Mode::Exclusive))
    }
}

/// A lock on ranges of units (bytes, blocks, rows). Made by [`Client::range_lock`](crate::Client::range_lock); cheap to
/// clone. Ranges that do not overlap never wait for each other, and no range is rounded.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").unwrap();
/// let file = client.range_lock("data.bin").unwrap();
/// let head = file.write(0..4096).wait().unwrap();
/// let tail = file.write(4096..8192).wait().unwrap();
/// assert!(file.try_read(4095..4096).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct RangeLock {
    pub(super) core: Arc<Core>,
}

impl RangeLock {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// The lock's name.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert_eq!(client.range_lock("a").unwrap().name().to_string(), "a");
    /// ```
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    fn claim(&self, mode: Mode, range: &Range<u64>) -> Claim {
        Claim { lock: 0, mode, start: range.start, end: range.end }
    }

    pub(super) fn acquire(&self, mode: Mode, range: &Range<u64>, patience: Option<Duration>) -> Acquire {
        let claim = self.claim(mode, range);
        match sound(range) {
            Ok(()) => Acquire::new(Arc::clone(&self.core), claim, patience),
            Err(error) => Acquire::refused(Arc::clone(&self.core), claim, error),
        }
    }

    /// Takes the units of `range` alone.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.range_lock("a").unwrap().write(10..20).wait()?;
    /// assert_eq!(guard.range(), Some(10..20));
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn write(&self, range: Range<u64>) -> Acquire {
        self.acquire(Mode::Exclusive, &range, None)
    }

    /// Takes the units of `range` together with other readers.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.range_lock("a").unwrap().read(10..20).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn read(&self, range: Range<u64>) -> Acquire {
        self.acquire(Mode::Shared, &range, None)
    }

    /// [`write`](Self::write) that gives up after `patience`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.range_lock("a").unwrap().write_timeout(10..20, Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn write_timeout(&self, range: Range<u64>, patience: Duration) -> Acquire {
        self.acquire(Mode::Exclusive, &range, Some(patience))
    }

    /// [`read`](Self::read) that gives up after `patience`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.range_lock("a").unwrap().read_timeout(10..20, Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn read_timeout(&self, range: Range<u64>, patience: Duration) -> Acquire {
        self.acquire(Mode::Shared, &range, Some(patience))
    }

    /// Takes the units of `range` alone if nobody has one of them.
    ///
    /// # Errors
    /// [`TryLockError::Busy`] if somebody does; an error of its own for an empty or reversed range.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert!(client.range_lock("a").unwrap().try_write(10..20).is_ok());
    /// ```
    pub fn try_write(&self, range: Range<u64>) -> Result<Guard, TryLockError> {
        sound(&range)?;
        Acquire::at_once(&self.core, self.claim(Mode::Exclusive, &range))
    }

    /// Takes the units of `range` as a reader if no writer has one of them.
    ///
    /// # Errors
    /// [`TryLockError::Busy`] if one does; an error of its own for an empty or reversed range.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert!(client.range_lock("a").unwrap().try_read(10..20).is_ok());
    /// ```
    pub fn try_read(&self, range: Range<u64>) -> Result<Guard, TryLockError> {
        sound(&range)?;
        Acquire::at_once(&self.core, self.claim(Mode::Shared, &range))
    }
}

/// Whether a range is one at all. What the space can hold is its own concern.
fn sound(range: &Range<u64>) -> Result<(), LockError> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match range.start.cmp(&range.end) {
        Less => Ok(()),
        Equal => Err(LockError::bad_range(range, "it is empty")),
        Greater => Err(LockError::bad_range(range, "it ends before it starts")),
    }
}
