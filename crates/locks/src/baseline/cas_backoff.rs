//! The CAS spin lock with truncated exponential backoff, SMART's scheme (ShiftLock §2.3 and its reference 56).
//!
//! Word and release are those of [`cas`](super::cas). After the i-th failure in a row a client waits a random
//! time below `min(unit · 2^i, cap)`. The cap adapts: every `window` attempts a client compares its share of
//! failed attempts with two marks, doubles the cap above the high one and halves it below the low one.

use super::cas::{attempt, give_back, lock_word, out_of_patience, spin_cases};
use crate::case::Case;
use crate::fast::fast;
use crate::protocol::{Denied, Info, LockClient, Lost, Offers, Protocol, Space, TokenGrant, Want};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Endpoint, Needs, Word64};
use std::cell::Cell;

/// The CAS spin lock with backoff.
#[derive(Debug)]
pub struct CasBackoff;

/// SMART's tunables.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    /// The shortest backoff: 4096 cycles of the testbed's 2.2 GHz.
    pub unit_ns: u64,
    /// The cap never passes `unit_ns · 2^max_doublings`.
    pub max_doublings: u32,
    /// Attempts between two adaptations of the cap.
    pub window: u32,
    /// Percent of failed attempts above which the cap doubles.
    pub high_percent: u32,
    /// Percent of failed attempts below which it halves.
    pub low_percent: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { unit_ns: 1862, max_doublings: 10, window: 16, high_percent: 50, low_percent: 10 }
    }
}

impl Protocol for CasBackoff {
    type Params = Backoff;
    type Client<E: Endpoint> = CasBackoffClient<E>;

    const INFO: Info = Info {
        name: "cas-backoff",
        summary: "CAS spin lock with truncated exponential backoff",
        source: "ShiftLock §2.3 (SMART)",
        offers: Offers { tries: true, timeouts: true, ..Offers::NONE },
    };

    fn needs(_: &Backoff) -> Needs {
        Needs { global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, _: &Backoff) -> u64 {
        space.table_bytes(8)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, backoff: &Backoff) -> CasBackoffClient<E> {
        CasBackoffClient { ep, space: *space, backoff: backoff.clone(), pace: Cell::default() }
    }

    fn cases() -> Vec<Case<Backoff>> {
        spin_cases()
    }
}

/// A client of the CAS spin lock with backoff.
#[derive(Debug)]
pub struct CasBackoffClient<E> {
    ep: E,
    space: Space,
    backoff: Backoff,
    pace: Cell<Pace>,
}

/// What a client has learned about the contention it meets. It only shapes how long it sleeps.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    doublings: u32,
    attempts: u32,
    failures: u32,
}

impl<E: Endpoint> LockClient for CasBackoffClient<E> {
    type Grant = TokenGrant;

    #[inline(always)]
    fn acquire(&self, want: Want) -> impl Future<Output = Result<TokenGrant, Denied>> {
        let word = lock_word(&self.space, want);
        let granted = TokenGrant { lock: want.claim.lock, token: None };
        fast(self.ep.go(attempt(&self.ep, word)), move |old| match old {
            Ok(0) => {
                self.learn(false);
                Ok(Ok(granted))
            }
            Ok(_) => Err(self.retry(word, want)),
            Err(lost) => Ok(Err(lost.into())),
        })
    }

    #[inline(always)]
    fn release(&self, grant: TokenGrant) -> impl Future<Output = Result<(), Lost>> {
        give_back(&self.ep, Word64::at(self.space.place(grant.lock, 8)))
    }
}

impl<E: Endpoint> CasBackoffClient<E> {
    async fn retry(&self, word: Word64, want: Want) -> Result<TokenGrant, Denied> {
        for failures in 0.. {
            self.ep.mark("cas-backoff retry", &[]);
            out_of_patience(&self.ep, want).await?;
            self.learn(true);
            self.ep.sleep(self.delay_ns(failures)).await;
            self.ep.observe(Observation::Retried(want.claim));
            if self.ep.go(attempt(&self.ep, word)).await? == 0 {
                break;
            }
        }
        self.learn(false);
        Ok(TokenGrant { lock: want.claim.lock, token: None })
    }

    /// A random time below the truncated exponential.
    fn delay_ns(&self, failures: u32) -> u64 {
        let doublings = failures.min(self.pace.get().doublings);
        let limit = self.backoff.unit_ns << doublings;
        self.ep.random() % limit.max(1)
    }

    fn learn(&self, failed: bool) {
        let mut pace = self.pace.get();
        pace.attempts += 1;
        pace.failures += u32::from(failed);
        if pace.attempts >= self.backoff.window {
            let percent = 100 * pace.failures / pace.attempts;
            if percent > self.backoff.high_percent {
                pace.doublings = (pace.doublings + 1).min(self.backoff.max_doublings);
            } else if percent < self.backoff.low_percent {
                pace.doublings = pace.doublings.saturating_sub(1);
            }
            (pace.attempts, pace.failures) = (0, 0);
        }
        self.pace.set(pace);
    }
}
