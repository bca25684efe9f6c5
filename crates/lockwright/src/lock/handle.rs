//! Handles: a lock by its name, looked up once and then as fast as the lock itself.
//!
//! All of them are views: a [`Mutex`] and a [`RwLock`] of the same name are the same lock, which is what `flock -x` and
//! `flock -s` have taught people. A [`RangeLock`] is a lock of its own kind, with its own names.

use super::acquire::{Acquire, TryAcquire};
use super::core::Core;
use super::typed::{
    LockGuard, MutexGuard, RangeReadGuard, RangeWriteGuard, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(target_os = "linux")]
use crate::backend::Kind;
use crate::backend::whole;
use crate::error::LockError;
#[cfg(target_os = "linux")]
use crate::inspect::{Entry, EntryState};
use crate::name::LockName;
use lockwright_fabric::observe::{Claim, Mode};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A lock that one holder has at a time. Made by [`Client::mutex`](crate::Client::mutex); cheap to clone.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").wait().unwrap();
/// let lock = client.mutex("orders/42").unwrap();
/// {
///     let _guard = lock.lock().wait().unwrap();
///     assert!(lock.try_lock().wait().is_err());
/// }
/// assert!(lock.try_lock().wait().is_ok());
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
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.mutex("a").unwrap().name().to_string(), "a");
    /// ```
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    /// Takes the lock, however long that takes.
    ///
    /// On shared memory, a lock that is free is taken at once, by the calling thread. A server is asked: one round trip, and
    /// as long as others hold it. First come, first served, among conflicting requests.
    ///
    /// Not re-entrant: who holds it already, through whatever handle, waits for itself.
    ///
    /// # Cancelling
    /// Dropping the future gives up, and loses no handover: see [`Acquire`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait()?; // or .await?
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    #[inline(always)]
    pub fn lock(&self) -> Acquire<MutexGuard> {
        Acquire::new(Arc::clone(&self.core), self.claim(), None)
    }

    /// [`lock`](Self::lock) that gives up after `patience`, with [`LockError::TimedOut`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.mutex("a").unwrap().lock_timeout(Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn lock_timeout(&self, patience: Duration) -> Acquire<MutexGuard> {
        Acquire::new(Arc::clone(&self.core), self.claim(), Some(patience))
    }

    /// Takes the lock if it is free. Never waits for another holder and never queues; one round trip where a server decides.
    ///
    /// # Errors
    /// [`TryLockError::Busy`](crate::TryLockError::Busy) if it is held.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.mutex("a").unwrap().try_lock().wait().is_ok());
    /// ```
    #[inline]
    pub fn try_lock(&self) -> TryAcquire<MutexGuard> {
        TryAcquire::new(Arc::clone(&self.core), self.claim())
    }
}

/// A lock that many readers or one writer have. Made by [`Client::rwlock`](crate::Client::rwlock); cheap to clone.
///
/// A read guard can be [upgraded](RwLockReadGuard::upgrade) and a write guard [downgraded](RwLockWriteGuard::downgrade)
/// without unlocking in between, where the space offers it.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").wait().unwrap();
/// let lock = client.rwlock("config").unwrap();
/// let one = lock.read().wait().unwrap();
/// let two = lock.read().wait().unwrap();
/// assert!(lock.try_write().wait().is_err());
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
    fn acquire<G: LockGuard>(&self, mode: Mode, patience: Option<Duration>) -> Acquire<G> {
        Acquire::new(Arc::clone(&self.core), whole(mode), patience)
    }

    /// The lock's name.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.rwlock("a").unwrap().name().to_string(), "a");
    /// ```
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    /// Takes the lock together with other readers, however long that takes. A reader that comes after a waiting writer waits
    /// behind it, so even reading twice at a time can wait for itself.
    ///
    /// On shared memory, a lock that is free is taken at once, by the calling thread. A server is asked: one round trip, and
    /// as long as others hold it. First come, first served, among conflicting requests.
    ///
    /// Not re-entrant: who holds it already, through whatever handle, waits for itself.
    ///
    /// # Cancelling
    /// Dropping the future gives up, and loses no handover: see [`Acquire`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.rwlock("a").unwrap().read().wait()?;
    /// assert!(guard.is_shared());
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn read(&self) -> Acquire<RwLockReadGuard> {
        self.acquire(Mode::Shared, None)
    }

    /// Takes the lock alone, however long that takes.
    ///
    /// On shared memory, a lock that is free is taken at once, by the calling thread. A server is asked: one round trip, and
    /// as long as others hold it. First come, first served, among conflicting requests.
    ///
    /// Not re-entrant: who holds it already, through whatever handle, waits for itself.
    ///
    /// # Cancelling
    /// Dropping the future gives up, and loses no handover: see [`Acquire`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.rwlock("a").unwrap().write().wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn write(&self) -> Acquire<RwLockWriteGuard> {
        self.acquire(Mode::Exclusive, None)
    }

    /// [`read`](Self::read) that gives up after `patience`, with [`LockError::TimedOut`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.rwlock("a").unwrap().read_timeout(Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn read_timeout(&self, patience: Duration) -> Acquire<RwLockReadGuard> {
        self.acquire(Mode::Shared, Some(patience))
    }

    /// [`write`](Self::write) that gives up after `patience`, with [`LockError::TimedOut`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.rwlock("a").unwrap().write_timeout(Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn write_timeout(&self, patience: Duration) -> Acquire<RwLockWriteGuard> {
        self.acquire(Mode::Exclusive, Some(patience))
    }

    /// Takes the lock as a reader if no writer has it or waits for it. Never waits for
    /// another holder and never queues; one round trip where a server decides.
    ///
    /// # Errors
    /// [`TryLockError::Busy`](crate::TryLockError::Busy) if one does.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.rwlock("a").unwrap().try_read().wait().is_ok());
    /// ```
    pub fn try_read(&self) -> TryAcquire<RwLockReadGuard> {
        TryAcquire::new(Arc::clone(&self.core), whole(Mode::Shared))
    }

    /// Takes the lock as a writer if nobody has it. Never waits for
    /// another holder and never queues; one round trip where a server decides.
    ///
    /// # Errors
    /// [`TryLockError::Busy`](crate::TryLockError::Busy) if another holder does.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.rwlock("a").unwrap().try_write().wait().is_ok());
    /// ```
    pub fn try_write(&self) -> TryAcquire<RwLockWriteGuard> {
        TryAcquire::new(Arc::clone(&self.core), whole(Mode::Exclusive))
    }
}

/// A lock on ranges of units (bytes, blocks, rows). Made by [`Client::range_lock`](crate::Client::range_lock); cheap to
/// clone. Ranges that do not overlap never wait for each other, and no range is rounded.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").wait().unwrap();
/// let file = client.range_lock("data.bin").unwrap();
/// let head = file.write(0..4096).wait().unwrap();
/// let tail = file.write(4096..8192).wait().unwrap();
/// assert!(file.try_read(4095..4096).wait().is_err());
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
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.range_lock("a").unwrap().name().to_string(), "a");
    /// ```
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    fn claim(&self, mode: Mode, range: &Range<u64>) -> Claim {
        Claim { lock: 0, mode, start: range.start, end: range.end }
    }

    pub(super) fn acquire<G: LockGuard>(
        &self,
        mode: Mode,
        range: &Range<u64>,
        patience: Option<Duration>,
    ) -> Acquire<G> {
        let claim = self.claim(mode, range);
        match sound(range) {
            Ok(()) => Acquire::new(Arc::clone(&self.core), claim, patience),
            Err(error) => Acquire::refused(Arc::clone(&self.core), claim, error),
        }
    }

    fn try_acquire<G: LockGuard>(&self, mode: Mode, range: &Range<u64>) -> TryAcquire<G> {
        let claim = self.claim(mode, range);
        match sound(range) {
            Ok(()) => TryAcquire::new(Arc::clone(&self.core), claim),
            Err(error) => TryAcquire::refused(Arc::clone(&self.core), claim, error),
        }
    }

    /// Takes the units of `range` alone, however long that takes.
    ///
    /// On shared memory, a lock that is free is taken at once, by the calling thread. A server is asked: one round trip, and
    /// as long as others hold it. First come, first served, among conflicting requests.
    ///
    /// Not re-entrant: who holds it already, through whatever handle, waits for itself.
    ///
    /// # Cancelling
    /// Dropping the future gives up, and loses no handover: see [`Acquire`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.range_lock("a").unwrap().write(10..20).wait()?;
    /// assert_eq!(guard.range(), 10..20);
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn write(&self, range: Range<u64>) -> Acquire<RangeWriteGuard> {
        self.acquire(Mode::Exclusive, &range, None)
    }

    /// Takes the units of `range` together with other readers, however long that takes.
    ///
    /// On shared memory, a lock that is free is taken at once, by the calling thread. A server is asked: one round trip, and
    /// as long as others hold it. First come, first served, among conflicting requests.
    ///
    /// Not re-entrant: who holds it already, through whatever handle, waits for itself.
    ///
    /// # Cancelling
    /// Dropping the future gives up, and loses no handover: see [`Acquire`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.range_lock("a").unwrap().read(10..20).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn read(&self, range: Range<u64>) -> Acquire<RangeReadGuard> {
        self.acquire(Mode::Shared, &range, None)
    }

    /// [`write`](Self::write) that gives up after `patience`, with [`LockError::TimedOut`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.range_lock("a").unwrap().write_timeout(10..20, Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn write_timeout(&self, range: Range<u64>, patience: Duration) -> Acquire<RangeWriteGuard> {
        self.acquire(Mode::Exclusive, &range, Some(patience))
    }

    /// [`read`](Self::read) that gives up after `patience`, with [`LockError::TimedOut`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.range_lock("a").unwrap().read_timeout(10..20, Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn read_timeout(&self, range: Range<u64>, patience: Duration) -> Acquire<RangeReadGuard> {
        self.acquire(Mode::Shared, &range, Some(patience))
    }

    /// Takes the units of `range` alone if nobody has one of them. Never waits for
    /// another holder and never queues; one round trip where a server decides.
    ///
    /// # Errors
    /// [`TryLockError::Busy`](crate::TryLockError::Busy) if another holder does; an error of its own for an empty or reversed
    /// range.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.range_lock("a").unwrap().try_write(10..20).wait().is_ok());
    /// ```
    pub fn try_write(&self, range: Range<u64>) -> TryAcquire<RangeWriteGuard> {
        self.try_acquire(Mode::Exclusive, &range)
    }

    /// Takes the units of `range` as a reader if no writer has one of them. Never waits for
    /// another holder and never queues; one round trip where a server decides.
    ///
    /// # Errors
    /// [`TryLockError::Busy`](crate::TryLockError::Busy) if one does; an error of its own for an empty or reversed range.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.range_lock("a").unwrap().try_read(10..20).wait().is_ok());
    /// ```
    pub fn try_read(&self, range: Range<u64>) -> TryAcquire<RangeReadGuard> {
        self.try_acquire(Mode::Shared, &range)
    }

    /// Who holds which units now: this client's own guards, and those of others. A look: it takes nothing, refuses nobody, and
    /// may be out of date when it returns. Blocks for a round trip where a server decides.
    ///
    /// # Errors
    /// If the space cannot be asked, or does not tell.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let file = client.range_lock("data.bin").unwrap();
    /// let guard = file.write(0..4096).wait()?;
    /// let holders = file.holders()?;
    /// assert_eq!((holders[0].range.clone(), holders[0].token), (Some(0..4096), Some(guard.token())));
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    #[cfg(target_os = "linux")]
    pub fn holders(&self) -> Result<Vec<Entry>, LockError> {
        self.core.check().map_err(|pid| LockError::OtherProcess { pid })?;
        let claim = Claim { lock: self.core.bound()?.lock, ..whole(Mode::Shared) };
        let mut entries = self.core.space.entries_of(&self.core.name, claim)?;
        let holds =
            |entry: &Entry| entry.kind() == Kind::Ranges && entry.state == EntryState::Held && entry.alive;
        entries.retain(holds);
        Ok(entries)
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
