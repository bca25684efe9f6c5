//! Release: pass the lock on, or leave the queue empty (Alg. 2 qUnlock); and say if the lock was lost meanwhile.

use super::acquire::Attempt;
use super::layout::{Name, Stamp};
use super::{LeasedClient, LeasedGrant, Rules};
use crate::protocol::Lost;
use lockwright_fabric::{Deadline, Endpoint, FabricError};

impl<E: Endpoint, R: Rules> LeasedClient<E, R> {
    pub(super) async fn leave(&self, grant: LeasedGrant) -> Result<(), Lost> {
        let place = self.place(grant.lock);
        let generation = grant.claim.generation();
        // The first verb of a release is where the lock counts as given back.
        let (us, them) = self
            .ep
            .go((place.words.stamp(place.side).read(), place.words.stamp(place.other()).read()))
            .await
            .map(|(us, them)| (Stamp(us), Stamp(them)))?;
        if us.generation().max(them.generation()) > generation {
            return Err(Lost::Recovered);
        }
        let timer = self.stall_timer(generation, us, them, None).await;
        let mut attempt = Attempt { place, me: grant.member, timer };
        Ok(self.hand_over(&mut attempt, Some(grant.budget - 1)).await?)
    }

    /// Leaves the head of the queue to the next client, with what is left of the budget; with `None` if the lock itself
    /// was never this client's.
    pub(super) async fn hand_over(
        &self,
        attempt: &mut Attempt,
        left: Option<u16>,
    ) -> Result<(), FabricError> {
        let Attempt { place, me, .. } = *attempt;
        let mut next = self.next(place.lock, me, Deadline::Now).await?; // line 16
        if next.is_none() {
            let (name, empty) = (attempt.name(), Name::nobody(attempt.timer.generation));
            if self.ep.go(place.words.tail(place.side).cas(name.0, empty.0)).await? == name.0 {
                return Ok(()); // line 17
            }
        }
        // Line 18. Who came next may have died before it said who it is.
        while next.is_none() {
            self.ep.mark("leased successor", &attempt.locals(left.unwrap_or(u16::MAX)));
            next = self.next(place.lock, me, self.deadline(&attempt.timer)).await?;
            if next.is_none() && self.is_over(attempt).await? {
                return Ok(());
            }
        }
        // Words torn by a late write: nobody knows who is next.
        let next = next.and_then(|words| me.next(words));
        let reachable = match next {
            Some(next) => !(self.shares_host_with(next) && self.ep.is_gone(next.owner).await),
            None => false,
        };
        match next.filter(|_| reachable) {
            Some(next) => self.pass(place.lock, next, left.unwrap_or(0)).await, // line 19
            // A client that holds a lock may end its generation.
            None if left.is_some() => self.begin_next_generation(attempt).await,
            None => Ok(()),
        }
    }
}
