//! Lock memory as a process sees it: where an area begins in this process, and the shared word that says how far it
//! reaches. Also [`Words`]: a few words of the file that every verb looks at, reached without a check of the mapping.

#![allow(unsafe_code)]

use super::map::Map;
use crate::addr::{Value, Width};
use crate::backend::cell::{Cell, execute};
use crate::verb::Op;
use portable_atomic::AtomicU128;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

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

    /// Stores a word without a barrier: others see it no later than what this thread does next with an atomic
    /// instruction. `None` if there is no such word.
    #[inline(always)]
    pub(super) fn store(&self, offset: u64, value: u64) -> Option<()> {
        self.cell::<AtomicU64>(offset).map(|cell| cell.store(value, Release))
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
