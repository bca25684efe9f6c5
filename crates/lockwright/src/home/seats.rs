//! Which of a membership's cards are free.
//!
//! The first half of them belongs to the first few [threads], some to each: a thread takes one of its own
//! with a load and a store, since nobody else does, and whoever gives it back (any thread) stores that it is free. The
//! others are everybody's, and cost an atomic instruction each way. So a thread that holds a lock or two takes and gives
//! back another without one.

use super::cards::CARDS;
use super::threads;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Cards that belong to threads.
const OWN: usize = CARDS as usize / 2;
/// Cards of one thread.
const EACH: usize = 4;

/// The cards of one membership.
#[derive(Debug)]
pub(super) struct Seats {
    /// Whether a card of a thread's is in use.
    own: [AtomicBool; OWN],
    /// Bit n: card n is in use, or a thread's.
    shared: AtomicU64,
}

/// The bits of the cards that belong to threads.
const OWNED: u64 = (1 << OWN) - 1;

impl Seats {
    pub(super) const fn new() -> Self {
        Self { own: [const { AtomicBool::new(false) }; OWN], shared: AtomicU64::new(OWNED) }
    }

    /// A free card of the calling thread's own.
    #[inline(always)]
    pub(super) fn take_own(&self) -> Option<u8> {
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

    /// A free card that is everybody's.
    #[inline(always)]
    pub(super) fn take_shared(&self) -> Option<u8> {
        let mut taken = self.shared.load(Relaxed);
        while taken != u64::MAX {
            let card = taken.trailing_ones();
            match self.shared.compare_exchange_weak(taken, taken | 1 << card, Acquire, Relaxed) {
                Ok(_) => return Some(card as u8),
                Err(now) => taken = now,
            }
        }
        None
    }

    /// Lets others have `card`.
    #[inline(always)]
    pub(super) fn give_back(&self, card: u8) {
        match self.own.get(usize::from(card)) {
            Some(taken) => taken.store(false, Release),
            None => drop(self.shared.fetch_and(!(1 << card), Release)),
        }
    }

    /// Whether none is in use.
    pub(super) fn are_empty(&self) -> bool {
        self.shared.load(SeqCst) == OWNED && self.own.iter().all(|taken| !taken.load(SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_given_out_once_until_it_comes_back() {
        let seats = Seats::new();
        let mut cards: Vec<_> =
            std::iter::from_fn(|| seats.take_own().or_else(|| seats.take_shared())).collect();
        assert!(cards.len() >= OWN, "{cards:?}");
        assert!(!seats.are_empty());
        let last = cards.pop().expect("there were some");
        seats.give_back(last);
        assert_eq!(seats.take_own().or_else(|| seats.take_shared()), Some(last));
        seats.give_back(last);
        cards.sort_unstable();
        cards.dedup();
        cards.into_iter().for_each(|card| seats.give_back(card));
        assert!(seats.are_empty());
    }

    #[test]
    fn a_thread_without_a_number_of_its_own_uses_what_is_everybodys() {
        let seats = Seats::new();
        let first = usize::MAX / EACH * EACH;
        assert_eq!(seats.own.get(first..first.saturating_add(EACH)).map(<[_]>::len), None);
        assert!(usize::from(seats.take_shared().expect("one is free")) >= OWN);
    }
}
