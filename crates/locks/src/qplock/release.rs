//! Release: pass the lock to the successor, or leave the queue empty, which frees Peterson's lock too (Alg. 2 qUnlock).

use super::layout::Pass;
use super::{Place, QpClient, QpGrant, Rules};
use crate::protocol::Lost;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Deadline, Endpoint, FabricError};

impl<E: Endpoint, R: Rules> QpClient<E, R> {
    pub(super) async fn give_back(&self, grant: QpGrant) -> Result<(), Lost> {
        let mut place = self.place(grant.lock, grant.slot);
        place.me.ticket = grant.ticket;
        if R::EXTENDED && grant.mode == Mode::Shared {
            // A reader left the queue long ago; its descriptor may serve another acquire by now.
            self.ep.go(place.words.readers(place.side).fetch_add(u64::MAX)).await?;
            return Ok(());
        }
        let pass = Pass { budget: grant.budget - 1, token: grant.token };
        Ok(self.leave(place, pass, R::EXTENDED.then_some(grant.token)).await?)
    }

    /// Alg. 2 qUnlock. `token` is written back where others may look for it next: when the queue empties, and when the
    /// cohort has to yield. Within a turn it is passed along.
    pub(super) async fn leave(
        &self,
        place: Place,
        pass: Pass,
        token: Option<u64>,
    ) -> Result<(), FabricError> {
        let mut next = self.successor(place.lock, place.me, Deadline::Now).await?; // line 16
        if next.is_none() {
            let (me, tail) = (place.me.to_word(), self.tail(place));
            let old = match token {
                Some(token) => self.ep.go((place.words.token().write(token), tail.cas(me, 0))).await?.1,
                None => self.ep.go(tail.cas(me, place.me.ticket.alone())).await?, // line 17
            };
            if old == me {
                self.slots.give_back(place.me.slot);
                return Ok(());
            }
            if R::WAITS_FOR_SUCCESSOR {
                next = self.successor(place.lock, place.me, Deadline::Never).await?; // line 18
            }
        } else if pass.budget == 0
            && R::WRITES_TOKEN_BACK
            && let Some(token) = token
        {
            self.ep.go(place.words.token().write(token)).await?;
        }
        // From here on nobody points to the descriptor: the successor has said all it had to say.
        self.slots.give_back(place.me.slot);
        let Some(next) = next else { return Ok(()) };
        let pass = if R::FIFO { self.in_order(place, next, pass).await? } else { pass };
        self.pass(place.lock, next, pass).await // line 19
    }
}
