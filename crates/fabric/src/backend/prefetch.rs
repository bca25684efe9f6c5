//! A hint to the CPU that a word will be needed soon.
//!
//! For whoever knows an address long before its turn: the simulator, a server with a queue of verbs. A plain early
//! load would not do, because it must finish before anything after it can retire.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Starts to bring `value` into the nearest cache, and waits for nothing. Does nothing where there is no such instruction.
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

/// The same, into the second-level cache, which can wait for more lines at once than the nearest: for what is far away, and
/// many at a time.
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
