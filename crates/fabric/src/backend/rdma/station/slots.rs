//! Slots: room for the results of one batch or for one letter, used by one after the other; and the ticket of whoever waits
//! for what is in one.
//!
//! A work request carries its slot's number and turn, so that a late completion is not taken for that of the slot's next
//! user.

use super::{SPIN, Station};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Batches under way at once.
pub(super) const BATCHES: usize = 32;
/// Letters on their way out at once, or [bundles](Station::send_all) of them.
pub(super) const LETTERS: usize = 32;

/// What a slot has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Batch,
    Letter,
}

/// The first ones are for batches, the others for letters.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free_batches: Vec<usize>,
    free_letters: Vec<usize>,
    /// Those who wait for a slot.
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
            slots: (0..BATCHES + LETTERS).map(|_| Slot::default()).collect(),
            free_batches: (0..BATCHES).collect(),
            free_letters: (BATCHES..BATCHES + LETTERS).collect(),
            waiting: Vec::new(),
        }
    }

    /// What the slot has room for.
    pub(super) const fn room(index: usize) -> Room {
        if index < BATCHES { Room::Batch } else { Room::Letter }
    }

    fn free_ones(&mut self, room: Room) -> &mut Vec<usize> {
        match room {
            Room::Batch => &mut self.free_batches,
            Room::Letter => &mut self.free_letters,
        }
    }

    /// A free slot, which is busy from now on. `heard`: somebody waits for what comes of it; else it is as if its future had
    /// been dropped.
    pub(super) fn take(&mut self, room: Room, heard: bool) -> Option<usize> {
        let index = self.free_ones(room).pop()?;
        let slot = &mut self.slots[index];
        slot.turn = slot.turn.wrapping_add(1);
        // No queue pair that is destroyed just now takes the slot along.
        (slot.state, slot.pair) = (State::Busy { waiter: None, dropped: !heard }, 0);
        Some(index)
    }

    /// Gives a slot back.
    pub(super) fn free(&mut self, index: usize) {
        self.slots[index].state = State::Free;
        self.free_ones(Self::room(index)).push(index);
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
pub(super) struct Ticket {
    station: Arc<Station>,
    pub(super) index: usize,
    spun: bool,
    over: bool,
}

impl Ticket {
    /// Waits for a slot.
    pub(super) async fn take(station: &Arc<Station>, room: Room) -> Self {
        let index = std::future::poll_fn(|cx| {
            let mut slots = station.slots();
            match slots.take(room, true) {
                Some(index) => Poll::Ready(index),
                None => {
                    slots.waiting.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        });
        Self { index: index.await, station: Arc::clone(station), spun: false, over: false }
    }

    /// Gives the slot back: nothing was posted.
    pub(super) fn release(&mut self) {
        self.over = true;
        self.station.slots().free(self.index);
    }

    fn look(&mut self, waker: Option<&Waker>) -> Option<bool> {
        let mut slots = self.station.slots();
        match &mut slots.slots[self.index].state {
            State::Done { well } => Some(*well),
            State::Busy { waiter, .. } => {
                *waiter = waker.cloned();
                None
            }
            State::Free => unreachable!("a slot is free only after its ticket is over"),
        }
    }
}

impl Future for Ticket {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let this = self.get_mut();
        let start = Instant::now();
        while !this.spun {
            this.station.take();
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

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut slots = self.station.slots();
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
        let one = slots.take(Room::Letter, false).unwrap();
        let id = slots.id(one);
        assert_eq!(Slots::room(one), Room::Letter);
        assert!(slots.completed(id, true).is_some());
        assert!(slots.completed(id, true).is_none(), "nobody is there any more");
        assert_eq!(slots.take(Room::Letter, true), Some(one));
        assert!(slots.completed(id, false).is_none(), "it was the turn before");
        assert!(slots.completed(slots.id(one), true).is_some());
    }

    #[test]
    fn a_queue_pair_that_is_destroyed_takes_along_what_was_posted_to_it() {
        let mut slots = Slots::new();
        let [here, there, nowhere] = [7, 8, 0].map(|pair| {
            let index = slots.take(Room::Batch, false).unwrap();
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
