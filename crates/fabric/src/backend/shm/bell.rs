//! Doorbells: one futex word per client, rung by whoever has something for it.
//!
//! A client that is about to sleep raises its count of listeners, *then* looks once more for what it waits for. Whoever
//! brings something puts it there, *then* looks at the count, and rings only if it is not zero: as long as nobody
//! sleeps, a bell costs one load. Both orders are sequentially consistent, so at least one of the two sees the other.

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

    /// Rings if somebody listens.
    #[inline]
    pub(super) fn ring(&self, slot: u64) -> bool {
        let heard = self.listeners(slot).load(SeqCst) != 0;
        if heard {
            self.ring_always(slot);
        }
        heard
    }

    pub(super) fn ring_always(&self, slot: u64) {
        let word = self.rings_word(slot);
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
    }

    pub(super) fn rings(&self, slot: u64) -> u32 {
        self.rings_word(slot).load(SeqCst)
    }

    /// Sleeps until the bell rings, unless it has done so since it had rung `rings` times.
    pub(super) fn sleep_on_bell(&self, slot: u64, rings: u32, limit: Option<Duration>) {
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        // A signal or a change of the word ends it early; callers look and come back.
        let _ = futex::wait(self.rings_word(slot), futex::Flags::empty(), rings, limit.as_ref());
    }
}
