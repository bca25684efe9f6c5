//! Waits for the server that end when its time to answer is over: [`ClientOptions::timeout`](crate::ClientOptions::timeout).
//!
//! What this file must not do: bound what changes a lock. That goes on where nobody waits for it, until it is known what
//! became of it.

use super::super::link::Remote;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tokio::task::JoinHandle;

/// A future that may be dropped at any moment, for as long as the server may take to answer. `None`: it did not.
pub(crate) struct Answered<F> {
    future: F,
    remote: Arc<Remote>,
    due: Instant,
    alarm: Option<(Waker, JoinHandle<()>)>,
}

impl<F> Answered<F> {
    pub(crate) fn new(remote: &Arc<Remote>, future: F) -> Self {
        Self { future, remote: Arc::clone(remote), due: Instant::now() + remote.timeout(), alarm: None }
    }

    fn silence(&mut self) {
        if let Some((_, alarm)) = self.alarm.take() {
            alarm.abort();
        }
    }
}

impl<F: Future + Unpin> Future for Answered<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Poll::Ready(answer) = Pin::new(&mut this.future).poll(cx) {
            return Poll::Ready(Some(answer));
        }
        if Instant::now() >= this.due {
            return Poll::Ready(None);
        }
        if !this.alarm.as_ref().is_some_and(|(waker, _)| waker.will_wake(cx.waker())) {
            this.silence();
            let alarm = this.remote.wake_at(this.due, cx.waker().clone());
            this.alarm = Some((cx.waker().clone(), alarm));
        }
        Poll::Pending
    }
}

impl<F> Drop for Answered<F> {
    fn drop(&mut self) {
        self.silence();
    }
}
