//! Slots: room for the results of one batch or for one message, reused; and [`Completion`], the future that waits for one.
//!
//! A work request carries its slot's number and turn, so that a late completion is not taken for that of the slot's next
//! user.

use super::{EventLoop, SPIN};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Batches under way at once.
pub(super) const BATCHES: usize = 32;
/// Messages being sent at once, or [groups](EventLoop::send_all) of them.
pub(super) const MESSAGES: usize = 32;

/// What a slot has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotKind {
    Batch,
    Message,
}

/// The first ones are for batches, the others for messages.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free_batches: Vec<usize>,
    free_messages: Vec<usize>,
    /// Futures that wait for a slot.
    waiting: Vec<Waker>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Tells a late completion from that of the slot's next user.
    turn: u32,
    /// The queue pair it was posted to; 0 before that.
    pair: u32,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Free,
    /// The NIC works on it. Without a waiter once the future was dropped.
    Busy {
        waiter: Option<Waker>,
        dropped: bool,
    },
    Done {
        well: bool,
    },
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            slots: (0..BATCHES + MESSAGES).map(|_| Slot::default()).collect(),
            free_batches: (0..BATCHES).collect(),
            free_messages: (BATCHES..BATCHES + MESSAGES).collect(),
            waiting: Vec::new(),
        }
    }

    /// What the slot has room for.
    pub(super) const fn kind(index: usize) -> SlotKind {
        if index < BATCHES { SlotKind::Batch } else { SlotKind::Message }
    }

    fn free_ones(&mut self, kind: SlotKind) -> &mut Vec<usize> {
        match kind {
            SlotKind::Batch => &mut self.free_batches,
            SlotKind::Message => &mut self.free_messages,
        }
    }

    /// A free slot, which is busy from now on. `awaited`: a future waits for it; else it is as if its future
    /// had been dropped.
    pub(super) fn take(&mut self, kind: SlotKind, awaited: bool) -> Option<usize> {
        let index = self.free_ones(kind).pop()?;
        let slot = &mut self.slots[index];
        slot.turn = slot.turn.wrapping_add(1);
        // No queue pair that is destroyed just now takes the slot along.
        (slot.state, slot.pair) = (State::Busy { waiter: None, dropped: !awaited }, 0);
        Some(index)
    }

    /// Gives a slot back.
    pub(super) fn free(&mut self, index: usize) {
        self.slots[index].state = State::Free;
        self.free_ones(Self::kind(index)).push(index);
        for waiter in self.waiting.drain(..) {
            waiter.wake();
        }
    }

    /// The number of the work request that ends the slot's turn.
    pub(super) fn id(&self, index: usize) -> u64 {
        u64::from(self.slots[index].turn) << 16 | index as u64
    }

    pub(super) fn posting(&mut self, index: usize, pair: u32) {
        self.slots[index].pair = pair;
    }

    /// Everything under way over `pair` has failed. Returns whom to wake.
    pub(super) fn abandon(&mut self, pair: u32) -> Vec<Waker> {
        let mut woken = Vec::new();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let State::Busy { waiter, dropped } = &mut slot.state else { continue };
            if slot.pair != pair {
                continue;
            }
            woken.extend(waiter.take());
            if *dropped {
                self.free(index);
            } else {
                slot.state = State::Done { well: false };
            }
        }
        woken
    }

    /// The work request `id` is done. Returns its slot, if it is still its turn, and whom to wake.
    pub(super) fn completed(&mut self, id: u64, well: bool) -> Option<(usize, Option<Waker>)> {
        let (index, turn) = ((id & 0xffff) as usize, (id >> 16) as u32);
        let slot = self.slots.get_mut(index).filter(|slot| slot.turn == turn)?;
        let State::Busy { waiter, dropped } = &mut slot.state else { return None };
        let (waiter, dropped) = (waiter.take(), *dropped);
        slot.state = State::Done { well };
        if dropped {
            self.free(index);
        }
        Some((index, waiter))
    }
}

/// Work that was posted: done when the NIC says so, with whether all went well.
#[derive(Debug)]
pub(super) struct Completion {
    event_loop: Arc<EventLoop>,
    pub(super) index: usize,
    spun: bool,
    over: bool,
}

impl Completion {
    /// Waits for a slot.
    pub(super) async fn take(event_loop: &Arc<EventLoop>, kind: SlotKind) -> Self {
        let index = std::future::poll_fn(|cx| {
            let mut slots = event_loop.slots();
            match slots.take(kind, true) {
                Some(index) => Poll::Ready(index),
                None => {
                    slots.waiting.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        });
        Self { index: index.await, event_loop: Arc::clone(event_loop), spun: false, over: false }
    }

    /// Gives the slot back: nothing was posted.
    pub(super) fn release(&mut self) {
        self.over = true;
        self.event_loop.slots().free(self.index);
    }

    fn look(&mut self, waker: Option<&Waker>) -> Option<bool> {
        let mut slots = self.event_loop.slots();
        match &mut slots.slots[self.index].state {
            State::Done { well } => Some(*well),
            State::Busy { waiter, .. } => {
                *waiter = waker.cloned();
                None
            }
            State::Free => unreachable!("a slot is free only after its completion is over"),
        }
    }
}

impl Future for Completion {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let this = self.get_mut();
        let start = Instant::now();
        while !this.spun {
            this.event_loop.poll_completions();
            if this.look(None).is_some() {
                break;
            }
            this.spun = start.elapsed() > SPIN;
        }
        match this.look(Some(cx.waker())) {
            // The results stay readable until the ticket is dropped.
            Some(well) => Poll::Ready(well),
            None => Poll::Pending,
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut slots = self.event_loop.slots();
        match &mut slots.slots[self.index].state {
            State::Busy { waiter, dropped } => {
                *waiter = None;
                *dropped = true;
            }
            _ => slots.free(self.index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_completion_is_not_taken_for_that_of_the_next_user() {
        let mut slots = Slots::new();
        let one = slots.take(SlotKind::Message, false).unwrap();
        let id = slots.id(one);
        assert_eq!(Slots::kind(one), SlotKind::Message);
        assert!(slots.completed(id, true).is_some());
        assert!(slots.completed(id, true).is_none(), "nobody is there any more");
        assert_eq!(slots.take(SlotKind::Message, true), Some(one));
        assert!(slots.completed(id, false).is_none(), "it was the turn before");
        assert!(slots.completed(slots.id(one), true).is_some());
    }

    #[test]
    fn a_queue_pair_that_is_destroyed_takes_along_what_was_posted_to_it() {
        let mut slots = Slots::new();
        let [here, there, nowhere] = [7, 8, 0].map(|pair| {
            let index = slots.take(SlotKind::Batch, false).unwrap();
            slots.posting(index, pair);
            index
        });
        slots.abandon(7);
        assert!(slots.completed(slots.id(here), true).is_none());
        assert!(slots.completed(slots.id(there), true).is_some());
        assert!(slots.completed(slots.id(nowhere), true).is_some());
        assert_eq!(slots.free_batches.len(), BATCHES);
    }
}
