//! Requests, queued and granted: what is known of each but for its range, which its tree keeps.
//!
//! A record has a number, its slot, which stays its name for as long as it lives: clients' ids lead to slots, and so do the
//! trees' entries. What a request needs beside its range is half a cache line, and slots given back last are used first,
//! so that those of locks held briefly stay in the cache.
//!
//! What it must not do: know what shape the trees have.

use lockwright_fabric::backend::{large_pages, prefetch};
use lockwright_fabric::observe::Mode;

/// A request's number in the table.
pub(crate) type Slot = u32;

/// No request. The table keeps a record of this number, so that a look at it needs no exception.
pub(crate) const NIL: Slot = 0;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// In the queue.
    Waiting,
    /// Held.
    Granted,
    /// Held in shared mode, and waiting to hold it alone.
    Upgrading,
}

/// A request: the thesis's `RequestNode` (Alg. 1) without its range.
///
/// | bytes | field |
/// |---|---|
/// | 0–7 | `stamp`: number of arrival while it waits, fencing token once granted |
/// | 8–15 | whose: the client, and the client's own id for it |
/// | 16–19 | `blocking`: how many conflicting requests stand before it (Alg. 1 `blockingRanges`) |
/// | 20–23 | the tree it is in |
/// | 24–27 | where in the tree; of a free slot, the next free one |
/// | 28–31 | mode, state, whether a waiter's count includes it, whether it came over others |
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Record {
    /// Number of arrival while it waits, fencing token once granted.
    pub stamp: u64,
    /// Whose it is.
    pub client: u32,
    /// The client's own number for it.
    pub id: u32,
    /// How many conflicting requests stand before it.
    pub blocking: u32,
    /// The tree it is in.
    pub tree: u32,
    /// The tree's own note of where it stands.
    pub(super) at: u32,
    /// How it is wanted or held.
    pub mode: Mode,
    /// Where it stands.
    pub state: State,
    /// Some waiting request may have counted this one: only then do others have to learn of its end.
    pub blocks: bool,
    /// The tree's own note: others overlapped it when it came.
    pub(super) came_over: bool,
}

const _: () = assert!(size_of::<Record>() == 32, "two records are one cache line");

impl Record {
    /// A request of the client's that waits behind nobody yet.
    #[inline]
    pub fn new(client: u32, id: u32, tree: u32, mode: Mode) -> Self {
        let state = State::Waiting;
        Self { stamp: 0, client, id, blocking: 0, tree, at: 0, mode, state, blocks: false, came_over: false }
    }
}

/// The table.
#[derive(Clone, Debug)]
pub struct Records {
    table: Vec<Record>,
    /// Slots without a request, linked by `at`.
    free: Slot,
    live: usize,
}

impl Default for Records {
    fn default() -> Self {
        Self { table: vec![Record::new(0, 0, 0, Mode::Shared)], free: NIL, live: 0 }
    }
}

impl Records {
    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Bytes of memory it has taken.
    pub fn bytes(&self) -> usize {
        self.table.capacity() * size_of::<Record>()
    }

    /// The request of that number.
    #[inline(always)]
    pub fn get(&self, slot: Slot) -> &Record {
        &self.table[slot as usize]
    }

    /// The request of that number, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self, slot: Slot) -> &mut Record {
        &mut self.table[slot as usize]
    }

    /// Brings the record into the cache, and waits for nothing.
    #[inline(always)]
    pub(super) fn fetch(&self, slot: Slot) {
        prefetch(&self.table[slot as usize]);
    }

    /// A slot for a new request.
    #[inline(always)]
    pub(crate) fn add(&mut self, record: Record) -> Slot {
        self.live += 1;
        if self.free != NIL {
            let slot = self.free;
            self.free = self.table[slot as usize].at;
            self.table[slot as usize] = record;
            return slot;
        }
        make_room(&mut self.table);
        self.table.push(record);
        Slot::try_from(self.table.len() - 1).expect("the combiner's limits keep requests below 2^32")
    }

    /// The request is over, and its slot free for the next.
    #[inline]
    pub(crate) fn give_back(&mut self, slot: Slot) {
        self.live -= 1;
        self.table[slot as usize].at = self.free;
        self.free = slot;
    }
}

/// Room for one more. Grows by an eighth, not by doubling: a million should not cost the memory of two.
#[inline]
pub(super) fn make_room<T>(table: &mut Vec<T>) {
    if table.len() == table.capacity() {
        grow(table);
    }
}

#[cold]
fn grow<T>(table: &mut Vec<T>) {
    let more = (table.len() / 8).max(16);
    let mut larger = Vec::with_capacity(table.len() + more);
    // Before it is touched: what follows is used at random.
    large_pages(larger.spare_capacity_mut());
    larger.append(table);
    *table = larger;
}

/// So many of the default, to be used at random.
pub(super) fn make_large<T: Clone + Default>(len: usize) -> Vec<T> {
    let mut table = Vec::with_capacity(len);
    large_pages(table.spare_capacity_mut());
    table.resize(len, T::default());
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_given_back_is_used_again() {
        let mut records = Records::default();
        let record = Record::new(1, 2, 3, Mode::Exclusive);
        let slots: Vec<_> = (0..100).map(|_| records.add(record)).collect();
        assert!(slots.is_sorted() && slots[0] != NIL);
        records.give_back(slots[7]);
        records.give_back(slots[50]);
        assert_eq!([records.add(record), records.add(record), records.add(record)], [51, 8, 101]);
        assert_eq!(records.len(), 101);
    }
}
