//! Lock memory of one process: turns (offset, width) into a reference to an atomic, after checking bounds and alignment.
//! The only file of this backend with `unsafe`. [`cell`](crate::backend::cell) executes the verbs.

#![allow(unsafe_code)]

use crate::addr::{Value, Width};
use crate::backend::cell::{Cell, execute};
use crate::verb::Op;
use portable_atomic::AtomicU128;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Regions start at a cache line.
const ALIGN: usize = 64;
/// Sizes are rounded up to this, so that an aligned word that starts inside a region also ends inside it.
const GRAIN: u64 = 16;

/// A memory region: zeroed, fixed in place, freed when dropped. Aligned, so that indexing a list of them is a shift.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Region {
    base: NonNull<u8>,
    /// Words must start below this many bytes. Zero once the node is dead, so that verbs need one check only.
    limit: AtomicU64,
    bytes: u64,
    /// What keeps the memory in place, if it is not the region's own.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the memory behind `base` belongs to the region alone, or is kept by `owner`, and is only ever reached as atomics.
unsafe impl Send for Region {}
// SAFETY: as above; all methods take `&self` and go through atomics.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` zero bytes, rounded up to whole 16-byte words. A large region takes no memory until it is used.
    pub(super) fn zeroed(bytes: u64) -> Self {
        let bytes = bytes.next_multiple_of(GRAIN);
        let layout = Self::layout(bytes);
        // SAFETY: `layout` never has size zero.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Self { base, limit: AtomicU64::new(bytes), bytes, owner: None }
    }

    /// Memory that other processes reach, too.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    pub(super) fn shared(words: crate::backend::shm::WordSlice) -> Self {
        let base = NonNull::from(words.words()).cast();
        assert!(base.addr().get().is_multiple_of(ALIGN), "a region starts at a cache line");
        let bytes = words.words().len() as u64 * 8 / GRAIN * GRAIN;
        Self { base, limit: AtomicU64::new(bytes), bytes, owner: Some(Arc::new(words)) }
    }

    fn layout(bytes: u64) -> Layout {
        let size = usize::try_from(bytes.max(GRAIN)).expect("a region fits into the address space");
        Layout::from_size_align(size, ALIGN).expect("a region fits into the address space")
    }

    /// From now on every word is unreachable.
    pub(super) fn kill(&self) {
        self.limit.store(0, SeqCst);
    }

    /// Whether the region's node is dead. Not known of an empty region, which has no words.
    pub(super) fn is_dead(&self) -> bool {
        self.limit.load(Relaxed) != self.bytes
    }

    /// Size in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it begins.
    #[cfg(feature = "rdma")]
    pub(super) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Executes `op` on the word at `offset`: its old value and whether it was changed; `None` if it is unreachable.
    #[inline(always)]
    pub(super) fn execute(&self, offset: u64, width: Width, op: &Op) -> Option<(u128, bool)> {
        match width {
            Width::W64 => self.cell::<AtomicU64>(offset).map(|cell| execute(cell, op)),
            Width::W128 => self.cell::<AtomicU128>(offset).map(|cell| execute(cell, op)),
        }
    }

    #[inline(always)]
    fn cell<C: Cell>(&self, offset: u64) -> Option<&C> {
        let size = <C::Value as Value>::WIDTH.bytes();
        if offset >= self.limit.load(Relaxed) || !offset.is_multiple_of(size) {
            return None;
        }
        // SAFETY: `limit` is at most `bytes`, a multiple of 16, and `offset` is a multiple of `size`, which
        // divides 16: so `offset + size <= bytes` and the word lies inside the memory, which lives as
        // long as `self`. The base is aligned to 64, so the word is aligned to its size. It was initialised
        // to zero and is only ever accessed atomically. `backend/cell.rs` says what mixed sizes mean.
        Some(unsafe { self.base.add(offset as usize).cast::<C>().as_ref() })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.owner.is_none() {
            // SAFETY: allocated in `zeroed` with this layout, and no reference is left.
            unsafe { dealloc(self.base.as_ptr(), Self::layout(self.bytes)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verb::{Fields, MaskedCas};

    fn run(region: &Region, offset: u64, width: Width, op: Op) -> u128 {
        region.execute(offset, width, &op).expect("the word is within reach").0
    }

    /// One of every kind, with the masks at which the kernel branches.
    fn ops(width: Width) -> Vec<Op> {
        let all = width.mask();
        let top = all ^ (all >> 1);
        let mut ops =
            vec![Op::Read, Op::Write(7), Op::Cas { expect: 7, new: 9 }, Op::Cas { expect: 7, new: 1 }];
        ops.extend([all, 3, all - 1].map(Op::FetchAdd));
        for compare_mask in [0, 0xf, all] {
            for swap_mask in [0, 0xff0, all] {
                for compare in [0, 7, 12] {
                    let swap = 0xabc_def0;
                    ops.push(Op::MaskedCas(MaskedCas { compare, compare_mask, swap, swap_mask }));
                }
            }
        }
        for boundaries in [0, top, 0x8080, top | 0x80] {
            let fields = Fields { add: 0x1_f3f5, boundaries };
            ops.push(Op::MaskedFetchAdd(fields));
            ops.push(Op::GuardedFetchAdd { fields, guard: 0, guard_mask: 1 });
        }
        ops
    }

    #[test]
    fn the_kernel_does_what_apply_says() {
        for width in [Width::W64, Width::W128] {
            let region = Region::zeroed(64);
            let mut model = 0u128;
            for op in ops(width).into_iter().cycle().take(500) {
                let next = op.apply(width, model);
                let (old, changed) = region.execute(32, width, &op).unwrap();
                assert_eq!((old, changed), (model, next.is_some()), "{op:?}");
                model = next.unwrap_or(model);
            }
            assert_eq!(run(&region, 32, width, Op::Read), model);
            assert_eq!(run(&region, 16, width, Op::Read), 0, "the neighbour is untouched");
            assert_eq!(run(&region, 48, width, Op::Read), 0, "the neighbour is untouched");
        }
    }

    #[test]
    fn threads_lose_no_update() {
        let region = Region::zeroed(32);
        let rounds = if cfg!(miri) { 20 } else { 10_000 };
        let fields = Fields { add: 0x01_01, boundaries: 0x80_80 };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        run(&region, 0, Width::W64, Op::MaskedFetchAdd(fields));
                        run(&region, 16, Width::W128, Op::FetchAdd(1 << 64 | 1));
                    }
                });
            }
        });
        let total = 3 * rounds as u128;
        let byte = total & 0xff;
        assert_eq!(run(&region, 0, Width::W64, Op::Read), byte << 8 | byte);
        assert_eq!(run(&region, 16, Width::W128, Op::Read), total << 64 | total);
    }

    #[test]
    fn words_outside_or_askew_are_out_of_reach() {
        let region = Region::zeroed(20); // rounded up to 32
        assert!(region.execute(24, Width::W64, &Op::Read).is_some());
        assert!(region.execute(16, Width::W128, &Op::Read).is_some());
        assert!(region.execute(32, Width::W64, &Op::Read).is_none());
        assert!(region.execute(24, Width::W128, &Op::Read).is_none());
        assert!(region.execute(4, Width::W64, &Op::Read).is_none());
        assert!(region.execute(u64::MAX - 7, Width::W64, &Op::Read).is_none());
        assert!(!region.is_dead());
        region.kill();
        assert!(region.is_dead());
        assert!(region.execute(0, Width::W64, &Op::Read).is_none());
        assert!(Region::zeroed(0).execute(0, Width::W64, &Op::Read).is_none());
    }
}
