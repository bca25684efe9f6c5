//! Huge pages for large tables: with millions of locks, every random access to 4 KiB pages is a TLB miss before its cache
//! miss. Used by the simulator and by a server's lock table.

#![allow(unsafe_code)]

/// Asks the kernel for huge pages behind `memory`. A hint; failures are ignored. Best given before the first access.
pub fn large_pages<T>(memory: &mut [T]) {
    #[cfg(all(feature = "shm", target_os = "linux"))]
    {
        use rustix::mm::{Advice, madvise};
        /// The usual huge page size. Only whole pages are advised.
        const LARGE: usize = 2 << 20;
        let (start, bytes) = (memory.as_mut_ptr().cast::<u8>(), size_of_val(memory));
        let skipped = start.align_offset(LARGE);
        let whole = bytes.saturating_sub(skipped) / LARGE * LARGE;
        if whole > 0 {
            // SAFETY: the range lies within `memory`, which is mapped and ours alone for the length of the call, and the
            // advice changes how it is backed, not what is in it.
            let _ = unsafe { madvise(start.wrapping_add(skipped).cast(), whole, Advice::LinuxHugepage) };
        }
    }
    #[cfg(not(all(feature = "shm", target_os = "linux")))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_of_any_size_is_what_it_was() {
        for words in [0, 1, 1 << 10, (5 << 20) / 8 + 3] {
            let mut memory: Vec<u64> = (0..words as u64).collect();
            super::large_pages(&mut memory);
            assert!(memory.iter().enumerate().all(|(at, word)| *word == at as u64));
        }
    }
}
