//! Locks between threads: the combiner's core behind a mutex, and a waker for everybody who waits.
//!
//! The same core as in a server, without the list and the wire: a name is a unit of its own, ranges have a tree each, and
//! whoever conflicts is served first come, first served. What is held can be upgraded, downgraded, and given back in part.
//!
//! | state of a request | means |
//! |---|---|
//! | free | nobody's |
//! | wanted | it waits, or is about to be told that it was busy |
//! | held | with this token |
//! | upgrading | held, shared, with this token, and it waits to be alone |
//! | denied | it came to nothing; whoever asked takes it away |
//! | stays | an upgrade came to nothing; whoever asked makes it held again |
//!
//! What this file must not do: call a waker with the mutex locked.

use super::Kind;
use crate::error::ChangeError;
use lockwright_fabric::observe::Claim;
use lockwright_locks::combiner::core::{Answer, ClientId, Core, Limits, NAMES, Refusal, Reply, Request};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Everybody here is one client of the core's.
const US: ClientId = ClientId(0);
/// Requests at a time.
const MOST: u32 = 1 << 20;

/// All locks of a space.
#[derive(Debug)]
pub(crate) struct MemLocks {
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    core: Core,
    slots: Vec<Slot>,
    free: Vec<u32>,
    replies: Vec<Reply>,
    woken: Vec<Waker>,
}

#[derive(Debug, Default)]
struct Slot {
    state: State,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Free,
    Wanted,
    Held {
        token: u64,
    },
    Upgrading {
        token: u64,
    },
    Denied(Why),
    Stays {
        token: u64,
        why: Why,
    },
}

/// Why something came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Busy,
    Refused(Refusal),
}

impl Default for MemLocks {
    fn default() -> Self {
        let core = Core::new(Limits { clients: 1, ids: MOST });
        let (slots, free, replies, woken) = Default::default();
        Self { book: Mutex::new(Book { core, slots, free, replies, woken }) }
    }
}

impl Book {
    /// A place for a new request.
    fn take_slot(&mut self) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        self.slots[id as usize].state = State::Wanted;
        id
    }

    fn free_slot(&mut self, id: u32) {
        self.slots[id as usize] = Slot::default();
        self.free.push(id);
    }

    fn state(&mut self, id: u32) -> &mut State {
        &mut self.slots[id as usize].state
    }

    /// Has the core serve a request, and notes what came of it, for whomever.
    fn ask(&mut self, request: Request) {
        self.core.handle(US, request, &mut self.replies);
        for Reply { id, answer, .. } in self.replies.drain(..) {
            let slot = &mut self.slots[id as usize];
            let denied = |why| match slot.state {
                State::Upgrading { token } => State::Stays { token, why },
                State::Wanted => State::Denied(why),
                state => state,
            };
            slot.state = match answer {
                Answer::Granted { token } | Answer::Downgraded { token } => State::Held { token },
                Answer::Busy => denied(Why::Busy),
                Answer::Refused(refusal) => denied(Why::Refused(refusal)),
                Answer::Cancelled => continue,
            };
            self.woken.extend(slot.waker.take());
        }
    }
}

fn lock(kind: Kind, claim: &Claim, id: u32, wait: bool) -> Request {
    let Claim { lock, mode, start, end } = *claim;
    match kind {
        Kind::Keyed => Request::Lock { id, lock: NAMES, mode, start: lock, end: lock + 1, wait },
        Kind::Ranges => Request::Lock { id, lock, mode, start, end, wait },
    }
}

impl MemLocks {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of the book, and wakes whoever has something to see in it.
    fn close(mut book: MutexGuard<'_, Book>) {
        if !book.woken.is_empty() {
            let woken = std::mem::take(&mut book.woken);
            drop(book);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Takes a lock if it is free: which request it is, and its token.
    pub(super) fn try_acquire(&self, kind: Kind, claim: &Claim) -> Result<(u32, u64), Why> {
        let mut book = self.book();
        let id = book.take_slot();
        book.ask(lock(kind, claim, id, false));
        let outcome = match *book.state(id) {
            State::Held { token } => Ok((id, token)),
            State::Denied(why) => Err(why),
            state => unreachable!("a try is granted or denied: {state:?}"),
        };
        if outcome.is_err() {
            book.free_slot(id);
        }
        Self::close(book);
        outcome
    }

    /// Takes a lock, however long it takes. Dropped, it is given up.
    pub(super) fn acquire(self: &Arc<Self>, kind: Kind, claim: Claim) -> Acquiring {
        Acquiring { locks: Arc::clone(self), kind, claim, id: None }
    }

    /// Gives a lock back, or gives a request up.
    pub(super) fn release(&self, id: u32) {
        let mut book = self.book();
        book.ask(Request::Cancel { id });
        book.free_slot(id);
        Self::close(book);
    }

    /// The token of what is held.
    pub(super) fn token(&self, id: u32) -> u64 {
        match *self.book().state(id) {
            State::Held { token } | State::Upgrading { token } | State::Stays { token, .. } => token,
            state => unreachable!("only what is held has a token: {state:?}"),
        }
    }

    /// Makes a shared lock exclusive. Dropped, it leaves it shared.
    pub(super) fn upgrade(self: &Arc<Self>, id: u32, wait: bool) -> Upgrading {
        Upgrading { locks: Arc::clone(self), id, wait, asked: false }
    }

    /// Makes an exclusive lock shared; the token from then on.
    pub(super) fn downgrade(&self, id: u32) -> u64 {
        let mut book = self.book();
        book.ask(Request::Downgrade { id });
        let State::Held { token } = *book.state(id) else { unreachable!("it was held, and still is") };
        Self::close(book);
        token
    }

    /// Gives back a part of a range that is neither empty nor all of it nor outside. The second piece's request, if two are
    /// left; `None` if there is no room for it.
    pub(super) fn unlock_part(&self, id: u32, part: &Range<u64>, two: bool) -> Option<u32> {
        let mut book = self.book();
        let state = *book.state(id);
        let rest = if two { book.take_slot() } else { id };
        if rest >= MOST {
            book.free_slot(rest);
            return None;
        }
        *book.state(rest) = state;
        book.ask(Request::UnlockPart { id, start: part.start, end: part.end, rest });
        Self::close(book);
        Some(rest)
    }
}

/// A lock on its way.
pub(super) struct Acquiring {
    locks: Arc<MemLocks>,
    kind: Kind,
    claim: Claim,
    /// Once it was asked for, and as long as its outcome was not seen.
    id: Option<u32>,
}

impl Future for Acquiring {
    type Output = Result<(u32, u64), Why>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut book = this.locks.book();
        let id = *this.id.get_or_insert_with(|| {
            let id = book.take_slot();
            book.ask(lock(this.kind, &this.claim, id, true));
            id
        });
        let outcome = match *book.state(id) {
            State::Held { token } => Ok((id, token)),
            State::Denied(why) => {
                book.free_slot(id);
                Err(why)
            }
            _ => {
                book.slots[id as usize].waker = Some(cx.waker().clone());
                MemLocks::close(book);
                return Poll::Pending;
            }
        };
        MemLocks::close(book);
        this.id = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.locks.release(id);
        }
    }
}

/// An upgrade on its way.
pub(super) struct Upgrading {
    locks: Arc<MemLocks>,
    id: u32,
    wait: bool,
    /// It was asked for, and its outcome was not seen.
    asked: bool,
}

impl Future for Upgrading {
    type Output = Result<u64, ChangeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (id, wait) = (this.id, this.wait);
        let mut book = this.locks.book();
        if !this.asked {
            let State::Held { token } = *book.state(id) else {
                unreachable!("only what is held is upgraded")
            };
            *book.state(id) = State::Upgrading { token };
            book.ask(Request::Upgrade { id, wait });
            this.asked = true;
        }
        let outcome = match *book.state(id) {
            State::Held { token } => Ok(token),
            State::Stays { token, why } => {
                *book.state(id) = State::Held { token };
                Err(match why {
                    Why::Busy => ChangeError::Busy,
                    Why::Refused(Refusal::UpgradeConflict) => ChangeError::WouldDeadlock,
                    Why::Refused(refusal) => ChangeError::Refused(refusal.to_string()),
                })
            }
            _ => {
                book.slots[id as usize].waker = Some(cx.waker().clone());
                MemLocks::close(book);
                return Poll::Pending;
            }
        };
        MemLocks::close(book);
        this.asked = false;
        Poll::Ready(outcome)
    }
}

impl Drop for Upgrading {
    fn drop(&mut self) {
        if !self.asked {
            return;
        }
        let mut book = self.locks.book();
        if let State::Stays { token, .. } = *book.state(self.id) {
            *book.state(self.id) = State::Held { token };
        } else {
            // It waits, or was granted and nobody has seen it.
            book.ask(Request::Downgrade { id: self.id });
        }
        MemLocks::close(book);
    }
}
