//! Which of a membership's holder records are free.
//!
//! The first half of them belongs to the first few [threads], some to each: a thread claims one of its own with a load and a
//! store, since no other thread does, and any thread frees it with a store. The others are shared, and cost an atomic
//! instruction each way. So a thread that holds a lock or two takes and gives back another without one.

use super::holders::RECORDS;
use super::threads;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Records that belong to threads.
const OWN: usize = RECORDS as usize / 2;
/// Records of one thread.
const EACH: usize = 4;

/// The number of the thread that `record` belongs to.
pub(crate) const fn thread_of(record: u64) -> Option<u32> {
    if record < OWN as u64 { Some((record as usize / EACH) as u32) } else { None }
}

/// Records that belong to no thread.
pub(crate) const SHARED: usize = RECORDS as usize - OWN;

/// The records of one membership.
#[derive(Debug)]
pub(crate) struct SlotPool {
    /// Whether a record of a thread's is in use.
    own: [AtomicBool; OWN],
    /// Bit n: record n is in use, or a thread's.
    shared: AtomicU64,
}

/// The bits of the records that belong to threads.
const OWNED: u64 = (1 << OWN) - 1;

impl SlotPool {
    pub(crate) const fn new() -> Self {
        Self { own: [const { AtomicBool::new(false) }; OWN], shared: AtomicU64::new(OWNED) }
    }

    /// A free record of the calling thread's own.
    #[inline(always)]
    pub(crate) fn claim_own(&self) -> Option<u8> {
        let first = threads::number() as usize * EACH;
        let mine = self.own.get(first..first + EACH)?;
        for (place, taken) in mine.iter().enumerate() {
            if !taken.load(Acquire) {
                taken.store(true, Relaxed);
                return Some((first + place) as u8);
            }
        }
        None
    }

    /// A free shared record.
    #[inline(always)]
    pub(crate) fn claim_shared(&self) -> Option<u8> {
        let mut taken = self.shared.load(Relaxed);
        while taken != u64::MAX {
            let record = taken.trailing_ones();
            match self.shared.compare_exchange_weak(taken, taken | 1 << record, Acquire, Relaxed) {
                Ok(_) => return Some(record as u8),
                Err(now) => taken = now,
            }
        }
        None
    }

    /// Lets others have `record`.
    #[inline(always)]
    pub(crate) fn free(&self, record: u8) {
        match self.own.get(usize::from(record)) {
            Some(taken) => taken.store(false, Release),
            None => drop(self.shared.fetch_and(!(1 << record), Release)),
        }
    }

    /// Whether none is in use.
    pub(crate) fn is_unused(&self) -> bool {
        self.shared.load(SeqCst) == OWNED && self.own.iter().all(|taken| !taken.load(SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_given_out_once_until_it_comes_back() {
        let pool = SlotPool::new();
        let mut records: Vec<_> =
            std::iter::from_fn(|| pool.claim_own().or_else(|| pool.claim_shared())).collect();
        assert!(records.len() >= OWN, "{records:?}");
        assert!(!pool.is_unused());
        let last = records.pop().expect("there were some");
        pool.free(last);
        assert_eq!(pool.claim_own().or_else(|| pool.claim_shared()), Some(last));
        pool.free(last);
        records.sort_unstable();
        records.dedup();
        records.into_iter().for_each(|record| pool.free(record));
        assert!(pool.is_unused());
    }

    #[test]
    fn a_thread_without_a_number_of_its_own_uses_shared_records() {
        let pool = SlotPool::new();
        let first = usize::MAX / EACH * EACH;
        assert_eq!(pool.own.get(first..first.saturating_add(EACH)).map(<[_]>::len), None);
        assert!(usize::from(pool.claim_shared().expect("one is free")) >= OWN);
    }
}
