//! The parking table: a hash table in the file of the clients that sleep, and for which word.
//!
//! | waiter slot, bits | holds |
//! |---|---|
//! | 0..32 | the waiting peer; 0 if free |
//! | 32..64 | tag of the word it waits for |
//!
//! | hint, bits | holds |
//! |---|---|
//! | 0 | the bucket may have waiters |
//! | 1..64 | version: bumped by every registration |
//!
//! A waiter takes a slot, sets the hint, and *then* checks the word once more. A verb changes the word, *then* loads the
//! hint: without waiters that is one load after a read-modify-write. If the hint is set, the verb rings the doorbells of
//! this word's waiters, frees the slots of dead clients, and clears the hint if all slots were free and its version has
//! not changed.
//!
//! There is no count that a killed waiter could leave wrong: a slot names its client, and dead clients are known. If all
//! slots of a bucket are taken, a waiter polls its word instead (every [`UNREGISTERED_POLL_NS`]).

use super::area::Words;
use super::layout::{Section, WAITERS_PER_BUCKET};
use super::shared::Shared;
use crate::addr::{Addr, PeerId};
use crate::random::mix;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How often a waiter without a slot checks its word.
pub(super) const UNREGISTERED_POLL_NS: u64 = 1_000_000;

/// A slot that this client has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaiterSlot {
    index: u64,
    holds: u64,
}

/// The bucket of a word. Both halves of a 16-byte word share one: a verb on either changes the whole.
#[inline(always)]
fn bucket(addr: Addr) -> u64 {
    let word = addr.offset >> 4;
    word ^ word >> 10 ^ (addr.node.0 as u64) << 5 ^ (addr.region.0 as u64) << 3
}

fn tag(addr: Addr) -> u64 {
    mix(addr.offset >> 4 ^ u64::from(addr.node.0) << 48 ^ u64::from(addr.region.0) << 40) >> 32
}

/// After a change of the word at `addr`: whether a client may be waiting for it.
#[inline(always)]
pub(super) fn has_waiters(hints: &Words, addr: Addr) -> bool {
    hints.get(bucket(addr)).load(SeqCst) & 1 != 0
}

impl Shared {
    fn waiter_slots(&self, addr: Addr) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let bucket = bucket(addr) & (self.layout.shape.buckets - 1);
        let first = bucket * WAITERS_PER_BUCKET;
        (first..first + WAITERS_PER_BUCKET).map(|index| (index, self.waiter_slot(index)))
    }

    fn waiter_slot(&self, index: u64) -> &AtomicU64 {
        self.map.u64(self.layout.start(Section::Waiters) + 8 * index)
    }

    /// Registers `peer` as a waiter of the word at `addr`; `None` if the bucket is full.
    pub(super) fn register_waiter(&self, addr: Addr, peer: PeerId) -> Option<WaiterSlot> {
        let holds = tag(addr) << 32 | u64::from(peer.0);
        let mut slots = self.waiter_slots(addr);
        let (index, _) = slots.find(|(_, slot)| slot.compare_exchange(0, holds, SeqCst, SeqCst).is_ok())?;
        let raise = |hint: u64| Some(hint.wrapping_add(2) | 1);
        let _ = self.hints.get(bucket(addr)).fetch_update(SeqCst, SeqCst, raise);
        Some(WaiterSlot { index, holds })
    }

    /// Frees a slot, unless a waker took this client for dead and freed it already.
    pub(super) fn unregister_waiter(&self, slot: WaiterSlot) {
        let _ = self.waiter_slot(slot.index).compare_exchange(slot.holds, 0, SeqCst, SeqCst);
    }

    /// Rings the doorbells of the clients that wait for the word at `addr`.
    #[cold]
    pub(super) fn wake_waiters(&self, addr: Addr) {
        let before = self.hints.get(bucket(addr)).load(SeqCst);
        if self.ring_waiters(addr) {
            self.clear_hint(addr, before);
        }
    }

    /// Says whether nobody waits in the word's bucket.
    fn ring_waiters(&self, addr: Addr) -> bool {
        let tag = tag(addr);
        let mut empty = true;
        for (_, slot) in self.waiter_slots(addr) {
            let holds = slot.load(SeqCst);
            if holds == 0 {
                continue;
            }
            match self.find_alive(PeerId(holds as u32)) {
                Some(client) => {
                    empty = false;
                    if holds >> 32 == tag {
                        self.ring(client);
                    }
                }
                None => drop(slot.compare_exchange(holds, 0, SeqCst, SeqCst)),
            }
        }
        empty
    }

    /// The bucket had no waiter when its hint was `before`, and has none now, unless the version has changed.
    fn clear_hint(&self, addr: Addr, before: u64) {
        let _ = self.hints.get(bucket(addr)).compare_exchange(before, before & !1, SeqCst, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::super::scratch::Scratch;
    use super::*;
    use crate::addr::NodeId;

    const WORD: Addr = Addr::new(NodeId(0), 16);

    #[test]
    fn a_hint_is_cleared_when_the_last_waiter_has_gone_and_not_before() {
        let scratch = Scratch::new("hint");
        let (shared, client) = (&scratch.0, scratch.client());
        let slot = shared.register_waiter(WORD, client.membership.peer).expect("the bucket is empty");
        shared.wake_waiters(WORD);
        assert!(has_waiters(&shared.hints, WORD));
        shared.unregister_waiter(slot);
        shared.wake_waiters(WORD);
        assert!(!has_waiters(&shared.hints, WORD), "verbs need not look for waiters any more");
    }

    #[test]
    fn a_waiter_that_comes_while_a_waker_looks_keeps_its_hint() {
        let scratch = Scratch::new("late");
        let (shared, client) = (&scratch.0, scratch.client());
        let gone = shared.register_waiter(WORD, client.membership.peer).expect("the bucket is empty");
        shared.unregister_waiter(gone);
        let before = shared.hints.get(bucket(WORD)).load(SeqCst);
        assert!(shared.ring_waiters(WORD), "nobody waits");
        let _slot = shared.register_waiter(WORD, client.membership.peer).expect("the bucket is empty");
        shared.clear_hint(WORD, before);
        assert!(has_waiters(&shared.hints, WORD), "the next change of the word wakes it");
    }
}
