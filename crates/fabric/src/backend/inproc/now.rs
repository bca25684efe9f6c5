//! A future that has its answer: what every verb of this backend returns.
//!
//! `std::future::Ready` does the same, but its poll is not sure to inline, which costs more than the atomics of an
//! uncontended lock.

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
