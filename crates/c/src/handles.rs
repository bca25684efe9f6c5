//! Handles: numbers that stand for values of the library, and that can be told from those of values that are gone.
//!
//! A handle looks like a pointer to C and is none. It names a slot of a table and the slot's generation, which rises each time
//! the slot is emptied. A handle is therefore valid once in the life of a process: a second free, or a use after it, finds
//! another generation and is refused. No operation waits for a thread that may not run any more, so that a forked child can
//! ask about its parent's handles.
//!
//! | bits of a handle | |
//! |---|---|
//! | 60..64 | kind, 8 to 15: the value is no address that a program can have |
//! | 36..60 | slot |
//! | 0..36 | generation |
//!
//! | bits of a slot's word | |
//! |---|---|
//! | 28..64 | generation |
//! | 27 | `TAKEN`: one call has it to itself |
//! | 26 | `LIVE`: there is a value, and its handle is valid |
//! | 0..26 | calls that are using it |
//!
//! | LIVE | TAKEN | users | the value |
//! |---|---|---|---|
//! | no | no | 0 | is not there; the slot is on the free list, or about to be filled |
//! | yes | no | n | can be used by all |
//! | yes | yes | 0 | is with one call, which changes it and then clears `TAKEN` |
//! | no | no | n > 0 | was removed while n calls used it: the last one drops it |

#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};

const USERS: u64 = LIVE - 1;
const LIVE: u64 = 1 << 26;
const TAKEN: u64 = 1 << 27;
const GENERATION_SHIFT: u32 = 28;
const GENERATIONS: u64 = 1 << 36;

const SLOT_SHIFT: u32 = 36;
const KIND_SHIFT: u32 = 60;
/// Slots of one table: what 24 bits can name.
const SLOTS: u32 = 1 << 24;
/// The first chunk's slots; each further chunk has as many as all before it and these.
const FIRST: u32 = 64;
const CHUNKS: usize = (SLOTS / FIRST).ilog2() as usize;
/// How often a call that needs a value to itself lets others run that are looking at it.
const PATIENCE: u32 = 1 << 20;

/// Why a handle was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// NULL, not a handle, of another kind, or of a value that is gone.
    Bad,
    /// Another call is changing the value.
    InUse,
}

struct Slot<T> {
    word: AtomicU64,
    /// The slot below it on the free list, plus one.
    below: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// All values of one kind.
pub(crate) struct Table<T: 'static> {
    kind: u64,
    /// Slots that were never used start here.
    fresh: AtomicU32,
    /// The free list: the topmost slot plus one, and above it a count of changes, against a slot that left and came back.
    free: AtomicU64,
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
}

// SAFETY: values are handed out by shared reference to several threads (`Sync`) and dropped by any (`Send`); the words of the
// slots say who may.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new(kind: u64) -> Self {
        assert!(kind >= 8 && kind < 16);
        Self {
            kind,
            fresh: AtomicU32::new(0),
            free: AtomicU64::new(0),
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
        }
    }

    /// Keeps `value` and returns its handle; gives it back if there is no room.
    #[inline]
    pub(crate) fn insert(&'static self, value: T, spare: &Cell<u32>) -> Result<u64, T> {
        let index = match spare.replace(0) {
            0 => match self.pop() {
                Some(index) => index,
                None => return Err(value),
            },
            kept => kept - 1,
        };
        let slot = self.slot(index).expect("a slot that was given out is there");
        let generation = slot.word.load(Acquire) >> GENERATION_SHIFT;
        // SAFETY: a slot that is not live and off the free list is this thread's alone.
        unsafe { (*slot.value.get()).write(value) };
        slot.word.store(generation << GENERATION_SHIFT | LIVE, Release);
        Ok(self.kind << KIND_SHIFT | u64::from(index) << SLOT_SHIFT | generation)
    }

    /// Calls `act` with the value, which other calls can use at the same time.
    #[inline]
    pub(crate) fn with<R>(&'static self, handle: u64, act: impl FnOnce(&T) -> R) -> Result<R, Refused> {
        let (slot, index, generation) = self.find(handle)?;
        let mut word = slot.word.load(Acquire);
        loop {
            check(word, generation)?;
            match slot.word.compare_exchange_weak(word, word + 1, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        let using = Using { table: self, slot, index };
        // SAFETY: it was live when this call was counted among its users, and nobody takes or drops it before the last of
        // them has left.
        let result = act(unsafe { (*slot.value.get()).assume_init_ref() });
        drop(using);
        Ok(result)
    }

    /// Calls `act` with the value, which no other call can use meanwhile: those are refused.
    pub(crate) fn with_mut<R>(
        &'static self,
        handle: u64,
        act: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Refused> {
        struct PutBack<'a>(&'a AtomicU64);
        impl Drop for PutBack<'_> {
            fn drop(&mut self) {
                self.0.fetch_and(!TAKEN, AcqRel);
            }
        }
        let (slot, _, generation) = self.find(handle)?;
        take(&slot.word, generation, TAKEN | LIVE)?;
        let _put_back = PutBack(&slot.word);
        // SAFETY: there were no users, and there are none while it is taken.
        Ok(act(unsafe { (*slot.value.get()).assume_init_mut() }))
    }

    /// Takes the value out: the handle is of no use any more.
    #[inline]
    pub(crate) fn take(&'static self, handle: u64, spare: &Cell<u32>) -> Result<T, Refused> {
        let (slot, index, generation) = self.find(handle)?;
        take(&slot.word, generation, 0)?;
        // SAFETY: it was live and had no users; now it is neither live nor on the free list, so this thread's alone.
        let value = unsafe { (*slot.value.get()).assume_init_read() };
        if self.empty(slot) && spare.get() == 0 {
            spare.set(index + 1);
        } else {
            self.push(slot, index);
        }
        Ok(value)
    }

    /// Drops the value, now or when the last call that uses it returns.
    pub(crate) fn remove(&'static self, handle: u64) -> Result<(), Refused> {
        let (slot, index, generation) = self.find(handle)?;
        let mut word = slot.word.load(Acquire);
        loop {
            check(word, generation)?;
            // Counted as a user, it is dropped as by any other.
            match slot.word.compare_exchange_weak(word, (word & !LIVE) + 1, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        drop(Using { table: self, slot, index });
        Ok(())
    }

    #[inline]
    fn find(&self, handle: u64) -> Result<(&Slot<T>, u32, u64), Refused> {
        let index = (handle >> SLOT_SHIFT) as u32 & (SLOTS - 1);
        match self.slot(index) {
            Some(slot) if handle >> KIND_SHIFT == self.kind => Ok((slot, index, handle & (GENERATIONS - 1))),
            _ => Err(Refused::Bad),
        }
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let (chunk, first) = place(index);
        let slots = self.chunks.get(chunk)?.load(Acquire);
        // SAFETY: a chunk, once there, has all its slots and stays for ever.
        (!slots.is_null()).then(|| unsafe { &*slots.add((index - first) as usize) })
    }

    /// Marks a slot without a value as such. `false` if it has had all its generations and must not be used again.
    #[inline]
    fn empty(&self, slot: &Slot<T>) -> bool {
        let generation = (slot.word.load(Acquire) >> GENERATION_SHIFT) + 1;
        let last = generation == GENERATIONS - 1;
        slot.word.store(generation << GENERATION_SHIFT, Release);
        !last
    }

    /// A slot for the calling thread alone.
    fn pop(&self) -> Option<u32> {
        let mut free = self.free.load(Acquire);
        while let Some(index) = (free as u32).checked_sub(1) {
            let below = self.slot(index)?.below.load(Acquire);
            let next = ((free >> 32) + 1) << 32 | u64::from(below);
            match self.free.compare_exchange_weak(free, next, AcqRel, Acquire) {
                Ok(_) => return Some(index),
                Err(now) => free = now,
            }
        }
        let index =
            self.fresh.fetch_update(AcqRel, Acquire, |next| (next < SLOTS - FIRST).then_some(next + 1));
        let index = index.ok()?;
        self.grow(place(index).0);
        Some(index)
    }

    fn push(&self, slot: &Slot<T>, index: u32) {
        if slot.word.load(Acquire) >> GENERATION_SHIFT == GENERATIONS - 1 {
            return;
        }
        let mut free = self.free.load(Acquire);
        loop {
            slot.below.store(free as u32, Release);
            let next = ((free >> 32) + 1) << 32 | u64::from(index + 1);
            match self.free.compare_exchange_weak(free, next, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    /// Makes sure that a chunk is there. Two threads may make it; one of them drops its own.
    fn grow(&self, chunk: usize) {
        if !self.chunks[chunk].load(Acquire).is_null() {
            return;
        }
        let slots: Box<[Slot<T>]> = (0..FIRST << chunk)
            .map(|_| Slot {
                word: AtomicU64::new(1 << GENERATION_SHIFT),
                below: AtomicU32::new(0),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            })
            .collect();
        let slots = Box::into_raw(slots);
        let first = slots.cast::<Slot<T>>();
        if self.chunks[chunk].compare_exchange(ptr::null_mut(), first, AcqRel, Acquire).is_err() {
            // SAFETY: it came out of a box just now and nobody else has seen it.
            drop(unsafe { Box::from_raw(slots) });
        }
    }

    /// Puts a slot that a thread kept for itself on the free list.
    pub(crate) fn give_back(&'static self, spare: &Cell<u32>) {
        if let Some(index) = spare.replace(0).checked_sub(1)
            && let Some(slot) = self.slot(index)
        {
            self.push(slot, index);
        }
    }
}

/// The chunk of a slot, and the first slot of that chunk.
#[inline]
fn place(index: u32) -> (usize, u32) {
    let chunk = ((index + FIRST) / FIRST).ilog2();
    (chunk as usize, (FIRST << chunk) - FIRST)
}

#[inline]
fn check(word: u64, generation: u64) -> Result<(), Refused> {
    if word >> GENERATION_SHIFT != generation || word & LIVE == 0 {
        return Err(Refused::Bad);
    }
    if word & TAKEN != 0 { Err(Refused::InUse) } else { Ok(()) }
}

/// Makes a live word without users one with the bits `to`. Users only look, so they are waited for.
#[inline]
fn take(word: &AtomicU64, generation: u64, to: u64) -> Result<(), Refused> {
    let mut now = word.load(Acquire);
    let mut patience = PATIENCE;
    loop {
        check(now, generation)?;
        if now & USERS != 0 {
            patience = patience.checked_sub(1).ok_or(Refused::InUse)?;
            std::thread::yield_now();
            now = word.load(Acquire);
            continue;
        }
        match word.compare_exchange_weak(now, generation << GENERATION_SHIFT | to, AcqRel, Acquire) {
            Ok(_) => return Ok(()),
            Err(changed) => now = changed,
        }
    }
}

/// A call that uses a value. The last one to leave a value that was removed drops it.
struct Using<T: Send + Sync + 'static> {
    table: &'static Table<T>,
    slot: &'static Slot<T>,
    index: u32,
}

impl<T: Send + Sync> Drop for Using<T> {
    #[inline]
    fn drop(&mut self) {
        let before = self.slot.word.fetch_sub(1, AcqRel);
        if before & (LIVE | USERS) == 1 {
            // SAFETY: not live and without users: this thread's alone until it is on the free list.
            let value = unsafe { (*self.slot.value.get()).assume_init_read() };
            self.table.empty(self.slot);
            self.table.push(self.slot, self.index);
            drop(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn table() -> &'static Table<Arc<u32>> {
        Box::leak(Box::new(Table::new(9)))
    }

    fn none() -> Cell<u32> {
        Cell::new(0)
    }

    #[test]
    fn a_handle_is_valid_until_its_value_is_taken_and_never_again() {
        let (table, spare) = (table(), none());
        let mut old = Vec::new();
        for n in 0..1000 {
            let handle = table.insert(Arc::new(n), &spare).unwrap();
            assert_eq!(table.with(handle, |value| **value), Ok(n));
            assert!(!old.contains(&handle));
            assert_eq!(table.take(handle, &spare).map(|value| *value), Ok(n));
            assert_eq!(table.take(handle, &spare), Err(Refused::Bad));
            old.push(handle);
        }
        assert!(old.iter().all(|handle| table.with(*handle, |_| ()) == Err(Refused::Bad)));
    }

    #[test]
    fn null_garbage_and_handles_of_another_kind_are_refused() {
        let (table, spare) = (table(), none());
        let other: &'static Table<u8> = Box::leak(Box::new(Table::new(10)));
        let handle = table.insert(Arc::new(1), &spare).unwrap();
        for wrong in [0, 1, u64::MAX, 1 << 63, handle ^ 1, handle ^ 1 << 36, handle ^ 1 << 59] {
            assert_eq!(table.with(wrong, |_| ()), Err(Refused::Bad), "{wrong:#x}");
            assert_eq!(table.remove(wrong), Err(Refused::Bad), "{wrong:#x}");
        }
        assert_eq!(other.with(handle, |_| ()), Err(Refused::Bad));
    }

    #[test]
    fn a_value_that_is_removed_while_it_is_used_lives_as_long_as_that() {
        let (table, spare) = (table(), none());
        let value = Arc::new(7);
        let handle = table.insert(Arc::clone(&value), &spare).unwrap();
        table
            .with(handle, |used| {
                assert_eq!(table.remove(handle), Ok(()));
                assert_eq!(table.remove(handle), Err(Refused::Bad));
                assert_eq!((**used, Arc::strong_count(&value)), (7, 2));
            })
            .unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_value_that_is_being_changed_is_in_use_for_all_others() {
        let (table, spare) = (table(), none());
        let handle = table.insert(Arc::new(7), &spare).unwrap();
        let inside = table.with_mut(handle, |value| {
            *value = Arc::new(8);
            (table.with(handle, |_| ()), table.take(handle, &none()).err(), table.remove(handle))
        });
        assert_eq!(inside, Ok((Err(Refused::InUse), Some(Refused::InUse), Err(Refused::InUse))));
        assert_eq!(table.with(handle, |value| **value), Ok(8));
    }

    #[test]
    fn a_slot_that_has_had_all_its_generations_is_not_used_again() {
        let (table, spare) = (table(), none());
        let handle = table.insert(Arc::new(1), &spare).unwrap();
        let slot = table.slot(0).unwrap();
        slot.word.store((GENERATIONS - 2) << GENERATION_SHIFT | LIVE, Release);
        let last = handle & !(GENERATIONS - 1) | (GENERATIONS - 2);
        table.take(last, &spare).unwrap();
        let next = table.insert(Arc::new(2), &spare).unwrap();
        assert_eq!(next >> SLOT_SHIFT & u64::from(SLOTS - 1), 1);
    }

    #[test]
    fn slots_are_where_their_index_says() {
        let firsts: Vec<_> = [0, 63, 64, 191, 192].into_iter().map(place).collect();
        assert_eq!(firsts, [(0, 0), (0, 0), (1, 64), (1, 64), (2, 192)]);
        assert!(place(SLOTS - FIRST - 1).0 < CHUNKS);
    }

    #[test]
    fn threads_that_share_a_table_never_see_each_others_values() {
        let table = table();
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                scope.spawn(move || {
                    let spare = none();
                    for n in 0..2000 {
                        let mine = thread << 16 | n;
                        let handles: Vec<_> =
                            (0..3).map(|_| table.insert(Arc::new(mine), &spare).unwrap()).collect();
                        for handle in handles {
                            assert_eq!(table.with(handle, |value| **value), Ok(mine));
                            assert_eq!(table.take(handle, &spare).map(|value| *value), Ok(mine));
                        }
                    }
                });
            }
        });
        assert!(table.fresh.load(Acquire) <= 4 * 4);
    }
}
