//! Changing a held lock without letting go of it: upgrade, downgrade, giving back a part.
//!
//! All of them borrow the guard: whatever comes of a change, and whenever its future is dropped, the guard is still there and
//! holds what it says.

use super::core::Core;
use super::guard::Guard;
use crate::error::ChangeError;
use crate::home::{BoxFuture, Granted, Kind};
use crate::progress::Alarm;
use lockwright_fabric::observe::{Claim, Mode};
use std::fmt;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

impl Guard {
    /// Makes a shared lock exclusive, without letting go of it in between: what was read under it is still true afterwards.
    ///
    /// Its place is before everybody who waits; it waits only for the other readers of the same units, and no new ones come in
    /// meanwhile. Where another of them already waits for its own upgrade, each would wait for the other: this one is refused at
    /// once with [`ChangeError::WouldDeadlock`], and goes on reading. Afterwards the guard has a new [token](Self::token). An
    /// exclusive guard stays as it is.
    ///
    /// Only upgrades of the same units are seen to wait for each other. Whoever holds several guards, pieces of one range among
    /// them, and waits for one of them can wait for somebody who waits for another, as with any locks that are taken one after
    /// the other: there, use [`upgrade_timeout`](Self::upgrade_timeout).
    ///
    /// Server's own spaces (`tcp://`, `rdma://`) and `mem:` offer it.
    ///
    /// # Cancelling
    /// Dropping it gives up: the lock stays held, and shared.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let lock = client.rwlock("config").unwrap();
    /// let mut guard = lock.read().wait()?;
    /// let token = guard.token();
    /// guard.upgrade().wait()?; // in async code: guard.upgrade().await?
    /// assert!(!guard.is_shared() && guard.token() > token);
    /// assert!(lock.try_read().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upgrade(&mut self) -> Upgrade<'_> {
        Upgrade::new(self, None)
    }

    /// [`upgrade`](Self::upgrade) that gives up after `patience`: the lock stays held, and shared.
    ///
    /// ```
    /// # use lockwright::ChangeError;
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let lock = client.rwlock("config").unwrap();
    /// let (mut guard, other) = (lock.read().wait()?, lock.read().wait()?);
    /// let late = guard.upgrade_timeout(Duration::from_millis(1)).wait();
    /// assert_eq!(late, Err(ChangeError::TimedOut));
    /// drop(other);
    /// guard.upgrade_timeout(Duration::from_secs(1)).wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upgrade_timeout(&mut self, patience: Duration) -> Upgrade<'_> {
        Upgrade::new(self, Some(patience))
    }

    /// Makes a shared lock exclusive if nobody else reads the same units. Blocks for one round trip where a server decides.
    ///
    /// # Errors
    /// [`ChangeError::Busy`] if somebody does; it stays shared.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let mut guard = client.range_lock("data").unwrap().read(0..10).wait()?;
    /// if guard.try_upgrade().is_ok() {
    ///     // alone in 0..10
    /// }
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn try_upgrade(&mut self) -> Result<(), ChangeError> {
        self.upgrade_timeout(Duration::ZERO).wait().map_err(|error| match error {
            ChangeError::TimedOut => ChangeError::Busy,
            error => error,
        })
    }

    /// Makes an exclusive lock shared, without letting go of it in between: readers that wait get in, and no writer does.
    /// Afterwards the guard has a new [token](Self::token). A shared guard stays as it is.
    ///
    /// Server's own spaces (`tcp://`, `rdma://`) and `mem:` offer it. A mutex is a reader-writer lock that is taken for
    /// writing, so its guards can be downgraded too.
    ///
    /// # Cancelling
    /// Once it was polled, it happens. Dropped then, the guard is shared, and has its new token a little later.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let lock = client.rwlock("config").unwrap();
    /// let mut guard = lock.write().wait()?;
    /// guard.downgrade().wait()?; // in async code: guard.downgrade().await?
    /// assert!(guard.is_shared());
    /// assert!(lock.try_read().is_ok() && lock.try_write().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn downgrade(&mut self) -> Downgrade<'_> {
        Downgrade { guard: self, change: None, done: false }
    }

    /// Gives back some units of a range and keeps the rest, which keeps its place and its [token](Self::token). If that leaves
    /// two pieces, this guard is the first, and the second is returned. Nothing is waited for, as with a guard that is dropped.
    ///
    /// Server's own spaces (`tcp://`, `rdma://`) and `mem:` offer it.
    ///
    /// # Errors
    /// If the part is empty, all of the range (unlock it), or not inside; if this is no range lock; if the lock is lost. The
    /// guard is as it was.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let lock = client.range_lock("data").unwrap();
    /// let mut left = lock.write(0..10).wait()?;
    /// let right = left.unlock_part(4..6)?.expect("two pieces are left");
    /// assert_eq!((left.range(), right.range()), (Some(0..4), Some(6..10)));
    /// assert!(lock.try_write(4..6).is_ok() && lock.try_read(3..4).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unlock_part(&mut self, part: Range<u64>) -> Result<Option<Guard>, ChangeError> {
        let claim = self.claim;
        let bad = |why| ChangeError::BadRange { start: part.start, end: part.end, why };
        if self.core.kind != Kind::Ranges {
            return Err(bad("this is no range lock"));
        }
        if part.start >= part.end {
            return Err(bad("it is empty or ends before it starts"));
        }
        if part.start < claim.start || claim.end < part.end {
            return Err(bad("not all of it is held by this guard"));
        }
        if (part.start, part.end) == (claim.start, claim.end) {
            return Err(bad("that is all that is held: unlock the guard"));
        }
        let rest = self.core.space.unlock_part(self.granted(), &claim, &part)?;
        let (left, right) = (Claim { end: part.start, ..claim }, Claim { start: part.end, ..claim });
        let kept = if left.start < left.end { left } else { right };
        self.change(kept, *self.granted());
        Ok(rest.map(|granted| Guard::new(Arc::clone(&self.core), self.token_base, right, granted)))
    }
}

/// Sees a change through on this thread.
fn drive(core: &Core, future: impl Future<Output = Result<(), ChangeError>>) -> Result<(), ChangeError> {
    let mut outcome = None;
    core.space.block_on(pin!(async { outcome = Some(future.await) }));
    outcome.expect("it was seen through")
}

/// An upgrade on its way: await it, or [`wait`](Self::wait) for it. See [`Guard::upgrade`].
///
/// ```
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut guard = client.rwlock("config")?.read().await?;
/// guard.upgrade().await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is upgraded before it is awaited, or waited for"]
pub struct Upgrade<'a> {
    guard: &'a mut Guard,
    patience: Option<Duration>,
    deadline: Option<Instant>,
    alarm: Option<Alarm>,
    /// Once it was asked for. Dropped, it is given up.
    change: Option<BoxFuture<Result<Granted, ChangeError>>>,
    done: bool,
}

impl fmt::Debug for Upgrade<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrade").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl<'a> Upgrade<'a> {
    fn new(guard: &'a mut Guard, patience: Option<Duration>) -> Self {
        Self { guard, patience, deadline: None, alarm: None, change: None, done: false }
    }

    /// Blocks this thread until the lock is exclusive; it sleeps meanwhile. Must not be called on an executor's threads.
    ///
    /// # Errors
    /// If another reader already waits for the same, the time is over, the lock is lost, or the space does not offer it.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// # let mut guard = client.rwlock("a").unwrap().read().wait().unwrap();
    /// guard.upgrade().wait()?;
    /// # Ok::<(), lockwright::ChangeError>(())
    /// ```
    pub fn wait(self) -> Result<(), ChangeError> {
        let core = Arc::clone(&self.guard.core);
        drive(&core, self)
    }

    /// Nothing yet: is the time over? If not, this task is woken when it is.
    fn is_late(&mut self, cx: &Context<'_>) -> bool {
        let Some(deadline) = self.deadline else { return false };
        if Instant::now() >= deadline {
            return true;
        }
        if !self.alarm.as_ref().is_some_and(|alarm| alarm.wakes(cx)) {
            self.alarm = Some(self.guard.core.progress.alarm(deadline, cx.waker()));
        }
        false
    }

    fn finish(&mut self, outcome: Result<Granted, ChangeError>) -> Result<(), ChangeError> {
        (self.done, self.change, self.alarm) = (true, None, None);
        let granted = outcome.map_err(|error| match error {
            // Asked for with a time, even if there was none.
            ChangeError::Busy => ChangeError::TimedOut,
            error => error,
        })?;
        self.guard.change(Claim { mode: Mode::Exclusive, ..self.guard.claim }, granted);
        Ok(())
    }
}

impl Future for Upgrade<'_> {
    type Output = Result<(), ChangeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        assert!(!this.done, "an upgrade was polled after it was done");
        if this.guard.claim.mode == Mode::Exclusive {
            this.done = true;
            return Poll::Ready(Ok(()));
        }
        let patience = this.patience;
        if this.change.is_none() {
            let patience = patience.filter(|patience| !patience.is_zero());
            this.deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        }
        let guard = &*this.guard;
        let ask = || guard.core.space.upgrade(guard.granted(), patience != Some(Duration::ZERO));
        match this.change.get_or_insert_with(ask).as_mut().poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(this.finish(outcome)),
            Poll::Pending if this.is_late(cx) => Poll::Ready(this.finish(Err(ChangeError::TimedOut))),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A downgrade on its way: await it, or [`wait`](Self::wait) for it. See [`Guard::downgrade`].
///
/// ```
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut guard = client.rwlock("config")?.write().await?;
/// guard.downgrade().await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is downgraded before it is awaited, or waited for"]
pub struct Downgrade<'a> {
    guard: &'a mut Guard,
    change: Option<BoxFuture<Result<Granted, ChangeError>>>,
    done: bool,
}

impl fmt::Debug for Downgrade<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Downgrade").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl Downgrade<'_> {
    /// Blocks this thread until the lock is shared, which takes a round trip where a server decides. Must not be called on an
    /// executor's threads.
    ///
    /// # Errors
    /// If the lock is lost, or the space does not offer it.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// # let mut guard = client.rwlock("a").unwrap().write().wait().unwrap();
    /// guard.downgrade().wait()?;
    /// # Ok::<(), lockwright::ChangeError>(())
    /// ```
    pub fn wait(self) -> Result<(), ChangeError> {
        let core = Arc::clone(&self.guard.core);
        drive(&core, self)
    }
}

impl Future for Downgrade<'_> {
    type Output = Result<(), ChangeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        assert!(!this.done, "a downgrade was polled after it was done");
        if this.change.is_none() && this.guard.is_shared() {
            this.done = true;
            return Poll::Ready(Ok(()));
        }
        let guard = &*this.guard;
        let shared = Claim { mode: Mode::Shared, ..guard.claim };
        let change = this.change.get_or_insert_with(|| guard.core.space.downgrade(guard.granted()));
        let polled = change.as_mut().poll(cx);
        if let Poll::Ready(Err(error)) = polled {
            this.done = true;
            return Poll::Ready(Err(error));
        }
        // Asked for: from now on others may read, too.
        let granted = if let Poll::Ready(Ok(granted)) = &polled { *granted } else { *guard.granted() };
        this.guard.change(shared, granted);
        polled.map(|_| {
            this.done = true;
            Ok(())
        })
    }
}
