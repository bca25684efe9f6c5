//! One client's nodes: which of them are free, in the list, or given back and perhaps still in it.

use super::node::{Life, after};
use std::cell::{Cell, RefCell};

/// A client's nodes of all memory nodes.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// Number of this client's first node, counted from one, the same on every memory node.
    first: u64,
    each: usize,
    slots: RefCell<Vec<Slot>>,
    /// How many were given back so far: tells what a walk has to have met from what came later.
    clock: Cell<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    version: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// In use by an acquire or a grant.
    Taken,
    /// Given back: marked, and perhaps not taken out of the list yet.
    Marked(Marked, u64),
}

/// A node that was given back, and where in which list it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marked {
    pub(super) lock: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Slots {
    /// `each` nodes on each of `memory_nodes`, for the client numbered `client` from zero.
    pub(super) fn new(client: u64, each: usize, memory_nodes: usize) -> Self {
        let free = Slot { version: 0, state: State::Free };
        let slots = RefCell::new(vec![free; each * memory_nodes]);
        Self { first: client * each as u64 + 1, each, slots, clock: Cell::new(0) }
    }

    /// Takes a free node of this memory node, for a new life.
    pub(super) fn take(&self, memory_node: u16) -> Option<Life> {
        let mut slots = self.slots.borrow_mut();
        let base = memory_node as usize * self.each;
        let place = (base..base + self.each).find(|place| slots[*place].state == State::Free)?;
        let version = after(slots[place].version);
        slots[place] = Slot { version, state: State::Taken };
        Some(Life { number: self.first + (place - base) as u64, version })
    }

    /// The leftmost node of this memory node that was given back.
    pub(super) fn marked(&self, memory_node: u16) -> Option<Marked> {
        let slots = self.slots.borrow();
        let here = &slots[memory_node as usize * self.each..][..self.each];
        let marked =
            |slot: &Slot| if let State::Marked(marked, _) = slot.state { Some(marked) } else { None };
        here.iter().filter_map(marked).min_by_key(|marked| (marked.lock, marked.start))
    }

    /// The node never came into a list, or is out of it for good.
    pub(super) fn free(&self, memory_node: u16, life: Life) {
        self.set(memory_node, life, State::Free);
    }

    /// The node was given back.
    pub(super) fn give_back(&self, memory_node: u16, life: Life, marked: Marked) {
        self.clock.set(self.clock.get() + 1);
        self.set(memory_node, life, State::Marked(marked, self.clock.get()));
    }

    /// The moment at which a walk begins.
    pub(super) fn now(&self) -> u64 {
        self.clock.get()
    }

    /// A walk through the list of `lock` that `began` then met everything that starts before `bound`: what had been
    /// given back there is out.
    pub(super) fn passed(&self, memory_node: u16, lock: u64, bound: u64, began: u64) {
        let base = memory_node as usize * self.each;
        for slot in &mut self.slots.borrow_mut()[base..base + self.each] {
            if let State::Marked(marked, since) = slot.state
                && marked.lock == lock
                && marked.start < bound
                && since <= began
            {
                slot.state = State::Free;
            }
        }
    }

    /// For marks: everything that matters to a walk that `began` then.
    pub(super) fn locals(&self, began: u64) -> Vec<u64> {
        let slots = self.slots.borrow();
        let local = |slot: &Slot| match slot.state {
            State::Free => [slot.version, 0, 0, 0, 0],
            State::Taken => [slot.version, 1, 0, 0, 0],
            State::Marked(Marked { lock, start, end }, since) => {
                [slot.version, 2 + u64::from(since <= began), lock, start, end]
            }
        };
        slots.iter().flat_map(local).collect()
    }

    fn set(&self, memory_node: u16, life: Life, state: State) {
        let place = memory_node as usize * self.each + (life.number - self.first) as usize;
        let slot = &mut self.slots.borrow_mut()[place];
        assert_eq!((slot.version, slot.state), (life.version, State::Taken), "a node has one user at a time");
        slot.state = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_given_back_is_used_again_only_when_it_is_out_of_the_list() {
        let slots = Slots::new(3, 1, 2);
        let life = slots.take(1).unwrap();
        assert_eq!(life, Life { number: 4, version: 1 });
        assert_eq!(slots.take(1), None);
        slots.give_back(1, life, Marked { lock: 0, start: 5, end: 9 });
        assert_eq!(slots.take(1), None);
        slots.passed(1, 0, 5, slots.now());
        assert_eq!(slots.take(1), None);
        slots.passed(1, 0, 6, 0);
        assert_eq!(slots.take(1), None);
        slots.passed(1, 0, 6, slots.now());
        assert_eq!(slots.take(1), Some(Life { number: 4, version: 2 }));
    }
}
