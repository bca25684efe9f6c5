//! Recovery (§3.6): who notices that a lock is dead, and what one verb does about it.
//!
//! Every waiter keeps a [`Vigil`]: RelCnt rises with every release, so a lock whose RelCnt is the same after three
//! leases has lost somebody. The waiter then resets the entry with one verb that compares RelCnt, zeroes everything
//! else and goes on to the next generation. No era and no server: after a reset the comparison can never hold again,
//! and RelCnt still only rises. Whoever began in an older generation can do no harm: writers compare RelCnt, additions
//! are guarded by the generation, messages of an older generation are dropped.
//!
//! A *grant* does not change RelCnt, so a waiter that slept through its grant could begin to use the lock just when
//! others are about to reset it. Whoever waited longer than [`trust_ns`](super::ShiftParams::trust_ns) therefore counts
//! a release of its own first: a writer before it enters ([`Core::assure`]), a reader by leaving and coming again.
//!
//! The client whose lock is taken away is told so by its release. What time still decides: a living client releases
//! within its lease, and what it does in one step (post a handover's two halves, say) it does within a lease.

use super::layout::{Entry, Layout, Member, happened};
use super::messages::Pass;
use super::release::Changed;
use super::server::Resets;
use super::witness::Witness;
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
pub(super) struct Vigil {
    /// RelCnt as last seen.
    pub(super) rel_cnt: u64,
    /// A time when it was already there: three leases count from here.
    since: Time,
    /// A time before this waiter came, and so before it can have been granted the lock: doubt counts from here. Not
    /// `since`, for a client can be stopped between its first verb and its look at the clock.
    pub(super) began: Time,
    /// This waiter made the reset.
    pub(super) by_me: bool,
}

/// What frees a dead lock: everything zero, and the next generation, if RelCnt still is `rel_cnt`.
pub(super) fn reset<L: Layout, R: Rules>(rel_cnt: u64) -> MaskedCas {
    let leap = if R::RECOVERY_LEAPS { L::leap(rel_cnt) } else { rel_cnt };
    MaskedCas {
        compare: L::REL_CNT.put(u128::from(rel_cnt)),
        compare_mask: L::REL_CNT.mask(),
        swap: L::REL_CNT.put(u128::from(leap)),
        swap_mask: L::EPOCH.mask() | L::RDR_CNT.mask() | L::TAIL.mask() | L::REL_CNT.mask(),
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O, W: Witness> Core<E, L, R, O, W> {
    /// Begins to watch: RelCnt is `rel_cnt` now, and this waiter came after `began`.
    pub(super) async fn vigil(&self, rel_cnt: u64, began: Time) -> Vigil {
        Vigil { rel_cnt, since: self.look().await, began, by_me: false }
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
    pub(super) fn give_up(&self, vigil: &Vigil) -> Deadline {
        let last = self.params.last_generation.min(L::GENERATION.max() as u64);
        if self.params.lease_ns == 0 || L::generation(vigil.rel_cnt) >= last {
            return Deadline::Never;
        }
        Deadline::At(vigil.since.plus(LEASES_TO_DEATH * self.params.lease_ns))
    }

    /// The vigil ran out: reset the lock if nothing has moved. Says whether the lock is of a new generation now, by this
    /// client's doing or another's.
    pub(super) async fn is_recovered(
        &self,
        claim: Claim,
        vigil: &mut Vigil,
        except: Member,
    ) -> Result<bool, FabricError> {
        if W::KNOWS {
            return self.reset_if_dead(claim, vigil, except).await;
        }
        match self.params.resets {
            Resets::ByWaiter => self.reset(claim, vigil).await,
            Resets::ByServer => self.ask_server(claim, vigil).await,
        }
    }

    /// Resets the lock if nothing has moved since the vigil began.
    pub(super) async fn reset(&self, claim: Claim, vigil: &mut Vigil) -> Result<bool, FabricError> {
        let reset = reset::<L, R>(vigil.rel_cnt);
        let word = self.word(claim.lock);
        let mut seen = None;
        loop {
            let verb = L::change(word, reset, seen);
            let old = self.ep.go(verb).await?;
            if happened(verb, old) {
                self.ep.observe(Observation::Recovered(claim));
                vigil.by_me = true;
                return Ok(true);
            }
            let entry = Entry::<L>::of(old);
            if entry.generation() != L::generation(vigil.rel_cnt) {
                return Ok(true);
            }
            if entry.rel_cnt() != vigil.rel_cnt {
                *vigil = self.vigil(entry.rel_cnt(), vigil.began).await;
                return Ok(false);
            }
            seen = Some(old);
        }
    }

    /// Whether this waiter came too long ago to believe that the lock is its.
    pub(super) async fn doubts(&self, vigil: &Vigil) -> bool {
        if W::KNOWS {
            return false; // whoever asks a witness makes sure of its grants by it, too
        }
        match (self.params.lease_ns, self.params.trust_ns) {
            _ if !R::SLEEPERS_MAKE_SURE => false,
            (0, _) => false,
            (_, 0) => true,
            (_, trust_ns) => {
                let from = if R::WAITS_COUNT_FROM_BEFORE { vigil.began } else { vigil.since };
                self.ep.passed(from.plus(trust_ns)).await
            }
        }
    }

    /// The lock is this writer's, it seems. If it has to doubt that, it counts a release of its own: that fails if the
    /// lock was recovered (`None`: start again), and stops everybody who is about to.
    pub(super) async fn assure(
        &self,
        lock: u64,
        member: Member,
        head: Pass,
        vigil: &Vigil,
    ) -> Result<Option<Pass>, FabricError> {
        if !self.doubts(vigil).await {
            return Ok(Some(head));
        }
        let Pass { rel_cnt, cons_wrt, epoch, .. } = head;
        let grant = ShiftGrant::writer(lock, rel_cnt, member, cons_wrt, epoch);
        let count = MaskedCas {
            compare: L::REL_CNT.put(u128::from(rel_cnt)),
            compare_mask: L::REL_CNT.mask(),
            swap: L::REL_CNT.put(u128::from(rel_cnt) + 1),
            swap_mask: L::REL_CNT.mask(),
        };
        match self.change(grant, count, Member::NOBODY, None).await {
            Ok(Changed::Made(_)) => Ok(Some(Pass { rel_cnt: rel_cnt + 1, ..head })),
            Ok(Changed::Overtaken | Changed::Recovered) | Err(Lost::Recovered) => Ok(None),
            Err(Lost::Fabric(lost)) => Err(lost),
        }
    }

    /// A message to a lost peer: whoever waits for what the dead should have done will recover the lock.
    pub(super) fn tolerate(&self, told: Result<(), FabricError>) -> Result<(), FabricError> {
        match told {
            Err(FabricError::PeerLost(_)) if self.params.lease_ns != 0 => Ok(()),
            told => told,
        }
    }
}
