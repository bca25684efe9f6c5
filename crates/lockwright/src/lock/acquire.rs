//! Acquiring a lock: futures, to be awaited on any executor or waited for by a thread.
//!
//! An attempt has one fast path, which neither queues nor allocates, and one slow path, which waits in line (`places`).

use super::core::Core;
use super::guard::AnyGuard;
use super::places::Queueing;
use super::span::Span;
use super::typed::LockGuard;
use crate::backend::{Bound, Granted, Refused, threads};
use crate::error::{LockError, TryLockError};
use crate::progress::Alarm;
use lockwright_fabric::observe::Claim;
use std::fmt;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// A lock that is being acquired: `.await` it, or [`wait`](Self::wait) for it. Nothing happens before that.
///
/// # Cancelling
/// Dropping it gives up. A server takes it out of the queue at once. On shared memory its place stays there: the next
/// acquire of that lock by this client takes it over, and if the lock comes first, the client's own thread passes it on at
/// once. No handover is lost, nobody else has to wait for a lease, and however many acquires are given up, a client has a
/// few places in the queue of a lock.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").wait().unwrap();
/// let lock = client.mutex("a").unwrap();
/// let guard = lock.lock().wait().unwrap();
/// drop(lock.lock()); // never polled: never asked
/// drop(guard);
/// assert!(lock.try_lock().wait().is_ok());
/// ```
#[must_use = "nothing is locked before it is awaited, or waited for"]
pub struct Acquire<G: LockGuard> {
    attempt: Attempt,
    guard: PhantomData<fn() -> G>,
}

impl<G: LockGuard> Acquire<G> {
    #[inline(always)]
    pub(crate) fn new(core: Arc<Core>, claim: Claim, patience: Option<Duration>) -> Self {
        Self { attempt: Attempt::new(core, claim, patience), guard: PhantomData }
    }

    /// An attempt that was refused before it began.
    pub(crate) fn refused(core: Arc<Core>, claim: Claim, error: LockError) -> Self {
        Self { attempt: Attempt::refused(core, claim, error), guard: PhantomData }
    }

    /// The same attempt, for a guard without a type.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let (alone, name) = (true, "a");
    /// let lock = client.rwlock(name)?;
    /// let acquire = if alone { lock.write().into_any() } else { lock.read().into_any() };
    /// let guard: lockwright::AnyGuard = acquire.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn into_any(self) -> Acquire<AnyGuard> {
        Acquire { attempt: self.attempt, guard: PhantomData }
    }

    /// Blocks this thread until the lock is there; it sleeps meanwhile. Needs no async runtime.
    ///
    /// # Errors
    /// If the time is over, or the space cannot be used.
    ///
    /// # Panics
    /// If it would have to wait on the thread of a current-thread tokio runtime (or in a `LocalSet`): the holder may be
    /// a task of the same thread, which could then never unlock. `.await` it there. On a worker of a multi-thread runtime
    /// the other tasks of that worker move on meanwhile, as with `tokio::task::block_in_place`.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait(self) -> Result<G, LockError> {
        self.attempt.wait()
    }
}

impl<G: LockGuard> Future for Acquire<G> {
    type Output = Result<G, LockError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().attempt.poll(cx).map_ok(G::from_any)
    }
}

impl<G: LockGuard> fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Acquire").field(&self.attempt).finish()
    }
}

/// A lock that is being tried: `.await` it, or [`wait`](Self::wait) for it. It never waits for another holder and never
/// queues, but takes a round trip where a server decides. Dropping it gives up, as with [`Acquire`].
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let lock = client.mutex("a")?;
/// let held = lock.try_lock().wait()?; // in async code: lock.try_lock().await?
/// assert!(lock.try_lock().wait().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is locked before it is awaited, or waited for"]
pub struct TryAcquire<G: LockGuard>(Acquire<G>);

impl<G: LockGuard> TryAcquire<G> {
    #[inline(always)]
    pub(crate) fn new(core: Arc<Core>, claim: Claim) -> Self {
        Self(Acquire::new(core, claim, Some(Duration::ZERO)))
    }

    pub(crate) fn refused(core: Arc<Core>, claim: Claim, error: LockError) -> Self {
        Self(Acquire::refused(core, claim, error))
    }

    /// The same try, for a guard without a type: see [`Acquire::into_any`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard: lockwright::AnyGuard = client.mutex("a").unwrap().try_lock().into_any().wait()?;
    /// # Ok::<(), lockwright::TryLockError>(())
    /// ```
    #[inline(always)]
    pub fn into_any(self) -> TryAcquire<AnyGuard> {
        TryAcquire(self.0.into_any())
    }

    /// Tries, on this thread: at once, or after one round trip where a server decides.
    ///
    /// # Errors
    /// [`TryLockError::Busy`] if another holder is in the way.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.mutex("a").unwrap().try_lock().wait().is_ok());
    /// ```
    #[inline(always)]
    pub fn wait(self) -> Result<G, TryLockError> {
        self.0.attempt.wait().map_err(only_tried)
    }
}

impl<G: LockGuard> Future for TryAcquire<G> {
    type Output = Result<G, TryLockError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(Pin::new(&mut self.get_mut().0).poll(cx)).map_err(only_tried))
    }
}

impl<G: LockGuard> fmt::Debug for TryAcquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TryAcquire").field(&self.0.attempt).finish()
    }
}

fn only_tried(error: LockError) -> TryLockError {
    match error {
        LockError::TimedOut => TryLockError::Busy,
        error => error.into(),
    }
}

/// Blocks in `wait`. If that `may_wait` for another holder, not on the only thread of a tokio runtime, where it would wait
/// for itself: there, tokio panics.
#[track_caller]
pub(super) fn block_here<T>(may_wait: bool, wait: impl FnOnce() -> T) -> T {
    let wait = || threads::blocking(wait);
    if may_wait { tokio::task::block_in_place(wait) } else { wait() }
}

/// An attempt to acquire a lock, for a guard of any type. Without patience, it only tries.
#[derive(Debug)]
struct Attempt {
    core: Arc<Core>,
    /// Its lock is filled in when it starts.
    claim: Claim,
    patience: Option<Duration>,
    /// When patience ends, once it waits.
    deadline: Option<Instant>,
    returns: u32,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Start,
    /// The fast path was of no use.
    Slow,
    Refused(Box<LockError>),
    Waiting(Box<Waiting>),
    Done,
}

/// A lock that is waited for. Dropping it gives up.
struct Waiting {
    clock: WaitClock,
    queueing: Queueing,
    _span: Span,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("lock", &self.clock.core.name).finish_non_exhaustive()
    }
}

impl Attempt {
    #[inline(always)]
    fn new(core: Arc<Core>, claim: Claim, patience: Option<Duration>) -> Self {
        Self { core, claim, patience, deadline: None, returns: 0, step: Step::Start }
    }

    fn refused(core: Arc<Core>, claim: Claim, error: LockError) -> Self {
        let mut refused = Self::new(core, claim, None);
        refused.step = Step::Refused(Box::new(error));
        refused
    }

    fn may_wait(&self) -> bool {
        self.patience != Some(Duration::ZERO)
    }

    #[inline(always)]
    #[track_caller]
    fn wait<G: LockGuard>(self) -> Result<G, LockError> {
        let Self { core, mut claim, step, .. } = self;
        if matches!(step, Step::Start)
            && let Some((granted, token_base)) = core.try_acquire_fast(&mut claim)
        {
            // Made where it will be: a guard that is made of another is copied in pieces, for which the CPU waits.
            return Ok(G::from_any(AnyGuard::new(core, token_base, claim, granted)));
        }
        Self { core, claim, step, ..self }.wait_slow().map(G::from_any)
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn wait_slow(mut self) -> Result<AnyGuard, LockError> {
        self.check()?;
        let may_wait = self.may_wait();
        if matches!(self.step, Step::Start) {
            if may_wait && let Some((granted, token_base)) = self.core.acquire_spinning(&mut self.claim) {
                return Ok(AnyGuard::new(self.core, token_base, self.claim, granted));
            }
            self.step = Step::Slow;
        }
        if !may_wait {
            // A try of this thread must not wait for a future of this thread.
            self.deadline = self.core.space.try_limit().and_then(|limit| Instant::now().checked_add(limit));
        }
        let core = Arc::clone(&self.core);
        let mut outcome = None;
        block_here(may_wait, || {
            let poll = std::future::poll_fn(|cx| self.poll(cx));
            core.space.block_on(pin!(async { outcome = Some(poll.await) }));
        });
        outcome.expect("it was polled to its end")
    }

    fn check(&self) -> Result<(), LockError> {
        self.core.check().map_err(|pid| LockError::OtherProcess { pid })
    }

    /// Tries once; queues if that fails.
    fn start(&mut self, cx: &mut Context<'_>) -> Poll<Result<AnyGuard, LockError>> {
        if matches!(self.step, Step::Start)
            && let Some((granted, token_base)) = self.core.try_acquire_fast(&mut self.claim)
        {
            self.step = Step::Done;
            return Poll::Ready(Ok(AnyGuard::new(Arc::clone(&self.core), token_base, self.claim, granted)));
        }
        let bound = match self.core.bound() {
            Ok(bound) => bound,
            Err(error) => return Poll::Ready(self.finish(&Bound::default(), Err(Refused::Error(error)))),
        };
        self.claim.lock = bound.lock;
        let Core { space, kind, .. } = &*self.core;
        let queueing = match space.try_acquire_fast(*kind, self.claim) {
            None | Some(Err(Refused::Busy)) if self.may_wait() => {
                Queueing::new(&self.core, self.claim, bound)
            }
            None | Some(Err(Refused::Busy)) => {
                Queueing::trying(&self.core, self.claim, bound, space.try_acquire(*kind, self.claim))
            }
            Some(outcome) => return Poll::Ready(self.finish(&bound, outcome)),
        };
        self.start_waiting(queueing, cx)
    }

    fn start_waiting(
        &mut self,
        queueing: Queueing,
        cx: &mut Context<'_>,
    ) -> Poll<Result<AnyGuard, LockError>> {
        let core = Arc::clone(&self.core);
        let span = Span::wait(&core, &self.claim);
        let clock = WaitClock::new(Arc::clone(&core));
        self.step = Step::Waiting(Box::new(Waiting { clock, queueing, _span: span }));
        if self.deadline.is_none() {
            let patience = if self.may_wait() { self.patience } else { core.space.answer_limit() };
            self.deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        }
        self.waiting(cx)
    }

    fn waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<AnyGuard, LockError>> {
        let Step::Waiting(waiting) = &mut self.step else { unreachable!("only called while it waits") };
        match waiting.queueing.poll(cx) {
            Poll::Ready(outcome) => {
                let bound = waiting.queueing.bound;
                Poll::Ready(self.finish(&bound, outcome))
            }
            Poll::Pending if waiting.clock.is_late(self.deadline, cx) => {
                self.step = Step::Done;
                let tried = || self.core.space.no_answer();
                Poll::Ready(Err(if self.may_wait() { LockError::TimedOut } else { tried() }))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn finish(&mut self, bound: &Bound, outcome: Result<Granted, Refused>) -> Result<AnyGuard, LockError> {
        self.step = Step::Done;
        match outcome {
            Ok(granted) if !self.core.leads(bound, &granted) => {
                self.core.give_away(self.claim, granted);
                Err(LockError::Evicted)
            }
            Ok(granted) => Ok(AnyGuard::new(Arc::clone(&self.core), bound.token_base, self.claim, granted)),
            Err(Refused::Busy) => Err(LockError::TimedOut),
            Err(Refused::Error(error)) => Err(error),
        }
    }
}

/// How long a caller waits.
pub(super) struct WaitClock {
    core: Arc<Core>,
    alarm: Option<Alarm>,
}

impl WaitClock {
    pub(super) const fn new(core: Arc<Core>) -> Self {
        Self { core, alarm: None }
    }

    /// Whether nothing is to be done for what is dropped here, since another process has it.
    pub(super) fn is_inert(&self) -> bool {
        self.core.is_inert()
    }

    /// Nothing yet: is the time over? If not, this task is woken when it is.
    pub(super) fn is_late(&mut self, deadline: Option<Instant>, cx: &Context<'_>) -> bool {
        let Some(deadline) = deadline else { return false };
        if Instant::now() >= deadline {
            return true;
        }
        if !self.alarm.as_ref().is_some_and(|alarm| alarm.wakes(cx)) {
            self.alarm = Some(self.core.progress.alarm(deadline, cx.waker()));
        }
        false
    }
}

impl Drop for WaitClock {
    fn drop(&mut self) {
        if self.core.is_inert() {
            std::mem::forget(self.alarm.take());
        }
    }
}

/// How often an attempt comes back after its client was declared dead: stopped once, it starts again; a process that is
/// stopped time and again for longer than its lease is told so.
const RETURNS: u32 = 3;

impl Attempt {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<AnyGuard, LockError>> {
        self.check()?;
        loop {
            let polled = self.poll_once(cx);
            if !matches!(polled, Poll::Ready(Err(LockError::Evicted))) || self.returns == RETURNS {
                return polled;
            }
            // Nothing was held, so nothing is lost but the place in the queue.
            self.returns += 1;
            self.step = Step::Start;
        }
    }

    fn poll_once(&mut self, cx: &mut Context<'_>) -> Poll<Result<AnyGuard, LockError>> {
        match &self.step {
            Step::Start | Step::Slow => self.start(cx),
            Step::Waiting(_) => self.waiting(cx),
            Step::Refused(_) => match std::mem::replace(&mut self.step, Step::Done) {
                Step::Refused(error) => Poll::Ready(Err(*error)),
                _ => unreachable!("just seen"),
            },
            Step::Done => panic!("an acquire was polled after it was done"),
        }
    }
}
