//! Giving up: an acquire whose time is over is finished all the same, out of its user's sight.
//!
//! A client that stands in the queue will be handed the lock, and a reader that came is counted on: neither can just go away.
//! So the rest of the acquire becomes an abandoned acquire of the client, is driven on beside everything the client does later, and
//! gives the lock back as soon as it has it. Dropping a future comes to the same, if a client that drops it leaves it to
//! [`AbandonedAcquires`]. The next acquisition of the same lock queues as another member (`members`).

use super::layout::{Entry, Layout, Member};
use super::lookup::HolderLookup;
use super::{Core, Rules, ShiftGrant};
use crate::abandoned::{AbandonedAcquires, OwnedAcquire};
use crate::protocol::{Denied, LockClient, Lost, Patience, Want};
use lockwright_fabric::{Endpoint, Time};
use std::rc::Rc;

/// How far an acquire came with its first verb.
pub(super) enum PendingAcquire<L> {
    /// A reader that found this entry, with a writer in it or without tokens, some time after the time; and whether it came.
    Reader(Entry<L>, bool, Time),
    /// A writer that found this entry, and whether it queued itself, likewise.
    Writer(Member, Entry<L>, bool, Time),
}

impl<E: Endpoint, L: Layout, R: Rules> Core<E, L, R> {
    /// The rest of an acquire, for as long as the user is ready to wait.
    pub(super) async fn wait(
        self: &Rc<Self>,
        want: Want,
        begun: PendingAcquire<L>,
    ) -> Result<ShiftGrant, Denied> {
        match want.patience {
            Patience::Until(deadline) => self.wait_until(want, begun, deadline).await,
            Patience::Forever | Patience::Try => self.finish(want, begun).await,
        }
    }

    async fn wait_until(
        self: &Rc<Self>,
        want: Want,
        begun: PendingAcquire<L>,
        deadline: Time,
    ) -> Result<ShiftGrant, Denied> {
        let core = self.clone();
        let rest: OwnedAcquire<ShiftGrant> = Box::pin(async move { core.finish(want, begun).await });
        let heir = Rc::new(BareClient(self.clone()));
        let (abandoned, nobody) = (&self.abandoned, AbandonedAcquires::default());
        let abandoned = if R::GIVING_UP_PASSES_ON { abandoned } else { &nobody };
        abandoned
            .acquire_or_abandon(rest, self.ep.alarm(deadline), heir)
            .await
            .unwrap_or(Err(Denied::TimedOut))
    }

    /// An acquire, beside those that were given up before.
    pub(super) async fn acquire(self: &Rc<Self>, want: Want) -> Result<ShiftGrant, Denied> {
        if want.patience == Patience::Try || !self.abandoned.is_empty() {
            return self.abandoned.drive_with(BareClient(self.clone()).acquire(want)).await;
        }
        match self.begin(want).await {
            Ok(done) => done,
            Err(begun) => self.wait(want, begun).await,
        }
    }

    /// A release, likewise.
    pub(super) async fn release(self: &Rc<Self>, grant: ShiftGrant) -> Result<(), Lost> {
        if self.abandoned.is_empty() {
            return self.give_back(grant).await;
        }
        self.abandoned.drive_with(BareClient(self.clone()).release(grant)).await
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O, W: HolderLookup> Core<E, L, R, O, W> {
    /// The rest of an acquire, however long it takes.
    pub(super) async fn finish(&self, want: Want, begun: PendingAcquire<L>) -> Result<ShiftGrant, Denied> {
        match begun {
            PendingAcquire::Reader(entry, came, began) => {
                self.wait_for_writers(want, entry, came, began).await
            }
            PendingAcquire::Writer(me, entry, queued, began) => {
                self.queue(want, me, entry, queued, began).await
            }
        }
    }
}

/// The client as its abandoned acquires see it: they do not drive one another.
struct BareClient<E, L, R>(Rc<Core<E, L, R>>);

impl<E: Endpoint, L: Layout, R: Rules> LockClient for BareClient<E, L, R> {
    type Grant = ShiftGrant;

    async fn acquire(&self, want: Want) -> Result<ShiftGrant, Denied> {
        if want.patience == Patience::Try {
            return self.0.try_acquire(want).await;
        }
        match self.0.begin(want).await {
            Ok(done) => done,
            Err(begun) => self.0.wait(want, begun).await,
        }
    }

    async fn release(&self, grant: ShiftGrant) -> Result<(), Lost> {
        self.0.give_back(grant).await
    }
}
