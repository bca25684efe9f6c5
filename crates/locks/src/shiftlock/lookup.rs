//! What a space with holder records adds to recovery: a lookup before a lock is reset.
//!
//! Without records a holder must release within its lease, as in the paper: three leases without a release, and any
//! waiter resets the lock. With them, a holder may hold for hours: the waiter whose timer ran out looks at the records, and
//! resets the lock only if no client that is alive is known to hold it. The lease of [`ShiftParams`](super::ShiftParams)
//! then says how often waiters ask, not how long a lock may be held.
//!
//! The order is what makes it safe. A waiter reads the entry, *then* looks, then resets what it has read and nothing else.
//! A holder is known to hold *before* it changes the entry, be it by taking the lock or, if it was handed it, by bumping
//! it. So a holder that the waiter did not hear of has changed the entry since, and the reset fails.
//! [`holders`](crate::holders) has the records; the explorer runs them.

use super::layout::{Entry, Layout, Member, happened};
use super::recover::{StallTimer, recovered};
use super::{Core, Rules};
use lockwright_fabric::observe::{Claim, Observation};
use lockwright_fabric::{Endpoint, FabricError, MaskedCas};

/// What is known of a lock that does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A client that is alive holds it, or is about to.
    Held,
    /// Nobody who is alive holds it, but others who are wait for it, and nobody is known to have died over it: it may be on
    /// its way to one of them that is slow. A reset would cost that one its place, and nothing else.
    Wanted,
    /// Nobody who is alive holds it, and it can only be the dead who left it so.
    Dead,
}

/// Knows whether a lock's holder is alive.
pub trait HolderLookup {
    /// Whether it knows anything.
    const KNOWS: bool = true;

    /// What is known of `lock`, but for `except`: a writer that asks because the lock does not come, or cannot be passed on.
    fn fate(&self, lock: u64, except: Member) -> impl Future<Output = Result<Fate, FabricError>>;
}

/// Nobody to ask: who does not release within its lease is dead.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLookup;

impl HolderLookup for NoLookup {
    const KNOWS: bool = false;

    async fn fate(&self, _: u64, _: Member) -> Result<Fate, FabricError> {
        Ok(Fate::Dead)
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O, W: HolderLookup> Core<E, L, R, O, W> {
    /// A stall timer that begins again, as often as a record says that the lock is held: for the explorer. Without records
    /// stall timers go by the clock, which a mark does not know.
    pub(super) fn again(&self, label: &'static str, locals: &[u64]) {
        if W::KNOWS {
            self.ep.mark(label, locals);
        }
    }

    /// Resets the lock if nothing has moved since the stall timer began and nobody who is alive holds it. Says whether it is of
    /// a new generation now. If not, the stall timer begins again.
    pub(super) async fn reset_if_dead(
        &self,
        claim: Claim,
        timer: &mut StallTimer,
        except: Member,
    ) -> Result<bool, FabricError> {
        let word = self.word(claim.lock);
        let seen = Entry::<L>::of(self.ep.go(word.read()).await?);
        if seen.generation() != timer.stamp.generation() {
            return Ok(true);
        }
        let mut wanted = 0;
        if seen.stamp() == timer.stamp {
            let is_dead = match self.lookup.fate(claim.lock, except).await? {
                Fate::Held => false,
                Fate::Wanted => {
                    wanted = timer.wanted + 1;
                    wanted >= self.params.asks
                }
                Fate::Dead => true,
            };
            if is_dead && self.reset_what_was_seen(claim, seen).await? {
                timer.by_me = true;
                return Ok(true);
            }
        }
        *timer = StallTimer { wanted, ..self.stall_timer(seen.stamp(), timer.began).await };
        Ok(false)
    }

    /// Resets the lock if its entry still is as `seen`.
    pub(super) async fn reset_what_was_seen(
        &self,
        claim: Claim,
        seen: Entry<L>,
    ) -> Result<bool, FabricError> {
        let readers = if R::RECOVERY_COUNTS_READERS { seen.rdr_cnt() } else { 0 };
        let Some(after) = recovered::<L, R>(seen.stamp(), readers + 1) else { return Ok(false) };
        let reset = MaskedCas {
            compare: seen.bits,
            compare_mask: if R::RESET_COMPARES_ALL { u128::MAX } else { L::STAMP },
            swap: L::put(after),
            swap_mask: u128::MAX,
        };
        let verb = L::change(self.word(claim.lock), reset, Some(seen.word()));
        let reset = happened(verb, self.ep.go(verb).await?);
        if reset {
            self.ep.observe(Observation::Recovered(claim));
        }
        Ok(reset)
    }
}
