//! Whoever finds nobody at the books is the combiner: opens them, takes everything that lies in the tray, serves it in one
//! pass, and closes them again. Whoever finds somebody there goes on; what it put into the tray is served by that one.
//!
//! | who | does |
//! |---|---|
//! | reads a connection | puts what was said into the tray, [rings](Clerk), and serves if it is nobody's turn |
//! | has the turn | takes at most [`MOST`] notes, lets the combiner's core decide about them together, fills connections' buffers |
//! | ends it | looks whether it was rung for meanwhile, and if so does the same again |
//! | is done | writes what its passes left in the buffers of connections: one write for each, with the books closed |
//!
//! So nobody waits for the books to serve a request, the answers of a pass share their writes, and writes, which cost most, are
//! made by many threads at once. After [`PASSES`] passes a thread has other things to do: a task of its own goes on. So it does
//! when a pass panics: the note it died of is gone, those behind it are served.
//!
//! What this file must not do: know what a note means.

use super::books::Books;
use super::desk::Desk;
use super::tray::Note;
use lockwright_fabric::backend::tcp::coalesce_writes;
use lockwright_locks::combiner::bell::{Clerk, Turn};
use lockwright_locks::combiner::core::ClientId;
use lockwright_locks::combiner::queue::Combining;
use std::ops::{Deref, DerefMut};
use std::sync::{MutexGuard, PoisonError};
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
}

impl Counter {
    pub(super) fn new(books: Books, notes: Combining<Note>) -> Self {
        Self { books, notes }
    }
}

/// The books, open. Dropped, they are closed, and what was rung for meanwhile is served: in this order.
pub(super) struct Open<'a> {
    counter: MutexGuard<'a, Counter>,
    _turn: Option<Turn<'a, Desk>>,
}

impl Deref for Open<'_> {
    type Target = Books;

    fn deref(&self) -> &Books {
        &self.counter.books
    }
}

impl DerefMut for Open<'_> {
    fn deref_mut(&mut self) -> &mut Books {
        &mut self.counter.books
    }
}

impl Desk {
    /// Opens the books, for what does not come through the tray. Nothing in the tray has happened yet.
    pub(super) fn books(&self) -> Open<'_> {
        let counter = self.lock_counter();
        // If it is somebody's, that one comes behind this.
        Open { counter, _turn: self.bell().turn(self) }
    }

    /// Opens the books when everything that was put into the tray before has happened.
    pub(super) fn books_up_to_date(&self) -> Open<'_> {
        let mut open = self.books();
        let counter = &mut *open.counter;
        let mut taken = 0;
        // More than the tray holds cannot have been there when this began.
        while !counter.notes.is_empty() && taken < self.tray().capacity() {
            match self.serve(counter) {
                // Somebody is about to link its note, and was interrupted.
                0 => std::thread::yield_now(),
                some => taken += some,
            }
        }
        open
    }

    /// Puts a note into the tray. It is served at the next [`Desk::settle`], if not before.
    #[inline]
    pub(super) fn put(&self, client: u32, note: Note) {
        if self.tray().put(client, note).is_err() {
            self.put_slow(client, note);
        }
    }

    #[cold]
    fn put_slow(&self, client: u32, note: Note) {
        while self.tray().put(client, note).is_err() {
            let mut open = self.books();
            if self.serve(&mut open.counter) == 0 {
                drop(open);
                std::thread::yield_now();
            }
        }
    }

    /// Sees to it that everything that this thread has put into the tray is served: here, or by whoever's turn it is.
    pub(super) fn settle(&self) {
        self.bell().ring(self);
    }

    fn lock_counter(&self) -> MutexGuard<'_, Counter> {
        self.counter().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One pass: takes what waits, serves it, and says how much it was.
    fn serve(&self, counter: &mut Counter) -> usize {
        let Counter { books, notes } = counter;
        books.begin_pass();
        let mut count = 0;
        while count < MOST
            && let Some((ClientId(peer), note)) = notes.take()
        {
            count += 1;
            books.totals.notes += 1;
            self.take(books, peer, note);
        }
        books.decide();
        count
    }
}

impl Clerk for Desk {
    fn pass(&self) -> bool {
        self.serve(&mut self.lock_counter()) == MOST
    }

    /// Others are to have their turn on this thread before the tray is looked at again, unless there are none.
    fn successor(&self, passes: usize) -> Option<impl FnOnce()> {
        let runtime = passes.is_multiple_of(PASSES).then(Handle::try_current)?.ok()?;
        let desk = self.clone();
        Some(move || {
            runtime.spawn(async move {
                tokio::task::yield_now().await;
                desk.settle();
            });
        })
    }

    fn turn(&self, serve: impl FnOnce()) {
        coalesce_writes(serve);
    }
}
