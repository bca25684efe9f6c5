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

use super::layout::{Entry, Layout, Member, Stamp, happened};
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

    /// Whether a client that is alive holds `lock` or is about to, but for `except`.
    fn is_held(&self, lock: u64, except: Member) -> impl Future<Output = Result<bool, FabricError>>;

    /// Whether a reader of `lock` that is alive would be alone in it, but for `except`.
    fn is_upgrading(&self, lock: u64, except: Member) -> impl Future<Output = Result<bool, FabricError>>;
}

/// Nobody to ask: who does not release within its lease is dead.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLookup;

impl HolderLookup for NoLookup {
    const KNOWS: bool = false;

    async fn fate(&self, _: u64, _: Member) -> Result<Fate, FabricError> {
        Ok(Fate::Dead)
    }

    async fn is_held(&self, _: u64, _: Member) -> Result<bool, FabricError> {
        Ok(false)
    }

    async fn is_upgrading(&self, _: u64, _: Member) -> Result<bool, FabricError> {
        Ok(false)
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
        let wanted = self.wanted(claim.lock, timer, seen, except).await?;
        if wanted.is_none() && self.reset_what_was_seen(claim, seen, 0).await?.is_some() {
            timer.by_me = true;
            return Ok(true);
        }
        self.restart(timer, seen, wanted).await;
        Ok(false)
    }

    /// The stall timer begins again, of which `seen` is the entry.
    pub(super) async fn restart(&self, timer: &mut StallTimer, seen: Entry<L>, wanted: Option<u32>) {
        let began = self.stall_timer(seen.stamp(), timer.began).await;
        *timer = StallTimer { wanted: wanted.unwrap_or_default(), ..began };
    }

    /// `None` if nothing has moved since the stall timer began, of which `seen` is the entry, and nobody who is alive holds the
    /// lock; else how often in a row now the records said that it may be on its way.
    pub(super) async fn wanted(
        &self,
        lock: u64,
        timer: &StallTimer,
        seen: Entry<L>,
        except: Member,
    ) -> Result<Option<u32>, FabricError> {
        if seen.stamp() != timer.stamp {
            return Ok(Some(0));
        }
        Ok(match self.lookup.fate(lock, except).await? {
            Fate::Held => {
                self.lift_bar(lock, seen).await?;
                Some(0)
            }
            Fate::Wanted => Some(timer.wanted + 1).filter(|wanted| *wanted < self.params.asks),
            Fate::Dead => None,
        })
    }

    /// Lets readers in again if who would be alone is dead, while others read on.
    async fn lift_bar(&self, lock: u64, seen: Entry<L>) -> Result<(), FabricError> {
        if seen.is_upgrading() && !self.lookup.is_upgrading(lock, Member::NOBODY).await? {
            // Changed meanwhile: looked at again by the next who waits as long.
            let _ = self.exchange(lock, seen, seen.bits & !L::UPGRADING).await?;
        }
        Ok(())
    }

    /// Swaps the entry for `bits` if it still is as `seen`; else what it is.
    pub(super) async fn exchange(
        &self,
        lock: u64,
        seen: Entry<L>,
        bits: u128,
    ) -> Result<Result<(), Entry<L>>, FabricError> {
        let whole =
            MaskedCas { compare: seen.bits, compare_mask: u128::MAX, swap: bits, swap_mask: u128::MAX };
        let verb = L::change(self.word(lock), whole, Some(seen.word()));
        let old = self.ep.go(verb).await?;
        Ok(if happened(verb, old) { Ok(()) } else { Err(Entry::of(old)) })
    }

    /// Resets the lock if its entry still is as `seen`, but for what is to be `left` in it. What its stamp is then; `None` if it
    /// was not as seen.
    pub(super) async fn reset_what_was_seen(
        &self,
        claim: Claim,
        seen: Entry<L>,
        left: u128,
    ) -> Result<Option<Stamp>, FabricError> {
        let readers = if R::RECOVERY_COUNTS_READERS { seen.rdr_cnt() } else { 0 };
        let Some(after) = recovered::<L, R>(seen.stamp(), readers + 1) else { return Ok(None) };
        let reset = MaskedCas {
            compare: seen.bits,
            compare_mask: if R::RESET_COMPARES_ALL { u128::MAX } else { L::STAMP },
            swap: L::put(after) | left,
            swap_mask: u128::MAX,
        };
        let verb = L::change(self.word(claim.lock), reset, Some(seen.word()));
        let reset = happened(verb, self.ep.go(verb).await?);
        if reset {
            self.ep.observe(Observation::Recovered(claim));
        }
        Ok(reset.then_some(after))
    }
}
