//! A fast path whose future is done by the time it is made, for clients whose verbs are instructions of this CPU.
//!
//! An `async fn` does not inline into its caller, which costs more than the atomics of an uncontended lock. So what users
//! call on shared memory executes its first verb at once ([`now`]) and makes a [`Quick`] of the outcome; only the rest is an
//! ordinary `async fn`. Optional: a protocol is as right without it, and baselines have none.
//!
//! The parts of a [`Quick`] lie side by side, never in each other's place: a value that is written in pieces of one size and
//! copied in pieces of another stalls the CPU for longer than an uncontended lock takes, and every word that a future keeps
//! is a store that the next atomic has to wait for.

use lockwright_fabric::{Batch, Endpoint, FabricError};
use std::pin::Pin;
use std::task::{Context, Poll};

/// What `batch` finds, executed at once, through an endpoint that [can](Endpoint::IS_IMMEDIATE).
#[inline(always)]
pub(crate) fn now<E: Endpoint, B: Batch>(ep: &E, batch: B) -> Result<B::Old, FabricError> {
    match ep.try_go(batch) {
        Ok(outcome) => outcome,
        Err(_) => unreachable!("only asked of endpoints whose verbs take no waiting"),
    }
}

pin_project_lite::pin_project! {
    /// An answer, or the future that finds it: boxed, out of the way of the answer, if the fast path has failed; in place
    /// where there is none.
    #[must_use = "futures do nothing unless awaited"]
    pub(crate) struct Quick<S, T> {
        done: Option<T>,
        rest: Option<Pin<Box<S>>>,
        #[pin]
        all: Option<S>,
    }
}

impl<S: Future<Output = T>, T> Quick<S, T> {
    /// It is done.
    #[inline(always)]
    pub(crate) const fn done(done: T) -> Self {
        Self { done: Some(done), rest: None, all: None }
    }

    /// It is not begun.
    #[inline(always)]
    pub(crate) const fn all(future: S) -> Self {
        Self { done: None, rest: None, all: Some(future) }
    }

    /// It was begun, and is not done.
    #[inline(always)]
    pub(crate) fn rest(future: S) -> Self {
        Self { done: None, rest: Some(boxed(future)), all: None }
    }
}

/// Out of line: a fast path that never comes here should not carry the code.
#[cold]
#[inline(never)]
fn boxed<S>(rest: S) -> Pin<Box<S>> {
    Box::pin(rest)
}

/// Polls `future`; its answer goes into `done`. An answer that a call hands back through memory would bring the quick ones
/// into memory too, since they meet in one place.
#[inline(never)]
fn is_answered<T>(
    future: Pin<&mut impl Future<Output = T>>,
    done: &mut Option<T>,
    cx: &mut Context<'_>,
) -> bool {
    match future.poll(cx) {
        Poll::Ready(answer) => {
            *done = Some(answer);
            true
        }
        Poll::Pending => false,
    }
}

impl<S: Future<Output = T>, T> Future for Quick<S, T> {
    type Output = T;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.project();
        if let Some(done) = this.done.take() {
            return Poll::Ready(done);
        }
        let is_answered = match this.rest {
            Some(rest) => is_answered(rest.as_mut(), this.done, cx),
            None => {
                let all = this.all.as_pin_mut().expect("it is done, or not, or not begun");
                is_answered(all, this.done, cx)
            }
        };
        if !is_answered {
            return Poll::Pending;
        }
        Poll::Ready(this.done.take().expect("it was answered just now"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn an_answer_is_handed_out_whether_done_begun_or_not_begun() {
        async fn wait(answer: u32) -> u32 {
            answer
        }
        for (quick, answer) in [(Quick::done(1), 1), (Quick::rest(wait(2)), 2), (Quick::all(wait(3)), 3)] {
            let polled = std::pin::pin!(quick).poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, Poll::Ready(answer));
        }
    }
}
