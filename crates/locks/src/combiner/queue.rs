//! The list between handlers and the combiner (thesis Alg. 3 and 4), for threads: any number of handlers append, one
//! combiner takes everything that waits.
//!
//! To append is one atomic exchange of `tail` and one store into the predecessor's `next`. Between the two the list is
//! broken: the combiner then waits for `next`, and nobody else waits for anything. A node carries as many requests as its
//! handler had at hand (the thesis: one), so that exchange, link and cache misses are shared. Nodes come from a fixed
//! table, each handler's in a ring, and refer to each other by number: no allocation, no `unsafe`, and a handler whose
//! nodes are all in the list has to wait, so the list is bounded.
//!
//! **A handler that dies between the two** must not stop the server. From before the exchange until after the link it
//! says which node is on its way (`Seat::entering`). When the combiner finds the list broken, no living handler is
//! entering and a dead one was, it mends the list there itself (`Combining::mend`).
//!
//! | shared word | written by | meaning |
//! |---|---|---|
//! | `tail` | handlers | the node appended last |
//! | `next` of a node | its handler (none), then the handler that appends behind it | the node behind it |
//! | `words`, `len` of a node | its handler, before it appends | the requests; how many words they are, and whose |
//! | `entering` | handler | one more than the number of the node that is about to be appended and linked; 0: none |
//! | `taken` | combiner | how many of the handler's nodes it has left behind: these can be used again |
//!
//! What it must not do: know what a request means.

use super::core::{ClientId, Request};
pub use super::packed::Carried;
use super::sync::Arc;
use super::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use super::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use lockwright_fabric::backend::prefetch;
use std::marker::PhantomData;

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// Looks at a broken list before the combiner asks whether somebody died there.
pub(super) const PATIENCE: u32 = 1_000;

/// So many nodes further ahead does the combiner fetch, while it finds one node after the other.
const AHEAD: u32 = 4;

/// Words in a node: eight cache lines with the header, which is fifteen locks and their unlocks.
const WORDS: usize = 63;

/// A node of the list.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    pub(super) next: AtomicU32,
    /// How many words are filled (bits 0–7), and by which handler (8–31): nobody has to divide.
    len: AtomicU32,
    words: [AtomicU64; WORDS],
}

impl Node {
    /// Starts to bring it into this core's cache.
    #[inline(always)]
    fn fetch(&self) {
        prefetch(&self.next);
        for word in self.words.iter().skip(7).step_by(8) {
            prefetch(word);
        }
    }
}

/// What a handler says of itself, away from what others write (two lines: CPUs fetch them in pairs).
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Seat {
    pub(super) entering: AtomicU64,
    gone: AtomicBool,
}

/// A word on a line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

#[derive(Debug)]
pub(super) struct Shared {
    /// The first is the list's first node, which carries no request; then every handler's in turn.
    nodes: Box<[Node]>,
    /// The one word that all handlers write.
    pub(super) tail: Apart<AtomicU32>,
    pub(super) seats: Box<[Seat]>,
    taken: Box<[Apart<AtomicU64>]>,
    depth: u32,
}

/// A handler's end of the list.
///
/// What is staged and not flushed when a handler is dropped never was in the list.
#[derive(Debug)]
pub struct Handler<T = Request> {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u32,
    /// Nodes appended so far; also the number of the one that is being filled.
    appended: u64,
    /// Where that one is.
    filling: u32,
    /// Its own knowledge of `taken`, which may be old: the word itself is only looked at when this says there is no room.
    taken: u64,
    /// Words in the node that is being filled.
    filled: usize,
    carries: PhantomData<T>,
}

/// The combiner's end of the list.
#[derive(Debug)]
pub struct Combining<T = Request> {
    shared: Arc<Shared>,
    /// The node last taken: it stays in the list until its successor is known.
    current: u32,
    /// Whose that is; the list's first node is nobody's.
    owner: Option<usize>,
    /// Its next request, and where its requests end.
    at: usize,
    len: usize,
    broken_for: u32,
    pub(super) patience: u32,
    carries: PhantomData<T>,
}

/// The handler's nodes are all in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all nodes of this handler are in the list")]
pub struct Full;

/// A list for so many handlers, each of which can have `depth` nodes in it at a time.
///
/// ```
/// use lockwright_locks::combiner::core::{ClientId, Request};
/// use lockwright_locks::combiner::queue;
///
/// let (mut handlers, mut combining) = queue::list(2, 4);
/// handlers[1].push(ClientId(7), Request::Unlock { id: 3 }).unwrap();
/// // All that came in together goes into the list together.
/// for id in 4..6 {
///     handlers[0].stage(ClientId(8), Request::Unlock { id }).unwrap();
/// }
/// handlers[0].flush();
/// let mut batch = Vec::new();
/// combining.take_all(100, &mut batch);
/// assert_eq!(batch.iter().map(|(client, _)| client.0).collect::<Vec<_>>(), [7, 8, 8]);
/// ```
///
/// # Panics
/// If `depth` is below two: the node last taken stays in the list, so its handler needs another. If there are more than 2^24
/// handlers.
pub fn list<T: Carried>(handlers: u32, depth: u32) -> (Vec<Handler<T>>, Combining<T>) {
    const { assert!(T::MOST_WORDS <= WORDS, "every request fits into a node") };
    assert!(depth >= 2, "a handler needs at least two nodes");
    assert!(handlers < 1 << 24, "a node has no room for the number of such a handler");
    let node = || Node {
        next: AtomicU32::new(NONE),
        len: AtomicU32::new(0),
        words: std::array::from_fn(|_| AtomicU64::new(0)),
    };
    let shared = Arc::new(Shared {
        nodes: (0..=handlers * depth).map(|_| node()).collect(),
        tail: Apart(AtomicU32::new(0)),
        seats: (0..handlers)
            .map(|_| Seat { entering: AtomicU64::new(0), gone: AtomicBool::new(false) })
            .collect(),
        taken: (0..handlers).map(|_| Apart(AtomicU64::new(0))).collect(),
        depth,
    });
    let carries = PhantomData;
    let handler = |number| Handler {
        filling: shared.place(number, 0),
        shared: Arc::clone(&shared),
        number,
        appended: 0,
        taken: 0,
        filled: 0,
        carries,
    };
    let all = (0..handlers).map(handler).collect();
    (
        all,
        Combining {
            shared,
            current: 0,
            owner: None,
            at: 0,
            len: 0,
            broken_for: 0,
            patience: PATIENCE,
            carries,
        },
    )
}

impl Shared {
    #[inline(always)]
    pub(super) fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// Where the handler's node of that number is.
    fn place(&self, handler: u32, number: u64) -> u32 {
        1 + handler * self.depth + (number % u64::from(self.depth)) as u32
    }

    /// Starts to fetch what is likely to follow `behind` in some steps, if that is `owner`'s: a node later in its ring. Where the
    /// nodes in between lead is not known yet, and when it is, it is too late: a node is taken in less time than it
    /// travels from core to core.
    #[inline(always)]
    fn fetch_further(&self, owner: u32, behind: u32) {
        let last = (owner + 1) * self.depth;
        if behind <= last && behind + self.depth > last {
            self.node(self.further(owner, behind, AHEAD.min(self.depth))).fetch();
        }
    }

    /// The node so many steps further in its owner's ring, which are not more than there are nodes.
    #[inline(always)]
    fn further(&self, owner: u32, index: u32, steps: u32) -> u32 {
        let (ahead, last) = (index + steps, (owner + 1) * self.depth);
        if ahead > last { ahead - self.depth } else { ahead }
    }

    fn next_of(&self, index: u32) -> Option<u32> {
        Some(self.node(index).next.load(Acquire)).filter(|next| *next != NONE)
    }

    /// The nodes behind `first`, as far as they are linked.
    fn behind(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.next_of(first), |at| self.next_of(*at)).take(self.nodes.len())
    }
}

impl<T: Carried> Handler<T> {
    /// Appends one request (Alg. 3, addRequest), behind what is staged.
    ///
    /// # Errors
    /// If all of this handler's nodes are in the list; nothing was appended.
    #[inline]
    pub fn push(&mut self, client: ClientId, request: T) -> Result<(), Full> {
        self.stage(client, request)?;
        self.flush();
        Ok(())
    }

    /// Puts a request into the node that is being filled. It is in the list after the next [`flush`](Self::flush), which
    /// happens by itself when the node is full.
    ///
    /// # Errors
    /// If all of this handler's nodes are in the list; this request was not staged, what was staged before is in the list.
    #[inline]
    pub fn stage(&mut self, client: ClientId, request: T) -> Result<(), Full> {
        if self.filled + T::MOST_WORDS > WORDS {
            self.flush();
        }
        if self.filled == 0 && !self.has_room() {
            return Err(Full);
        }
        let node = self.shared.node(self.filling);
        let from = self.filled;
        self.filled += request.pack(client, |place, word| node.words[from + place].store(word, Relaxed));
        Ok(())
    }

    /// Appends what is staged.
    #[inline]
    pub fn flush(&mut self) {
        if self.filled == 0 {
            return;
        }
        let me = self.enter();
        let before = self.shared.tail.0.swap(me, AcqRel);
        self.shared.node(before).next.store(me, Release);
        self.shared.seats[self.number as usize].entering.store(0, Release);
    }

    /// Finishes the node that is being filled and says that it is about to be appended.
    #[inline]
    pub(super) fn enter(&mut self) -> u32 {
        let me = self.filling;
        let node = self.shared.node(me);
        node.len.store(self.number << 8 | self.filled as u32, Relaxed);
        node.next.store(NONE, Relaxed);
        (self.appended, self.filled) = (self.appended + 1, 0);
        // Round and round: its nodes lie one after the other.
        self.filling = self.shared.further(self.number, me, 1);
        // Seen by a handler that sees the exchange that follows.
        self.shared.seats[self.number as usize].entering.store(self.appended, Relaxed);
        me
    }

    /// Whether the node to be filled next is not in the list any more.
    #[inline]
    fn has_room(&mut self) -> bool {
        let depth = u64::from(self.shared.depth);
        if self.appended - self.taken < depth {
            return true;
        }
        self.taken = self.shared.taken[self.number as usize].0.load(Acquire);
        self.appended - self.taken < depth
    }
}

impl<T> Drop for Handler<T> {
    fn drop(&mut self) {
        self.shared.seats[self.number as usize].gone.store(true, Release);
    }
}

impl<T: Carried> Combining<T> {
    /// Takes the request that waits longest, if there is one and the list is whole up to it.
    #[inline]
    pub fn take(&mut self) -> Option<(ClientId, T)> {
        if self.at == self.len {
            self.advance()?;
        }
        Some(self.unpack())
    }

    /// The next request of the current node, which has one.
    #[inline(always)]
    fn unpack(&mut self) -> (ClientId, T) {
        let node = self.shared.node(self.current);
        let (client, request, words) = T::unpack(|place| node.words[self.at + place].load(Relaxed));
        self.at += words;
        (client, request)
    }

    /// Takes everything that waits, in order, but not more than `most`, and adds it to `batch`: one pass of the combiner.
    /// What is appended meanwhile can wait for the next, or the answers of this one would.
    #[inline]
    pub fn take_all(&mut self, most: usize, batch: &mut Vec<(ClientId, T)>) {
        for _ in 0..most {
            if self.at == self.len && self.advance().is_none() {
                return;
            }
            batch.push(self.unpack());
        }
    }

    /// Whether nothing waits: all that was appended was taken.
    pub fn is_empty(&self) -> bool {
        self.at == self.len && self.shared.tail.0.load(Acquire) == self.current
    }

    /// Goes on to the node behind the current one, which has been taken from to its end.
    #[inline]
    fn advance(&mut self) -> Option<()> {
        let next = match self.shared.next_of(self.current) {
            Some(next) => next,
            None => self.look_again()?,
        };
        // Nobody will touch the node before this one again: its `next` is known.
        if let Some(owner) = self.owner {
            let taken = &self.shared.taken[owner].0;
            taken.store(taken.load(Relaxed) + 1, Release);
        }
        self.current = next;
        let node = self.shared.node(next);
        let len = node.len.load(Relaxed);
        (self.at, self.len, self.owner) = (0, (len & 0xff) as usize, Some((len >> 8) as usize));
        // What comes behind was written by another core: it can be on its way here while this node is served.
        let behind = node.next.load(Relaxed);
        if behind != NONE {
            self.shared.node(behind).fetch();
            self.shared.fetch_further(len >> 8, behind);
        }
        Some(())
    }

    /// Alg. 4 lines 16, 17, for a list that may be broken for good.
    #[cold]
    fn look_again(&mut self) -> Option<u32> {
        if self.shared.tail.0.load(Acquire) == self.current {
            self.broken_for = 0;
            return None;
        }
        self.broken_for += 1;
        if self.broken_for < self.patience {
            return None;
        }
        self.broken_for = 0;
        self.mend()
    }

    /// The list ends before its tail. If that is a dead handler's doing, links the nodes it left behind.
    ///
    /// Nobody living has this node as a predecessor: a handler that has appended behind it was entering, and a handler that appends
    /// from now on finds another tail. Of the dead, only those count that were certainly appended: they are the tail,
    /// or somebody linked himself to them. (Any other request of theirs is lost with them, as if it had never come.) If
    /// several left pieces behind, the one that ends in the tail comes last; the order of the others is not known.
    fn mend(&mut self) -> Option<u32> {
        let shared = &*self.shared;
        let tail = shared.tail.0.load(Acquire);
        let mut dead = Vec::new();
        for (number, seat) in shared.seats.iter().enumerate() {
            // Whether it is gone first: what the living say may be over by the time they go.
            let gone = seat.gone.load(Acquire);
            let entering = seat.entering.load(Acquire);
            if entering == 0 {
                continue;
            }
            if !gone {
                return None;
            }
            // It may have linked itself before it died, and may have been taken since.
            let index = shared.place(number as u32, entering - 1);
            if entering > shared.taken[number].0.load(Relaxed) && index != self.current {
                dead.push(index);
            }
        }
        if let Some(next) = shared.next_of(self.current) {
            return Some(next);
        }
        let was_appended = |index: &u32| *index == tail || shared.next_of(*index).is_some();
        dead.retain(was_appended);
        let is_linked = |index: u32| dead.iter().any(|other| shared.behind(*other).any(|at| at == index));
        let ends_in_tail = |index: u32| index == tail || shared.behind(index).any(|at| at == tail);
        let left_behind = dead
            .iter()
            .copied()
            .filter(|index| !is_linked(*index))
            .min_by_key(|index| ends_in_tail(*index))?;
        shared.node(self.current).next.store(left_behind, Release);
        Some(left_behind)
    }
}
