//! Cancellation that is safe for every protocol: finish acquiring, then release.
//!
//! A waiter that sits in somebody's queue cannot simply vanish: the lock would be handed to nobody. So when a user
//! gives up, the acquire's future is not dropped but adopted: it is driven on beside whatever the client does next,
//! and when the grant comes, it is given back at once. This also covers a verb that was in flight.

use crate::protocol::{Denied, LockClient, Want};
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

type Orphan = Pin<Box<dyn Future<Output = ()>>>;

/// An acquire that owns its client, so that it can outlive the call that began it.
pub type OwnedAcquire<G> = Pin<Box<dyn Future<Output = Result<G, Denied>>>>;

/// The abandoned acquires of one client on one thread. Whoever owns it must keep polling: see
/// [`beside`](Self::beside).
#[derive(Default)]
pub struct Orphans {
    adopted: RefCell<Vec<Orphan>>,
}

impl std::fmt::Debug for Orphans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Orphans({})", self.adopted.borrow().len())
    }
}

impl Orphans {
    /// An acquire that owns its client.
    pub fn owned<C: LockClient + 'static>(client: Rc<C>, want: Want) -> OwnedAcquire<C::Grant> {
        Box::pin(async move { client.acquire(want).await })
    }

    /// `acquire`'s outcome, unless `give_up` is done first: then the acquire is adopted and `None` returned.
    pub async fn unless<C: LockClient + 'static>(
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
            self.adopt(acquire, client);
        }
        outcome
    }

    fn adopt<C: LockClient + 'static>(&self, acquire: OwnedAcquire<C::Grant>, client: Rc<C>) {
        self.adopted.borrow_mut().push(Box::pin(async move {
            if let Ok(grant) = acquire.await {
                // Whether the release found the lock lost is nobody's concern any more.
                let _ = client.release(grant).await;
            }
        }));
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.adopted.borrow().is_empty()
    }

    /// Runs `future`, and the orphans beside it.
    pub async fn beside<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|cx| {
            self.poll_all(cx);
            future.as_mut().poll(cx)
        })
        .await
    }

    /// Runs the orphans to their ends.
    pub async fn finish(&self) {
        poll_fn(|cx| if self.poll_all(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Polls every orphan once. Says whether none is left.
    fn poll_all(&self, cx: &mut Context<'_>) -> bool {
        let mut adopted = self.adopted.borrow_mut();
        adopted.retain_mut(|orphan| orphan.as_mut().poll(cx).is_pending());
        adopted.is_empty()
    }
}
