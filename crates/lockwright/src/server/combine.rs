//! Whoever finds the books closed is the combiner: takes everything that lies in the tray, serves it in one pass, and closes
//! the books again. Whoever finds them open goes on; what it put into the tray is served by the one who has them.
//!
//! | who | does |
//! |---|---|
//! | reads a connection | puts what was said into the tray, rings, and serves if nobody has the books open |
//! | has the books open | takes at most [`MOST`] notes, lets the combiner's core decide about them together, fills connections' buffers |
//! | closes them | looks whether it was rung for meanwhile, and if so does the same again |
//! | is done | writes what its passes left in the buffers of connections: one write for each, with the books closed |
//!
//! So nobody waits for the books to serve a request, the answers of a pass share their writes, and writes, which cost most, are
//! made by many threads at once. After [`PASSES`] passes a thread has other things to do: a task of its own goes on.
//!
//! What this file must not do: know what a note means.

use super::books::Books;
use super::desk::Desk;
use super::tray::Note;
use lockwright_fabric::backend::tcp::together;
use lockwright_locks::combiner::core::ClientId;
use lockwright_locks::combiner::queue::Combining;
use std::ops::{Deref, DerefMut};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use tokio::runtime::Handle;

/// Notes in one pass: a fraction of a millisecond.
const MOST: usize = 256;
/// Passes in a row.
const PASSES: usize = 2;

/// The books, and where notes come out.
#[derive(Debug)]
pub(super) struct Counter {
    books: Books,
    notes: Combining<Note>,
    /// Room for what a pass takes.
    batch: Vec<(ClientId, Note)>,
}

impl Counter {
    pub(super) fn new(books: Books, notes: Combining<Note>) -> Self {
        Self { books, notes, batch: Vec::with_capacity(MOST) }
    }
}

/// The books, open. Dropped, they are closed, and what was put into the tray meanwhile is served.
pub(super) struct Open<'a> {
    desk: &'a Desk,
    counter: Option<MutexGuard<'a, Counter>>,
}

impl Deref for Open<'_> {
    type Target = Books;

    fn deref(&self) -> &Books {
        &self.counter.as_ref().expect("open until dropped").books
    }
}

impl DerefMut for Open<'_> {
    fn deref_mut(&mut self) -> &mut Books {
        &mut self.counter.as_mut().expect("open until dropped").books
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        drop(self.counter.take());
        if self.desk.tray().rings() {
            self.desk.combine();
        }
    }
}

impl Desk {
    /// Opens the books, for what does not come through the tray. Nothing in the tray has happened yet.
    pub(super) fn books(&self) -> Open<'_> {
        let counter = self.counter().lock().unwrap_or_else(PoisonError::into_inner);
        Open { desk: self, counter: Some(counter) }
    }

    /// Opens the books when everything that was put into the tray before has happened.
    pub(super) fn books_up_to_date(&self) -> Open<'_> {
        let mut open = self.books();
        let counter = open.counter.as_mut().expect("just opened");
        let mut taken = 0;
        // More than the tray holds cannot have been there when this began.
        while !counter.notes.is_empty() && taken < self.tray().capacity() {
            match self.pass(counter) {
                // Somebody is about to link its note, and was interrupted.
                0 => std::thread::yield_now(),
                some => taken += some,
            }
        }
        open
    }

    /// Puts a note into the tray. It is served at the next [`Desk::settle`], if not before.
    pub(super) fn put(&self, client: u32, note: Note) {
        while self.tray().put(client, note).is_err() {
            let mut open = self.books();
            let counter = open.counter.as_mut().expect("just opened");
            if self.pass(counter) == 0 {
                drop(open);
                std::thread::yield_now();
            }
        }
    }

    /// Sees to it that everything that this thread has put into the tray is served: here, or by whoever has the books open.
    pub(super) fn settle(&self) {
        self.tray().ring();
        self.combine();
    }

    /// Serves what is in the tray, unless somebody else does.
    fn combine(&self) {
        together(|| {
            let mut passes = 0;
            loop {
                let mut counter = match self.counter().try_lock() {
                    Ok(counter) => counter,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) => return,
                };
                if self.tray().hear() && self.pass(&mut counter) == MOST {
                    self.tray().ring();
                }
                drop(counter);
                passes += 1;
                if !self.tray().rings() || passes % PASSES == 0 && self.goes_on_later() {
                    return;
                }
            }
        });
    }

    /// Others are to have their turn on this thread before the tray is looked at again. `false` if there are none.
    fn goes_on_later(&self) -> bool {
        let Ok(runtime) = Handle::try_current() else { return false };
        let desk = self.clone();
        runtime.spawn(async move {
            tokio::task::yield_now().await;
            desk.settle();
        });
        true
    }

    /// One pass: takes what waits, serves it, and says how much it was.
    fn pass(&self, counter: &mut Counter) -> usize {
        let Counter { books, notes, batch } = counter;
        notes.take_all(MOST, batch);
        let count = batch.len();
        books.begin_pass(count);
        for (ClientId(peer), note) in batch.drain(..) {
            self.take(books, peer, note);
        }
        books.decide();
        count
    }
}
