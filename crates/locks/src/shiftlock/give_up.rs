//! Giving up: an acquire whose time is over is finished all the same, out of its user's sight.
//!
//! Whoever stands in the queue will be handed the lock, and a reader that came is counted on: neither can just go away.
//! So the rest of the acquire becomes an orphan of the client, is driven on beside everything the client does later, and
//! gives the lock back as soon as it has it. Dropping a future comes to the same, if whoever drops it leaves it to
//! [`Orphans`]. The next acquisition of the same lock queues as another member (`members`).

use super::layout::{Entry, Layout, Member};
use super::lookup::HolderLookup;
use super::{Core, Rules, ShiftGrant};
use crate::orphans::{Orphans, OwnedAcquire};
use crate::protocol::{Denied, LockClient, Lost, Patience, Want};
use lockwright_fabric::{Endpoint, Time};
use std::rc::Rc;

/// How far an acquire came with its first verb.
pub(super) enum Begun<L> {
    /// A reader that found this entry, with a writer in it or without tokens, some time after the time; and whether it came.
    Reader(Entry<L>, bool, Time),
    /// A writer that found this entry, and whether it queued itself, likewise.
    Writer(Member, Entry<L>, bool, Time),
}

impl<E: Endpoint, L: Layout, R: Rules> Core<E, L, R> {
    /// The rest of an acquire, for as long as the user is ready to wait.
    pub(super) async fn wait(self: &Rc<Self>, want: Want, begun: Begun<L>) -> Result<ShiftGrant, Denied> {
        match want.patience {
            Patience::Until(deadline) => self.wait_until(want, begun, deadline).await,
            Patience::Forever | Patience::Try => self.finish(want, begun).await,
        }
    }

    async fn wait_until(
        self: &Rc<Self>,
        want: Want,
        begun: Begun<L>,
        deadline: Time,
    ) -> Result<ShiftGrant, Denied> {
        let core = self.clone();
        let rest: OwnedAcquire<ShiftGrant> = Box::pin(async move { core.finish(want, begun).await });
        let heir = Rc::new(Heir(self.clone()));
        let (orphans, nobody) = (&self.orphans, Orphans::default());
        let orphans = if R::GIVING_UP_PASSES_ON { orphans } else { &nobody };
        orphans.unless(rest, self.ep.alarm(deadline), heir).await.unwrap_or(Err(Denied::TimedOut))
    }

    /// An acquire that has come so far, or has not begun.
    pub(super) async fn acquire(
        self: &Rc<Self>,
        want: Want,
        begun: Option<Begun<L>>,
    ) -> Result<ShiftGrant, Denied> {
        if let Some(begun) = begun {
            return self.wait(want, begun).await;
        }
        if want.patience == Patience::Try || !self.orphans.is_empty() {
            return self.orphans.beside(Heir(self.clone()).acquire(want)).await;
        }
        match self.begin(want).await {
            Ok(done) => done,
            Err(begun) => self.wait(want, begun).await,
        }
    }

    /// A release whose first verb has found the entry so, or which has not begun.
    pub(super) async fn release(
        self: &Rc<Self>,
        grant: ShiftGrant,
        seen: Option<Entry<L>>,
    ) -> Result<(), Lost> {
        match seen {
            Some(seen) => self.free_or_pass_on(grant, seen).await,
            None if self.orphans.is_empty() => self.give_back(grant).await,
            None => self.orphans.beside(Heir(self.clone()).release(grant)).await,
        }
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O, W: HolderLookup> Core<E, L, R, O, W> {
    /// The rest of an acquire, however long it takes.
    pub(super) async fn finish(&self, want: Want, begun: Begun<L>) -> Result<ShiftGrant, Denied> {
        match begun {
            Begun::Reader(entry, came, began) => self.wait_for_writers(want, entry, came, began).await,
            Begun::Writer(me, entry, queued, began) => self.queue(want, me, entry, queued, began).await,
        }
    }
}

/// The client as its orphans see it: they do not drive one another.
struct Heir<E, L, R>(Rc<Core<E, L, R>>);

impl<E: Endpoint, L: Layout, R: Rules> LockClient for Heir<E, L, R> {
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
