//! Cancellation that is safe for every protocol: finish acquiring, then release.
//!
//! A waiter in a queue cannot simply vanish: the lock would be handed to nobody. So when a caller gives up, the acquire's
//! future is not dropped but kept: it is polled beside the client's next operations, and when the grant comes, it is given
//! back at once. This also covers a verb that was in flight.

use crate::protocol::{Denied, LockClient, Want};
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

type AbandonedAcquire = Pin<Box<dyn Future<Output = ()>>>;

/// An acquire that owns its client, so that it can outlive the call that began it.
pub type OwnedAcquire<G> = Pin<Box<dyn Future<Output = Result<G, Denied>>>>;

/// What becomes of an abandoned acquire, on whatever thread it is driven: it is finished, and if that brings the lock,
/// the lock is given back.
pub async fn finish_then_release<G, D, R: Future>(
    acquire: impl Future<Output = Result<G, D>>,
    release: impl FnOnce(G) -> R,
) {
    if let Ok(grant) = acquire.await {
        release(grant).await;
    }
}

/// The abandoned acquires of one client on one thread. Its owner must keep polling: see
/// [`drive_with`](Self::drive_with).
#[derive(Default)]
pub struct AbandonedAcquires {
    pending: RefCell<Vec<AbandonedAcquire>>,
}

impl std::fmt::Debug for AbandonedAcquires {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AbandonedAcquires({})", self.pending.borrow().len())
    }
}

impl AbandonedAcquires {
    /// An acquire that owns its client.
    pub fn owned<C: LockClient + 'static>(client: Rc<C>, want: Want) -> OwnedAcquire<C::Grant> {
        Box::pin(async move { client.acquire(want).await })
    }

    /// `acquire`'s outcome, unless `give_up` is done first: then the acquire is abandoned and `None` returned.
    pub async fn acquire_or_abandon<C: LockClient + 'static>(
        &self,
        acquire: OwnedAcquire<C::Grant>,
        give_up: impl Future<Output = ()>,
        client: Rc<C>,
    ) -> Option<Result<C::Grant, Denied>> {
        let mut waiting = Some(acquire);
        let mut give_up = pin!(give_up);
        let outcome = poll_fn(|cx| {
            let acquire = waiting.as_mut().expect("polled again after it was done");
            if let Poll::Ready(outcome) = acquire.as_mut().poll(cx) {
                return Poll::Ready(Some(outcome));
            }
            give_up.as_mut().poll(cx).map(|()| None)
        });
        let outcome = outcome.await;
        if outcome.is_none() {
            let acquire = waiting.take().expect("only taken here");
            self.abandon(acquire, client);
        }
        outcome
    }

    fn abandon<C: LockClient + 'static>(&self, acquire: OwnedAcquire<C::Grant>, client: Rc<C>) {
        self.pending.borrow_mut().push(Box::pin(finish_then_release(acquire, async move |grant| {
            // Whether the release found the lock lost is nobody's concern any more.
            let _ = client.release(grant).await;
        })));
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.pending.borrow().is_empty()
    }

    /// Runs `future`, and the abandoned acquires beside it.
    pub async fn drive_with<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|cx| {
            self.poll_all(cx);
            future.as_mut().poll(cx)
        })
        .await
    }

    /// Runs the abandoned acquires to their ends.
    pub async fn finish(&self) {
        poll_fn(|cx| if self.poll_all(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Polls every abandoned acquire once. Says whether none is left.
    fn poll_all(&self, cx: &mut Context<'_>) -> bool {
        let mut pending = self.pending.borrow_mut();
        pending.retain_mut(|acquire| acquire.as_mut().poll(cx).is_pending());
        pending.is_empty()
    }
}
