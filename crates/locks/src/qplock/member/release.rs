//! Release: pass the lock on to the next ticket of the own side; if no client has drawn it, that empties the queue, which
//! frees Peterson's lock too.

use super::acquire::Place;
use super::layout::{Head, LockState};
use super::{MemberClient, MemberGrant, MemberRules, MemberSpace};
use crate::protocol::Lost;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Endpoint, FabricError};

impl<E: Endpoint, S: MemberSpace, R: MemberRules> MemberClient<E, S, R> {
    /// Gives the lock back.
    ///
    /// # Errors
    /// If its memory cannot be reached.
    #[inline(always)]
    pub async fn give_back(&self, grant: MemberGrant) -> Result<(), Lost> {
        let MemberGrant { record, claim, ticket, budget, .. } = grant;
        // A reader left the queue long ago.
        let passed = match claim.mode {
            Mode::Exclusive => self.pass_on(claim.lock, ticket, budget - 1).await,
            Mode::Shared => Ok(()),
        };
        // Without a record, too, the ticket is passed over.
        self.clear(record).await?;
        Ok(passed?)
    }

    /// From exclusive to shared, without letting go in between. Nothing happens to a lock that is shared.
    ///
    /// # Errors
    /// If its memory cannot be reached.
    pub async fn downgrade(&self, grant: &mut MemberGrant) -> Result<(), Lost> {
        if grant.claim.mode == Mode::Shared {
            return Ok(());
        }
        let state = LockState(self.ep.go(self.locks.lock(grant.claim.lock).state().read()).await?);
        grant.claim.mode = Mode::Shared;
        grant.token += 1;
        Ok(self.share(grant, state).await?)
    }

    /// The holder records that it reads, and leaves the queue.
    pub(super) async fn share(&self, grant: &MemberGrant, state: LockState) -> Result<(), FabricError> {
        let MemberGrant { record, claim, ticket, token, budget } = *grant;
        if !state.may_have_readers() {
            self.ep.go(self.locks.lock(claim.lock).state().write(state.with_readers().0)).await?;
        }
        if R::READERS_ARE_WRITTEN_DOWN_FIRST {
            self.settle_reading(record, &claim, token).await?;
        }
        self.pass_on(claim.lock, ticket, budget - 1).await?;
        if !R::READERS_ARE_WRITTEN_DOWN_FIRST {
            self.settle_reading(record, &claim, token).await?;
        }
        Ok(())
    }

    /// The lock is the next ticket's, with what is left of the budget, if a client waits with it.
    #[inline(always)]
    pub(super) async fn pass_on(&self, lock: u64, ticket: u64, budget: u16) -> Result<(), FabricError> {
        let next = Head::new(ticket + 1, budget);
        self.ep.go(self.locks.lock(lock).head(self.side).write(next.0)).await.map(drop)
    }

    /// The head of a queue leaves it without having had the lock: the next one has to compete for it.
    pub(super) async fn step_down(&self, place: Place) -> Result<(), FabricError> {
        self.pass_on(place.claim.lock, place.ticket, 0).await?;
        self.clear(place.record).await
    }

    /// Leaves the queue from anywhere.
    pub(super) async fn give_up(&self, place: Place) -> Result<(), FabricError> {
        let head = self.locks.lock(place.claim.lock).head(self.side);
        if Head(self.ep.go(head.read()).await?).ticket() == place.ticket {
            return self.step_down(place).await;
        }
        self.clear(place.record).await
    }
}
