//! Recovery (§3.6): who notices that a lock is dead, and what one verb does about it.
//!
//! Every waiter keeps a [`StallTimer`]: RelCnt rises with every release, so a lock whose RelCnt is the same after three leases
//! has lost a holder. The waiter then resets the entry with one verb that compares RelCnt, zeroes everything else, raises
//! RelCnt past every count that a client waits for (`layout`) and goes on to the next generation. No era and no server: after a
//! reset the comparison can never hold again, for RelCnt only rises. A client that began in an older generation can do no harm:
//! writers compare RelCnt, additions are guarded by the generation, messages of an older generation are dropped.
//!
//! A *grant* does not change RelCnt, so a waiter that slept through its grant could begin to use the lock just when
//! others are about to reset it. A client that waited longer than [`trust_ns`](super::ShiftParams::trust_ns) therefore counts
//! a release of its own first: a writer before it enters ([`Core::confirm_grant`]), a reader by leaving and coming again.
//!
//! The client whose lock is taken away is told so by its release. What time still decides: a living client releases
//! within its lease, and what it does in one step (post a handover's two halves, say) it does within a lease.

use super::layout::{Entry, Layout, Member, Stamp, happened};
use super::lookup::HolderLookup;
use super::messages::Pass;
use super::release::Changed;
use super::server::Resets;
use super::{Core, Rules, ShiftGrant};
use crate::protocol::Lost;
use lockwright_fabric::observe::{Claim, Observation};
use lockwright_fabric::{Deadline, Endpoint, FabricError, MaskedCas, Time};
use std::sync::atomic::Ordering::Relaxed;

/// Leases without a release after which a lock counts as dead: one for the writer that waits for its successor's word,
/// one for the successor, one for everything in between (§3.6).
const LEASES_TO_DEATH: u64 = 3;

/// A waiter's watch over RelCnt.
#[derive(Clone, Copy, Debug)]
pub(super) struct StallTimer {
    /// RelCnt as last seen, and its generation.
    pub(super) stamp: Stamp,
    /// A time when it was already there: three leases count from here.
    pub(super) since: Time,
    /// A time before this waiter came, and so before it can have been granted the lock: doubt counts from here. Not
    /// `since`, for a client can be stopped between its first verb and its look at the clock.
    pub(super) began: Time,
    /// How often in a row the holder records said that the lock may be on its way to a live client.
    pub(super) wanted: u32,
    /// This waiter made the reset.
    pub(super) by_me: bool,
}

/// What a recovery leaves that adds `more` to RelCnt: one more than the readers that may be waited for, and than the
/// handovers that may not have been counted yet. `None` if RelCnt has no room for that.
pub(super) fn recovered<L: Layout, R: Rules>(stamp: Stamp, more: u64) -> Option<Stamp> {
    let next = L::next(stamp, more)?;
    let rel_cnt = if R::RECOVERY_LEAPS && R::RECOVERY_COUNTS { next.rel_cnt() } else { stamp.rel_cnt() };
    let rises = R::RECOVERY_LEAPS && R::RECOVERY_IS_A_GENERATION;
    let generation = if rises { next.generation() } else { stamp.generation() };
    Some(Stamp::new(rel_cnt, generation))
}

/// What frees a dead lock whose RelCnt still is that of `stamp`: everything zero, and the next generation. How many readers
/// there are by then is not compared, so it is taken for as many as there can be.
pub(super) fn reset<L: Layout, R: Rules>(stamp: Stamp) -> Option<MaskedCas> {
    let readers = if R::RECOVERY_COUNTS_READERS { L::RDR_CNT.max() as u64 } else { 0 };
    let after = recovered::<L, R>(stamp, readers + L::STRAGGLERS + 1)?;
    Some(MaskedCas {
        compare: L::put(stamp),
        compare_mask: L::STAMP,
        swap: L::put(after),
        swap_mask: L::EPOCH.mask() | L::RDR_CNT.mask() | L::TAIL.mask() | L::STAMP,
    })
}

impl<E: Endpoint, L: Layout, R: Rules, O, W: HolderLookup> Core<E, L, R, O, W> {
    /// Begins to watch: RelCnt is that of `stamp` now, and this waiter came after `began`.
    pub(super) async fn stall_timer(&self, stamp: Stamp, began: Time) -> StallTimer {
        StallTimer { stamp, since: self.look().await, began, wanted: 0, by_me: false }
    }

    /// Looks at the clock, if there are leases.
    pub(super) async fn look(&self) -> Time {
        if self.params.lease_ns == 0 {
            return Time(0);
        }
        let now = self.ep.now().await;
        self.last_look.store(now.0, Relaxed);
        now
    }

    /// The last time this client looked at the clock: a time before now that costs nothing. A client that has not looked
    /// for long only makes sure once more than it need.
    #[inline(always)]
    pub(super) fn last_look(&self) -> Time {
        Time(self.last_look.load(Relaxed))
    }

    /// When a waiter stops to believe that the lock is alive.
    pub(super) fn give_up(&self, timer: &StallTimer) -> Deadline {
        if self.params.lease_ns == 0 || timer.stamp.generation() >= self.params.last_generation {
            return Deadline::Never;
        }
        Deadline::At(timer.since.plus(self.stall_ns()))
    }

    /// How long a waiter believes so that the lock is alive; 0: for ever.
    pub(super) const fn stall_ns(&self) -> u64 {
        LEASES_TO_DEATH * self.params.lease_ns
    }

    /// The stall timer ran out: reset the lock if nothing has moved. Says whether the lock is of a new generation now, by this
    /// client's doing or another's.
    pub(super) async fn is_recovered(
        &self,
        claim: Claim,
        timer: &mut StallTimer,
        except: Member,
    ) -> Result<bool, FabricError> {
        if W::KNOWS {
            return self.reset_if_dead(claim, timer, except).await;
        }
        match self.params.resets {
            Resets::ByWaiter => self.reset(claim, timer).await,
            Resets::ByServer => self.ask_server(claim, timer).await,
        }
    }

    /// Resets the lock if nothing has moved since the stall timer began.
    pub(super) async fn reset(&self, claim: Claim, timer: &mut StallTimer) -> Result<bool, FabricError> {
        let Some(reset) = reset::<L, R>(timer.stamp) else { return Ok(false) };
        let word = self.word(claim.lock);
        let mut seen = None;
        loop {
            let verb = L::change(word, reset, seen);
            let old = self.ep.go(verb).await?;
            if happened(verb, old) {
                self.ep.observe(Observation::Recovered(claim));
                timer.by_me = true;
                return Ok(true);
            }
            let entry = Entry::<L>::of(old);
            if entry.generation() != timer.stamp.generation() {
                return Ok(true);
            }
            if entry.stamp() != timer.stamp {
                *timer = self.stall_timer(entry.stamp(), timer.began).await;
                return Ok(false);
            }
            seen = Some(old);
        }
    }

    /// Whether this waiter came too long ago to believe that the lock is its.
    pub(super) async fn must_confirm(&self, timer: &StallTimer) -> bool {
        if W::KNOWS {
            return false; // with holder records, grants are made sure of by those
        }
        match (self.params.lease_ns, self.params.trust_ns) {
            _ if !R::LATE_GRANTS_ARE_CONFIRMED => false,
            (0, _) => false,
            (_, 0) => true,
            (_, trust_ns) => {
                let from = if R::WAITS_COUNT_FROM_BEFORE { timer.began } else { timer.since };
                self.ep.passed(from.plus(trust_ns)).await
            }
        }
    }

    /// The lock seems to be this writer's. If it has to doubt that, it counts a release of its own: that fails if the lock
    /// was recovered (`None`: start again), and makes every recovery fail that is under way.
    pub(super) async fn confirm_grant(
        &self,
        lock: u64,
        member: Member,
        head: Pass,
        timer: &StallTimer,
    ) -> Result<Option<Pass>, FabricError> {
        if !self.must_confirm(timer).await {
            return Ok(Some(head));
        }
        let Pass { stamp, cons_wrt, epoch, .. } = head;
        let grant = ShiftGrant::writer(lock, stamp, member, cons_wrt, epoch);
        let count = MaskedCas {
            compare: L::put(stamp),
            compare_mask: L::STAMP,
            swap: L::put(stamp.plus(1)),
            swap_mask: L::STAMP,
        };
        match self.change(grant, count, Member::NOBODY, None).await {
            Ok(Changed::Made(_)) => Ok(Some(Pass { stamp: stamp.plus(1), ..head })),
            Ok(Changed::Overtaken | Changed::Recovered) | Err(Lost::Recovered) => Ok(None),
            Err(Lost::Fabric(lost)) => Err(lost),
        }
    }

    /// A message to a lost peer: a client that waits for what the dead should have done will recover the lock.
    pub(super) fn tolerate(&self, told: Result<(), FabricError>) -> Result<(), FabricError> {
        match told {
            Err(FabricError::PeerLost(_)) if self.params.lease_ns != 0 => Ok(()),
            told => told,
        }
    }
}
