//! The parking table: clients that wait for a word, sharded by address.
//!
//! A waiter registers, *then* checks the word once more, then parks. A verb changes the word, *then* checks for registered
//! waiters. Both are sequentially consistent, so at least one of the two sees the other. Without waiters a verb pays one
//! load after its read-modify-write.
//!
//! A verb wakes only waiters whose condition the word meets at that moment. A condition that held only briefly may go
//! unnoticed, as it may between two READs of a polling client.

use crate::addr::{Addr, Width};
use crate::backend::wakers::wake_all;
use crate::wait::RawWait;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

const SHARDS: usize = 64;

#[derive(Debug)]
pub(super) struct Parking {
    shards: [Shard; SHARDS],
}

/// A shard has a cache line of its own: every verb that changes a word reads its count.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    count: AtomicUsize,
    parked: Mutex<Parked>,
}

#[derive(Debug, Default)]
struct Parked {
    waiters: Vec<Waiter>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    wait: RawWait,
    waker: Waker,
}

impl Parking {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()) }
    }

    /// The shard of a word. Both halves of a 16-byte word share one: a verb on either changes the whole.
    #[inline(always)]
    fn shard(&self, offset: u64) -> &Shard {
        &self.shards[(offset >> 4) as usize % SHARDS]
    }

    /// Registers a waiter, or replaces the waker of the one registered under `key`. The caller must check the word
    /// afterwards, before it parks.
    pub(super) fn register(&self, key: &mut Option<u64>, wait: &RawWait, waker: &Waker) {
        let shard = self.shard(wait.addr.offset);
        let mut parked = shard.parked();
        if let Some(number) = *key
            && let Some(waiter) = parked.waiters.iter_mut().find(|waiter| waiter.number == number)
        {
            waiter.waker.clone_from(waker);
            return;
        }
        parked.next += 1;
        let number = parked.next;
        parked.waiters.push(Waiter { number, wait: *wait, waker: waker.clone() });
        *key = Some(number);
        shard.count.fetch_add(1, SeqCst);
    }

    /// Removes the waiter registered under `key`, if it is still there.
    pub(super) fn unregister(&self, key: &mut Option<u64>, addr: Addr) {
        let Some(number) = key.take() else { return };
        let shard = self.shard(addr.offset);
        shard.take(&mut shard.parked(), |waiter| waiter.number == number);
    }

    /// After a change of the word at `offset`: whether a client may be waiting for it.
    #[inline(always)]
    pub(super) fn has_waiters(&self, offset: u64) -> bool {
        self.shard(offset).count.load(SeqCst) != 0
    }

    /// Wakes the waiters of the word at `addr` whose condition holds. `read` reads a word.
    pub(super) fn wake(&self, addr: Addr, read: impl Fn(Addr, Width) -> Option<u128>) {
        self.shard(addr.offset)
            .wake(|waiter| waiter.wait.addr.shares_word(addr) && waiter.wait.is_over(&read));
    }

    /// Wakes all waiters of words that `gone` says are unreachable.
    pub(super) fn wake_unreachable(&self, gone: impl Fn(Addr) -> bool) {
        for shard in &self.shards {
            shard.wake(|waiter| gone(waiter.wait.addr));
        }
    }
}

impl Shard {
    fn parked(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, parked: &mut Parked, which: impl Fn(&Waiter) -> bool) -> Vec<Waker> {
        let taken: Vec<_> = parked.waiters.extract_if(.., |waiter| which(waiter)).map(|w| w.waker).collect();
        self.count.fetch_sub(taken.len(), SeqCst);
        taken
    }

    fn wake(&self, which: impl Fn(&Waiter) -> bool) {
        let woken = self.take(&mut self.parked(), which);
        wake_all(woken);
    }
}

impl Addr {
    /// Whether both lie in one 16-byte word.
    const fn shares_word(self, other: Addr) -> bool {
        self.offset >> 4 == other.offset >> 4
            && self.node.0 == other.node.0
            && self.region.0 == other.region.0
    }
}
