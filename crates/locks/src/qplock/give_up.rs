//! Giving up: an acquire whose time is over is finished all the same, out of its user's sight.
//!
//! A client that stands in a queue will be passed the lock, so it cannot just go away. The rest of the acquire becomes an abandoned acquire
//! of the client, is driven on beside whatever the client does next, and gives the lock back as soon as it has it. Its
//! descriptor stays its own until then.

use crate::abandoned::AbandonedAcquires;
use crate::protocol::{Denied, LockClient, Lost, Patience, Want};
use lockwright_fabric::Endpoint;
use std::rc::Rc;

/// A client of an asymmetric lock that can also time out ([`Patience::Until`]).
///
/// An acquire that timed out holds up its queue until the client's next call, or until [`settle`](LockClient::settle)
/// has seen it through.
#[derive(Clone, Debug)]
pub struct GivesUp<E, C> {
    ep: E,
    client: Rc<C>,
    abandoned: Rc<AbandonedAcquires>,
}

impl<E: Endpoint, C: LockClient + 'static> GivesUp<E, C> {
    pub(super) fn new(ep: E, client: C) -> Self {
        Self { ep, client: Rc::new(client), abandoned: Rc::default() }
    }

    /// With a deadline, or beside what was given up before.
    async fn acquire_slow(&self, want: Want) -> Result<C::Grant, Denied> {
        let Patience::Until(deadline) = want.patience else {
            return self.abandoned.drive_with(self.client.acquire(want)).await;
        };
        let acquire = AbandonedAcquires::owned(self.client.clone(), want.with(Patience::Forever));
        let in_time =
            self.abandoned.acquire_or_abandon(acquire, self.ep.alarm(deadline), self.client.clone());
        self.abandoned.drive_with(in_time).await.unwrap_or(Err(Denied::TimedOut))
    }
}

impl<E: Endpoint, C: LockClient + 'static> LockClient for GivesUp<E, C> {
    type Grant = C::Grant;

    async fn acquire(&self, want: Want) -> Result<C::Grant, Denied> {
        if self.abandoned.is_empty() && !matches!(want.patience, Patience::Until(_)) {
            return self.client.acquire(want).await;
        }
        self.acquire_slow(want).await
    }

    async fn release(&self, grant: C::Grant) -> Result<(), Lost> {
        if self.abandoned.is_empty() {
            return self.client.release(grant).await;
        }
        self.abandoned.drive_with(self.client.release(grant)).await
    }

    async fn settle(&self) {
        self.abandoned.finish().await;
    }

    fn locals(&self) -> Vec<u64> {
        self.client.locals()
    }
}
