//! Executes one verb on one atomic word: shared by all backends on CPU memory.
//!
//! Every access is sequentially consistent. A WRITE is a swap, not a store, so that a protocol may write its flag and then
//! read the other's (Peterson), and so that the check for parked waiters that follows is ordered too.
//!
//! **Mixed sizes.** Protocols read 8-byte halves of 16-byte words. The language gives no meaning to racing
//! atomics of different sizes; the hardware does (x86-64 and AArch64 order them like any others within one
//! cache line), and the 16-byte accesses are inline assembly on both. Tests under Miri therefore stay with
//! one size per word.

#![allow(unsafe_code)]

use crate::addr::Value;
use crate::verb::{MaskedCas, Op};
use portable_atomic::AtomicU128;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// An atomic word of either width.
pub(super) trait Cell {
    type Value: Value;
    fn load(&self) -> Self::Value;
    /// A cheap guess of the value, to be confirmed by a compare-and-swap.
    fn guess(&self) -> Self::Value;
    fn swap(&self, new: Self::Value) -> Self::Value;
    fn add(&self, add: Self::Value) -> Self::Value;
    /// Returns the old value; the swap happened if that is `expect`.
    fn cas(&self, expect: Self::Value, new: Self::Value) -> Self::Value;
}

/// Two halves, perhaps read at different times. With run-time feature detection a 16-byte load is a function call, and
/// costs as much as half of an uncontended lock.
#[inline(always)]
fn guess_wide(cell: &AtomicU128) -> u128 {
    if cfg!(miri) {
        return cell.load(SeqCst);
    }
    let halves = cell.as_ptr().cast::<AtomicU64>();
    // SAFETY: the word has room for two, is aligned for one, and outlives the reference; mixed sizes are as said above.
    let (low, high) = unsafe { ((*halves).load(Relaxed), (*halves.add(1)).load(Relaxed)) };
    if cfg!(target_endian = "little") {
        u128::from(low) | u128::from(high) << 64
    } else {
        u128::from(high) | u128::from(low) << 64
    }
}

macro_rules! cell {
    ($atomic:ty, $value:ty, $guess:expr) => {
        impl Cell for $atomic {
            type Value = $value;
            #[inline(always)]
            fn load(&self) -> $value {
                <$atomic>::load(self, SeqCst)
            }
            #[inline(always)]
            fn guess(&self) -> $value {
                $guess(self)
            }
            #[inline(always)]
            fn swap(&self, new: $value) -> $value {
                <$atomic>::swap(self, new, SeqCst)
            }
            #[inline(always)]
            fn add(&self, add: $value) -> $value {
                self.fetch_add(add, SeqCst)
            }
            #[inline(always)]
            fn cas(&self, expect: $value, new: $value) -> $value {
                match self.compare_exchange(expect, new, SeqCst, SeqCst) {
                    Ok(old) | Err(old) => old,
                }
            }
        }
    };
}
cell!(AtomicU64, u64, Cell::load);
cell!(AtomicU128, u128, guess_wide);

/// Executes a verb: by a single instruction if there is one, else by a compare-and-swap loop around [`Op::apply`]. Operands
/// are mostly constants where this is inlined, so the choice is made at compile time.
#[inline(always)]
pub(super) fn execute<C: Cell>(cell: &C, op: &Op) -> (u128, bool) {
    let narrow = <C::Value as Value>::narrow;
    let all = <C::Value as Value>::WIDTH.mask();
    let top = all ^ (all >> 1);
    let (old, changed) = match *op {
        Op::Read => (cell.load(), false),
        Op::Write(value) => (cell.swap(narrow(value)), true),
        Op::Cas { expect, new } => {
            let old = cell.cas(narrow(expect), narrow(new));
            (old, old == narrow(expect))
        }
        Op::FetchAdd(add) => (cell.add(narrow(add)), true),
        Op::MaskedCas(MaskedCas { compare, compare_mask, swap, swap_mask }) if compare_mask & all == all => {
            let old = cell.cas(narrow(compare), narrow((compare & !swap_mask) | (swap & swap_mask)));
            (old, old == narrow(compare))
        }
        Op::MaskedCas(MaskedCas { compare_mask, swap, swap_mask, .. })
            if compare_mask & all == 0 && swap_mask & all == all =>
        {
            (cell.swap(narrow(swap)), true)
        }
        // One field, as wide as the word: its carry is lost anyway.
        Op::MaskedFetchAdd(fields) if fields.boundaries & all & !top == 0 => {
            (cell.add(narrow(fields.add)), true)
        }
        Op::MaskedCas(_) | Op::MaskedFetchAdd(_) | Op::GuardedFetchAdd { .. } => retry(cell, op),
    };
    (old.widen(), changed)
}

#[inline(always)]
fn retry<C: Cell>(cell: &C, op: &Op) -> (C::Value, bool) {
    let seen = cell.guess();
    let known = match op.apply(<C::Value as Value>::WIDTH, seen.widen()) {
        Some(new) => match cell.cas(seen, <C::Value as Value>::narrow(new)) {
            found if found == seen => return (seen, true),
            found => found,
        },
        // The guess may be wrong about whether the verb changes the word.
        None => cell.load(),
    };
    retry_from(cell, op, known)
}

#[inline(always)]
fn retry_from<C: Cell>(cell: &C, op: &Op, mut seen: C::Value) -> (C::Value, bool) {
    loop {
        let Some(new) = op.apply(<C::Value as Value>::WIDTH, seen.widen()) else { return (seen, false) };
        let found = cell.cas(seen, <C::Value as Value>::narrow(new));
        if found == seen {
            return (seen, true);
        }
        seen = found;
    }
}
