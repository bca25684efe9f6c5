//! What is going to happen, in order of time: a calendar of short slots for the near future, and a heap for the rest.
//!
//! Nearly everything happens within a few microseconds of being planned, so nearly every event goes into a slot and out of
//! it again without being compared with more than one or two others. Order is by time and then by number, whichever way
//! an event came: the same seed gives the same run.

use super::event::{Event, EventKind};
use std::collections::BinaryHeap;

/// A slot is eight nanoseconds long.
const SLOT_SHIFT: u32 = 3;
/// The near future is so many slots long, 8.2 µs: a round trip takes 2 to 3, a message 4.
const SLOTS: u64 = 1 << 10;
/// Nothing comes after an entry, or no entry is in a slot.
const NONE: u32 = u32::MAX;

/// The events of a world that have not happened yet.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Events so far.
    seq: u64,
    /// The slot of the last event that was taken: everything that is planned lies in it or behind it.
    base: u64,
    /// Per slot, the first of its entries; each names the next, in order. Slots are reused in turns.
    heads: Vec<u32>,
    /// A bit for every slot that has entries.
    full: [u64; (SLOTS / 64) as usize],
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Entries in slots.
    near: usize,
    /// The first slot with entries, where that is known.
    found: Option<u64>,
    /// What lies beyond the slots.
    far: BinaryHeap<Event>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    event: Event,
    next: u32,
}

impl Agenda {
    pub(super) fn new() -> Self {
        Self {
            seq: 0,
            base: 0,
            heads: vec![NONE; SLOTS as usize],
            full: [0; (SLOTS / 64) as usize],
            entries: Vec::new(),
            free: Vec::new(),
            near: 0,
            found: None,
            far: BinaryHeap::new(),
        }
    }

    /// Plans `what` for `at_ns`, which is not before the last event that was taken.
    #[inline]
    pub(super) fn push(&mut self, at_ns: u64, what: EventKind) {
        self.seq += 1;
        let event = Event { at_ns, seq: self.seq, what };
        let slot = at_ns >> SLOT_SHIFT;
        debug_assert!(slot >= self.base, "nothing is planned for the past");
        if slot - self.base < SLOTS { self.put(event) } else { self.far.push(event) }
    }

    /// When the next event is.
    #[inline]
    pub(super) fn next_at(&mut self) -> Option<u64> {
        if self.near == 0 {
            return self.far.peek().map(|event| event.at_ns);
        }
        let slot = self.first_slot();
        let head = self.heads[place(slot)];
        Some(self.entries[head as usize].event.at_ns)
    }

    /// What the next event is, if it is near: for whoever wants to be ready for it.
    #[inline]
    pub(super) fn next_what(&mut self) -> Option<EventKind> {
        if self.near == 0 {
            return None;
        }
        let slot = self.first_slot();
        let head = self.heads[place(slot)];
        Some(self.entries[head as usize].event.what)
    }

    /// Takes the next event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        if self.near == 0 {
            let event = self.far.pop()?;
            self.advance(event.at_ns >> SLOT_SHIFT);
            return Some(event);
        }
        let slot = self.first_slot();
        let place = place(slot);
        let head = self.heads[place];
        let Entry { event, next } = self.entries[head as usize];
        self.heads[place] = next;
        if next == NONE {
            self.full[place / 64] &= !(1 << (place % 64));
            self.found = None;
        }
        self.free.push(head);
        self.near -= 1;
        self.advance(slot);
        Some(event)
    }

    /// The near future begins with `slot` now: what was far and no longer is goes into its slot.
    #[inline]
    fn advance(&mut self, slot: u64) {
        self.base = slot;
        while self.far.peek().is_some_and(|event| (event.at_ns >> SLOT_SHIFT) - slot < SLOTS) {
            let event = self.far.pop().expect("it was there just now");
            self.put(event);
        }
    }

    #[inline]
    fn put(&mut self, event: Event) {
        let slot = event.at_ns >> SLOT_SHIFT;
        if self.near == 0 || self.found.is_some_and(|found| slot < found) {
            self.found = Some(slot);
        }
        self.near += 1;
        let (place, key) = (place(slot), event.key());
        let mut after = None;
        let mut next = self.heads[place];
        while next != NONE && self.entries[next as usize].event.key() < key {
            after = Some(next);
            next = self.entries[next as usize].next;
        }
        let entry = Entry { event, next };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        match after {
            Some(before) => self.entries[before as usize].next = at,
            None => self.heads[place] = at,
        }
        self.full[place / 64] |= 1 << (place % 64);
    }

    /// The first slot with entries; there must be one.
    #[inline]
    fn first_slot(&mut self) -> u64 {
        if let Some(slot) = self.found {
            return slot;
        }
        let start = place(self.base);
        let mut word = start / 64;
        let mut bits = self.full[word] & (u64::MAX << (start % 64));
        while bits == 0 {
            word = (word + 1) % self.full.len();
            bits = self.full[word];
        }
        let place = (word * 64) as u64 + u64::from(bits.trailing_zeros());
        let slot = self.base + (place.wrapping_sub(start as u64) % SLOTS);
        self.found = Some(slot);
        slot
    }
}

/// Where a slot is kept.
#[inline(always)]
fn place(slot: u64) -> usize {
    (slot % SLOTS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Plans and takes events at random and compares with a heap.
    fn agrees_with_a_heap(reach_ns: u64, seed: u64) {
        let (mut agenda, mut heap, mut rng) = (Agenda::new(), BinaryHeap::new(), Rng::new(seed, 0));
        let (mut now_ns, mut seq) = (0, 0);
        for _ in 0..20_000 {
            if rng.below(100) < 51 {
                let at_ns = now_ns + rng.below(rng.clone().below(reach_ns) + 1);
                seq += 1;
                agenda.push(at_ns, EventKind::Start(seq as u32));
                heap.push(Event { at_ns, seq, what: EventKind::Start(seq as u32) });
            } else {
                let at_ns = agenda.next_at();
                let (ours, theirs) = (agenda.pop(), heap.pop());
                assert_eq!(ours.map(|event| event.key()), theirs.map(|event| event.key()));
                assert_eq!(at_ns, ours.map(|event| event.at_ns));
                now_ns = at_ns.unwrap_or(now_ns);
            }
        }
    }

    #[test]
    fn events_come_in_order_however_far_away_they_are() {
        for (seed, reach_ns) in
            [1, 10, 1_000, 8_191, 8_192, 10_000, 100_000, 10_000_000].into_iter().enumerate()
        {
            agrees_with_a_heap(reach_ns, seed as u64);
        }
    }

    #[test]
    fn what_is_planned_after_a_look_can_still_come_first() {
        let mut agenda = Agenda::new();
        agenda.push(5_000, EventKind::Start(1));
        assert_eq!(agenda.next_at(), Some(5_000));
        agenda.push(20, EventKind::Start(2));
        agenda.push(1_000_000, EventKind::Start(3));
        let order: Vec<_> = std::iter::from_fn(|| agenda.pop().map(|event| event.at_ns)).collect();
        assert_eq!(order, [20, 5_000, 1_000_000]);
    }
}
