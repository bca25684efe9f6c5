//! What all handles of one name in one client share: the lock's id, and who of this client sits where.
//!
//! A queue lock knows a waiter by its peer, so one peer must not want the same lock twice at once. A client therefore
//! has several peers ("seats"), and each attempt takes one that this lock does not use yet: one atomic operation. If
//! all are taken (64 attempts at once by one process), an attempt waits here for a seat.

use crate::error::LockError;
use crate::home::{Home, Kind, SEATS, Seat};
use crate::name::LockName;
use crate::progress::Progress;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

const _: () = assert!(SEATS == 64, "the seats are the bits of one word");

/// A lock as one client knows it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) home: Arc<dyn Home>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    /// Bit n: seat n is in use for this lock.
    taken: AtomicU64,
    /// Attempts that wait for a seat.
    standing: Mutex<Vec<Waker>>,
}

impl Core {
    pub(crate) fn new(
        home: Arc<dyn Home>,
        progress: Arc<Progress>,
        name: LockName,
        kind: Kind,
        id: u64,
    ) -> Self {
        Self { home, progress, name, kind, id, taken: AtomicU64::new(0), standing: Mutex::default() }
    }

    /// Takes a seat, if one is free.
    #[inline]
    pub(crate) fn sit(&self) -> Result<Option<Seat>, LockError> {
        let mut taken = self.taken.load(SeqCst);
        while taken != u64::MAX {
            let seat = taken.trailing_ones();
            match self.taken.compare_exchange_weak(taken, taken | 1 << seat, SeqCst, SeqCst) {
                Ok(_) => {
                    let seat = seat as Seat;
                    return match self.home.sit(seat) {
                        Ok(()) => Ok(Some(seat)),
                        Err(error) => {
                            self.stand_up(seat);
                            Err(error)
                        }
                    };
                }
                Err(now) => taken = now,
            }
        }
        Ok(None)
    }

    /// Takes a seat, or is woken when one may be free.
    pub(crate) fn poll_sit(&self, waker: &Waker) -> Poll<Result<Seat, LockError>> {
        if let Some(seat) = self.sit().transpose() {
            return Poll::Ready(seat);
        }
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).push(waker.clone());
        // One may have come free before the waker was there to be seen.
        self.sit().transpose().map_or(Poll::Pending, Poll::Ready)
    }

    /// Frees a seat.
    #[inline]
    pub(crate) fn stand_up(&self, seat: Seat) {
        let taken = self.taken.fetch_and(!(1 << seat), SeqCst);
        if taken == u64::MAX {
            // All of them: some may have been dropped, and whoever comes first takes the seat.
            let standing = std::mem::take(&mut *self.standing.lock().unwrap_or_else(PoisonError::into_inner));
            standing.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.home.unbind(self.id, self.kind);
    }
}
