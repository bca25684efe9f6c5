//! Strict order across the sides: who has come earlier goes first, whichever side it is on.
//!
//! There can be no common counter, since no atomic spans both sides. So tickets are taken as in Lamport's bakery: one more
//! than the last of both sides. A client looks at the other side's tail, then enters its own side's queue with a ticket
//! above what it saw there and above its predecessor's. One that is in a queue before another begins to look has the
//! smaller ticket; of two who do this at the same moment either may be first.
//!
//! Safety is Peterson's lock as before, which is safe however often one yields. Tickets only say *when* to yield: a client that
//! releases passes the lock along its own queue unless the other side's head came earlier, and a head that could enter
//! lets the other one go first if that has the smaller ticket.
//!
//! What is known of the other head's ticket (`head`) may be old, and is then too small: one yields in vain, and learns the
//! true one when the other yields in turn.

use super::layout::{Desc, Pass, Side, Ticket, WHO};
use super::{Place, QpClient, QpGrant, Rules};
use crate::join::join;
use crate::protocol::{Denied, Patience, Want};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Cond, Endpoint, FabricError, Word64};

/// Grants of a budget that only says: has the lock.
const HAS_IT: u16 = 2;

impl<E: Endpoint, R: Rules> QpClient<E, R> {
    /// Acquire by ticket.
    pub(super) async fn acquire_in_order(&self, want: Want, mut place: Place) -> Result<QpGrant, Denied> {
        let (tail, theirs) = (self.tail(place), self.rival(place));
        if self.params.waits_from_ticket {
            self.ep.observe(Observation::GaveUp(want.claim));
        }
        let (ours, look) = join(self.look(tail), self.look(theirs)).await;
        let (mut seen, look) = (ours?, look?);
        let rival = loop {
            if want.patience == Patience::Try && seen & WHO != 0 {
                self.slots.give_back(place.me.slot);
                return Err(Denied::Busy);
            }
            self.ep.mark("qplock ticket", &[u64::from(place.me.slot), look >> 32, seen]);
            place.me.ticket = Ticket::of(seen).after(Ticket::of(look));
            let (old, rival) = self.ep.go((tail.cas(seen, place.me.to_word()), theirs.read())).await?;
            if old == seen {
                break rival;
            }
            seen = old;
        };
        if self.params.waits_from_ticket {
            self.ep.observe(Observation::Waiting(want.claim));
        }
        let must_compete = match Desc::from_word(seen) {
            None => Some(rival),
            Some(pred) => {
                self.follow(place.lock, pred, place.me).await?;
                let pass = self.passed(place.lock, place.me).await?;
                if pass.budget == 0 { Some(self.ep.go(theirs.read()).await?) } else { None }
            }
        };
        if let Some(rival) = must_compete
            && !self.compete_in_order(place, rival, want.patience).await?
        {
            self.leave(place, Pass { budget: 0, token: 0 }, None).await?;
            return Err(Denied::Busy);
        }
        Ok(self.granted(place, want, HAS_IT, 0))
    }

    /// Reads a word. No other client can see that, so this is not yet an arrival.
    async fn look(&self, word: Word64) -> Result<u64, FabricError> {
        let anything = Cond::Eq { mask: 0, value: 0 };
        Ok(self.ep.wait_until(word.until(anything)).await?.value)
    }

    /// AcquireGlobal by ticket. False if a client that only tries would have to wait.
    async fn compete_in_order(
        &self,
        place: Place,
        rival: u64,
        patience: Patience,
    ) -> Result<bool, FabricError> {
        if rival & WHO == 0 {
            return Ok(true);
        }
        if patience == Patience::Try {
            return Ok(false);
        }
        let (words, theirs, us) = (place.words, self.rival(place), place.side.as_victim());
        self.ep.go(words.head(place.side).write(place.me.ticket.alone())).await?;
        loop {
            self.ep.mark("qplock yield", &[u64::from(place.me.slot), place.me.ticket.alone()]);
            let (_, rival) = self.ep.go((words.victim().write(us), theirs.read())).await?;
            if rival & WHO == 0 {
                return Ok(true);
            }
            if self.await_turn(place).await? {
                return Ok(true);
            }
            // The other head has yielded, and has said before that who it is.
            let (rival, head) = self.ep.go((theirs.read(), words.head(place.side.other()).read())).await?;
            if rival & WHO == 0 || !R::LETS_EARLIER_GO || !is_earlier(place, Ticket::of(head)) {
                return Ok(true);
            }
        }
    }

    /// Whether `next`, of the own queue, is the one that came first: with the lock if so, and otherwise without.
    pub(super) async fn in_order(&self, place: Place, next: Desc, pass: Pass) -> Result<Pass, FabricError> {
        if pass.budget == 0 {
            return Ok(pass); // The lock was not this client's to pass.
        }
        let head = place.words.head(place.side.other());
        let (rival, head) = self.ep.go((self.rival(place).read(), head.read())).await?;
        let place = Place { me: next, ..place };
        let first = rival & WHO == 0 || !R::MINDS_TICKETS || !is_earlier(place, Ticket::of(head));
        Ok(Pass { budget: u16::from(first), ..pass })
    }
}

/// Whether the other side's `head` came before `place`'s descriptor. Equal tickets are taken at the same moment: then the
/// local one goes first.
fn is_earlier(place: Place, head: Ticket) -> bool {
    head.is_before(place.me.ticket) || (head == place.me.ticket && place.side == Side::Remote)
}
