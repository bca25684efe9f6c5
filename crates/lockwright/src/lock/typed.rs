//! Guards by the lock they are of: thin around [`AnyGuard`], each with what its lock can do and nothing else.

use super::change::{DowngradeState, UpgradeState, wait};
use super::guard::{AnyGuard, Unlock};
use crate::error::ChangeError;
use std::fmt;
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

mod sealed {
    pub trait Sealed: Sized + Unpin + Send + Sync {
        fn from_any(guard: super::AnyGuard) -> Self;
        fn any(&mut self) -> &mut super::AnyGuard;
    }
}
pub(super) use sealed::Sealed;

/// What all guards have in common, for code that takes any of them. Cannot be implemented elsewhere.
///
/// ```
/// use lockwright::{Client, LockGuard};
/// fn log(guard: impl LockGuard) {
///     let guard = guard.into_any();
///     println!("{} is held with token {}", guard.name(), guard.token());
/// }
/// let client = Client::open("mem:").wait()?;
/// log(client.mutex("a")?.lock().wait()?);
/// log(client.rwlock("a")?.read().wait()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait LockGuard: Sealed + Into<AnyGuard> + fmt::Debug {
    /// The same guard, without its type.
    fn into_any(self) -> AnyGuard {
        self.into()
    }
}

/// A guard that shares its lock with other readers.
///
/// ```
/// use lockwright::{Client, ReadGuard};
/// fn write_if_alone<G: ReadGuard>(guard: G) -> Option<G::Write> {
///     guard.try_upgrade().wait().ok()
/// }
/// let client = Client::open("mem:").wait()?;
/// assert!(write_if_alone(client.rwlock("a")?.read().wait()?).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ReadGuard: LockGuard {
    /// What it becomes by an upgrade.
    type Write: LockGuard;

    /// As the method of the same name.
    fn try_upgrade(self) -> Upgrade<Self> {
        Upgrade { state: UpgradeState::tried(), guard: Some(self) }
    }
}

/// A guard that excludes all others, and can be downgraded.
///
/// ```
/// use lockwright::{Client, WriteGuard};
/// fn publish<G: WriteGuard>(guard: G) -> Option<G::Read> {
///     guard.downgrade().wait().ok()
/// }
/// let client = Client::open("mem:").wait()?;
/// assert!(publish(client.rwlock("a")?.write().wait()?).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait WriteGuard: LockGuard {
    /// What it becomes by a downgrade.
    type Read: LockGuard;

    /// As the method of the same name.
    fn downgrade(self) -> Downgrade<Self> {
        Downgrade { state: DowngradeState::default(), guard: Some(self) }
    }
}

impl Sealed for AnyGuard {
    fn from_any(guard: AnyGuard) -> Self {
        guard
    }

    fn any(&mut self) -> &mut AnyGuard {
        self
    }
}

impl LockGuard for AnyGuard {}

macro_rules! guard {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Dropping it unlocks; [`unlock`](Self::unlock) does too, and tells what it found. It derefs to [`AnyGuard`], which has
        /// what all guards have: [`token`](AnyGuard::token), [`state`](AnyGuard::state), [`lost`](AnyGuard::lost),
        /// [`uncertain`](AnyGuard::uncertain), [`name`](AnyGuard::name). It is not tied to the handle it came from or to a
        /// thread.
        #[must_use = "the lock is released when the guard is dropped"]
        pub struct $name(AnyGuard);

        impl $name {
            /// Unlocks, and tells whether the lock was held until then. One round trip where a server decides; dropping the
            /// returned future unlocks too. See [`AnyGuard::unlock`].
            pub fn unlock(self) -> Unlock {
                self.0.unlock()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.0).finish()
            }
        }

        impl Deref for $name {
            type Target = AnyGuard;
            fn deref(&self) -> &AnyGuard {
                &self.0
            }
        }

        impl From<$name> for AnyGuard {
            fn from(guard: $name) -> AnyGuard {
                guard.0
            }
        }

        impl Sealed for $name {
            #[inline(always)]
            fn from_any(guard: AnyGuard) -> Self {
                Self(guard)
            }

            fn any(&mut self) -> &mut AnyGuard {
                &mut self.0
            }
        }

        impl LockGuard for $name {}
    };
}

guard! {
    /// A locked [`Mutex`](crate::Mutex).
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.mutex("a")?;
    /// let first: lockwright::MutexGuard = lock.lock().wait()?;
    /// let token = first.token();
    /// first.unlock().wait()?;
    /// let second = std::thread::spawn(move || lock.lock().wait().unwrap()).join().unwrap();
    /// assert!(second.token() > token);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// What only other locks can do does not compile:
    ///
    /// ```compile_fail
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let mut guard = client.mutex("a")?.lock().wait()?;
    /// guard.upgrade().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// ```compile_fail
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let mut guard = client.mutex("a")?.lock().wait()?;
    /// guard.unlock_part(0..1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    MutexGuard
}

guard! {
    /// An [`RwLock`](crate::RwLock) that is locked for reading.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard: lockwright::RwLockReadGuard = client.rwlock("a")?.read().wait()?;
    /// guard.unlock().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    RwLockReadGuard
}

guard! {
    /// An [`RwLock`](crate::RwLock) that is locked for writing.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard: lockwright::RwLockWriteGuard = client.rwlock("a")?.write().wait()?;
    /// guard.unlock().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    RwLockWriteGuard
}

guard! {
    /// A range of a [`RangeLock`](crate::RangeLock) that is locked for reading.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard: lockwright::RangeReadGuard = client.range_lock("a")?.read(0..10).wait()?;
    /// guard.unlock().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    RangeReadGuard
}

guard! {
    /// A range of a [`RangeLock`](crate::RangeLock) that is locked for writing.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard: lockwright::RangeWriteGuard = client.range_lock("a")?.write(0..10).wait()?;
    /// guard.unlock().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    RangeWriteGuard
}

guard! {
    /// Permits of a [`Semaphore`](crate::Semaphore).
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let permit: lockwright::SemaphorePermit = client.semaphore("a", 4)?.acquire().wait()?;
    /// permit.unlock().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    SemaphorePermit
}

impl SemaphorePermit {
    /// How many permits these are.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.semaphore("a", 4).unwrap().acquire_many(2).wait().unwrap().permits(), 2);
    /// ```
    pub fn permits(&self) -> u64 {
        self.0.claim.start
    }
}

macro_rules! read_guard {
    ($read:ident => $write:ident, $handle:expr, $take:expr) => {
        impl ReadGuard for $read {
            type Write = $write;
        }

        impl $read {
            /// Makes the lock exclusive, without releasing it in between: what was read under it is still true afterwards.
            ///
            /// It goes before all who wait, and waits only for the other readers of the same units; no new ones come in
            /// meanwhile. If another of them already waits for its own upgrade, each would wait for the other: this one is
            /// refused at once with [`ChangeError::WouldDeadlock`], and goes on reading. The write guard has a new
            /// [token](AnyGuard::token).
            ///
            /// Only upgrades of the same units are seen to wait for each other. A holder of several guards that waits for one
            /// of them can wait for a holder that waits for another: there, use
            /// [`upgrade_timeout`](Self::upgrade_timeout).
            ///
            /// A server's own spaces (`tcp://`, `rdma://`), `shm:` and `mem:` offer it; one round trip to a server. In `shm:`,
            /// those who wait for a name while it is upgraded queue anew.
            ///
            /// # Errors
            /// [`NotChanged`], which gives the guard back. Turned into another error by `?`, it is dropped: that unlocks.
            ///
            /// # Cancelling
            /// Dropping the future gives up, and unlocks.
            ///
            /// ```
            /// # let client = lockwright::Client::open("mem:").wait().unwrap();
            #[doc = concat!("let guard = client.", $handle, "(\"config\")?.read", $take, ".wait()?;")]
            /// let token = guard.token();
            /// let guard = guard.upgrade().wait()?; // in async code: guard.upgrade().await?
            /// assert!(guard.token() > token);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn upgrade(self) -> Upgrade<Self> {
                Upgrade { state: UpgradeState::new(None), guard: Some(self) }
            }

            /// [`upgrade`](Self::upgrade) that gives up after `patience`, with [`ChangeError::TimedOut`].
            ///
            /// ```
            /// # use lockwright::ChangeError;
            /// # use std::time::Duration;
            /// # let client = lockwright::Client::open("mem:").wait().unwrap();
            #[doc = concat!("let lock = client.", $handle, "(\"config\")?;")]
            #[doc = concat!("let (guard, other) = (lock.read", $take, ".wait()?, lock.read", $take, ".wait()?);")]
            /// let late = guard.upgrade_timeout(Duration::from_millis(1)).wait().unwrap_err();
            /// assert_eq!(late.error, ChangeError::TimedOut);
            /// drop(other);
            /// late.guard.upgrade_timeout(Duration::from_secs(1)).wait()?;
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn upgrade_timeout(self, patience: Duration) -> Upgrade<Self> {
                Upgrade { state: UpgradeState::new(Some(patience)), guard: Some(self) }
            }

            /// [`upgrade`](Self::upgrade) if nobody else reads the same; else [`ChangeError::Busy`]. Never waits for another
            /// reader.
            ///
            /// ```
            /// # let client = lockwright::Client::open("mem:").wait().unwrap();
            #[doc = concat!("let guard = client.", $handle, "(\"config\")?.read", $take, ".wait()?;")]
            /// match guard.try_upgrade().wait() {
            ///     Ok(writes) => println!("alone, with token {}", writes.token()),
            ///     Err(refused) => println!("still reading: {refused}, {:?}", refused.guard),
            /// }
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn try_upgrade(self) -> Upgrade<Self> {
                ReadGuard::try_upgrade(self)
            }
        }

        impl WriteGuard for $write {
            type Read = $read;
        }

        impl $write {
            /// Makes the lock shared, without releasing it in between: readers that wait get in, and no writer does. The read
            /// guard has a new [token](AnyGuard::token).
            ///
            /// A server's own spaces (`tcp://`, `rdma://`), `shm:` and `mem:` offer it; one round trip to a server. It never
            /// waits for another holder.
            ///
            /// # Errors
            /// [`NotChanged`], which gives the guard back.
            ///
            /// # Cancelling
            /// Dropping the future unlocks.
            ///
            /// ```
            /// # let client = lockwright::Client::open("mem:").wait().unwrap();
            #[doc = concat!("let lock = client.", $handle, "(\"config\")?;")]
            #[doc = concat!("let guard = lock.write", $take, ".wait()?.downgrade().wait()?;")]
            #[doc = concat!("assert!(lock.try_read", $take, ".wait().is_ok());")]
            #[doc = concat!("assert!(lock.try_write", $take, ".wait().is_err());")]
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn downgrade(self) -> Downgrade<Self> {
                WriteGuard::downgrade(self)
            }
        }
    };
}

read_guard!(RwLockReadGuard => RwLockWriteGuard, "rwlock", "()");
read_guard!(RangeReadGuard => RangeWriteGuard, "range_lock", "(0..8)");

macro_rules! range_guard {
    ($name:ident, $take:literal) => {
        impl $name {
            /// The locked units.
            ///
            /// ```
            /// # let client = lockwright::Client::open("mem:").wait().unwrap();
            #[doc = concat!("let guard = client.range_lock(\"a\")?.", $take, "(10..20).wait()?;")]
            /// assert_eq!(guard.range(), 10..20);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn range(&self) -> Range<u64> {
                self.0.range().expect("a range lock's guard has a range")
            }

            /// Gives back some units and keeps the rest, which keeps its place and its [token](AnyGuard::token). If that
            /// leaves two pieces, this guard is the first, and the second is returned. Never waits; a server is told, and
            /// not waited for.
            ///
            /// A server's own spaces (`tcp://`, `rdma://`), `mem:` and `shm:` offer it.
            ///
            /// # Errors
            /// If the part is empty, all of the range (unlock it), or not inside; if the lock is lost. The guard is as it
            /// was.
            ///
            /// ```
            /// # let client = lockwright::Client::open("mem:").wait().unwrap();
            /// let lock = client.range_lock("data")?;
            #[doc = concat!("let mut left = lock.", $take, "(0..10).wait()?;")]
            /// let right = left.unlock_part(4..6)?.expect("two pieces are left");
            /// assert_eq!((left.range(), right.range()), (0..4, 6..10));
            /// assert!(lock.try_write(4..6).wait().is_ok());
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn unlock_part(&mut self, part: Range<u64>) -> Result<Option<Self>, ChangeError> {
                Ok(self.0.unlock_part(part)?.map(Self))
            }
        }
    };
}

range_guard!(RangeReadGuard, "read");
range_guard!(RangeWriteGuard, "write");

/// A change that did not happen: why, and the guard as it was. (If the error is [`ChangeError::Lost`], there is nothing left
/// to hold.)
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let lock = client.rwlock("a")?;
/// let (one, _two) = (lock.read().wait()?, lock.read().wait()?);
/// let refused = one.try_upgrade().wait().unwrap_err();
/// assert_eq!(refused.error, lockwright::ChangeError::Busy);
/// let still_reading = refused.guard;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotChanged<G: LockGuard> {
    /// The guard.
    pub guard: G,
    /// Why.
    pub error: ChangeError,
}

/// Drops the guard, which unlocks.
impl<G: LockGuard> From<NotChanged<G>> for ChangeError {
    fn from(not_changed: NotChanged<G>) -> Self {
        not_changed.error
    }
}

/// An upgrade under way: `.await` it, or [`wait`](Self::wait) for it. See [`RwLockReadGuard::upgrade`].
///
/// ```
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.rwlock("config")?.read().await?;
/// let guard = guard.upgrade().await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is upgraded before it is awaited, or waited for"]
pub struct Upgrade<G: ReadGuard> {
    // Dropped first: the upgrade is given up before the lock is released.
    state: UpgradeState,
    guard: Option<G>,
}

impl<G: ReadGuard> fmt::Debug for Upgrade<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrade").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl<G: ReadGuard> Upgrade<G> {
    /// Blocks this thread until the lock is exclusive, like [`Acquire::wait`](crate::Acquire::wait), and with the same
    /// panic.
    ///
    /// # Errors
    /// If another reader already waits for the same, the time is over, the lock is lost, or the space does not offer it.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.rwlock("a").unwrap().read().wait().unwrap();
    /// let guard = guard.upgrade().wait()?;
    /// # Ok::<(), lockwright::ChangeError>(())
    /// ```
    #[track_caller]
    pub fn wait(mut self) -> Result<G::Write, NotChanged<G>> {
        let core = Arc::clone(&self.guard.as_mut().expect("it is not done").any().core);
        super::acquire::block_here(self.state.may_wait(), || wait(&core, self))
    }
}

impl<G: ReadGuard> Future for Upgrade<G> {
    type Output = Result<G::Write, NotChanged<G>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let guard = this.guard.as_mut().expect("an upgrade was polled after it was done");
        let outcome = ready!(this.state.poll(guard.any(), cx));
        let guard = this.guard.take().expect("just seen");
        Poll::Ready(match outcome {
            Ok(()) => Ok(G::Write::from_any(guard.into())),
            Err(error) => Err(NotChanged { guard, error }),
        })
    }
}

/// A downgrade under way: `.await` it, or [`wait`](Self::wait) for it. See [`RwLockWriteGuard::downgrade`].
///
/// ```
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.rwlock("config")?.write().await?;
/// let guard = guard.downgrade().await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is downgraded before it is awaited, or waited for"]
pub struct Downgrade<G: WriteGuard> {
    state: DowngradeState,
    guard: Option<G>,
}

impl<G: WriteGuard> fmt::Debug for Downgrade<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Downgrade").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl<G: WriteGuard> Downgrade<G> {
    /// Blocks this thread until the lock is shared, which takes a round trip where a server decides.
    ///
    /// # Errors
    /// If the lock is lost, or the space does not offer it.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.rwlock("a").unwrap().write().wait().unwrap();
    /// let guard = guard.downgrade().wait()?;
    /// # Ok::<(), lockwright::ChangeError>(())
    /// ```
    pub fn wait(mut self) -> Result<G::Read, NotChanged<G>> {
        let core = Arc::clone(&self.guard.as_mut().expect("it is not done").any().core);
        wait(&core, self)
    }
}

impl<G: WriteGuard> Future for Downgrade<G> {
    type Output = Result<G::Read, NotChanged<G>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let guard = this.guard.as_mut().expect("a downgrade was polled after it was done");
        let outcome = ready!(this.state.poll(guard.any(), cx));
        let guard = this.guard.take().expect("just seen");
        Poll::Ready(match outcome {
            Ok(()) => Ok(G::Read::from_any(guard.into())),
            Err(error) => Err(NotChanged { guard, error }),
        })
    }
}
