//! Recovery: who notices that a lock is dead, and how its next generation begins.
//!
//! A waiter keeps a [`StallTimer`] over both stamps: they change with every claim. Two leases without one, one for the holder
//! and one for the handover, and it recovers. If that was too early (all clients are alive, only slow) nothing breaks:
//! acquisitions that were not granted yet start again. Only a lock that is *held* for longer than a lease is taken away.
//!
//! A local waiter needs no lease to see that a holder on its own host has died. It may recover at once if its own
//! predecessor has claimed the lock and is gone: that one's turn came, and nobody else's does before it is passed on.

use super::acquire::Attempt;
use super::layout::{Member, Stamp};
use super::{LeasedClient, Place, Rules};
use lockwright_fabric::observe::{Claim, Mode, Observation};
use lockwright_fabric::{Deadline, Endpoint, FabricError, Time};

/// Leases without a claim after which a lock counts as dead.
const LEASES_TO_DEATH: u64 = 2;

/// What a waiter last knew of a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct StallTimer {
    /// The generation it takes part in.
    pub(super) generation: u16,
    /// Its own side's stamp.
    pub(super) us: Stamp,
    /// The other side's.
    pub(super) them: Stamp,
    /// Who is before it in its queue.
    pub(super) pred: Option<Member>,
    /// When the stamps were seen first, or looked at last.
    pub(super) since: Time,
    /// Looks since the stamps were seen first, for clients that can see the dead.
    pub(super) looks: u64,
}

impl StallTimer {
    /// The generation that it is, as far as is known.
    pub(super) fn newest(&self) -> u16 {
        self.us.generation().max(self.them.generation()).max(self.generation)
    }
}

impl<E: Endpoint, R: Rules> LeasedClient<E, R> {
    /// Begins to watch: the stamps are these now.
    pub(super) async fn stall_timer(
        &self,
        generation: u16,
        us: Stamp,
        them: Stamp,
        pred: Option<Member>,
    ) -> StallTimer {
        StallTimer { generation, us, them, pred, since: self.ep.now().await, looks: 0 }
    }

    /// When a waiter should look whether the lock is alive.
    pub(super) fn deadline(&self, timer: &StallTimer) -> Deadline {
        if timer.generation >= self.params.last_generation {
            return Deadline::Never;
        }
        if !self.sees_the_dead(timer) && self.params.lease_ns == u64::MAX {
            return Deadline::Never;
        }
        let wait_ns = if self.sees_the_dead(timer) { self.params.look_ns } else { self.death_ns() };
        Deadline::At(timer.since.plus(wait_ns))
    }

    /// Only the dead of this host are known to be, and only to this host.
    fn sees_the_dead(&self, timer: &StallTimer) -> bool {
        timer.pred.is_some_and(|pred| self.shares_host_with(pred))
    }

    /// Whether the fabric can know that `member`'s client is gone.
    pub(super) fn shares_host_with(&self, member: Member) -> bool {
        member.node.is_some() && member.node == self.ep.home()
    }

    /// How long a lock must show no sign of life to count as dead.
    const fn death_ns(&self) -> u64 {
        LEASES_TO_DEATH.saturating_mul(self.params.lease_ns)
    }

    /// The deadline has passed: whether the generation is over, by this client's doing or another's. If not, the stall timer
    /// goes on.
    pub(super) async fn is_over(&self, attempt: &mut Attempt) -> Result<bool, FabricError> {
        let Attempt { place, .. } = *attempt;
        let (us, them) = (place.words.stamp(place.side), place.words.stamp(place.other()));
        let now = self.ep.go((us.read(), them.read())).await.map(|(us, them)| (Stamp(us), Stamp(them)))?;
        if self.has_moved(attempt, now).await {
            return Ok(attempt.timer.newest() > attempt.timer.generation);
        }
        if self.sees_the_dead(&attempt.timer) {
            if self.holder_died(attempt).await? {
                self.begin_next_generation(attempt).await?;
                return Ok(attempt.timer.newest() > attempt.timer.generation);
            }
            if self.params.lease_ns == u64::MAX {
                attempt.timer.since = self.ep.now().await;
                return Ok(false);
            }
            let timer = &mut attempt.timer;
            (timer.since, timer.looks) = (self.ep.now().await, timer.looks + 1);
            if timer.looks.saturating_mul(self.params.look_ns) < self.death_ns() {
                return Ok(false);
            }
        }
        // Announce, then look once more: who has claimed the lock before it saw this is seen now. In the stamp of the
        // generation it is about, which the own side's may be behind: an older one would be taken for a dead client's.
        let intent = now.0.max(Stamp::first(attempt.timer.generation)).intent();
        if R::ANNOUNCES {
            let (old, seen) = self.ep.go((us.cas(now.0.0, intent.0), them.read())).await?;
            let seen = (Stamp(old), Stamp(seen));
            if seen.0 != now.0 {
                self.has_moved(attempt, seen).await;
                return Ok(attempt.timer.newest() > attempt.timer.generation);
            }
            attempt.timer.us = intent;
            // Two that announce it at once do not stop each other: they begin the same generation.
            if seen.1.settled() != now.1.settled() {
                let back = intent.after(intent);
                let old = Stamp(self.ep.go(us.cas(intent.0, back.0)).await?);
                let ours = if old == intent { back } else { old };
                self.has_moved(attempt, (ours, seen.1)).await;
                return Ok(attempt.timer.newest() > attempt.timer.generation);
            }
        }
        self.begin_next_generation(attempt).await?;
        Ok(attempt.timer.newest() > attempt.timer.generation)
    }

    /// Takes note of the stamps; whether they differ from what was known.
    async fn has_moved(&self, attempt: &mut Attempt, now: (Stamp, Stamp)) -> bool {
        let StallTimer { generation, us, them, pred, .. } = attempt.timer;
        if (us, them) == now {
            return false;
        }
        attempt.timer = self.stall_timer(generation, now.0, now.1, pred).await;
        true
    }

    /// Whether this client's predecessor has claimed the lock and died with it.
    async fn holder_died(&self, attempt: &Attempt) -> Result<bool, FabricError> {
        let Attempt { place, timer, .. } = attempt;
        let Some(pred) = timer.pred else { return Ok(false) };
        if !self.ep.is_gone(pred.owner).await {
            return Ok(false);
        }
        if !R::ASKS_FOR_THE_HOLDER {
            return Ok(true);
        }
        let holder = self.ep.go(place.words.holder(place.side).read()).await?;
        let passed = match attempt.me.pass(&self.space, &self.params) {
            Some(word) => self.ep.go(word.read()).await? >> 16 == attempt.me.number,
            None => false,
        };
        Ok(holder == pred.name(timer.generation).0 && !passed)
    }

    /// Begins the next generation, unless the own side's stamp is not what it was.
    pub(super) async fn begin_next_generation(&self, attempt: &mut Attempt) -> Result<(), FabricError> {
        let Attempt { place, timer, .. } = *attempt;
        let Some(generation) = timer.generation.checked_add(1) else { return Ok(()) };
        let (old, next) = (timer.us, Stamp::first(generation));
        let found = Stamp(self.ep.go(place.words.stamp(place.side).cas(old.0, next.0)).await?);
        if found == old {
            self.ep.observe(Observation::Recovered(whole(place)));
        }
        let now = if found == old { next } else { found };
        self.has_moved(attempt, (now, timer.them)).await;
        Ok(())
    }
}

/// A lock has no parts.
const fn whole(place: Place) -> Claim {
    Claim { lock: place.lock, mode: Mode::Exclusive, start: 0, end: u64::MAX }
}
