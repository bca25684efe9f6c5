//! Peterson's lock between the heads of the two queues, in one generation (Alg. 1 lines 6–8, 15–16).
//!
//! A sleeper of an older generation can still write `victim`. It writes its own generation with it, so nobody takes it for
//! the other side's yielding; but it may have written over just that. So a client that finds such a word yields once more:
//! yielding twice is always safe, and of two leaders that both do so the one that yielded first goes on.

use super::acquire::Attempt;
use super::layout::{Name, as_victim};
use super::{LeasedClient, Rules, is_try};
use crate::protocol::Want;
use lockwright_fabric::{Cond, Endpoint, FabricError};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Why a leader stopped waiting.
enum Seen {
    /// The other queue is empty, or of another generation.
    TheyLeft,
    /// `victim` is this.
    Victim(u64),
    /// Nothing has happened for too long.
    Nothing,
}

impl<E: Endpoint, R: Rules> LeasedClient<E, R> {
    /// The lock for this side. False if a client that only tries would have to wait; `None` if the generation is over.
    pub(super) async fn compete(
        &self,
        attempt: &mut Attempt,
        rival: Option<Name>,
        want: Want,
    ) -> Result<Option<bool>, FabricError> {
        let (place, generation) = (attempt.place, attempt.timer.generation);
        let theirs = place.words.tail(place.other());
        let rival = match rival {
            Some(rival) => rival,
            None => Name(self.ep.go(theirs.read()).await?),
        };
        if self.in_queue(rival, generation).is_none() {
            return Ok(Some(true)); // Nobody to yield to: who comes later yields itself.
        }
        let (us, they) = (as_victim(place.side, generation), as_victim(place.other(), generation));
        let victim = place.words.victim();
        loop {
            self.ep.mark("leased yield", &attempt.locals(0));
            let (_, rival) = self.ep.go((victim.write(us), theirs.read())).await?; // g1, g2
            if self.in_queue(Name(rival), generation).is_none() {
                return Ok(Some(true));
            }
            if is_try(want) {
                return Ok(Some(self.ep.go(victim.read()).await? == they));
            }
            loop {
                self.ep.mark("leased gwait", &attempt.locals(0));
                match self.await_turn(attempt, us).await? {
                    Seen::TheyLeft => return Ok(Some(true)),
                    Seen::Victim(victim) if victim == they || !R::CHECKS_VICTIM => return Ok(Some(true)),
                    Seen::Victim(_) => break, // A sleeper's: yield again.
                    Seen::Nothing if self.is_over(attempt).await? => return Ok(None),
                    Seen::Nothing => {}
                }
            }
        }
    }

    /// gwait: either is enough, whichever is seen first.
    async fn await_turn(&self, attempt: &Attempt, us: u64) -> Result<Seen, FabricError> {
        let (place, generation) = (attempt.place, attempt.timer.generation);
        let deadline = self.deadline(&attempt.timer);
        let nobody = Cond::Eq { mask: Name::WHO, value: 0 };
        let another = Cond::Ne { mask: Name::GENERATION, value: Name::nobody(generation).0.into() };
        let mut gone = place.words.tail(place.other()).until(nobody).by(deadline);
        if R::FORGETS_OLD_QUEUES {
            gone = gone.or(another);
        }
        let changed = place.words.victim().until(Cond::Ne { mask: u128::MAX, value: us.into() }).by(deadline);
        let (mut gone, mut changed) = (pin!(self.ep.wait_until(gone)), pin!(self.ep.wait_until(changed)));
        poll_fn(|cx| {
            if let Poll::Ready(waited) = gone.as_mut().poll(cx) {
                return Poll::Ready(
                    waited.map(|waited| if waited.met { Seen::TheyLeft } else { Seen::Nothing }),
                );
            }
            let waited = std::task::ready!(changed.as_mut().poll(cx));
            Poll::Ready(
                waited.map(|waited| if waited.met { Seen::Victim(waited.value) } else { Seen::Nothing }),
            )
        })
        .await
    }
}
