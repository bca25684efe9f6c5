//! Lock memory as a process sees it: where an area begins in this process, and the shared word that says how far it
//! reaches. Also [`Words`]: a few words of the file that every verb looks at, reached without a check of the mapping; and
//! [`WordSlice`]: words of an area that are looked up once.

#![allow(unsafe_code)]

use super::map::Map;
use crate::addr::{Value, Width};
use crate::backend::cell::{Cell, execute};
use crate::verb::Op;
use portable_atomic::AtomicU128;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// One region of one node. It keeps the mapping alive.
#[derive(Clone, Debug)]
pub(super) struct Area {
    base: NonNull<u8>,
    /// In the file's header: words must start below this many bytes. It only grows.
    limit: NonNull<AtomicU64>,
    _map: Arc<Map>,
}

// SAFETY: both pointers go into the mapping, which `_map` keeps in place and which is only reached as atomics.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// The area that begins at byte `start` and whose size stands at byte `limit_at`.
    pub(super) fn new(map: &Arc<Map>, start: u64, limit_at: u64) -> Self {
        Self { base: map.pointer(start), limit: NonNull::from(map.u64(limit_at)), _map: Arc::clone(map) }
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> u64 {
        // SAFETY: points at a word of the header, which lives as long as `_map`.
        unsafe { self.limit.as_ref() }.load(Relaxed)
    }

    /// Executes `op` on the word at `offset`: its old value and whether it was changed, or `None` if there is no such
    /// word.
    #[inline(always)]
    pub(super) fn execute(&self, offset: u64, width: Width, op: &Op) -> Option<(u128, bool)> {
        match width {
            Width::W64 => self.cell::<AtomicU64>(offset).map(|cell| execute(cell, op)),
            Width::W128 => self.cell::<AtomicU128>(offset).map(|cell| execute(cell, op)),
        }
    }

    /// The `len` words from byte `offset` on, if they are all there.
    pub(super) fn word_slice(&self, offset: u64, len: u64) -> Option<WordSlice> {
        let last = offset.checked_add(len.checked_sub(1)?.checked_mul(8)?)?;
        self.cell::<AtomicU64>(last)?;
        let first = NonNull::from(self.cell::<AtomicU64>(offset)?);
        Some(WordSlice { first, len, _map: Arc::clone(&self._map) })
    }

    #[inline(always)]
    fn cell<C: Cell>(&self, offset: u64) -> Option<&C> {
        let size = <C::Value as Value>::WIDTH.bytes();
        if offset >= self.bytes() || !offset.is_multiple_of(size) {
            return None;
        }
        // SAFETY: the limit is raised only after the file has grown, and is a multiple of 16; `offset` is a multiple
        // of `size`, which divides 16: so the word lies in the file. The area starts at a page, so the word is aligned.
        // It is only ever accessed atomically; `backend/cell.rs` says what mixed sizes mean.
        Some(unsafe { self.base.add(offset as usize).cast::<C>().as_ref() })
    }
}

/// Consecutive words of the file, a power of two of them. They keep the mapping alive.
#[derive(Clone, Debug)]
pub(super) struct Words {
    first: NonNull<AtomicU64>,
    mask: u64,
    _map: Arc<Map>,
}

// SAFETY: as for `Area`.
unsafe impl Send for Words {}
// SAFETY: as for `Area`.
unsafe impl Sync for Words {}

impl Words {
    /// The `len` words from byte `start` on.
    pub(super) fn new(map: &Arc<Map>, start: u64, len: u64) -> Self {
        assert!(len.is_power_of_two(), "an index is cut to size by a mask");
        // Both ends are looked up, and checked, the ordinary way.
        let _ = map.u64(start + 8 * (len - 1));
        Self { first: NonNull::from(map.u64(start)), mask: len - 1, _map: Arc::clone(map) }
    }

    /// The word with this index, counted round.
    #[inline(always)]
    pub(super) fn get(&self, index: u64) -> &AtomicU64 {
        // SAFETY: the masked index lies between the two words that `new` looked up.
        unsafe { self.first.add((index & self.mask) as usize).as_ref() }
    }
}

/// Words of a region that were looked up once: for a client's own records, which it writes with plain stores, and for those
/// who read them. No verbs: nobody is woken by a change, and nothing is compared.
///
/// A write is seen by others before anything that this thread changes later with a verb. A *read* of this thread's that
/// comes later, with no verb in between, may still come first.
#[derive(Clone, Debug)]
pub struct WordSlice {
    first: NonNull<AtomicU64>,
    len: u64,
    _map: Arc<Map>,
}

// SAFETY: as for `Area`.
unsafe impl Send for WordSlice {}
// SAFETY: as for `Area`.
unsafe impl Sync for WordSlice {}

impl WordSlice {
    #[inline(always)]
    fn get(&self, index: u64) -> &AtomicU64 {
        assert!(index < self.len, "these lines have {} words, and none with index {index}", self.len);
        // SAFETY: `word_slice` looked up the first and the last of them, and an area never shrinks.
        unsafe { self.first.add(index as usize).as_ref() }
    }

    /// The word with this index.
    ///
    /// # Panics
    /// If there is none.
    #[inline(always)]
    pub fn read(&self, index: u64) -> u64 {
        self.get(index).load(Acquire)
    }

    /// Replaces the word with this index.
    ///
    /// # Panics
    /// If there is none.
    #[inline(always)]
    pub fn write(&self, index: u64, value: u64) {
        self.get(index).store(value, Release);
    }
}
