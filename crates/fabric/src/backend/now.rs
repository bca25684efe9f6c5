//! A future that has its answer: what every verb of this backend returns.
//!
//! `std::future::Ready` does the same, but its poll is not sure to inline, which costs more than the atomics
//! of an uncontended lock.

use crate::endpoint::FabricError;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that is ready at its first poll.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub(super) struct Now<T>(Option<T>);

impl<T> Now<T> {
    #[inline(always)]
    pub(super) const fn new(answer: T) -> Self {
        Self(Some(answer))
    }
}

/// The answer is moved out, never pinned.
impl<T> Unpin for Now<T> {}

impl<T> Future for Now<T> {
    type Output = T;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        Poll::Ready(self.get_mut().0.take().expect("a finished future is not polled again"))
    }
}

/// The old words of a batch, or why there are none: a [`Now`] of a `Result`, kept as two parts. A `Result`
/// packs its variants into each other, and is then stored in other pieces than it is loaded in.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub(super) struct Done<T> {
    olds: Option<T>,
    lost: Option<FabricError>,
}

impl<T> Done<T> {
    #[inline(always)]
    pub(super) const fn new(olds: T, lost: Option<FabricError>) -> Self {
        Self { olds: Some(olds), lost }
    }
}

/// The answer is moved out, never pinned.
impl<T> Unpin for Done<T> {}

impl<T> Future for Done<T> {
    type Output = Result<T, FabricError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let olds = this.olds.take().expect("a finished future is not polled again");
        Poll::Ready(match this.lost {
            None => Ok(olds),
            Some(lost) => Err(lost),
        })
    }
}
