//! Large pages behind memory that is used at random.
//!
//! A table of millions of locks outgrows what the CPU remembers of small pages, and then every word costs a walk through
//! page tables before its own miss. For whoever owns such a table: the simulator, a server's lock memory.

#![allow(unsafe_code)]

/// Asks the operating system to put large pages behind `memory`, where there are some. A hint: nothing else changes, and
/// nothing is said if it cannot be done. Best given before the memory is first touched.
pub fn large_pages<T>(memory: &mut [T]) {
    #[cfg(all(feature = "shm", target_os = "linux"))]
    {
        use rustix::mm::{Advice, madvise};
        /// What most CPUs call large. Only whole ones are asked for.
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
