//! Several locks in one call, in one global order, so that two sets never wait for each other.

use super::acquire::{Acquire, WaitClock};
use super::core::Core;
use super::guard::AnyGuard;
use super::handle::{Mutex, RangeLock, RwLock};
use super::semaphore::Semaphore;
use super::span::Span;
use crate::backend::{Backend, BoxFuture, Granted, Kind, Refused, SpaceIdentity, whole};
use crate::error::LockError;
use crate::name::LockName;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::observe::{Claim, Mode};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Several locks to be taken together.
///
/// They are taken one after the other, ordered by space, kind, name and range, whatever the order in which they were
/// added. All processes do the same, so sets cannot deadlock with each other. They can with locks that the same process
/// already holds when it asks for the set: take everything in one set.
///
/// A space is known by its memory (`shm:`, and what a server offers of it) or by what its server calls itself and by its
/// name, not by the address that was written: two spellings are one server, and an exported space is the same by way of
/// the server and on its host.
///
/// A set that names the same lock twice, or overlapping ranges of one, would wait for itself: it is refused with
/// [`LockError::Duplicate`].
///
/// ```
/// use lockwright::{Client, LockSet};
/// let client = Client::open("mem:").wait().unwrap();
/// let (from, to) = (client.mutex("account/1").unwrap(), client.mutex("account/2").unwrap());
/// let guards = LockSet::new().lock(&to).lock(&from).acquire().wait().unwrap();
/// assert_eq!(guards.len(), 2);
/// assert!(from.try_lock().wait().is_err() && to.try_lock().wait().is_err());
/// drop(guards);
/// assert!(from.try_lock().wait().is_ok());
/// ```
#[derive(Clone, Debug, Default)]
pub struct LockSet {
    wants: Vec<(Arc<Core>, Claim)>,
    patience: Option<Duration>,
}

impl LockSet {
    /// An empty set.
    ///
    /// ```
    /// assert!(lockwright::LockSet::new().acquire().wait().unwrap().is_empty());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, core: &Arc<Core>, claim: Claim) -> Self {
        self.wants.push((Arc::clone(core), claim));
        self
    }

    /// Adds a mutex.
    ///
    /// ```
    /// # use lockwright::LockSet;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let set = LockSet::new().lock(&client.mutex("a").unwrap());
    /// ```
    #[must_use]
    pub fn lock(self, mutex: &Mutex) -> Self {
        self.with(&mutex.core, mutex.claim())
    }

    /// Adds a reader-writer lock, to be read under.
    ///
    /// ```
    /// # use lockwright::LockSet;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let set = LockSet::new().read(&client.rwlock("a").unwrap());
    /// ```
    #[must_use]
    pub fn read(self, lock: &RwLock) -> Self {
        self.with(&lock.core, whole(Mode::Shared))
    }

    /// Adds a reader-writer lock, to be written under.
    ///
    /// ```
    /// # use lockwright::LockSet;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let set = LockSet::new().write(&client.rwlock("a").unwrap());
    /// ```
    #[must_use]
    pub fn write(self, lock: &RwLock) -> Self {
        self.with(&lock.core, whole(Mode::Exclusive))
    }

    /// Adds a range, to be read under.
    ///
    /// ```
    /// # use lockwright::LockSet;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let set = LockSet::new().read_range(&client.range_lock("a").unwrap(), 0..8);
    /// ```
    #[must_use]
    pub fn read_range(self, lock: &RangeLock, range: Range<u64>) -> Self {
        let claim = Claim { lock: 0, mode: Mode::Shared, start: range.start, end: range.end };
        self.with(&lock.core, claim)
    }

    /// Adds a range, to be written under.
    ///
    /// ```
    /// # use lockwright::LockSet;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let set = LockSet::new().write_range(&client.range_lock("a").unwrap(), 0..8);
    /// ```
    #[must_use]
    pub fn write_range(self, lock: &RangeLock, range: Range<u64>) -> Self {
        let claim = Claim { lock: 0, mode: Mode::Exclusive, start: range.start, end: range.end };
        self.with(&lock.core, claim)
    }

    /// Adds permits of a semaphore.
    ///
    /// ```
    /// # use lockwright::LockSet;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let set = LockSet::new().permits(&client.semaphore("gpu", 4).unwrap(), 1)?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    ///
    /// # Errors
    /// If the semaphore does not have that many.
    pub fn permits(self, semaphore: &Semaphore, count: u64) -> Result<Self, LockError> {
        let claim = semaphore.claim(count)?;
        Ok(self.with(&semaphore.core, claim))
    }

    /// Gives up, with everything, if not all locks are there after `patience`.
    ///
    /// ```
    /// # use lockwright::{LockError, LockSet};
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let (a, b) = (client.mutex("a").unwrap(), client.mutex("b").unwrap());
    /// let held = b.lock().wait().unwrap();
    /// let late = LockSet::new().lock(&a).lock(&b).timeout(Duration::from_millis(1)).acquire().wait();
    /// assert!(matches!(late, Err(LockError::TimedOut)));
    /// assert!(a.try_lock().wait().is_ok());
    /// ```
    #[must_use]
    pub fn timeout(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Takes all of them, or none. Waits for one after the other, and asks their servers, where they have any: one message asks a
    /// server for all locks of a space, so that those which are free cost one round trip together.
    ///
    /// # Cancelling
    /// Dropping the future gives back what was taken, and loses no handover.
    ///
    /// ```
    /// # use lockwright::LockSet;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guards = LockSet::new().lock(&client.mutex("a").unwrap()).acquire().wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn acquire(self) -> AcquireSet {
        let first = self.wants.first().map(|(core, _)| Arc::clone(&core.space));
        // The thread that waits may read the answers of one space.
        let one = first.filter(|one| self.wants.iter().all(|(core, _)| Arc::ptr_eq(&core.space, one)));
        AcquireSet { future: Box::pin(take_all(self)), space: one }
    }
}

/// Takes the locks of a set.
async fn take_all(set: LockSet) -> Result<SetGuard, LockError> {
    let wants = in_order(set.wants)?;
    let deadline = set.patience.and_then(|patience| Instant::now().checked_add(patience));
    let places = wants.iter().map(|(place, _)| *place).collect();
    let wants: Vec<_> = wants.into_iter().map(|(_, want)| want).collect();
    // What is held already goes back if another one fails, or if the set is dropped meanwhile.
    let mut guards = SetGuard { guards: Vec::with_capacity(wants.len()), places };
    while let Some(rest) = wants.get(guards.len()..).filter(|rest| !rest.is_empty()) {
        let space = &rest[0].0.space;
        let together = rest.iter().take_while(|(core, _)| Arc::ptr_eq(&core.space, space)).count();
        take_some(&rest[..together], deadline, &mut guards.guards).await?;
    }
    Ok(guards)
}

/// Takes the first of these locks, which are of one space, and as many others as can be had with it.
async fn take_some(
    wants: &[Wanted],
    deadline: Option<Instant>,
    guards: &mut Vec<AnyGuard>,
) -> Result<(), LockError> {
    let (core, claim) = &wants[0];
    core.check().map_err(|pid| LockError::OtherProcess { pid })?;
    let mut own = *claim;
    if let Some((granted, token_base)) = core.try_acquire_fast(&mut own) {
        guards.push(AnyGuard::new(Arc::clone(core), token_base, own, granted));
        return Ok(());
    }
    let bound = |(core, claim): &Wanted| {
        let bound = core.bound()?;
        Ok::<_, LockError>((bound.token_base, Claim { lock: bound.lock, ..*claim }))
    };
    let bound = wants.iter().map(bound).collect::<Result<Vec<_>, _>>()?;
    let claims: Vec<_> = bound.iter().map(|(_, claim)| *claim).collect();
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let acquiring = core.space.acquire_set(&claims).filter(|_| left != Some(Duration::ZERO));
    let Some(acquiring) = acquiring else {
        guards.push(Acquire::<AnyGuard>::new(Arc::clone(core), *claim, left).await?);
        return Ok(());
    };
    let _span = Span::wait(core, claim);
    let granted =
        WaitingSet { clock: WaitClock::new(Arc::clone(core)), deadline, acquiring: Some(acquiring) };
    let granted = granted.await.map_err(|refused| match refused {
        Refused::Busy => LockError::TimedOut,
        Refused::Error(error) => error,
    })?;
    for (((core, _), (token_base, claim)), granted) in wants.iter().zip(bound).zip(granted) {
        guards.push(AnyGuard::new(Arc::clone(core), token_base, claim, granted));
    }
    Ok(())
}

/// Locks of one server that are waited for. Dropping it gives up.
struct WaitingSet {
    clock: WaitClock,
    deadline: Option<Instant>,
    acquiring: Option<BoxFuture<Result<Vec<Granted>, Refused>>>,
}

impl Future for WaitingSet {
    type Output = Result<Vec<Granted>, Refused>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { clock, deadline, acquiring } = &mut *self;
        let acquiring = acquiring.as_mut().expect("it is there until this is dropped");
        match acquiring.as_mut().poll(cx) {
            Poll::Pending if clock.is_late(*deadline, cx) => Poll::Ready(Err(Refused::Busy)),
            polled => polled,
        }
    }
}

impl Drop for WaitingSet {
    fn drop(&mut self) {
        if self.clock.is_inert() {
            std::mem::forget(self.acquiring.take());
        }
    }
}

/// A lock of a set, and what is wanted of it.
type Wanted = (Arc<Core>, Claim);

/// The order is that of these: alike in every process, whatever ids the locks have there.
fn key((core, claim): &Wanted) -> (SpaceIdentity, Kind, &LockName, u64) {
    (core.space.identity(), core.kind, &core.name, claim.start)
}

/// The locks in the order in which they are taken, each with its place in the order in which they were added.
fn in_order(wants: Vec<Wanted>) -> Result<Vec<(usize, Wanted)>, LockError> {
    for (core, Claim { start, end, .. }) in &wants {
        if core.kind == Kind::Ranges && start >= end {
            return Err(LockError::bad_range(&(*start..*end), "it is empty or reversed"));
        }
    }
    let mut wants: Vec<_> = wants.into_iter().enumerate().collect();
    wants.sort_by(|(_, a), (_, b)| key(a).cmp(&key(b)));
    for ((_, one), (_, two)) in wants.iter().zip(wants.iter().skip(1)) {
        let ((space, kind, name, _), (other_space, other_kind, other_name, start)) = (key(one), key(two));
        // Of a keyed lock every claim is on the whole.
        let apart = kind == Kind::Ranges && start >= one.1.end;
        if (space, kind, name) == (other_space, other_kind, other_name) && !apart {
            return Err(LockError::Duplicate { name: name.clone(), overlap: kind == Kind::Ranges });
        }
    }
    Ok(wants)
}

/// A lock set that is being acquired: `.await` it, or [`wait`](Self::wait) for it. Dropping it gives everything back.
///
/// ```
/// # use lockwright::LockSet;
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guards = LockSet::new().lock(&client.mutex("a")?).acquire().await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is locked before it is awaited, or waited for"]
pub struct AcquireSet {
    future: BoxFuture<Result<SetGuard, LockError>>,
    /// Of all of its locks, if they are in one.
    space: Option<Arc<dyn Backend>>,
}

impl std::fmt::Debug for AcquireSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcquireSet").finish_non_exhaustive()
    }
}

impl AcquireSet {
    /// Blocks this thread until all locks are there.
    ///
    /// # Errors
    /// If one of them cannot be had; none is held then.
    ///
    /// # Panics
    /// On the thread of a current-thread tokio runtime, as with [`Acquire::wait`](crate::Acquire::wait).
    ///
    /// ```
    /// assert!(lockwright::LockSet::new().acquire().wait().is_ok());
    /// ```
    #[track_caller]
    pub fn wait(self) -> Result<SetGuard, LockError> {
        let Self { mut future, space } = self;
        let Some(space) = space else { return super::acquire::block_here(true, || block_on(future)) };
        let mut outcome = None;
        super::acquire::block_here(true, || {
            space.block_on(pin!(async { outcome = Some(future.as_mut().await) }));
        });
        outcome.expect("it was polled to its end")
    }
}

impl Future for AcquireSet {
    type Output = Result<SetGuard, LockError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.future.as_mut().poll(cx)
    }
}

/// All locks of a set. Dropping it unlocks them, last taken first.
///
/// ```
/// # use lockwright::LockSet;
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let guards = LockSet::new().lock(&client.mutex("a").unwrap()).acquire().wait().unwrap();
/// for guard in guards.iter() {
///     println!("{} under token {}", guard.name(), guard.token());
/// }
/// ```
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct SetGuard {
    guards: Vec<AnyGuard>,
    /// Where the lock of each guard stands among those that were added.
    places: Vec<usize>,
}

impl SetGuard {
    /// The guards, in the order in which they were taken.
    ///
    /// ```
    /// # let guards = lockwright::LockSet::new().acquire().wait().unwrap();
    /// assert_eq!(guards.iter().count(), 0);
    /// ```
    pub fn iter(&self) -> std::slice::Iter<'_, AnyGuard> {
        self.guards.iter()
    }

    /// The same, to be [changed](AnyGuard::downgrade).
    ///
    /// ```
    /// # use lockwright::LockSet;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let lock = client.rwlock("a").unwrap();
    /// let mut guards = LockSet::new().write(&lock).acquire().wait().unwrap();
    /// for guard in guards.iter_mut() {
    ///     guard.downgrade().wait()?;
    /// }
    /// # Ok::<(), lockwright::ChangeError>(())
    /// ```
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, AnyGuard> {
        self.guards.iter_mut()
    }

    /// How many locks there are.
    ///
    /// ```
    /// # let guards = lockwright::LockSet::new().acquire().wait().unwrap();
    /// assert_eq!(guards.len(), 0);
    /// ```
    pub fn len(&self) -> usize {
        self.guards.len()
    }

    /// Whether there are none.
    ///
    /// ```
    /// # let guards = lockwright::LockSet::new().acquire().wait().unwrap();
    /// assert!(guards.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.guards.is_empty()
    }

    /// The guards, one by one, for those who unlock in their own order.
    ///
    /// ```
    /// # let guards = lockwright::LockSet::new().acquire().wait().unwrap();
    /// for guard in guards.into_guards() {
    ///     guard.unlock().wait()?;
    /// }
    /// # Ok::<(), lockwright::UnlockError>(())
    /// ```
    pub fn into_guards(mut self) -> Vec<AnyGuard> {
        std::mem::take(&mut self.guards)
    }

    /// The guards in the order in which their locks were added to the set.
    ///
    /// ```
    /// # use lockwright::LockSet;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let (a, b) = (client.mutex("a").unwrap(), client.mutex("b").unwrap());
    /// let guards = LockSet::new().lock(&b).lock(&a).acquire().wait()?.into_guards_as_added();
    /// assert_eq!(guards.iter().map(|guard| guard.name().to_string()).collect::<Vec<_>>(), ["b", "a"]);
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn into_guards_as_added(mut self) -> Vec<AnyGuard> {
        let mut guards: Vec<_> =
            std::mem::take(&mut self.places).into_iter().zip(std::mem::take(&mut self.guards)).collect();
        guards.sort_unstable_by_key(|(place, _)| *place);
        guards.into_iter().map(|(_, guard)| guard).collect()
    }
}

impl<'a> IntoIterator for &'a SetGuard {
    type Item = &'a AnyGuard;
    type IntoIter = std::slice::Iter<'a, AnyGuard>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut SetGuard {
    type Item = &'a mut AnyGuard;
    type IntoIter = std::slice::IterMut<'a, AnyGuard>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl Drop for SetGuard {
    fn drop(&mut self) {
        while let Some(guard) = self.guards.pop() {
            drop(guard);
        }
    }
}
