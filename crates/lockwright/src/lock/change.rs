//! Changing a held lock without releasing it: upgrade, downgrade, giving back a part. Here on guards of any kind, which
//! keep what they hold whatever comes of a change; `typed` builds on it.

use super::core::Core;
use super::guard::AnyGuard;
use crate::backend::{BoxFuture, Granted, Kind};
use crate::error::ChangeError;
use crate::progress::Alarm;
use lockwright_fabric::observe::{Claim, Mode};
use std::fmt;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

impl AnyGuard {
    /// Makes a shared lock exclusive in place: [`RwLockReadGuard::upgrade`](crate::RwLockReadGuard::upgrade) without a
    /// change of type. An exclusive guard stays as it is.
    ///
    /// # Cancelling
    /// Dropping it gives up: the lock stays held, and shared.
    ///
    /// ```
    /// # use lockwright::LockGuard;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.rwlock("config").unwrap();
    /// let mut guard = lock.read().wait()?.into_any();
    /// let token = guard.token();
    /// guard.upgrade().wait()?; // in async code: guard.upgrade().await?
    /// assert!(!guard.is_shared() && guard.token() > token);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upgrade(&mut self) -> UpgradeInPlace<'_> {
        UpgradeInPlace { state: UpgradeState::new(None), guard: self }
    }

    /// [`upgrade`](Self::upgrade) that gives up after `patience`: the lock stays held, and shared.
    ///
    /// ```
    /// # use lockwright::{ChangeError, LockGuard};
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.rwlock("config").unwrap();
    /// let (mut guard, other) = (lock.read().wait()?.into_any(), lock.read().wait()?);
    /// let late = guard.upgrade_timeout(Duration::from_millis(1)).wait();
    /// assert_eq!(late, Err(ChangeError::TimedOut));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upgrade_timeout(&mut self, patience: Duration) -> UpgradeInPlace<'_> {
        UpgradeInPlace { state: UpgradeState::new(Some(patience)), guard: self }
    }

    /// Makes a shared lock exclusive if nobody else reads the same units; else [`ChangeError::Busy`], and it stays shared.
    ///
    /// ```
    /// # use lockwright::LockGuard;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let mut guard = client.range_lock("data").unwrap().read(0..10).wait()?.into_any();
    /// if guard.try_upgrade().wait().is_ok() {
    ///     // alone in 0..10
    /// }
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn try_upgrade(&mut self) -> UpgradeInPlace<'_> {
        UpgradeInPlace { state: UpgradeState::tried(), guard: self }
    }

    /// Makes an exclusive lock shared in place: [`RwLockWriteGuard::downgrade`](crate::RwLockWriteGuard::downgrade) without
    /// a change of type. A shared guard stays as it is.
    ///
    /// # Cancelling
    /// Once it was polled, it happens. Dropped then, the guard is shared, and has its new token a little later.
    ///
    /// ```
    /// # use lockwright::LockGuard;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let mut guard = client.rwlock("config").unwrap().write().wait()?.into_any();
    /// guard.downgrade().wait()?; // in async code: guard.downgrade().await?
    /// assert!(guard.is_shared());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn downgrade(&mut self) -> DowngradeInPlace<'_> {
        DowngradeInPlace { state: DowngradeState::default(), guard: self }
    }

    /// Gives back some units of a range: see [`RangeWriteGuard::unlock_part`](crate::RangeWriteGuard::unlock_part).
    ///
    /// # Errors
    /// As there; and if this is no range lock.
    ///
    /// ```
    /// # use lockwright::LockGuard;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let mut guard = client.mutex("a").unwrap().lock().wait()?.into_any();
    /// assert!(guard.unlock_part(0..1).is_err());
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn unlock_part(&mut self, part: Range<u64>) -> Result<Option<AnyGuard>, ChangeError> {
        let claim = self.claim;
        let bad = |why| ChangeError::BadRange { start: part.start, end: part.end, why };
        self.core.check().map_err(|pid| ChangeError::OtherProcess { pid })?;
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
        self.cut(&part)
    }

    /// Makes two guards of a range's: this one keeps what is before `at`, the other one has the rest. Nothing is given back,
    /// so nobody can come in between.
    ///
    /// # Errors
    /// If there is nothing on one side of `at`, or this is no range lock; if the lock is lost, or this client may have no
    /// further one. The guard is as it was.
    ///
    /// ```
    /// # use lockwright::LockGuard;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.range_lock("data")?;
    /// let mut left = lock.write(0..10).wait()?.into_any();
    /// let mut right = left.split(4)?;
    /// assert_eq!((left.range(), right.range()), (Some(0..4), Some(4..10)));
    /// right.downgrade().wait()?;
    /// assert!(lock.try_read(4..10).wait().is_ok() && lock.try_read(3..4).wait().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&mut self, at: u64) -> Result<AnyGuard, ChangeError> {
        let bad = |why| ChangeError::BadRange { start: at, end: at, why };
        self.core.check().map_err(|pid| ChangeError::OtherProcess { pid })?;
        if self.core.kind != Kind::Ranges {
            return Err(bad("this is no range lock"));
        }
        if at <= self.claim.start || self.claim.end <= at {
            return Err(bad("there would be nothing on one side of it"));
        }
        Ok(self.cut(&(at..at))?.expect("there is something on both sides"))
    }

    /// Gives back `part`, which is inside and leaves something. The second piece, if two are left.
    fn cut(&mut self, part: &Range<u64>) -> Result<Option<AnyGuard>, ChangeError> {
        let claim = self.claim;
        let rest = self.core.space.unlock_part(self.granted(), &claim, part)?;
        let (left, right) = (Claim { end: part.start, ..claim }, Claim { start: part.end, ..claim });
        let kept = if left.start < left.end { left } else { right };
        self.change(kept, *self.granted());
        Ok(rest.map(|granted| AnyGuard::new(Arc::clone(&self.core), self.token_base, right, granted)))
    }
}

/// Polls a change to its end on this thread.
pub(super) fn wait<T>(core: &Core, future: impl Future<Output = T>) -> T {
    let mut outcome = None;
    if core.check().is_err() {
        // It is refused at the first poll, which the space must not drive.
        return lockwright_fabric::backend::block_on(future);
    }
    core.space.block_on(pin!(async { outcome = Some(future.await) }));
    outcome.expect("it was polled to its end")
}

/// How far an upgrade has come.
pub(super) struct UpgradeState {
    patience: Option<Duration>,
    /// It counts as busy, not as late.
    tried: bool,
    deadline: Option<Instant>,
    alarm: Option<Alarm>,
    /// Once it was asked for. Dropped, it is given up.
    change: Option<BoxFuture<Result<Granted, ChangeError>>>,
    done: bool,
}

impl UpgradeState {
    pub(super) fn new(patience: Option<Duration>) -> Self {
        Self { patience, tried: false, deadline: None, alarm: None, change: None, done: false }
    }

    pub(super) fn tried() -> Self {
        Self { tried: true, ..Self::new(Some(Duration::ZERO)) }
    }

    /// Whether it may wait for other readers.
    pub(super) fn may_wait(&self) -> bool {
        self.patience != Some(Duration::ZERO)
    }

    pub(super) fn poll(
        &mut self,
        guard: &mut AnyGuard,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ChangeError>> {
        assert!(!self.done, "an upgrade was polled after it was done");
        guard.core.check().map_err(|pid| ChangeError::OtherProcess { pid })?;
        if guard.claim.mode == Mode::Exclusive {
            self.done = true;
            return Poll::Ready(Ok(()));
        }
        if self.change.is_none() {
            let patience = self.patience.filter(|patience| !patience.is_zero());
            self.deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        }
        let wait = self.may_wait();
        let ask = || guard.core.space.upgrade(guard.core.kind, guard.claim, guard.granted(), wait);
        match self.change.get_or_insert_with(ask).as_mut().poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(self.finish(guard, outcome)),
            Poll::Pending if self.is_late(guard, cx) => {
                Poll::Ready(self.finish(guard, Err(ChangeError::TimedOut)))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Whether the time is over. If not, this task is woken when it is.
    fn is_late(&mut self, guard: &AnyGuard, cx: &Context<'_>) -> bool {
        let Some(deadline) = self.deadline else { return false };
        if Instant::now() >= deadline {
            return true;
        }
        if !self.alarm.as_ref().is_some_and(|alarm| alarm.wakes(cx)) {
            self.alarm = Some(guard.core.progress.alarm(deadline, cx.waker()));
        }
        false
    }

    fn finish(
        &mut self,
        guard: &mut AnyGuard,
        outcome: Result<Granted, ChangeError>,
    ) -> Result<(), ChangeError> {
        (self.done, self.change, self.alarm) = (true, None, None);
        let granted = outcome.map_err(|error| match error {
            ChangeError::Busy if !self.tried => ChangeError::TimedOut,
            error => error,
        })?;
        guard.change(Claim { mode: Mode::Exclusive, ..guard.claim }, granted);
        Ok(())
    }
}

/// How far a downgrade has come.
#[derive(Default)]
pub(super) struct DowngradeState {
    change: Option<BoxFuture<Result<Granted, ChangeError>>>,
    done: bool,
}

impl DowngradeState {
    pub(super) fn poll(
        &mut self,
        guard: &mut AnyGuard,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ChangeError>> {
        assert!(!self.done, "a downgrade was polled after it was done");
        guard.core.check().map_err(|pid| ChangeError::OtherProcess { pid })?;
        if self.change.is_none() && guard.is_shared() {
            self.done = true;
            return Poll::Ready(Ok(()));
        }
        if self.change.is_none() {
            guard.close_value();
        }
        let shared = Claim { mode: Mode::Shared, ..guard.claim };
        let change = self
            .change
            .get_or_insert_with(|| guard.core.space.downgrade(guard.core.kind, guard.claim, guard.granted()));
        let polled = change.as_mut().poll(cx);
        if let Poll::Ready(Err(error)) = polled {
            self.done = true;
            return Poll::Ready(Err(error));
        }
        // Asked for: from now on others may read, too.
        let granted = if let Poll::Ready(Ok(granted)) = &polled { *granted } else { *guard.granted() };
        guard.change(shared, granted);
        let _ = ready!(polled);
        self.done = true;
        Poll::Ready(Ok(()))
    }
}

/// An upgrade of a guard that stays where it is: `.await` it, or [`wait`](Self::wait) for it. See [`AnyGuard::upgrade`].
///
/// ```
/// # use lockwright::LockGuard;
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut guard = client.rwlock("config")?.read().await?.into_any();
/// guard.upgrade().await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is upgraded before it is awaited, or waited for"]
pub struct UpgradeInPlace<'a> {
    state: UpgradeState,
    guard: &'a mut AnyGuard,
}

impl fmt::Debug for UpgradeInPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradeInPlace").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl UpgradeInPlace<'_> {
    /// Blocks this thread until the lock is exclusive, like [`Acquire::wait`](crate::Acquire::wait), and with the same
    /// panic.
    ///
    /// # Errors
    /// If another reader already waits for the same, the time is over, the lock is lost, or the space does not offer it.
    ///
    /// ```
    /// # use lockwright::LockGuard;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let mut guard = client.rwlock("a").unwrap().read().wait().unwrap().into_any();
    /// guard.upgrade().wait()?;
    /// # Ok::<(), lockwright::ChangeError>(())
    /// ```
    #[track_caller]
    pub fn wait(self) -> Result<(), ChangeError> {
        let (core, may_wait) = (Arc::clone(&self.guard.core), self.state.may_wait());
        super::acquire::block_here(may_wait, || wait(&core, self))
    }
}

impl Future for UpgradeInPlace<'_> {
    type Output = Result<(), ChangeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.state.poll(this.guard, cx)
    }
}

/// A downgrade of a guard that stays where it is: `.await` it, or [`wait`](Self::wait) for it. See [`AnyGuard::downgrade`].
///
/// ```
/// # use lockwright::LockGuard;
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut guard = client.rwlock("config")?.write().await?.into_any();
/// guard.downgrade().await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is downgraded before it is awaited, or waited for"]
pub struct DowngradeInPlace<'a> {
    state: DowngradeState,
    guard: &'a mut AnyGuard,
}

impl fmt::Debug for DowngradeInPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DowngradeInPlace").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl DowngradeInPlace<'_> {
    /// Blocks this thread until the lock is shared, which takes a round trip where a server decides.
    ///
    /// # Errors
    /// If the lock is lost, or the space does not offer it.
    ///
    /// ```
    /// # use lockwright::LockGuard;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let mut guard = client.rwlock("a").unwrap().write().wait().unwrap().into_any();
    /// guard.downgrade().wait()?;
    /// # Ok::<(), lockwright::ChangeError>(())
    /// ```
    pub fn wait(self) -> Result<(), ChangeError> {
        let core = Arc::clone(&self.guard.core);
        wait(&core, self)
    }
}

impl Future for DowngradeInPlace<'_> {
    type Output = Result<(), ChangeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.state.poll(this.guard, cx)
    }
}
