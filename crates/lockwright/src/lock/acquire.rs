//! Getting a lock: one future, to be awaited on any executor or waited for by a thread.
//!
//! An attempt tries once without queueing, and only then allocates what it needs to wait. Given up
//! while it waits, it is pending: finished, then released, on the client's own thread.

use super::core::Core;
use super::guard::Guard;
use crate::error::{LockError, TryLockError};
use crate::home::{Bound, BoxFuture, Granted, Refused};
use crate::progress::Alarm;
use lockwright_fabric::observe::Claim;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A lock on its way: await it, or [`wait`](Self::wait) for it.
///
/// Nothing happens before the first poll.
///
/// # Cancelling
/// Dropping it gives up. If it was queued, the lock may still come to it; the client's own thread then passes it on at
/// once. No handover is lost, and nobody else has to wait for a lease. A server takes it out of the queue at once.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").unwrap();
/// let lock = client.mutex("a").unwrap();
/// let guard = lock.lock().wait().unwrap();
/// drop(lock.lock()); // never polled: never asked
/// drop(guard);
/// assert!(lock.try_lock().is_ok());
/// ```
#[derive(Debug)]
#[must_use = "nothing is locked before it is awaited, or waited for"]
pub struct Acquire {
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
    Refused(Box<LockError>),
    Waiting(Box<Waiting>),
    Done,
}

/// A lock that is waited for. Dropping it gives up.
struct Waiting {
    core: Arc<Core>,
    claim: Claim,
    /// Where the name led when it started.
    bound: Bound,
    alarm: Option<Alarm>,
    /// `None` once it is done.
    future: Option<BoxFuture<Result<Granted, Refused>>>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("claim", &self.claim).finish_non_exhaustive()
    }
}

impl Acquire {
    #[inline(always)]
    pub(crate) fn new(core: Arc<Core>, claim: Claim, patience: Option<Duration>) -> Self {
        Self { core, claim, patience, deadline: None, returns: 0, step: Step::Start }
    }

    /// An attempt that was refused before it began.
    pub(crate) fn refused(core: Arc<Core>, claim: Claim, error: LockError) -> Self {
        let mut refused = Self::new(core, claim, None);
        refused.step = Step::Refused(Box::new(error));
        refused
    }

    /// Blocks this thread until the lock is there; it sleeps meanwhile. Needs no async runtime, and must not be called
    /// on one's worker threads.
    ///
    /// # Errors
    /// If the time is over, or the space cannot be used.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait()?;
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    #[inline(always)]
    pub fn wait(self) -> Result<Guard, LockError> {
        let Self { core, mut claim, step, .. } = self;
        if matches!(step, Step::Start)
            && let Some((granted, token_base)) = core.take_quickly(&mut claim)
        {
            return Ok(Guard::new(core, token_base, claim, granted));
        }
        Self { core, claim, step, ..self }.wait_slowly()
    }

    #[cold]
    #[inline(never)]
    fn wait_slowly(mut self) -> Result<Guard, LockError> {
        if matches!(self.step, Step::Start)
            && self.patience != Some(Duration::ZERO)
            && let Some((granted, token_base)) = self.core.take_soon(&mut self.claim)
        {
            return Ok(Guard::new(self.core, token_base, self.claim, granted));
        }
        let core = Arc::clone(&self.core);
        let mut outcome = None;
        core.space.block_on(pin!(async { outcome = Some(self.await) }));
        outcome.expect("it was seen through")
    }

    /// One attempt that never queues.
    #[inline]
    pub(crate) fn at_once(core: &Arc<Core>, mut claim: Claim) -> Result<Guard, TryLockError> {
        if let Some((granted, token_base)) = core.take_quickly(&mut claim) {
            return Ok(Guard::new(Arc::clone(core), token_base, claim, granted));
        }
        Self::at_once_slowly(core, claim)
    }

    #[cold]
    #[inline(never)]
    fn at_once_slowly(core: &Arc<Core>, mut claim: Claim) -> Result<Guard, TryLockError> {
        let mut evicted = 0;
        loop {
            let bound = core.bound()?;
            claim.lock = bound.lock;
            let Some(outcome) = core.space.try_acquire_fast(core.kind, claim) else {
                return Self::soon(core, claim, bound);
            };
            return match outcome {
                Ok(granted) if !core.leads(&bound, &granted) => {
                    core.give_away(claim, granted);
                    continue;
                }
                Ok(granted) => Ok(Guard::new(Arc::clone(core), bound.token_base, claim, granted)),
                Err(Refused::Busy) => Self::soon(core, claim, bound),
                Err(Refused::Error(LockError::Evicted)) if evicted < RETURNS => {
                    evicted += 1;
                    continue;
                }
                Err(Refused::Error(error)) => Err(error.into()),
            };
        }
    }

    /// One attempt that takes a while.
    fn soon(core: &Arc<Core>, claim: Claim, bound: Bound) -> Result<Guard, TryLockError> {
        let mut this = Self::new(Arc::clone(core), claim, Some(Duration::ZERO));
        this.deadline = core.space.try_limit().and_then(|patience| Instant::now().checked_add(patience));
        let future = core.space.try_acquire(core.kind, claim);
        this.step = Step::Waiting(Box::new(Waiting::new(core, claim, bound, future)));
        this.wait_slowly().map_err(|error| match error {
            LockError::TimedOut => TryLockError::Busy,
            error => error.into(),
        })
    }

    /// Tries once; queues if that fails.
    fn start(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, LockError>> {
        if let Some((granted, token_base)) = self.core.take_quickly(&mut self.claim) {
            self.step = Step::Done;
            return Poll::Ready(Ok(Guard::new(Arc::clone(&self.core), token_base, self.claim, granted)));
        }
        let bound = match self.core.bound() {
            Ok(bound) => bound,
            Err(error) => return Poll::Ready(self.finish(&Bound::default(), Err(Refused::Error(error)))),
        };
        self.claim.lock = bound.lock;
        let Core { space: home, kind, .. } = &*self.core;
        let has_patience = self.patience != Some(Duration::ZERO);
        let future = match home.try_acquire_fast(*kind, self.claim) {
            None | Some(Err(Refused::Busy)) if has_patience => home.acquire(*kind, self.claim),
            None | Some(Err(Refused::Busy)) => home.try_acquire(*kind, self.claim),
            Some(outcome) => return Poll::Ready(self.finish(&bound, outcome)),
        };
        self.start_waiting(bound, future, cx)
    }

    fn start_waiting(
        &mut self,
        bound: Bound,
        future: BoxFuture<Result<Granted, Refused>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Guard, LockError>> {
        self.step = Step::Waiting(Box::new(Waiting::new(&self.core, self.claim, bound, future)));
        if self.deadline.is_none() {
            let patience = self.patience.filter(|patience| !patience.is_zero());
            self.deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        }
        self.waiting(cx)
    }

    fn waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, LockError>> {
        let Step::Waiting(waiting) = &mut self.step else { unreachable!("only called while it waits") };
        let future = waiting.future.as_mut().expect("it is taken out at the end");
        match future.as_mut().poll(cx) {
            Poll::Ready(outcome) => {
                waiting.future = None;
                let bound = waiting.bound;
                Poll::Ready(self.finish(&bound, outcome))
            }
            Poll::Pending if self.deadline.is_some_and(|deadline| waiting.is_late(deadline, cx)) => {
                self.step = Step::Done;
                Poll::Ready(Err(LockError::TimedOut))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn finish(&mut self, bound: &Bound, outcome: Result<Granted, Refused>) -> Result<Guard, LockError> {
        self.step = Step::Done;
        match outcome {
            Ok(granted) if !self.core.leads(bound, &granted) => {
                self.core.give_away(self.claim, granted);
                Err(LockError::Evicted)
            }
            Ok(granted) => Ok(Guard::new(Arc::clone(&self.core), bound.token_base, self.claim, granted)),
            Err(Refused::Busy) => Err(LockError::TimedOut),
            Err(Refused::Error(error)) => Err(error),
        }
    }
}

impl Waiting {
    fn new(
        core: &Arc<Core>,
        claim: Claim,
        bound: Bound,
        future: BoxFuture<Result<Granted, Refused>>,
    ) -> Self {
        Self { core: Arc::clone(core), claim, bound, alarm: None, future: Some(future) }
    }

    /// Nothing yet: is the time over? If not, this task is woken when it is.
    fn is_late(&mut self, deadline: Instant, cx: &Context<'_>) -> bool {
        if Instant::now() >= deadline {
            return true;
        }
        if !self.alarm.as_ref().is_some_and(|alarm| alarm.wakes(cx)) {
            self.alarm = Some(self.core.progress.alarm(deadline, cx.waker()));
        }
        false
    }
}

/// Leaves a queued acquire to the progress thread: it stays in line until the lock has come and gone.
impl Drop for Waiting {
    fn drop(&mut self) {
        self.alarm = None;
        let Some(future) = self.future.take() else { return };
        if self.core.space.acquire_cancels_on_drop() {
            return drop(future);
        }
        let (core, claim) = (Arc::clone(&self.core), self.claim);
        let progress = Arc::clone(&core.progress);
        progress.adopt(Box::pin(async move {
            let Core { space: home, kind, .. } = &*core;
            let give_back = |granted| home.release(*kind, claim, granted);
            lockwright_locks::abandoned::finish_then_release(future, give_back).await;
        }));
    }
}

/// How often an attempt comes back after its client was declared dead: stopped once, it starts again; a process that is
/// stopped time and again for longer than its lease is told so.
const RETURNS: u32 = 3;

impl Future for Acquire {
    type Output = Result<Guard, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
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
}

impl Acquire {
    fn poll_once(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, LockError>> {
        let this = self;
        match &this.step {
            Step::Start => this.start(cx),
            Step::Waiting(_) => this.waiting(cx),
            Step::Refused(_) => match std::mem::replace(&mut this.step, Step::Done) {
                Step::Refused(error) => Poll::Ready(Err(*error)),
                _ => unreachable!("just seen"),
            },
            Step::Done => panic!("an acquire was polled after it was done"),
        }
    }
}
