//! Prefetch hints, for code that knows an address long before it needs it (the simulator, a server's queue). An early load
//! would not do: it must complete before later instructions retire.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Prefetches `value` into the L1 cache. No-op without such an instruction.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    // SAFETY: a prefetch is a hint without architectural effect, valid for any address; this one comes from a
    // reference besides. SSE is part of every x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Prefetches `value` into the L2 cache, which can have more misses in flight: for many lines at a time.
#[inline(always)]
pub fn prefetch_far<T>(value: &T) {
    // SAFETY: as above.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
