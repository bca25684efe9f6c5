//! DrTM's lock: CAS for writers, leases that end at a time for readers (Wei, Shi, Chen, Chen, Chen: "Fast In-memory
//! Transaction Processing using RDMA and HTM", SOSP 2015; ShiftLock §4.1).
//!
//! | bits | free | write-locked | leased |
//! |---|---|---|---|
//! | 0 | 0 | 1 | 0 |
//! | 1–63 | 0 | the holder's peer number | |
//! | 9–63 | 0 | | when the lease ends, in nanoseconds |
//!
//! A reader takes a lease with one CAS, and any number of others share it: none of them counts itself in or out, so
//! that releasing it costs nothing. A writer waits until the lease is over. No queue: a client that is refused tries again at
//! once. No recovery of a writer's lock.
//!
//! Safety rests on clocks that differ by at most `drift_ns`, and on readers that hold on for no longer than
//! `hold_ns`:
//!
//! ```text
//!            a reader may join          nobody may do anything       a writer may take it
//!  ──────────────────────────────┬──────────────────────────────┬───────────────────────────▶ own clock
//!                     end − drift − hold                    end + drift
//! ```
//!
//! A reader that looks at its clock too late, after `end − drift`, learns at its release that it has held nothing.

use super::cas::out_of_patience;
use lockwright_fabric::observe::{Mode, Observation};
use lockwright_fabric::{Addr, Endpoint, Needs, Time, Word64};
use lockwright_locks::{Denied, Grant, Info, LockClient, Lost, Offers, Protocol, Space, Want};
use std::marker::PhantomData;

/// DrTM's lock, with the rules of `R`: those of the paper, or a mutant's.
#[derive(Debug)]
pub struct Drtm<R = AsPublished>(PhantomData<R>);

/// Where the mutants of DrTM differ from it.
pub trait Rules: std::fmt::Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// Clocks may differ, and both sides leave room for it.
    const LEAVES_ROOM_FOR_DRIFT: bool = true;
    /// A reader joins a lease only if it can hold it for as long as it may need to.
    const LEAVES_ROOM_TO_HOLD: bool = true;
}

/// As published.
#[derive(Clone, Copy, Debug)]
pub struct AsPublished;

impl Rules for AsPublished {
    const NAME: &'static str = "drtm";
}

/// DrTM's tunables. The defaults are those of ShiftLock's artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrtmParams {
    /// How long a reader's lease is.
    pub lease_ns: u64,
    /// How long a reader may hold it, at most.
    pub hold_ns: u64,
    /// How far two clocks may be apart (ShiftLock §4.1: 50 µs).
    pub drift_ns: u64,
    /// How far every other client's clock really is ahead, for fabrics with one clock for all: the explorer.
    pub skew_ns: u64,
}

impl Default for DrtmParams {
    fn default() -> Self {
        Self { lease_ns: 1_000_000, hold_ns: 500_000, drift_ns: 50_000, skew_ns: 0 }
    }
}

impl<R: Rules> Protocol for Drtm<R> {
    type Params = DrtmParams;
    type Client<E: Endpoint> = DrtmClient<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "CAS for writers, timed leases for readers",
        source: "DrTM (SOSP '15); ShiftLock §4.1",
        offers: Offers { shared: true, tries: true, timeouts: true, ..Offers::NONE },
    };

    fn needs(_: &DrtmParams) -> Needs {
        Needs { global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, _: &DrtmParams) -> u64 {
        space.table_bytes(8)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &DrtmParams) -> DrtmClient<E, R> {
        DrtmClient { ep, space: *space, params: params.clone(), rules: PhantomData }
    }

    /// An old lease may stay where it is.
    fn quiet_mask(_: &Space, _: &DrtmParams, _: Addr) -> u64 {
        LOCKED
    }
}

/// Bit 0 of the word: a writer has it.
const LOCKED: u64 = 1;
/// Where the end of a lease starts: DrTM keeps a writer's machine in the bits between.
const LEASE_SHIFT: u32 = 9;

/// What the word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Locked,
    /// Until then.
    Leased(Time),
}

impl State {
    const fn of(word: u64) -> Self {
        if word & LOCKED != 0 {
            State::Locked
        } else if word == 0 {
            State::Free
        } else {
            State::Leased(Time(word >> LEASE_SHIFT))
        }
    }
}

const fn leased(end: Time) -> u64 {
    end.0 << LEASE_SHIFT
}

/// A granted DrTM lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrtmGrant {
    /// The lock.
    pub lock: u64,
    /// When a reader's lease ends; a writer has none.
    lease_end: Option<Time>,
}

impl Grant for DrtmGrant {}

/// A client of DrTM's lock.
#[derive(Clone, Debug)]
pub struct DrtmClient<E, R = AsPublished> {
    ep: E,
    space: Space,
    params: DrtmParams,
    rules: PhantomData<R>,
}

impl<E: Endpoint, R: Rules> LockClient for DrtmClient<E, R> {
    type Grant = DrtmGrant;

    async fn acquire(&self, want: Want) -> Result<DrtmGrant, Denied> {
        let lease_end = match want.claim.mode {
            Mode::Exclusive => {
                self.write_lock(want).await?;
                None
            }
            Mode::Shared => Some(self.read_lease(want).await?),
        };
        Ok(DrtmGrant { lock: want.claim.lock, lease_end })
    }

    async fn release(&self, grant: DrtmGrant) -> Result<(), Lost> {
        if let Some(end) = grant.lease_end {
            // Nothing to give back. But was it held to the end?
            let in_time = self.clock().await.plus(self.drift_ns()) < end;
            return if in_time { Ok(()) } else { Err(Lost::Recovered) };
        }
        let mine = self.locked();
        let old = self.ep.go(self.word(grant.lock).cas(mine, 0)).await?;
        if old == mine { Ok(()) } else { Err(Lost::Recovered) }
    }
}

impl<E: Endpoint, R: Rules> DrtmClient<E, R> {
    async fn write_lock(&self, want: Want) -> Result<(), Denied> {
        let word = self.word(want.claim.lock);
        let mut expect = 0;
        loop {
            let old = self.ep.go(word.cas(expect, self.locked())).await?;
            if old == expect {
                return Ok(());
            }
            expect = match State::of(old) {
                // A lease that is over is as good as none.
                State::Leased(end) if self.is_over(end).await => old,
                State::Leased(_) | State::Locked => {
                    out_of_patience(&self.ep, want).await?;
                    0
                }
                State::Free => 0,
            };
            self.ep.mark("drtm write", &[expect]);
            self.ep.observe(Observation::Retried(want.claim));
        }
    }

    /// Takes a lease, or joins one. Returns when it ends.
    async fn read_lease(&self, want: Want) -> Result<Time, Denied> {
        let word = self.word(want.claim.lock);
        let mut expect = 0;
        loop {
            let end = self.clock().await.plus(self.params.lease_ns);
            let old = self.ep.go(word.cas(expect, leased(end))).await?;
            // The CAS itself may have taken too long.
            if old == expect && self.can_join(end).await {
                return Ok(end);
            }
            expect = match State::of(old) {
                State::Leased(end) if self.can_join(end).await => return Ok(end),
                State::Leased(end) if self.is_over(end).await => old,
                State::Leased(_) | State::Locked => {
                    out_of_patience(&self.ep, want).await?;
                    0
                }
                State::Free => 0,
            };
            self.ep.mark("drtm read", &[expect]);
            self.ep.observe(Observation::Retried(want.claim));
        }
    }

    /// Whether there is time enough left in a lease to hold it.
    async fn can_join(&self, end: Time) -> bool {
        let hold_ns = if R::LEAVES_ROOM_TO_HOLD { self.params.hold_ns } else { 0 };
        self.clock().await.plus(self.drift_ns() + hold_ns) < end
    }

    /// Whether a lease is over by every clock.
    async fn is_over(&self, end: Time) -> bool {
        self.clock().await > end.plus(self.drift_ns())
    }

    fn drift_ns(&self) -> u64 {
        if R::LEAVES_ROOM_FOR_DRIFT { self.params.drift_ns } else { 0 }
    }

    /// This client's clock.
    async fn clock(&self) -> Time {
        let ahead = self.ep.me().0.is_multiple_of(2);
        self.ep.now().await.plus(if ahead { self.params.skew_ns } else { 0 })
    }

    fn locked(&self) -> u64 {
        LOCKED | u64::from(self.ep.me().0) << 1
    }

    fn word(&self, lock: u64) -> Word64 {
        Word64::at(self.space.place(lock, 8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_free_locked_or_leased() {
        assert_eq!(State::of(0), State::Free);
        assert_eq!(State::of(LOCKED | 7 << 1), State::Locked);
        assert_eq!(State::of(leased(Time(123))), State::Leased(Time(123)));
    }
}
