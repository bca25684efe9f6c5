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
use lockwright_fabric::{Endpoint, Needs, Verb, Word64};
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

    async fn acquire(&self, want: Want) -> Result<Held, Denied> {
        let word = lock_word(&self.space, want);
        while self.ep.go(attempt(&self.ep, word)).await? != 0 {
            self.ep.mark("cas retry", &[]);
            out_of_patience(&self.ep, want).await?;
            self.ep.observe(Observation::Retried(want.claim));
        }
        Ok(Held { lock: want.claim.lock })
    }

    async fn release(&self, grant: Held) -> Result<(), Lost> {
        give_back(&self.ep, Word64::at(self.space.place(grant.lock, 8))).await
    }
}

/// The one verb of an attempt.
pub(crate) fn attempt<E: Endpoint>(ep: &E, word: Word64) -> Verb<u64> {
    word.cas(0, u64::from(ep.me().0))
}

/// The lock's word.
pub(crate) fn lock_word(space: &Space, want: Want) -> Word64 {
    Word64::at(space.place(want.claim.lock, 8))
}

/// Release: from this client's id back to zero. A CAS, so that a lock that is not this client's stays alone;
/// it is also what ShiftLock Fig. 6 counts (2.36 atomics per cycle, of which one is the release).
pub(crate) async fn give_back<E: Endpoint>(ep: &E, word: Word64) -> Result<(), Lost> {
    let me = u64::from(ep.me().0);
    if ep.go(word.cas(me, 0)).await? == me { Ok(()) } else { Err(Lost::Recovered) }
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
