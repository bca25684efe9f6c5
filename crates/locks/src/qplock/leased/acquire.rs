//! Acquire: into the own side's queue of the present generation, through Peterson's lock, and then the claim.
//!
//! A client that finds that the generation is over starts again in the next one, as another member: what others still write
//! for the old one is not for it.

use super::layout::{Member, Name, Stamp};
use super::recover::StallTimer;
use super::{LeasedClient, LeasedGrant, Place, Rules, is_try};
use crate::protocol::{Denied, Want};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Cond, Endpoint, FabricError, Time};

/// An acquisition in the queue of one generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) place: Place,
    pub(super) me: Member,
    pub(super) timer: StallTimer,
}

impl Attempt {
    pub(super) const fn name(&self) -> Name {
        self.me.name(self.timer.generation)
    }

    /// What a mark must know of it.
    pub(super) const fn locals(&self, budget: u16) -> [u64; 9] {
        let StallTimer { generation, us, them, pred, since, looks } = self.timer;
        let pred = match pred {
            Some(pred) => pred.name(generation).0,
            None => 0,
        };
        [
            self.me.slot as u64,
            self.me.number,
            generation as u64,
            us.0,
            them.0,
            pred,
            since.0,
            looks,
            budget as u64,
        ]
    }
}

/// What an enqueue led to.
enum Joined {
    /// In the queue. The predecessor stands in the stall timer; the other side's tail was this.
    Queued(Attempt, Name),
    /// Another client is there, and this one only tries.
    Busy,
}

/// What an acquisition still has to do when it is at the head of its queue.
enum Head {
    /// The lock is its side's: claim it, with this budget.
    Has(u16),
    /// It must go through Peterson's lock; the other side's tail was this, if it has looked.
    MustCompete(Option<Name>),
}

impl<E: Endpoint, R: Rules> LeasedClient<E, R> {
    /// Until the lock is granted or denied, in as many generations as it takes.
    pub(super) async fn enter(&self, place: Place, slot: u8, want: Want) -> Result<LeasedGrant, Denied> {
        let (mut seen, mut generation) = (Name::nobody(0), 0);
        loop {
            let (mut attempt, rival) = match self.enqueue(place, slot, want, seen, generation).await? {
                Joined::Queued(attempt, rival) => (attempt, rival),
                Joined::Busy => return Err(Denied::Busy),
            };
            if let Some(outcome) = self.attempt(&mut attempt, rival, want).await? {
                return outcome;
            }
            self.ep.observe(Observation::Retried(want.claim));
            (seen, generation) = (attempt.name(), attempt.timer.newest());
        }
    }

    /// Alg. 2 lines 4–7, with generations: the tail was last seen as `seen`.
    async fn enqueue(
        &self,
        place: Place,
        slot: u8,
        want: Want,
        mut seen: Name,
        mut generation: u16,
    ) -> Result<Joined, FabricError> {
        let words = place.words;
        let mut me = self.member(slot);
        loop {
            self.ep.mark("leased enqueue", &[u64::from(slot), me.number, seen.0, u64::from(generation)]);
            let name = me.name(generation);
            // The other tail is looked at after the own one is set, as Peterson's lock wants it; the stamps after both, so
            // that an acquisition is in a queue of the generation that it believes in, or learns that it is not.
            let (old, rival, us, them) = self
                .ep
                .go((
                    words.tail(place.side).cas(seen.0, name.0),
                    words.tail(place.other()).read(),
                    words.stamp(place.side).read(),
                    words.stamp(place.other()).read(),
                ))
                .await?;
            let (us, them) = (Stamp(us), Stamp(them));
            let newest = us.generation().max(them.generation());
            if old == seen.0 && newest <= generation {
                let pred = self.in_queue(seen, generation);
                let timer = self.stall_timer(generation, us, them, pred).await;
                return Ok(Joined::Queued(Attempt { place, me, timer }, Name(rival)));
            }
            if old == seen.0 {
                // Queued in a generation that is over. A client that follows there finds out as well.
                seen = name;
                me = self.member(slot);
            } else {
                seen = Name(old);
            }
            generation = newest.max(generation);
            if is_try(want) && self.in_queue(seen, generation).is_some() {
                return Ok(Joined::Busy);
            }
        }
    }

    /// Who is last in a queue whose tail is `tail`.
    pub(super) fn in_queue(&self, tail: Name, generation: u16) -> Option<Member> {
        tail.member(if R::FORGETS_OLD_QUEUES { generation } else { tail.generation() })
    }

    /// From the queue to the grant. `None`: the generation is over.
    async fn attempt(
        &self,
        attempt: &mut Attempt,
        rival: Name,
        want: Want,
    ) -> Result<Option<Result<LeasedGrant, Denied>>, Denied> {
        let head = match attempt.timer.pred {
            None => Head::MustCompete(Some(rival)),
            Some(pred) => {
                self.follow(attempt.place.lock, pred, attempt.me).await?;
                match self.passed(attempt).await? {
                    None => return Ok(None),
                    Some(0) => Head::MustCompete(None),
                    Some(budget) => Head::Has(budget),
                }
            }
        };
        // Nobody of this queue is before it any more.
        attempt.timer.pred = None;
        let budget = match head {
            Head::Has(budget) => budget,
            Head::MustCompete(rival) => match self.compete(attempt, rival, want).await? {
                None => return Ok(None),
                Some(false) => {
                    self.hand_over(attempt, None).await?;
                    return Ok(Some(Err(Denied::Busy)));
                }
                Some(true) => self.params.budget,
            },
        };
        let Some(claim) = self.claim(attempt, budget).await? else { return Ok(None) };
        let token = if R::TOKENS_COUNT_GENERATIONS { claim.token() } else { claim.count() };
        let Attempt { place, me, .. } = *attempt;
        Ok(Some(Ok(LeasedGrant { lock: place.lock, claim, token, member: me, budget })))
    }

    /// The lock is this client's, unless the generation is over: says so in the own side's stamp, and looks whether the
    /// other side has recovered the lock or is about to. `None`: the generation is over.
    async fn claim(&self, attempt: &mut Attempt, budget: u16) -> Result<Option<Stamp>, FabricError> {
        let Attempt { place, .. } = *attempt;
        let (words, name) = (place.words, attempt.name());
        loop {
            self.ep.mark("leased claim", &attempt.locals(budget));
            let StallTimer { generation, us, them, .. } = attempt.timer;
            if attempt.timer.newest() > generation {
                return Ok(None);
            }
            let claim = us.after(them);
            let posted = self.ep.now().await;
            let (old, seen) = self
                .ep
                .go((
                    (words.holder(place.side).write(name.0), words.stamp(place.side).cas(us.0, claim.0)),
                    words.stamp(place.other()).read(),
                ))
                .await
                .map(|((_, old), seen)| (Stamp(old), Stamp(seen)))?;
            if old != us {
                // The timer was long ago; or a client of this side is about to recover, and now will not.
                (attempt.timer.us, attempt.timer.them) = (old, seen);
                continue;
            }
            if !R::CLAIMS_LOOK {
                return Ok(Some(claim));
            }
            (attempt.timer.us, attempt.timer.them) = (claim, seen);
            if seen.settled() >= claim {
                continue; // The other side has come further: higher, or out.
            }
            // One that was left in an older generation, by a client that died over it, is about nothing.
            if !seen.is_intent() || seen.generation() < generation {
                // Who slept over its own claim may have been taken for dead before it looked.
                if R::CLAIMS_EXPIRE && self.has_expired(posted).await {
                    continue;
                }
                return Ok(Some(claim));
            }
            // A client of the other side is about to recover. It sees the claim and takes that back, or does not.
            let what_now =
                words.stamp(place.other()).until(Cond::Ne { mask: u128::MAX, value: seen.0.into() });
            let timer = self.stall_timer(generation, claim, seen, None).await;
            attempt.timer = timer;
            let waited = self.ep.wait_until(what_now.by(self.deadline(&attempt.timer))).await?;
            if waited.met {
                attempt.timer.them = Stamp(waited.value);
            } else if self.is_over(attempt).await? {
                return Ok(None);
            }
        }
    }

    /// Whether a claim posted at that time is too old to be believed.
    async fn has_expired(&self, posted: Time) -> bool {
        let lease_ns = self.params.lease_ns;
        lease_ns != u64::MAX && self.ep.passed(posted.plus(lease_ns)).await
    }
}
