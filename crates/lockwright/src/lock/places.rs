//! A client's places in the queue of a lock, where a place cannot be left before the lock has come to it.
//!
//! An acquire that is given up there leaves its place behind, abandoned: the client's own thread waits on, and releases the
//! lock when it comes. So that clients which give up all the time do not fill the space:
//!
//! - The next acquire by the same client of the same lock in the same mode takes an abandoned place over, the oldest first.
//! - A client has at most [`MOST`] places in the queue of one lock in one mode. Further acquires wait outside, in this
//!   process, in order.
//! - A client that has abandoned [`MOST_ABANDONED`] acquires of whatever locks queues no more at once: it tries again every
//!   few milliseconds, and queues if that was in vain for [`QUEUES_AFTER`].
//!
//! An acquire that has a place is overtaken by nobody who takes a place behind it: what is taken over was before it already.
//!
//! Ranges have no such queue: an acquire that is given up leaves when it has seen its turn at the gate.

use super::core::Core;
use crate::backend::{Bound, BoxFuture, GivenUp, Granted, Kind, Refused};
use crate::error::LockError;
use crate::progress::Alarm;
use lockwright_fabric::observe::{Claim, Mode};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Places of one client in the queue of one lock in one mode.
const MOST: usize = 16;
/// Abandoned acquires of one client. Each looks every 30 ms whether the holder is alive, on the thread that also wakes those
/// whose time is over.
const MOST_ABANDONED: usize = 64;
/// With so many: how often an acquire tries, and when it queues all the same.
const TRIES_EVERY: Duration = Duration::from_millis(5);
const QUEUES_AFTER: Duration = Duration::from_secs(1);

type Outcome = Result<Granted, Refused>;

/// The places of one client in the queue of one lock, by mode.
#[derive(Debug, Default)]
pub(crate) struct Places([Mutex<Line>; 2]);

#[derive(Default)]
struct Line {
    /// Places in the queue: waited in, abandoned, or with the lock on its way back from them.
    queued: usize,
    /// The abandoned ones, by age.
    abandoned: BTreeMap<u64, Abandoned>,
    /// Who waits for a place, in order.
    outside: BTreeMap<u64, Waker>,
    next: u64,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("queued", &self.queued).finish_non_exhaustive()
    }
}

/// A place in the queue.
struct Place {
    /// The older, the smaller.
    number: u64,
    is_taken_over: bool,
    bound: Bound,
    future: BoxFuture<Outcome>,
}

/// A place that the client's own thread drives. It removes this when there is no more to do.
#[derive(Default)]
struct Abandoned {
    /// `None`: taken over.
    place: Option<Place>,
    /// Wakes the client's thread, once that has looked.
    driver: Option<Waker>,
}

impl Places {
    fn line(&self, mode: Mode) -> MutexGuard<'_, Line> {
        let [shared, exclusive] = &self.0;
        let line = if mode == Mode::Shared { shared } else { exclusive };
        line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place is free: the first who waits for one can have it.
    fn leave(&self, mode: Mode) {
        let mut line = self.line(mode);
        line.queued -= 1;
        let first = line.first_outside();
        drop(line);
        first.into_iter().for_each(Waker::wake);
    }

    /// Drives an abandoned place. `None`: it was taken over.
    fn poll_abandoned(&self, mode: Mode, number: u64, cx: &mut Context<'_>) -> Poll<Option<Outcome>> {
        let mut line = self.line(mode);
        let entry = line.abandoned.get_mut(&number).expect("only removed here, in the end");
        let outcome = match &mut entry.place {
            None => None,
            Some(place) => match place.future.as_mut().poll(cx) {
                Poll::Ready(outcome) => Some(outcome),
                Poll::Pending => {
                    entry.driver = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            },
        };
        line.abandoned.remove(&number);
        Poll::Ready(outcome)
    }
}

impl Line {
    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn first_outside(&self) -> Option<Waker> {
        self.outside.first_key_value().map(|(_, waker)| waker.clone())
    }

    /// The oldest abandoned place that leads to the same lock, and who drives it.
    fn take_over(&mut self, bound: Bound) -> Option<(Place, Option<Waker>)> {
        let same = |entry: &&mut Abandoned| entry.place.as_ref().is_some_and(|place| place.bound == bound);
        let entry = self.abandoned.values_mut().find(same)?;
        let place = Place { is_taken_over: true, ..entry.place.take()? };
        Some((place, entry.driver.clone()))
    }
}

/// Gives a place up. It stays in the queue until the lock has come and gone, or another acquire takes it over.
fn abandon(core: &Arc<Core>, claim: Claim, place: Place) {
    let number = place.number;
    let mut line = core.places.line(claim.mode);
    let is_new = !line.abandoned.contains_key(&number);
    let entry = line.abandoned.entry(number).or_default();
    entry.place = Some(place);
    let driver = entry.driver.clone();
    let first = line.first_outside();
    drop(line);
    if is_new {
        core.progress.adopt(Box::pin(see_through(Arc::clone(core), claim, number)));
    }
    driver.into_iter().chain(first).for_each(Waker::wake);
}

async fn see_through(core: Arc<Core>, claim: Claim, number: u64) {
    let Core { places, space, kind, .. } = &*core;
    let outcome = poll_fn(|cx| places.poll_abandoned(claim.mode, number, cx)).await;
    let Some(outcome) = outcome else { return };
    if let Ok(granted) = outcome {
        // Whether the release found the lock lost is nobody's concern any more.
        let _ = space.release(*kind, claim, granted).await;
    }
    places.leave(claim.mode);
}

/// An acquire that has to wait. Dropping it gives up.
pub(super) struct Queueing {
    core: Arc<Core>,
    claim: Claim,
    /// Where the name led when it started.
    pub(super) bound: Bound,
    stage: Stage,
}

enum Stage {
    /// It has no place in the queue yet.
    Outside(Outside),
    Queued(Place),
    /// It does not matter to others of this client how it waits, and how it gives up.
    Alone(BoxFuture<Outcome>, GivenUp),
    Done,
}

struct Outside {
    /// Its number among those outside.
    ticket: Option<u64>,
    since: Instant,
    alarm: Option<Alarm>,
}

impl Queueing {
    /// An acquire that waits for as long as it takes.
    pub(super) fn new(core: &Arc<Core>, claim: Claim, bound: Bound) -> Self {
        let stage = if core.space.acquire_cancels_on_drop() {
            Stage::Alone(core.space.acquire(core.kind, claim), GivenUp::default())
        } else {
            Stage::Outside(Outside::new())
        };
        Self { core: Arc::clone(core), claim, bound, stage }
    }

    /// One that only tries, by `future`.
    pub(super) fn trying(core: &Arc<Core>, claim: Claim, bound: Bound, future: BoxFuture<Outcome>) -> Self {
        Self { core: Arc::clone(core), claim, bound, stage: Stage::Alone(future, GivenUp::default()) }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            let outcome = match &mut self.stage {
                Stage::Outside(_) => match self.enter(cx) {
                    Poll::Ready(None) => continue,
                    Poll::Ready(Some(outcome)) => outcome,
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Queued(place) => {
                    let Poll::Ready(outcome) = place.future.as_mut().poll(cx) else { return Poll::Pending };
                    self.core.places.leave(self.claim.mode);
                    // With the membership of the place's previous owner: this acquire has not begun.
                    if place.is_taken_over && matches!(outcome, Err(Refused::Error(LockError::Evicted))) {
                        self.stage = Stage::Outside(Outside::new());
                        continue;
                    }
                    outcome
                }
                Stage::Alone(future, _) => {
                    let Poll::Ready(outcome) = future.as_mut().poll(cx) else { return Poll::Pending };
                    outcome
                }
                Stage::Done => unreachable!("polled to its end before"),
            };
            self.stage = Stage::Done;
            return Poll::Ready(outcome);
        }
    }

    /// Looks for a place in the queue. `None`: there was one. An outcome: it needs none.
    fn enter(&mut self, cx: &Context<'_>) -> Poll<Option<Outcome>> {
        let Self { core, claim, bound, stage } = self;
        let Stage::Outside(outside) = stage else { unreachable!("only called outside") };
        let has_abandoned_many =
            core.progress.unfinished() >= MOST_ABANDONED && outside.since.elapsed() < QUEUES_AFTER;
        if core.kind == Kind::Keyed {
            if let Some(place) = outside.find_place(core, *claim, *bound, has_abandoned_many, cx) {
                outside.leave(core, claim.mode);
                *stage = Stage::Queued(place);
                return Poll::Ready(None);
            }
        } else if !has_abandoned_many {
            let given_up = GivenUp::default();
            let future = core.space.acquire_unless(core.kind, *claim, given_up.clone());
            *stage = Stage::Alone(future, given_up);
            return Poll::Ready(None);
        }
        if has_abandoned_many {
            let tried = core.space.try_acquire_fast(core.kind, *claim);
            if let Some(outcome @ (Ok(_) | Err(Refused::Error(_)))) = tried {
                outside.leave(core, claim.mode);
                return Poll::Ready(Some(outcome));
            }
            outside.alarm = Some(core.progress.alarm(Instant::now() + TRIES_EVERY, cx.waker()));
        }
        Poll::Pending
    }
}

impl Outside {
    fn new() -> Self {
        Self { ticket: None, since: Instant::now(), alarm: None }
    }

    /// A place that was abandoned, or a new one, if it is this acquire's turn and there is one. Else it is woken when there
    /// may be.
    fn find_place(
        &mut self,
        core: &Core,
        claim: Claim,
        bound: Bound,
        has_abandoned_many: bool,
        cx: &Context<'_>,
    ) -> Option<Place> {
        let mut line = core.places.line(claim.mode);
        let first = line.outside.first_key_value().map(|(ticket, _)| *ticket);
        if first.is_none() || first == self.ticket {
            if let Some((place, driver)) = line.take_over(bound) {
                drop(line);
                driver.into_iter().for_each(Waker::wake);
                return Some(place);
            }
            if line.queued < MOST && !has_abandoned_many {
                line.queued += 1;
                let number = line.next_number();
                drop(line);
                let future = core.space.acquire(core.kind, claim);
                return Some(Place { number, is_taken_over: false, bound, future });
            }
        }
        let ticket = *self.ticket.get_or_insert_with(|| line.next_number());
        line.outside.insert(ticket, cx.waker().clone());
        None
    }

    /// A waiter behind this one may find a place, too.
    fn leave(&mut self, core: &Core, mode: Mode) {
        self.alarm = None;
        let Some(ticket) = self.ticket.take() else { return };
        let mut line = core.places.line(mode);
        line.outside.remove(&ticket);
        let first = line.first_outside();
        drop(line);
        first.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Queueing {
    fn drop(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        let Self { core, claim, .. } = self;
        if core.is_inert() {
            return std::mem::forget(stage);
        }
        match stage {
            Stage::Outside(mut outside) => outside.leave(core, claim.mode),
            Stage::Queued(place) => abandon(core, *claim, place),
            Stage::Alone(future, given_up) => {
                if core.space.acquire_cancels_on_drop() {
                    return drop(future);
                }
                given_up.set();
                let (core, claim) = (Arc::clone(core), *claim);
                let progress = Arc::clone(&core.progress);
                progress.adopt(Box::pin(async move {
                    let Core { space, kind, .. } = &*core;
                    let give_back = |granted| space.release(*kind, claim, granted);
                    lockwright_locks::abandoned::finish_then_release(future, give_back).await;
                }));
            }
            Stage::Done => {}
        }
    }
}
