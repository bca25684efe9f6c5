//! The list between handlers and the combiner (thesis Alg. 3 and 4), for threads: any number of handlers append, one
//! combiner takes everything that waits.
//!
//! To append is one atomic exchange of `tail` and one store into the predecessor's `next`. Between the two the list is
//! broken: the combiner then waits for `next`, and nobody else waits for anything. Nodes are slots of a fixed table,
//! dealt out to the handlers in advance, and refer to each other by number: no allocation, no `unsafe`, and a handler
//! whose slots are all in the queue has to wait, so the queue is bounded.
//!
//! **A handler that dies between the two** must not stop the server. A slot says that its handler is `ENTERING` from
//! before the exchange until after the store. When the combiner finds the list broken, no living handler is entering
//! and a dead one was, it mends the list there itself (`Combining::mend`).
//!
//! | state of a slot | set by | meaning |
//! |---|---|---|
//! | FREE | combiner | its handler may use it |
//! | ENTERING | handler | about to be appended, or appended and not linked yet |
//! | LINKED | handler | its predecessor knows it |
//!
//! What it must not do: know what a request means.

use super::core::{ClientId, Request};
use super::packed::{Packed, WORDS, pack, unpack};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

const NONE: u32 = u32::MAX;

const FREE: u32 = 0;
const ENTERING: u32 = 1;
const LINKED: u32 = 2;

/// Looks at a broken list before the combiner asks whether somebody died there.
const PATIENCE: u32 = 1_000;

/// A node of the list, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    next: AtomicU32,
    state: AtomicU32,
    words: [AtomicU64; WORDS],
}

#[derive(Debug)]
struct Shared {
    /// The first is the list's first node, which carries no request; then every handler's in turn.
    slots: Box<[Slot]>,
    tail: Tail,
    gone: Box<[AtomicBool]>,
    depth: u32,
}

/// The one word that all handlers write, away from everything else.
#[derive(Debug)]
#[repr(align(64))]
struct Tail(AtomicU32);

/// A handler's end of the list.
#[derive(Debug)]
pub struct Handler {
    shared: Arc<Shared>,
    number: u32,
    /// The slot it uses next, counted from its first.
    turn: u32,
}

/// The combiner's end of the list.
#[derive(Debug)]
pub struct Combining {
    shared: Arc<Shared>,
    /// The node last taken: it stays in the list until its successor is known.
    current: u32,
    broken_for: u32,
}

/// The handler's slots are all in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all slots of this handler are in the queue")]
pub struct Full;

/// A list for so many handlers, each of which can have `depth` requests in it at a time.
///
/// ```
/// use lockwright_locks::combiner::core::{ClientId, Request};
/// use lockwright_locks::combiner::queue;
///
/// let (mut handlers, mut combining) = queue::list(2, 4);
/// handlers[1].push(ClientId(7), Request::Unlock { id: 3 }).unwrap();
/// let mut taken = Vec::new();
/// combining.take_all(|client, request| taken.push((client, request)));
/// assert_eq!(taken, [(ClientId(7), Request::Unlock { id: 3 })]);
/// ```
///
/// # Panics
/// If `depth` is below two: the node last taken stays in the list, so its handler needs another.
pub fn list(handlers: u32, depth: u32) -> (Vec<Handler>, Combining) {
    assert!(depth >= 2, "a handler needs at least two slots");
    let slot = || Slot {
        next: AtomicU32::new(NONE),
        state: AtomicU32::new(FREE),
        words: [const { AtomicU64::new(0) }; WORDS],
    };
    let shared = Arc::new(Shared {
        slots: (0..=handlers * depth).map(|_| slot()).collect(),
        tail: Tail(AtomicU32::new(0)),
        gone: (0..handlers).map(|_| AtomicBool::new(false)).collect(),
        depth,
    });
    let handler = |number| Handler { shared: Arc::clone(&shared), number, turn: 0 };
    let all = (0..handlers).map(handler).collect();
    (all, Combining { shared, current: 0, broken_for: 0 })
}

impl Shared {
    fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }
}

impl Handler {
    /// Appends a request (Alg. 3, addRequest).
    ///
    /// # Errors
    /// If all of this handler's slots are in the queue; nothing was appended.
    #[inline]
    pub fn push(&mut self, client: ClientId, request: Request) -> Result<(), Full> {
        let me = self.enter(client, request)?;
        let prev = self.shared.tail.0.swap(me, AcqRel);
        self.shared.slot(prev).next.store(me, Release);
        self.shared.slot(me).state.store(LINKED, Release);
        Ok(())
    }

    /// Fills the next slot and says that it is about to be appended.
    #[inline]
    fn enter(&mut self, client: ClientId, request: Request) -> Result<u32, Full> {
        let me = 1 + self.number * self.shared.depth + self.turn;
        let slot = self.shared.slot(me);
        if slot.state.load(Acquire) != FREE {
            return Err(Full);
        }
        self.turn = if self.turn + 1 == self.shared.depth { 0 } else { self.turn + 1 };
        for (word, value) in slot.words.iter().zip(pack(client, request)) {
            word.store(value, Relaxed);
        }
        slot.next.store(NONE, Relaxed);
        slot.state.store(ENTERING, Relaxed);
        Ok(me)
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.shared.gone[self.number as usize].store(true, Release);
    }
}

impl Combining {
    /// Takes the request that waits longest, if there is one and the list is whole up to it.
    #[inline]
    pub fn take(&mut self) -> Option<(ClientId, Request)> {
        let mut next = self.shared.slot(self.current).next.load(Acquire);
        if next == NONE {
            next = self.look_again()?;
        }
        let packed: Packed = std::array::from_fn(|i| self.shared.slot(next).words[i].load(Relaxed));
        // Nobody will touch the node before this one again: its `next` is known. A slot's handler may not have said yet
        // that it is linked; freeing it under its hands would let that late word overwrite FREE.
        let before = self.shared.slot(self.current);
        if self.current != 0 {
            while before.state.load(Acquire) == ENTERING && !self.is_orphan(self.current) {
                std::hint::spin_loop();
            }
            before.state.store(FREE, Release);
        }
        self.current = next;
        Some(unpack(&packed))
    }

    /// Takes everything that waits, in order: one pass of the combiner. Says how many there were.
    #[inline]
    pub fn take_all(&mut self, mut serve: impl FnMut(ClientId, Request)) -> usize {
        let mut count = 0;
        // What is appended meanwhile can wait for the next pass, or the answers of this one would.
        let most = self.shared.slots.len();
        while count < most
            && let Some((client, request)) = self.take()
        {
            serve(client, request);
            count += 1;
        }
        count
    }

    /// Alg. 4 lines 16, 17, for a list that may be broken for good.
    #[cold]
    fn look_again(&mut self) -> Option<u32> {
        if self.shared.tail.0.load(Acquire) == self.current {
            self.broken_for = 0;
            return None;
        }
        self.broken_for += 1;
        if self.broken_for < PATIENCE {
            return None;
        }
        self.broken_for = 0;
        self.mend()
    }

    /// The list ends before its tail. If that is a dead handler's doing, links the nodes it left behind.
    ///
    /// Nobody living has this node as a predecessor: whoever has appended behind it was entering, and whoever appends
    /// from now on finds another tail. Of the dead, only those count that were certainly appended: they are the tail,
    /// or somebody linked himself to them. (Any other request of theirs is lost with them, as if it had never come.) If
    /// several left pieces behind, the one that ends in the tail comes last; the order of the others is not known.
    fn mend(&mut self) -> Option<u32> {
        let shared = &self.shared;
        let tail = shared.tail.0.load(Acquire);
        let entering = |index: &u32| shared.slot(*index).state.load(Acquire) == ENTERING;
        let all = || 1..shared.slots.len() as u32;
        if all().filter(entering).any(|index| !self.is_orphan(index)) {
            return None;
        }
        let next = shared.slot(self.current).next.load(Acquire);
        if next != NONE {
            return Some(next);
        }
        let appended = |index: &u32| *index == tail || shared.slot(*index).next.load(Acquire) != NONE;
        let ends_in_tail = |index: u32| {
            let mut at = index;
            while at != NONE && at != tail {
                at = shared.slot(at).next.load(Acquire);
            }
            at == tail
        };
        let in_the_list = |index: &u32| shared.slot(*index).state.load(Acquire) != FREE;
        let is_linked = |index: u32| {
            all().filter(in_the_list).any(|other| shared.slot(other).next.load(Acquire) == index)
        };
        let left_behind = all()
            .filter(entering)
            .filter(|index| *index != self.current && !is_linked(*index))
            .filter(appended)
            .min_by_key(|index| ends_in_tail(*index))?;
        shared.slot(self.current).next.store(left_behind, Release);
        shared.slot(left_behind).state.store(LINKED, Release);
        Some(left_behind)
    }

    /// Whether the slot's handler is gone.
    fn is_orphan(&self, slot: u32) -> bool {
        self.shared.gone[((slot - 1) / self.shared.depth) as usize].load(Acquire)
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
