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

/// No slot is this late.
const NO_SLOT: u64 = u64::MAX;

/// The events of a world that have not happened yet.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Events so far.
    seq: u64,
    /// The slot of the last event that was taken: everything that is planned lies in it or behind it.
    base: u64,
    /// Entries in slots.
    near: usize,
    /// The first slot with entries, where that is known.
    found: u64,
    /// The slot of the first event in `far`.
    far_from: u64,
    /// Entries that are not in use, each with the next.
    free: u32,
    /// A bit for every slot that has entries.
    full: [u64; (SLOTS / 64) as usize],
    /// Per slot, the first of its entries; each names the next, in order. Slots are reused in turns.
    heads: Box<[u32; SLOTS as usize]>,
    entries: Vec<Entry>,
    /// What lies beyond the slots.
    far: BinaryHeap<Event>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    event: Event,
    next: u32,
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// Nothing is planned.
    Nothing,
    /// Something, but later than was asked for.
    Later,
    /// This, which was taken.
    Now(Event),
}

impl Agenda {
    pub(super) fn new() -> Self {
        Self {
            seq: 0,
            base: 0,
            near: 0,
            found: NO_SLOT,
            far_from: NO_SLOT,
            free: NONE,
            full: [0; (SLOTS / 64) as usize],
            heads: Box::new([NONE; SLOTS as usize]),
            entries: Vec::new(),
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
        if slot - self.base < SLOTS { self.put(event) } else { self.put_far(event) }
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

    /// Takes the next event, if it is not after `until_ns`.
    #[inline]
    pub(super) fn pop(&mut self, until_ns: u64) -> Next {
        if self.near == 0 {
            return self.pop_far(until_ns);
        }
        let slot = self.first_slot();
        let place = place(slot);
        let head = self.heads[place];
        let entry = &mut self.entries[head as usize];
        let Entry { event, next } = *entry;
        if event.at_ns > until_ns {
            return Next::Later;
        }
        entry.next = self.free;
        self.free = head;
        self.heads[place] = next;
        if next == NONE {
            self.full[place / 64] &= !(1 << (place % 64));
            self.found = NO_SLOT;
        }
        self.near -= 1;
        self.base = slot;
        if self.far_from.wrapping_sub(slot) < SLOTS {
            self.bring_near();
        }
        Next::Now(event)
    }

    #[cold]
    fn pop_far(&mut self, until_ns: u64) -> Next {
        match self.far.peek() {
            None => Next::Nothing,
            Some(event) if event.at_ns > until_ns => Next::Later,
            Some(_) => {
                let event = self.far.pop().expect("it was there just now");
                self.base = event.at_ns >> SLOT_SHIFT;
                self.bring_near();
                Next::Now(event)
            }
        }
    }

    #[cold]
    fn put_far(&mut self, event: Event) {
        self.far_from = self.far_from.min(event.at_ns >> SLOT_SHIFT);
        self.far.push(event);
    }

    /// What was far and no longer is goes into its slot.
    #[cold]
    fn bring_near(&mut self) {
        while let Some(event) = self.far.peek()
            && (event.at_ns >> SLOT_SHIFT) - self.base < SLOTS
        {
            let event = self.far.pop().expect("it was there just now");
            self.put(event);
        }
        self.far_from = self.far.peek().map_or(NO_SLOT, |event| event.at_ns >> SLOT_SHIFT);
    }

    #[inline]
    fn put(&mut self, event: Event) {
        let slot = event.at_ns >> SLOT_SHIFT;
        if self.near == 0 || (self.found != NO_SLOT && slot < self.found) {
            self.found = slot;
        }
        self.near += 1;
        let place = place(slot);
        let mut before = NONE;
        let mut next = self.heads[place];
        while next != NONE {
            let other = &self.entries[next as usize];
            if other.event.key() > event.key() {
                break;
            }
            (before, next) = (next, other.next);
        }
        let entry = Entry { event, next };
        let at = self.free;
        let at = if at == NONE {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let free = &mut self.entries[at as usize];
            self.free = free.next;
            *free = entry;
            at
        };
        if before == NONE {
            self.heads[place] = at;
        } else {
            self.entries[before as usize].next = at;
        }
        self.full[place / 64] |= 1 << (place % 64);
    }

    /// The first slot with entries; there must be one.
    #[inline]
    fn first_slot(&mut self) -> u64 {
        if self.found != NO_SLOT {
            return self.found;
        }
        let start = place(self.base);
        let mut word = start / 64;
        let mut bits = self.full[word] & (u64::MAX << (start % 64));
        while bits == 0 {
            word = (word + 1) % self.full.len();
            bits = self.full[word];
        }
        let place = (word * 64) as u64 + u64::from(bits.trailing_zeros());
        self.found = self.base + (place.wrapping_sub(start as u64) % SLOTS);
        self.found
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

    fn take(agenda: &mut Agenda) -> Option<Event> {
        match agenda.pop(u64::MAX) {
            Next::Now(event) => Some(event),
            Next::Later => panic!("nothing is later than that"),
            Next::Nothing => None,
        }
    }

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
                let due = heap.peek().map(|event: &Event| event.at_ns);
                if let Some(at_ns) = due.filter(|at_ns| *at_ns > 0) {
                    assert!(matches!(agenda.pop(at_ns - 1), Next::Later));
                }
                let (ours, theirs) = (take(&mut agenda), heap.pop());
                assert_eq!(ours.map(|event| event.key()), theirs.map(|event| event.key()));
                now_ns = due.unwrap_or(now_ns);
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
        assert!(matches!(agenda.pop(4_999), Next::Later));
        agenda.push(20, EventKind::Start(2));
        agenda.push(1_000_000, EventKind::Start(3));
        let order: Vec<_> = std::iter::from_fn(|| take(&mut agenda).map(|event| event.at_ns)).collect();
        assert_eq!(order, [20, 5_000, 1_000_000]);
    }
}
