//! Semaphores: so many at a time.

use super::acquire::{Acquire, TryAcquire};
use super::core::Core;
use super::typed::{LockGuard, SemaphorePermit};
use crate::backend::permits;
use crate::error::LockError;
use crate::name::LockName;
use lockwright_fabric::observe::Claim;
use std::sync::Arc;
use std::time::Duration;

/// A semaphore: at most so many permits are held at a time. Made by [`Client::semaphore`](crate::Client::semaphore); cheap to
/// clone.
///
/// The limit belongs to those who hold permits or wait for some, and goes with the last of them: so it is changed where it is used,
/// without an administrator. Meanwhile another limit is [`LockError::Refused`]. First come, first served: a request for one permit waits behind one for many. Permits of a
/// process that dies come back.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").wait().unwrap();
/// let gpus = client.semaphore("gpu", 2).unwrap();
/// let one = gpus.acquire().wait().unwrap();
/// let two = gpus.acquire().wait().unwrap();
/// assert!(gpus.try_acquire().wait().is_err());
/// drop(one);
/// assert!(gpus.try_acquire().wait().is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(super) core: Arc<Core>,
    limit: u64,
}

impl Semaphore {
    /// The most permits that a semaphore can have.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// use lockwright::Semaphore;
    /// assert!(client.semaphore("a", Semaphore::MAX_PERMITS + 1).is_err());
    /// ```
    pub const MAX_PERMITS: u64 = 1 << 32;

    pub(crate) fn new(core: Arc<Core>, limit: u64) -> Self {
        Self { core, limit }
    }

    pub(super) fn claim(&self, weight: u64) -> Result<Claim, LockError> {
        if (1..=self.limit).contains(&weight) {
            return Ok(permits(weight, self.limit));
        }
        let limit = self.limit;
        Err(LockError::Refused(format!("{weight} of {limit} permits cannot be had: ask for 1 to {limit}")))
    }

    fn take<G: LockGuard>(&self, weight: u64, patience: Option<Duration>) -> Acquire<G> {
        match self.claim(weight) {
            Ok(claim) => Acquire::new(Arc::clone(&self.core), claim, patience),
            Err(error) => Acquire::refused(Arc::clone(&self.core), permits(1, 1), error),
        }
    }

    /// The semaphore's name.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.semaphore("a", 4).unwrap().name().to_string(), "a");
    /// ```
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    /// How many permits there are.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.semaphore("a", 4).unwrap().limit(), 4);
    /// ```
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes a permit, however long that takes. A server is asked: one round trip, and as long as others hold all permits.
    ///
    /// # Cancelling
    /// Dropping the future gives up, and loses no handover: see [`Acquire`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let permit = client.semaphore("a", 4).unwrap().acquire().wait()?; // or .await?
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn acquire(&self) -> Acquire<SemaphorePermit> {
        self.take(1, None)
    }

    /// Takes `count` permits together, as [`acquire`](Self::acquire) takes one.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let permit = client.semaphore("a", 4).unwrap().acquire_many(3).wait()?;
    /// assert_eq!(permit.permits(), 3);
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn acquire_many(&self, count: u64) -> Acquire<SemaphorePermit> {
        self.take(count, None)
    }

    /// [`acquire_many`](Self::acquire_many) that gives up after `patience`, with [`LockError::TimedOut`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let permit = client.semaphore("a", 4).unwrap().acquire_timeout(1, Duration::from_secs(1)).wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn acquire_timeout(&self, count: u64, patience: Duration) -> Acquire<SemaphorePermit> {
        self.take(count, Some(patience))
    }

    /// Takes a permit if one is free and nobody waits. Never waits for another holder and never queues; one round trip where a
    /// server decides.
    ///
    /// # Errors
    /// [`TryLockError::Busy`](crate::TryLockError::Busy) if there is none.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.semaphore("a", 4).unwrap().try_acquire().wait().is_ok());
    /// ```
    pub fn try_acquire(&self) -> TryAcquire<SemaphorePermit> {
        self.try_acquire_many(1)
    }

    /// Takes `count` permits together, as [`try_acquire`](Self::try_acquire) takes one.
    ///
    /// # Errors
    /// [`TryLockError::Busy`](crate::TryLockError::Busy) if there are too few.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.semaphore("a", 4).unwrap().try_acquire_many(5).wait().is_err());
    /// ```
    pub fn try_acquire_many(&self, count: u64) -> TryAcquire<SemaphorePermit> {
        match self.claim(count) {
            Ok(claim) => TryAcquire::new(Arc::clone(&self.core), claim),
            Err(error) => TryAcquire::refused(Arc::clone(&self.core), permits(1, 1), error),
        }
    }
}
