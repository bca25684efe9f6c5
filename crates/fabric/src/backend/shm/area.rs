//! Lock memory as a process sees it: [`Area`], one region of one node; [`Words`], a few words of the file that every verb
//! reads, without a bounds check; [`WordSlice`], words of an area that are looked up once.

#![allow(unsafe_code)]

use super::layout::Layout;
use super::map::Map;
use crate::addr::{Value, Width};
use crate::backend::cell::{Cell, execute};
use crate::verb::Op;
use portable_atomic::AtomicU128;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release, Ordering::SeqCst};

/// One region of one node. It keeps the mapping alive.
#[derive(Clone, Debug)]
pub(super) struct Area {
    base: NonNull<u8>,
    /// A multiple of 16; so many bytes of the file exist from `base` on.
    bytes: u64,
    _map: Arc<Map>,
}

// SAFETY: the pointer goes into the mapping, which `_map` keeps in place and which is only reached as atomics.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Area `index` of the file, with the size that the header says.
    ///
    /// # Panics
    /// If the file is shorter than its header says: checked when it was opened.
    pub(super) fn new(map: &Arc<Map>, layout: &Layout, index: u64) -> Self {
        let start = layout.area(index);
        let bytes = map.u64(Layout::limit_at(index)).load(SeqCst) & !15;
        Self { base: map.range(start, bytes), bytes, _map: Arc::clone(map) }
    }

    #[inline(always)]
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Executes `op` on the word at `offset`: its old value and whether it was changed; `None` if there is no such word.
    #[inline(always)]
    pub(super) fn execute(&self, offset: u64, width: Width, op: &Op) -> Option<(u128, bool)> {
        match width {
            Width::W64 => self.cell::<AtomicU64>(offset).map(|cell| execute(cell, op)),
            Width::W128 => self.cell::<AtomicU128>(offset).map(|cell| execute(cell, op)),
        }
    }

    /// The `len` words from byte `offset` on, if they all exist.
    pub(super) fn word_slice(&self, offset: u64, len: u64) -> Option<WordSlice> {
        let last = offset.checked_add(len.checked_sub(1)?.checked_mul(8)?)?;
        self.cell::<AtomicU64>(last)?;
        let first = NonNull::from(self.cell::<AtomicU64>(offset)?);
        Some(WordSlice { first, len, _map: Arc::clone(&self._map) })
    }

    #[inline(always)]
    fn cell<C: Cell>(&self, offset: u64) -> Option<&C> {
        let size = <C::Value as Value>::WIDTH.bytes();
        if offset >= self.bytes || !offset.is_multiple_of(size) {
            return None;
        }
        // SAFETY: `bytes` is a multiple of 16 and `offset` a multiple of `size`, which divides 16: so the word lies within
        // the `bytes` that `Map::range` has checked. `base` is aligned to 64, so the word is aligned. It is only ever
        // accessed atomically; `backend/cell.rs` says what mixed sizes mean.
        Some(unsafe { self.base.add(offset as usize).cast::<C>().as_ref() })
    }
}

/// Consecutive words of the file's metadata; their number is a power of two. They keep the mapping alive.
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
    ///
    /// # Panics
    /// If they do not all exist, or `len` is not a power of two.
    pub(super) fn new(map: &Arc<Map>, start: u64, len: u64) -> Self {
        assert!(len.is_power_of_two(), "an index is reduced by a mask");
        let _ = map.u64(start + 8 * (len - 1));
        Self { first: NonNull::from(map.u64(start)), mask: len - 1, _map: Arc::clone(map) }
    }

    /// The word with this index, modulo their number.
    #[inline(always)]
    pub(super) fn get(&self, index: u64) -> &AtomicU64 {
        // SAFETY: the masked index lies between the two words that `new` looked up.
        unsafe { self.first.add((index & self.mask) as usize).as_ref() }
    }
}

/// Words of a region, looked up once: a client writes its own records with plain stores, others read them. These are not
/// verbs: nothing is compared, and a change wakes no waiter.
///
/// A write is visible to others before anything that this thread changes later by a verb. A *read* of this thread that
/// follows without a verb in between may be ordered before the write.
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
    /// All of them.
    #[inline(always)]
    pub const fn words(&self) -> &[AtomicU64] {
        // SAFETY: `word_slice` looked up the first and the last of them, and the map stays as long as this.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len as usize) }
    }

    #[inline(always)]
    fn get(&self, index: u64) -> &AtomicU64 {
        &self.words()[index as usize]
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
