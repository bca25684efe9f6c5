//! What a space that knows its clients adds to recovery: somebody to ask before a lock is reset, and a look at a grant.
//!
//! Without a witness a holder must release within its lease, as in the paper: three leases without a release, and any
//! waiter resets the lock. With one, a holder may hold for hours: the waiter whose vigil ran out asks the witness, and
//! resets the lock only if nobody who is alive is known to hold it. The lease of [`ShiftParams`]
//! then says how often waiters ask, not how long a lock may be held.
//!
//! The explorer runs without a witness, which allows strictly more resets than any witness does.

use super::acquire::enqueue;
use super::give_up::Begun;
use super::layout::{Delta, Entry, Layout, Member, Wide, happened};
use super::recover::Vigil;
use super::{Core, Rules, ShiftGrant, ShiftLock, ShiftParams, Shipped};
use crate::protocol::{Denied, LockClient, Lost, Patience, Reason, Space, Want};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, FabricError, Time};
use std::fmt::Debug;
use std::sync::Arc;

/// Somebody who knows whether a lock's holder is alive.
pub trait Witness: Debug + Send + Sync {
    /// Whether `lock` may be reset: nobody who is alive is known to hold it, and whoever is granted it from now on will
    /// wait for [`reset_is_over`](Self::reset_is_over) before it believes that. May be slow: it is asked once per vigil.
    fn may_reset(&self, lock: u64) -> bool;

    /// The reset that was allowed has happened, or never will.
    fn reset_is_over(&self, lock: u64);
}

impl<L: Layout, R: Rules> ShiftLock<L, R> {
    /// A client that several threads can use at once. It asks `witness`, if there is one, before it resets a lock.
    pub fn shared_client<E: Endpoint>(
        ep: E,
        space: &Space,
        params: &ShiftParams,
        witness: Option<Arc<dyn Witness>>,
    ) -> SharedClient<E, L, R> {
        let mut core = Core::new(ep, space, params);
        core.witness = witness;
        SharedClient { core }
    }
}

/// A client of ShiftLock that several threads can use at once, where the fabric lets them.
///
/// It keeps no orphans: whoever gives up on an acquire must see its future through to the end and release what it brings
/// (see [`finish_then_release`](crate::orphans::finish_then_release)). So it knows no deadlines either.
pub struct SharedClient<E, L = Wide, R = Shipped> {
    core: Core<E, L, R, ()>,
}

impl<E: Debug, L, R> Debug for SharedClient<E, L, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedClient").field("ep", &self.core.ep).finish_non_exhaustive()
    }
}

impl<E: Endpoint, L: Layout, R: Rules> LockClient for SharedClient<E, L, R> {
    type Grant = ShiftGrant;

    async fn acquire(&self, want: Want) -> Result<ShiftGrant, Denied> {
        const NO_DEADLINES: &Reason = &Reason("a shared client leaves deadlines to its user");
        let core = &self.core;
        match (want.patience, want.claim.mode) {
            (Patience::Try, _) => core.try_acquire(want).await,
            (Patience::Until(_), _) => Err(Denied::Unsupported(NO_DEADLINES)),
            (Patience::Forever, Mode::Shared) => core.read_patiently(want).await,
            (Patience::Forever, Mode::Exclusive) => core.write_patiently(want).await,
        }
    }

    async fn release(&self, grant: ShiftGrant) -> Result<(), Lost> {
        if grant.member == Member::NOBODY {
            self.core.leave(grant).await
        } else {
            self.core.hand_back(grant).await
        }
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O> Core<E, L, R, O> {
    /// READER-ACQUIRE without its fast path, for those who have tried before.
    async fn read_patiently(&self, want: Want) -> Result<ShiftGrant, Denied> {
        let word = self.word(want.claim.lock);
        let began = self.last_look();
        let entry = Entry::of(self.ep.go(L::add(word, Delta::ENTER, None)).await?);
        self.finish(want, Begun::Reader(entry, began)).await
    }

    /// WRITER-ACQUIRE, likewise.
    async fn write_patiently(&self, want: Want) -> Result<ShiftGrant, Denied> {
        let lock = want.claim.lock;
        let Some(me) = self.members.join::<L>(lock) else { return self.no_room().await };
        let began = self.last_look();
        let change = L::change(self.word(lock), enqueue::<L>(me), None);
        match self.ep.go(change).await {
            Ok(old) => {
                let begun = Begun::Writer(me, Entry::of(old), happened(change, old), began);
                self.finish(want, begun).await
            }
            Err(lost) => {
                self.members.leave(lock, me);
                Err(lost.into())
            }
        }
    }
}

impl<E: Endpoint, L: Layout, R: Rules> SharedClient<E, L, R> {
    /// Whether the lock has not been reset since `grant`: one READ.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn holds(&self, grant: &ShiftGrant) -> Result<bool, FabricError> {
        let entry = Entry::<L>::of(self.core.ep.go(self.core.word(grant.lock).read()).await?);
        Ok(entry.generation() == L::generation(grant.rel_cnt))
    }

    /// Resets `lock` if somebody is in it and nobody of them is alive: what a waiter does after its vigil, for locks that
    /// nobody waits for. `true` if the lock is free now.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn recover(&self, lock: u64) -> Result<bool, FabricError> {
        let core = &self.core;
        let entry = Entry::<L>::of(core.ep.go(core.word(lock).read()).await?);
        if entry.tail() == Member::NOBODY && entry.rdr_cnt() == 0 {
            return Ok(true);
        }
        let Some(witness) = &core.witness else { return Ok(false) };
        let mut vigil = core.vigil(entry.rel_cnt(), Time(0)).await;
        let claim = Claim { lock, mode: Mode::Exclusive, start: 0, end: u64::MAX };
        core.reset_if_allowed(&**witness, claim, &mut vigil).await?;
        Ok(vigil.by_me)
    }

    /// The largest token that was given out for `lock`, if the lock is free and was never reset.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn last_token_if_pristine(&self, lock: u64) -> Result<Option<u64>, FabricError> {
        let entry = Entry::<L>::of(self.core.ep.go(self.core.word(lock).read()).await?);
        let quiet = entry.tail() == Member::NOBODY && entry.rdr_cnt() == 0 && entry.generation() == 0;
        Ok(quiet.then(|| entry.rel_cnt().saturating_add(1)))
    }

    /// Takes `lock` away from whoever holds it with `token`, as a recovery would. `false`: that grant is over.
    ///
    /// A shared lock is taken from all who share it; any of their tokens names it.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn take_away(&self, lock: u64, mode: Mode, token: u64) -> Result<bool, FabricError> {
        let entry = Entry::<L>::of(self.core.ep.go(self.core.word(lock).read()).await?);
        let granted = token.wrapping_sub(1);
        let holds = match mode {
            Mode::Exclusive => entry.rel_cnt() == granted,
            // Readers that left since have raised the count.
            Mode::Shared => L::generation(granted) == entry.generation() && granted <= entry.rel_cnt(),
        };
        if !holds {
            return Ok(false);
        }
        let mut vigil = self.core.vigil(entry.rel_cnt(), Time(0)).await;
        let claim = Claim { lock, mode, start: 0, end: u64::MAX };
        self.core.reset(claim, &mut vigil).await?;
        Ok(vigil.by_me)
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O> Core<E, L, R, O> {
    /// [`reset`](Core::reset), if the witness allows it. If not, the vigil begins again.
    pub(super) async fn reset_if_allowed(
        &self,
        witness: &dyn Witness,
        claim: Claim,
        vigil: &mut Vigil,
    ) -> Result<bool, FabricError> {
        if witness.may_reset(claim.lock) {
            let outcome = self.reset(claim, vigil).await;
            witness.reset_is_over(claim.lock);
            return outcome;
        }
        let entry = Entry::<L>::of(self.ep.go(self.word(claim.lock).read()).await?);
        let recovered = entry.generation() != L::generation(vigil.rel_cnt);
        if !recovered {
            *vigil = self.vigil(entry.rel_cnt(), vigil.began).await;
        }
        Ok(recovered)
    }
}
