//! Doorbells: one futex word per client, rung by other clients that have something for it.
//!
//! A client that is about to sleep raises its listener count, *then* checks once more for what it waits for. A client
//! that brings something stores it, *then* reads the count, and rings only if it is not zero: while nobody sleeps, a
//! doorbell costs one load. Both are sequentially consistent, so at least one of the two sees the other.

use super::clients::{AT_LISTENERS, AT_RINGS};
use super::shared::Shared;
use rustix::thread::futex::{self, Timespec};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

impl Shared {
    fn rings_word(&self, slot: u64) -> &AtomicU32 {
        self.map.u32(self.slot_at(slot) + AT_RINGS)
    }

    pub(super) fn listeners(&self, slot: u64) -> &AtomicU32 {
        self.map.u32(self.slot_at(slot) + AT_LISTENERS)
    }

    /// Rings if a thread listens; whether one did.
    #[inline]
    pub(super) fn ring(&self, slot: u64) -> bool {
        let has_listener = self.listeners(slot).load(SeqCst) != 0;
        if has_listener {
            self.ring_always(slot);
        }
        has_listener
    }

    pub(super) fn ring_always(&self, slot: u64) {
        let word = self.rings_word(slot);
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
    }

    pub(super) fn rings(&self, slot: u64) -> u32 {
        self.rings_word(slot).load(SeqCst)
    }

    /// Sleeps until the doorbell rings, unless its count is not `rings` any more.
    pub(super) fn wait_doorbell(&self, slot: u64, rings: u32, limit: Option<Duration>) {
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        // May return early (a signal); callers check and come back.
        let _ = futex::wait(self.rings_word(slot), futex::Flags::empty(), rings, limit.as_ref());
    }
}
