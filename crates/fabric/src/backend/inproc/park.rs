//! Clients that wait for a word: a table of the parked, sharded by address, and the check that wakes them.
//!
//! A waiter registers, *then* looks at the word once more, then parks. A verb changes the word, *then* looks
//! whether somebody is registered. Both orders are sequentially consistent, so at least one of the two sees
//! the other. For a verb whose word nobody waits for that is one load that follows a read-modify-write, and
//! costs nothing.
//!
//! A verb wakes only those whose condition the word meets now. A condition that held for a moment and does so
//! no longer may go unnoticed, just as it may between two READs of a client that polls.

use crate::addr::{Addr, Width};
use crate::backend::sought::Sought;
use crate::backend::wakers::wake_all;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

const SHARDS: usize = 64;

/// The table.
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
    sought: Sought,
    waker: Waker,
}

impl Parking {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()) }
    }

    /// The shard of a word: both halves of a 16-byte word share one, since a verb on either changes the
    /// whole.
    #[inline(always)]
    fn shard(&self, offset: u64) -> &Shard {
        &self.shards[(offset >> 4) as usize % SHARDS]
    }

    /// Registers a waiter under the number in `seat`, or puts its new waker in. The caller looks at the word
    /// afterwards, before it parks.
    pub(super) fn keep(&self, seat: &mut Option<u64>, sought: &Sought, waker: &Waker) {
        let shard = self.shard(sought.addr.offset);
        let mut parked = shard.parked();
        if let Some(number) = *seat
            && let Some(waiter) = parked.waiters.iter_mut().find(|waiter| waiter.number == number)
        {
            waiter.waker.clone_from(waker);
            return;
        }
        parked.next += 1;
        let number = parked.next;
        parked.waiters.push(Waiter { number, sought: *sought, waker: waker.clone() });
        *seat = Some(number);
        shard.count.fetch_add(1, SeqCst);
    }

    /// Takes the waiter in `seat` out, if it is still there.
    pub(super) fn leave(&self, seat: &mut Option<u64>, addr: Addr) {
        let Some(number) = seat.take() else { return };
        let shard = self.shard(addr.offset);
        shard.take(&mut shard.parked(), |waiter| waiter.number == number);
    }

    /// After a change of a word at `offset`: whether somebody may be waiting for it.
    #[inline(always)]
    pub(super) fn is_awaited(&self, offset: u64) -> bool {
        self.shard(offset).count.load(SeqCst) != 0
    }

    /// Wakes those who wait for the word at `addr` and whose condition it meets. `look` reads a word.
    pub(super) fn wake(&self, addr: Addr, look: impl Fn(Addr, Width) -> Option<u128>) {
        self.shard(addr.offset)
            .wake(|waiter| waiter.sought.addr.shares_word(addr) && waiter.sought.is_over(&look));
    }

    /// Wakes everybody who waits for a word that `gone` says is out of reach.
    pub(super) fn lost(&self, gone: impl Fn(Addr) -> bool) {
        for shard in &self.shards {
            shard.wake(|waiter| gone(waiter.sought.addr));
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
