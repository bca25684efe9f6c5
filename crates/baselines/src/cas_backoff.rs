//! The CAS spin lock with truncated exponential backoff, SMART's scheme (ShiftLock §2.3 and its reference 56).
//!
//! Word and release are those of [`cas`](super::cas). After the i-th failure in a row a client waits
//! `min(unit · 2^i, cap)` and a random time below `unit`. The cap starts at `unit` and adapts: after 64
//! acquires and a millisecond at least, a client compares the share of retries among its attempts with two marks, doubles the
//! cap above the high one and halves it below the low one (SMART, ASPLOS 2024, §4.3, as ShiftLock's artifact
//! has it). The time is the client's own reckoning, a unit per attempt and what it waited: no clock is read.

use super::cas::{attempt, give_back, lock_word, out_of_patience};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Endpoint, Needs, Word64};
use lockwright_locks::{Denied, Held, Info, LockClient, Lost, Offers, Protocol, Space, Want};
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
    /// Time between two adaptations of the cap, at least.
    pub period_ns: u64,
    /// Acquires between two adaptations of the cap, at least: the artifact looks at the time once per 64.
    pub period_acquires: u64,
    /// Percent of retries above which the cap doubles.
    pub high_percent: u64,
    /// Percent of retries below which it halves.
    pub low_percent: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            unit_ns: 1862,
            max_doublings: 10,
            period_ns: 1_000_000,
            period_acquires: 64,
            high_percent: 50,
            low_percent: 10,
        }
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
}

/// A client of the CAS spin lock with backoff.
#[derive(Debug)]
pub struct CasBackoffClient<E> {
    ep: E,
    space: Space,
    backoff: Backoff,
    pace: Cell<BackoffState>,
}

/// What a client has learned about the contention it meets. It only shapes how long it sleeps.
#[derive(Clone, Copy, Debug, Default)]
struct BackoffState {
    /// The cap, in doublings of the unit.
    doublings: u32,
    /// Since the last adaptation: acquires, retries, and the time they took.
    acquires: u64,
    retries: u64,
    elapsed_ns: u64,
}

impl<E: Endpoint> LockClient for CasBackoffClient<E> {
    type Grant = Held;

    async fn acquire(&self, want: Want) -> Result<Held, Denied> {
        let word = lock_word(&self.space, want);
        let mut failures = 0;
        while self.ep.go(attempt(&self.ep, word)).await? != 0 {
            self.ep.mark("cas-backoff retry", &[]);
            out_of_patience(&self.ep, want).await?;
            let delay_ns = self.delay_ns(failures);
            self.retried(delay_ns);
            self.ep.sleep(delay_ns).await;
            self.ep.observe(Observation::Retried(want.claim));
            failures += 1;
        }
        self.acquired();
        Ok(Held { lock: want.claim.lock })
    }

    async fn release(&self, grant: Held) -> Result<(), Lost> {
        give_back(&self.ep, Word64::at(self.space.place(grant.lock, 8))).await
    }
}

impl<E: Endpoint> CasBackoffClient<E> {
    /// The truncated exponential, and a random part of a unit.
    fn delay_ns(&self, failures: u32) -> u64 {
        let doublings = failures.min(self.pace.get().doublings);
        (self.backoff.unit_ns << doublings) + self.ep.random() % self.backoff.unit_ns.max(1)
    }

    fn retried(&self, delay_ns: u64) {
        let pace = self.pace.get();
        let elapsed_ns = pace.elapsed_ns + self.backoff.unit_ns + delay_ns;
        self.pace.set(BackoffState { retries: pace.retries + 1, elapsed_ns, ..pace });
    }

    fn acquired(&self) {
        let mut pace = self.pace.get();
        pace.acquires += 1;
        pace.elapsed_ns += self.backoff.unit_ns;
        if pace.acquires >= self.backoff.period_acquires && pace.elapsed_ns >= self.backoff.period_ns {
            let percent = 100 * pace.retries / (pace.retries + pace.acquires);
            let doublings = if percent > self.backoff.high_percent {
                (pace.doublings + 1).min(self.backoff.max_doublings)
            } else if percent < self.backoff.low_percent {
                pace.doublings.saturating_sub(1)
            } else {
                pace.doublings
            };
            pace = BackoffState { doublings, ..BackoffState::default() };
        }
        self.pace.set(pace);
    }
}
