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

use crate::case::{Case, Timeouts};
use crate::fast::at_once;
use crate::protocol::{Denied, Held, Info, LockClient, Lost, Offers, Patience, Protocol, Space, Want};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Endpoint, Needs, Time, Word64};

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

    fn cases() -> Vec<Case<()>> {
        spin_cases()
    }
}

/// The cases of every lock that spins with CAS: they differ in time, which the explorer does not see.
pub(crate) fn spin_cases<P: Default>() -> Vec<Case<P>> {
    let want = Want::exclusive(0);
    vec![
        Case::new("four-clients").clients(4, &[want]).rounds(2),
        Case::new("two-locks-in-order").clients(3, &[want, Want::exclusive(1)]).space(Space::of(2)),
        Case::new("two-nodes").clients(3, &[want, Want::exclusive(1)]).space(Space::of(2).over(2)),
        Case::new("tries").clients(2, &[want]).clients(2, &[want.with(Patience::Try)]).rounds(2),
        Case::new("timeouts")
            .clients(2, &[want])
            .clients(2, &[want.with(Patience::Until(Time(0)))])
            .timeouts(Timeouts::Any),
        // Nobody recovers a CAS lock: a crash may hang it, but must never break it.
        Case::new("crash").clients(3, &[want]).rounds(2).crashes(1).may_hang(),
    ]
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
        at_once(&self.ep, attempt(&self.ep, lock_word(&self.space, want)), move |old| match old {
            Ok(0) => Ok(Ok(Held { lock: want.claim.lock })),
            Ok(_) => Err(self.retry(want.anew())),
            Err(lost) => Ok(Err(lost.into())),
        })
    }

    #[inline(always)]
    fn release(&self, grant: Held) -> impl Future<Output = Result<(), Lost>> {
        let word = Word64::at(self.space.place(grant.lock, 8));
        give_back(&self.ep, word)
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
    at_once(ep, word.cas(me, 0), move |old| {
        Ok::<_, std::future::Ready<_>>(match old {
            Ok(old) if old == me => Ok(()),
            Ok(_) => Err(Lost::Recovered),
            Err(lost) => Err(lost.into()),
        })
    })
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
