//! The CAS spin lock (ShiftLock §2.2).
//!
//! | word | meaning |
//! |---|---|
//! | 0 | free |
//! | n | held by peer n |
//!
//! Acquire is one CAS from 0 to the client's id, retried at once until it succeeds; release is a CAS back. No
//! queue, no fairness, no recovery: what everything else is measured against. A mutex: shared wants are served
//! as exclusive ones.

use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Endpoint, FabricError, Needs, Word64};
use lockwright_locks::fast::{AtOnce, at_once, erased, now};
use lockwright_locks::{Denied, Held, Info, LockClient, Lost, Offers, Patience, Protocol, Space, Want};

/// The CAS spin lock.
#[derive(Debug)]
pub struct Cas;

impl Protocol for Cas {
    type Params = ();
    type Client<E: Endpoint> = CasClient<E>;

    const INFO: Info = Info {
        name: "cas",
        summary: "CAS spin lock, retried at once",
        source: "ShiftLock §2.2",
        offers: Offers { tries: true, timeouts: true, ..Offers::NONE },
    };

    fn needs((): &()) -> Needs {
        Needs { global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, (): &()) -> u64 {
        space.table_bytes(8)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, (): &()) -> CasClient<E> {
        CasClient { ep, space: *space }
    }
}

/// A client of the CAS spin lock.
#[derive(Clone, Debug)]
pub struct CasClient<E> {
    ep: E,
    space: Space,
}

impl<E: Endpoint> LockClient for CasClient<E> {
    type Grant = Held;

    #[inline(always)]
    fn acquire(&self, want: Want) -> impl Future<Output = Result<Held, Denied>> {
        at_once(&self.ep, attempt(&self.ep, lock_word(&self.space, want)), move |old| {
            taken(want.claim.lock, old).ok_or_else(|| self.retry(want.anew()))
        })
    }

    #[inline(always)]
    fn acquire_at_once(&self, want: Want) -> AtOnce<'_, Result<Held, Denied>> {
        if !E::IS_IMMEDIATE {
            return Err(erased(self.acquire(want)));
        }
        let old = now(&self.ep, attempt(&self.ep, lock_word(&self.space, want)));
        taken(want.claim.lock, old).ok_or_else(|| erased(self.retry(want.anew())))
    }

    #[inline(always)]
    fn release(&self, grant: Held) -> impl Future<Output = Result<(), Lost>> {
        let word = Word64::at(self.space.place(grant.lock, 8));
        give_back(&self.ep, word)
    }

    #[inline(always)]
    fn release_at_once(&self, grant: Held) -> AtOnce<'_, Result<(), Lost>> {
        if !E::IS_IMMEDIATE {
            return Err(erased(self.release(grant)));
        }
        let (me, word) = (u64::from(self.ep.me().0), Word64::at(self.space.place(grant.lock, 8)));
        Ok(given_back(me, now(&self.ep, word.cas(me, 0))))
    }
}

impl<E: Endpoint> CasClient<E> {
    async fn retry(&self, want: Want) -> Result<Held, Denied> {
        let word = lock_word(&self.space, want);
        loop {
            self.ep.mark("cas retry", &[]);
            out_of_patience(&self.ep, want).await?;
            self.ep.observe(Observation::Retried(want.claim));
            if self.ep.go(attempt(&self.ep, word)).await? == 0 {
                return Ok(Held { lock: want.claim.lock });
            }
        }
    }
}

/// What an attempt came to; nothing if it has to be repeated.
#[inline(always)]
fn taken(lock: u64, old: Result<u64, FabricError>) -> Option<Result<Held, Denied>> {
    match old {
        Ok(0) => Some(Ok(Held { lock })),
        Ok(_) => None,
        Err(lost) => Some(Err(lost.into())),
    }
}

/// The one verb of an attempt.
#[inline(always)]
pub(crate) fn attempt<E: Endpoint>(ep: &E, word: Word64) -> lockwright_fabric::Verb<u64> {
    word.cas(0, u64::from(ep.me().0))
}

/// The lock's word.
#[inline(always)]
pub(crate) fn lock_word(space: &Space, want: Want) -> Word64 {
    Word64::at(space.place(want.claim.lock, 8))
}

/// Release: from this client's id back to zero. A CAS, so that a lock that is not this client's stays alone;
/// it is also what ShiftLock Fig. 6 counts (2.36 atomics per cycle, of which one is the release).
#[inline(always)]
pub(crate) fn give_back<E: Endpoint>(ep: &E, word: Word64) -> impl Future<Output = Result<(), Lost>> {
    let me = u64::from(ep.me().0);
    at_once(ep, word.cas(me, 0), move |old| Ok::<_, std::future::Ready<_>>(given_back(me, old)))
}

#[inline(always)]
fn given_back(me: u64, old: Result<u64, FabricError>) -> Result<(), Lost> {
    match old {
        Ok(old) if old == me => Ok(()),
        Ok(_) => Err(Lost::Recovered),
        Err(lost) => Err(lost.into()),
    }
}

/// After a failed attempt: may the client try again?
pub(crate) async fn out_of_patience<E: Endpoint>(ep: &E, want: Want) -> Result<(), Denied> {
    match want.patience {
        Patience::Forever => Ok(()),
        Patience::Try => Err(Denied::Busy),
        Patience::Until(deadline) if ep.passed(deadline).await => Err(Denied::TimedOut),
        Patience::Until(_) => Ok(()),
    }
}
