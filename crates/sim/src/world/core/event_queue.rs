//! What is going to happen, in order of time: a calendar of short slots for the near future, and a heap for the rest.
//!
//! Nearly everything happens within a few microseconds of being planned, so nearly every event goes into a slot and out of
//! it again without being compared with more than one or two others. Order is by time and then by when it was planned: the
//! same seed gives the same run. A slot needs no numbers for that. What is far comes into its slot before anything else can be
//! planned for it, in the heap's order, and whatever is planned later goes behind what is there for the same time.

use super::event::{EventKind, FarEvent};
use std::collections::BinaryHeap;

/// A slot is eight nanoseconds long.
const SLOT_SHIFT: u32 = 3;
/// The near future is so many slots long, 8.2 µs: a round trip takes 2 to 3, a message 4.
const SLOTS: u64 = 1 << 10;
const WORDS: usize = (SLOTS / 64) as usize;
/// Nothing comes after an entry, or no entry is in a slot.
const NONE: u32 = u32::MAX;
/// No slot is this late.
const NO_SLOT: u64 = u64::MAX;

/// The events of a world that have not happened yet.
#[derive(Debug)]
pub(super) struct EventQueue {
    /// The slot of the last event that was taken: everything that is planned lies in it or behind it.
    base: u64,
    /// The first slot with entries.
    first: u64,
    /// The slot of the first event in `far`: never nearer than all slots are long.
    far_from: u64,
    /// Entries that are not in use, each with the next.
    free: u32,
    /// A bit for every slot that has entries.
    full: [u64; WORDS],
    /// Per slot, the first of its entries; each names the next, in order. Slots are reused in turns.
    heads: Box<[u32; SLOTS as usize]>,
    entries: Vec<Entry>,
    /// What lies beyond the slots.
    far: BinaryHeap<FarEvent>,
    /// Events that were planned so far ahead.
    far_seq: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ns: u64,
    what: EventKind,
    next: u32,
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// Nothing is planned.
    Nothing,
    /// Something, but later than was asked for.
    Later,
    /// This, at this time, and it was taken.
    Now(u64, EventKind),
}

impl EventQueue {
    pub(super) fn new() -> Self {
        Self {
            base: 0,
            first: NO_SLOT,
            far_from: NO_SLOT,
            free: NONE,
            full: [0; WORDS],
            heads: Box::new([NONE; SLOTS as usize]),
            entries: Vec::new(),
            far: BinaryHeap::new(),
            far_seq: 0,
        }
    }

    /// Plans `what` for `at_ns`, which is not before the last event that was taken.
    #[inline]
    pub(super) fn push(&mut self, at_ns: u64, what: EventKind) {
        let slot = at_ns >> SLOT_SHIFT;
        debug_assert!(slot >= self.base, "nothing is planned for the past");
        if slot - self.base < SLOTS { self.put(at_ns, what) } else { self.put_far(at_ns, what) }
    }

    /// Takes the next event, if it is not after `until_ns`.
    #[inline]
    pub(super) fn pop(&mut self, until_ns: u64) -> Next {
        let slot = self.first;
        if slot == NO_SLOT {
            return self.pop_far(until_ns);
        }
        let place = place(slot);
        let head = self.heads[place];
        let entry = &mut self.entries[head as usize];
        let Entry { at_ns, what, next } = *entry;
        if at_ns > until_ns {
            return Next::Later;
        }
        entry.next = self.free;
        self.free = head;
        self.heads[place] = next;
        self.base = slot;
        if next == NONE {
            self.full[place / 64] &= !(1 << (place % 64));
            self.first = self.first_behind(slot);
        }
        if self.far_from - slot < SLOTS {
            self.bring_near();
        }
        Next::Now(at_ns, what)
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
                Next::Now(event.at_ns, event.what)
            }
        }
    }

    #[cold]
    fn put_far(&mut self, at_ns: u64, what: EventKind) {
        self.far_seq += 1;
        self.far_from = self.far_from.min(at_ns >> SLOT_SHIFT);
        self.far.push(FarEvent { at_ns, seq: self.far_seq, what });
    }

    /// What was far and no longer is goes into its slot.
    #[cold]
    fn bring_near(&mut self) {
        while let Some(event) = self.far.peek()
            && (event.at_ns >> SLOT_SHIFT) - self.base < SLOTS
        {
            let event = self.far.pop().expect("it was there just now");
            self.put(event.at_ns, event.what);
        }
        self.far_from = self.far.peek().map_or(NO_SLOT, |event| event.at_ns >> SLOT_SHIFT);
    }

    #[inline]
    fn put(&mut self, at_ns: u64, what: EventKind) {
        let slot = at_ns >> SLOT_SHIFT;
        self.first = self.first.min(slot);
        let place = place(slot);
        self.full[place / 64] |= 1 << (place % 64);
        let next = self.heads[place];
        let at = self.free;
        if at == NONE {
            self.heads[place] = self.entries.len() as u32;
            self.entries.push(Entry { at_ns, what, next });
        } else {
            let entry = &mut self.entries[at as usize];
            self.free = entry.next;
            *entry = Entry { at_ns, what, next };
            self.heads[place] = at;
        }
        if next != NONE {
            self.sort_in(place);
        }
    }

    /// The first entry of a slot is new there: it goes behind all that are not later.
    fn sort_in(&mut self, place: usize) {
        let new = self.heads[place];
        let Entry { at_ns, next: first, .. } = self.entries[new as usize];
        let (mut before, mut next) = (NONE, first);
        while next != NONE && self.entries[next as usize].at_ns <= at_ns {
            (before, next) = (next, self.entries[next as usize].next);
        }
        if before != NONE {
            self.heads[place] = first;
            self.entries[before as usize].next = new;
            self.entries[new as usize].next = next;
        }
    }

    /// The first slot with entries, none of which is before `slot`.
    #[inline]
    fn first_behind(&self, slot: u64) -> u64 {
        let start = place(slot);
        let bits = self.full[start / 64] >> (start % 64);
        if bits != 0 { slot + u64::from(bits.trailing_zeros()) } else { self.first_in_later_words(slot) }
    }

    /// The same, where the slots of the same word have none.
    fn first_in_later_words(&self, slot: u64) -> u64 {
        let start = place(slot);
        // All others, and in the end the slots of this word that come round again.
        for words in 1..=WORDS {
            let bits = self.full[(start / 64 + words) % WORDS];
            if bits != 0 {
                return (slot - start as u64 % 64) + words as u64 * 64 + u64::from(bits.trailing_zeros());
            }
        }
        NO_SLOT
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

    /// When the next event is, and its number: they are told apart by the client that begins.
    fn take(events: &mut EventQueue) -> Option<(u64, u64)> {
        match events.pop(u64::MAX) {
            Next::Now(at_ns, EventKind::Start(seq)) => Some((at_ns, u64::from(seq))),
            Next::Now(..) => panic!("nothing else was planned"),
            Next::Later => panic!("nothing is later than that"),
            Next::Nothing => None,
        }
    }

    /// Plans and takes events at random and compares with a heap.
    fn agrees_with_a_heap(reach_ns: u64, seed: u64) {
        let (mut events, mut heap, mut rng) = (EventQueue::new(), BinaryHeap::new(), Rng::new(seed, 0));
        let (mut now_ns, mut seq) = (0, 0);
        for _ in 0..20_000 {
            if rng.below(100) < 51 {
                let at_ns = now_ns + rng.below(rng.clone().below(reach_ns) + 1);
                seq += 1;
                events.push(at_ns, EventKind::Start(seq as u32));
                heap.push(FarEvent { at_ns, seq, what: EventKind::Start(seq as u32) });
            } else {
                let due = heap.peek().map(|event: &FarEvent| event.at_ns);
                if let Some(at_ns) = due.filter(|at_ns| *at_ns > 0) {
                    assert!(matches!(events.pop(at_ns - 1), Next::Later));
                }
                let (ours, theirs) = (take(&mut events), heap.pop());
                assert_eq!(ours, theirs.map(|event| (event.at_ns, event.seq)));
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
        let mut events = EventQueue::new();
        events.push(5_000, EventKind::Start(1));
        assert!(matches!(events.pop(4_999), Next::Later));
        events.push(20, EventKind::Start(2));
        events.push(1_000_000, EventKind::Start(3));
        let order: Vec<_> = std::iter::from_fn(|| take(&mut events).map(|(at_ns, _)| at_ns)).collect();
        assert_eq!(order, [20, 5_000, 1_000_000]);
    }
}
