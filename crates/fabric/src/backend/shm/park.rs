//! Who waits for which word: a hash table of seats in the file.
//!
//! | seat, bits | holds |
//! |---|---|
//! | 0..32 | the peer that sits there; 0 for nobody |
//! | 32..64 | tag of the word it waits for |
//!
//! | hint, bits | holds |
//! |---|---|
//! | 0 | somebody may sit in this bucket |
//! | 1..64 | rises whenever somebody sits down |
//!
//! A waiter sits down, sets the hint, and *then* looks at the word once more. A verb changes the word, *then* looks at
//! the hint, which for a word that nobody waits for is one load after a read-modify-write and costs nothing. If the hint
//! is set, it rings the bells of those who sit there for this word, shows the dead from their seats, and clears the hint
//! if all seats were empty and nobody has sat down meanwhile.
//!
//! There is no count that a killed waiter could leave wrong: seats say who, and who is dead is known. If all seats of a
//! bucket are taken, the waiter looks at the word from time to time instead ([`STANDING_LOOK_NS`]).

use super::area::Words;
use super::layout::{SEATS, Section};
use super::shared::Shared;
use crate::addr::{Addr, PeerId};
use crate::random::mix;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How often a waiter without a seat looks.
pub(super) const STANDING_LOOK_NS: u64 = 1_000_000;

/// A seat that is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    index: u64,
    holds: u64,
}

/// The bucket of a word: both halves of a 16-byte word share one, since a verb on either changes the whole.
#[inline(always)]
fn bucket(addr: Addr) -> u64 {
    let word = addr.offset >> 4;
    word ^ word >> 10 ^ (addr.node.0 as u64) << 5 ^ (addr.region.0 as u64) << 3
}

fn tag(addr: Addr) -> u64 {
    mix(addr.offset >> 4 ^ u64::from(addr.node.0) << 48 ^ u64::from(addr.region.0) << 40) >> 32
}

/// After a change of the word at `addr`: whether somebody may be waiting for it.
#[inline(always)]
pub(super) fn is_awaited(hints: &Words, addr: Addr) -> bool {
    hints.get(bucket(addr)).load(SeqCst) & 1 != 0
}

impl Shared {
    fn seats(&self, addr: Addr) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let bucket = bucket(addr) & (self.layout.shape.buckets - 1);
        let first = bucket * SEATS;
        (first..first + SEATS).map(|index| (index, self.seat(index)))
    }

    fn seat(&self, index: u64) -> &AtomicU64 {
        self.map.u64(self.layout.start(Section::Seats) + 8 * index)
    }

    /// Takes a seat for `peer`, if there is one.
    pub(super) fn sit_down(&self, addr: Addr, peer: PeerId) -> Option<Seat> {
        let holds = tag(addr) << 32 | u64::from(peer.0);
        let mut seats = self.seats(addr);
        let (index, _) = seats.find(|(_, seat)| seat.compare_exchange(0, holds, SeqCst, SeqCst).is_ok())?;
        let raise = |hint: u64| Some(hint.wrapping_add(2) | 1);
        let _ = self.hints.get(bucket(addr)).fetch_update(SeqCst, SeqCst, raise);
        Some(Seat { index, holds })
    }

    /// Gives a seat back. If its client was taken for dead, it may be another's by now.
    pub(super) fn stand_up(&self, seat: Seat) {
        let _ = self.seat(seat.index).compare_exchange(seat.holds, 0, SeqCst, SeqCst);
    }

    /// Rings for those who wait for the word at `addr`.
    #[cold]
    pub(super) fn call(&self, addr: Addr) {
        let hint = self.hints.get(bucket(addr));
        let before = hint.load(SeqCst);
        let tag = tag(addr);
        let mut empty = true;
        for (_, seat) in self.seats(addr) {
            let holds = seat.load(SeqCst);
            if holds == 0 {
                continue;
            }
            match self.find_alive(PeerId(holds as u32)) {
                Some(slot) => {
                    empty = false;
                    if holds >> 32 == tag {
                        self.ring(slot);
                    }
                }
                None => drop(seat.compare_exchange(holds, 0, SeqCst, SeqCst)),
            }
        }
        if empty {
            let _ = hint.compare_exchange(before, before & !1, SeqCst, SeqCst);
        }
    }
}
