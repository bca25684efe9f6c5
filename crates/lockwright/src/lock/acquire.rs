//! Getting a lock: one future, to be awaited on any executor or waited for by a thread.
//!
//! An attempt tries once without queueing, and only then allocates what it needs to wait. Given up
//! while it waits, it is adopted: finished, then released, on the client's own thread.

use super::core::Core;
use super::guard::Guard;
use crate::error::{LockError, TryLockError};
use crate::home::{Bound, BoxFuture, Refused, Ticket};
use crate::progress::Alarm;
use lockwright_fabric::FabricError;
use lockwright_fabric::backend::block_on;
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
    /// Where the name led when it started.
    bound: Bound,
    patience: Option<Duration>,
    deadline: Option<Instant>,
    alarm: Option<Alarm>,
    returns: u32,
    step: Step,
}

enum Step {
    Refused(LockError),
    Start,
    Waiting(BoxFuture<Result<Ticket, Refused>>),
    Done,
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Step::Refused(_) => "Refused",
            Step::Start => "Start",
            Step::Waiting(_) => "Waiting",
            Step::Done => "Done",
        })
    }
}

impl Acquire {
    pub(crate) fn new(core: Arc<Core>, claim: Claim, patience: Option<Duration>) -> Self {
        Self {
            core,
            claim,
            bound: Bound::default(),
            patience,
            deadline: None,
            alarm: None,
            returns: 0,
            step: Step::Start,
        }
    }

    /// An attempt that was refused before it began.
    pub(crate) fn refused(core: Arc<Core>, claim: Claim, error: LockError) -> Self {
        let mut refused = Self::new(core, claim, None);
        refused.step = Step::Refused(error);
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
    #[inline]
    pub fn wait(self) -> Result<Guard, LockError> {
        if self.core.home.tries_first() { block_on(self) } else { self.wait_driving() }
    }

    fn wait_driving(self) -> Result<Guard, LockError> {
        let core = Arc::clone(&self.core);
        let mut outcome = None;
        core.home.drive(pin!(async { outcome = Some(self.await) }));
        outcome.expect("it was seen through")
    }

    /// One attempt that never queues.
    #[inline]
    pub(crate) fn at_once(core: &Arc<Core>, mut claim: Claim) -> Result<Guard, TryLockError> {
        let mut expelled = 0;
        loop {
            let bound = core.bound()?;
            claim.lock = bound.lock;
            let outcome = match core.home.try_acquire(core.kind, claim) {
                Err(Refused::Busy) if core.home.rescue(core.kind, claim) => {
                    core.home.try_acquire(core.kind, claim)
                }
                outcome => outcome,
            };
            return match outcome {
                Ok(ticket) if !core.leads(&bound, &ticket) => {
                    core.give_away(claim, ticket);
                    continue;
                }
                Ok(ticket) => Ok(Guard::new(Arc::clone(core), bound.token_base, claim, ticket)),
                Err(Refused::Busy) => Err(TryLockError::Busy),
                Err(Refused::Error(LockError::Space(FabricError::Expelled))) if expelled < RETURNS => {
                    expelled += 1;
                    continue;
                }
                Err(Refused::Error(error)) => Err(error.into()),
            };
        }
    }

    /// Tries once; queues if that fails.
    fn start(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, LockError>> {
        if self.patience == Some(Duration::ZERO) {
            return self.start_trying(cx);
        }
        if !self.core.home.tries_first() {
            return self.start_queueing(cx);
        }
        if let Err(error) = self.bind() {
            return Poll::Ready(self.finish(Err(Refused::Error(error))));
        }
        let Core { home, kind, .. } = &*self.core;
        match home.try_acquire(*kind, self.claim) {
            Err(Refused::Busy) => self.start_queueing(cx),
            outcome => Poll::Ready(self.finish(outcome)),
        }
    }

    /// Looks up where the name leads.
    fn bind(&mut self) -> Result<(), LockError> {
        self.bound = self.core.bound()?;
        self.claim.lock = self.bound.lock;
        Ok(())
    }

    fn start_queueing(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, LockError>> {
        if let Err(error) = self.bind() {
            return Poll::Ready(self.finish(Err(Refused::Error(error))));
        }
        let Core { home, kind, .. } = &*self.core;
        self.step = Step::Waiting(home.acquire(*kind, self.claim));
        if self.deadline.is_none() {
            self.deadline = self.patience.and_then(|patience| Instant::now().checked_add(patience));
        }
        self.waiting(cx)
    }

    /// No patience at all: one try, which may take a round trip.
    fn start_trying(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, LockError>> {
        if let Err(error) = self.bind() {
            return Poll::Ready(self.finish(Err(Refused::Error(error))));
        }
        let Core { home, kind, .. } = &*self.core;
        if let Some(future) = home.try_soon(*kind, self.claim) {
            self.step = Step::Waiting(future);
            return self.waiting(cx);
        }
        self.step = Step::Done;
        Poll::Ready(Self::at_once(&self.core, self.claim).map_err(|error| match error {
            TryLockError::Busy => LockError::TimedOut,
            TryLockError::Failed(error) => error,
        }))
    }

    fn waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, LockError>> {
        let Step::Waiting(future) = &mut self.step else { unreachable!("only called while it waits") };
        match future.as_mut().poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(self.finish(outcome)),
            Poll::Pending => self.still_waiting(cx),
        }
    }

    /// Nothing yet: is the time over?
    fn still_waiting(&mut self, cx: &Context<'_>) -> Poll<Result<Guard, LockError>> {
        let Some(deadline) = self.deadline else { return Poll::Pending };
        if Instant::now() >= deadline {
            self.give_up();
            return Poll::Ready(Err(LockError::TimedOut));
        }
        if !self.alarm.as_ref().is_some_and(|alarm| alarm.wakes(cx)) {
            self.alarm = Some(self.core.progress.alarm(deadline, cx.waker()));
        }
        Poll::Pending
    }

    fn finish(&mut self, outcome: Result<Ticket, Refused>) -> Result<Guard, LockError> {
        self.step = Step::Done;
        self.alarm = None;
        match outcome {
            Ok(ticket) if !self.core.leads(&self.bound, &ticket) => {
                self.core.give_away(self.claim, ticket);
                Err(LockError::Space(FabricError::Expelled))
            }
            Ok(ticket) => Ok(Guard::new(Arc::clone(&self.core), self.bound.token_base, self.claim, ticket)),
            Err(Refused::Busy) => Err(LockError::TimedOut),
            Err(Refused::Error(error)) => Err(error),
        }
    }

    /// Leaves a queued acquire to the progress thread: it stays in line until the lock has come and gone.
    fn give_up(&mut self) {
        self.alarm = None;
        let Step::Waiting(future) = std::mem::replace(&mut self.step, Step::Done) else { return };
        if self.core.home.cancels_by_drop() {
            return drop(future);
        }
        let (core, claim) = (Arc::clone(&self.core), self.claim);
        let progress = Arc::clone(&core.progress);
        progress.adopt(Box::pin(async move {
            let Core { home, kind, .. } = &*core;
            let give_back = |ticket| home.release(*kind, claim, ticket);
            lockwright_locks::orphans::finish_then_release(future, give_back).await;
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
            if !matches!(polled, Poll::Ready(Err(LockError::Space(FabricError::Expelled))))
                || self.returns == RETURNS
            {
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
                Step::Refused(error) => Poll::Ready(Err(error)),
                _ => unreachable!("just seen"),
            },
            Step::Done => panic!("an acquire was polled after it was done"),
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        self.give_up();
    }
}
