//! Futures that are ready at once. `std::future::Ready` is one too, but its poll is not always inlined, which costs more than
//! the atomics of an uncontended lock.

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

/// The old words of a batch, or its error. The tag is one byte: see [`Op`](crate::Op).
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
#[repr(u8)]
pub(super) enum Done<T> {
    Olds(T),
    Lost(FabricError),
    Taken,
}

impl<T> Done<T> {
    #[inline(always)]
    pub(super) fn new(olds: T, lost: Option<FabricError>) -> Self {
        match lost {
            None => Self::Olds(olds),
            Some(lost) => Self::Lost(lost),
        }
    }
}

/// The answer is moved out, never pinned.
impl<T> Unpin for Done<T> {}

impl<T> Future for Done<T> {
    type Output = Result<T, FabricError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(self.get_mut(), Self::Taken) {
            Self::Olds(olds) => Poll::Ready(Ok(olds)),
            Self::Lost(lost) => Poll::Ready(Err(lost)),
            Self::Taken => unreachable!("a finished future is not polled again"),
        }
    }
}
