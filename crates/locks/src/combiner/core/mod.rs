//! The combiner's state machine (Alg. 4): requests in, grants out; no I/O, no time, no threads.
//!
//! Everything held or wanted stands in the interval tree. A request counts the conflicting ones that stand before it
//! (line 8) and is inserted behind them whether granted or not (line 9), which makes the queue: first come, first
//! served between conflicting requests, and no order between others. Whatever leaves the tree lowers the counts that
//! include it (line 15), and a request that comes to zero is granted then and there (the thesis's listing leaves that out, and
//! lowers the counts around the *unlock's* range, which has none).
//!
//! What waits is served in passes: `pass`. Held ranges can be cut, upgraded and downgraded: `change`. Semaphores count instead:
//! `permits`. Two states are equal if they answer alike from here on, whatever their memory looks like: `state`.
//!
//! ```
//! use lockwright_fabric::observe::Mode;
//! use lockwright_locks::combiner::core::*;
//!
//! let mut combiner: Core = Core::new(Limits::default());
//! let mut replies = Vec::new();
//! let lock = |id, start, end| Request::Lock { id, lock: 7, mode: Mode::Exclusive, start, end, wait: true };
//! let (a, b) = (ClientId(1), ClientId(2));
//! combiner.serve(&[(a, lock(0, 0, 10)), (b, lock(0, 5, 15)), (a, Request::Unlock { id: 0 })], &mut replies);
//! let grant = |client, token| Reply { client, id: 0, answer: Answer::Granted { token } };
//! assert_eq!(replies, [grant(a, 1), grant(b, 2)]);
//! ```

mod change;
mod pass;
mod permits;
mod request;
mod state;

pub use request::{Answer, ClientId, Limits, NAMES, Refusal, Reply, Request};
pub use state::{Holding, Status};

use super::records::{NIL, Record, Records, Slot, State};
use super::tree::IntervalTrees;
use super::wide::Wide;
use lockwright_fabric::observe::Mode;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

/// What a combiner goes by. The defaults are right; every other value is a mutant.
pub trait Rules: Clone + Debug + Eq + Hash + Send + 'static {
    /// In what requests stand.
    type Trees: IntervalTrees;
    /// A request that conflicts with one that waits stands behind it.
    const FIFO: bool = true;
    /// What leaves lowers the count of all requests that wait for it, not just of one.
    const LOWERS_ALL: bool = true;
    /// An upgrade keeps the shared lock until it is done.
    const UPGRADE_HOLDS: bool = true;
    /// What a client held ends with it.
    const FREES_DEAD_CLIENTS: bool = true;
    /// Permits are given out while there are any.
    const PERMITS_ARE_COUNTED: bool = true;
}

/// The rules that are shipped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shipped;

impl Rules for Shipped {
    type Trees = Wide;
}

/// The combiner's state.
#[derive(Clone, Debug)]
pub struct Core<R: Rules = Shipped> {
    /// Everything held or wanted, and where it stands.
    records: Records,
    trees: R::Trees,
    /// The tree of every lock that has ranges in it. Names have a tree of their own, always.
    by_lock: BTreeMap<u64, u32>,
    /// The lock asked for last, and its tree: often the next one too.
    last: (u64, u32),
    /// By tree: whose it is, and how many exclusive requests (held, waiting, or upgrades) it has.
    locks: Vec<(u64, u32)>,
    bare: Vec<u32>,
    /// By tree: the permits of those that are semaphores.
    permits: BTreeMap<u32, permits::Permits>,
    /// By client: its requests, by its own ids.
    sessions: Vec<Vec<Slot>>,
    /// The last token given.
    tokens: u64,
    arrivals: u64,
    limits: Limits,
    /// Room for what overlaps and for what is to be granted; empty between requests.
    found: Vec<Slot>,
    ready: Vec<Slot>,
    rules: PhantomData<R>,
}

/// The tree of all names.
const NAMES_TREE: u32 = 0;

/// How a request looks to clients that come after it: an upgrade that waits already keeps readers out.
#[inline(always)]
fn bars(request: &Record) -> Mode {
    if request.state == State::Upgrading { Mode::Exclusive } else { request.mode }
}

#[inline(always)]
fn conflict(a: Mode, b: Mode) -> bool {
    a == Mode::Exclusive || b == Mode::Exclusive
}

/// Whether `waiter`, which overlaps it, has `other` in its count. The one definition that everything else follows.
#[inline]
fn counts(waiter: &Record, other: &Record) -> bool {
    match waiter.state {
        State::Granted => false,
        State::Upgrading => other.state == State::Granted,
        State::Waiting => {
            conflict(waiter.mode, bars(other))
                && (other.state != State::Waiting || other.stamp < waiter.stamp)
        }
    }
}

/// What came of a request for a lock.
enum Taken {
    Now { token: u64 },
    Later,
    Not,
}

impl Taken {
    fn answer(self) -> Option<Answer> {
        match self {
            Self::Now { token } => Some(Answer::Granted { token }),
            Self::Later => None,
            Self::Not => Some(Answer::Busy),
        }
    }
}

/// Adds an answer, if there is one.
#[cold]
fn tell(replies: &mut Vec<Reply>, client: ClientId, id: u32, answer: Result<Option<Answer>, Refusal>) {
    let answer = answer.unwrap_or_else(|refusal| Some(Answer::Refused(refusal)));
    replies.extend(answer.map(|answer| Reply { client, id, answer }));
}

impl<R: Rules> Core<R> {
    /// Nothing held, nothing wanted.
    pub fn new(limits: Limits) -> Self {
        let mut trees = R::Trees::default();
        assert_eq!(trees.plant(), NAMES_TREE);
        Self {
            records: Records::default(),
            trees,
            by_lock: BTreeMap::new(),
            last: (NAMES, NAMES_TREE),
            locks: vec![(NAMES, 0)],
            bare: Vec::new(),
            permits: BTreeMap::new(),
            sessions: Vec::new(),
            tokens: 0,
            arrivals: 0,
            limits,
            found: Vec::new(),
            ready: Vec::new(),
            rules: PhantomData,
        }
    }

    /// Serves one request, wherever it comes from.
    #[inline(always)]
    fn serve_one(&mut self, client: ClientId, request: Request, replies: &mut Vec<Reply>) {
        let (id, answer) = match request {
            Request::Lock { id, lock, mode, start, end, wait } => {
                match self.lock(client, id, lock, mode, (start, end), wait) {
                    // The commonest answer, by itself: all of them in one place would go through memory, where it is written
                    // in parts and read as a whole, which has to wait.
                    Ok(Taken::Now { token }) => {
                        replies.push(Reply { client, id, answer: Answer::Granted { token } });
                        return;
                    }
                    Ok(Taken::Later) => return,
                    other => (id, other.map(Taken::answer)),
                }
            }
            Request::Permits { id, lock, weight, limit, wait } => {
                (id, self.acquire_permits(client, id, lock, (weight, limit), wait).map(Taken::answer))
            }
            Request::Unlock { id } => match self.unlock(client, id, replies) {
                Ok(()) => return,
                refused => (id, refused.map(|()| None)),
            },
            Request::UnlockPart { id, start, end, rest } => {
                (id, self.unlock_part(client, id, (start, end), rest, replies).map(|()| None))
            }
            Request::Upgrade { id, wait } => (id, self.upgrade(client, id, wait, replies).map(Taken::answer)),
            Request::Downgrade { id } => (id, self.downgrade(client, id, replies)),
            Request::Cancel { id } => (id, Ok(Some(self.cancel(client, id, replies)))),
            Request::Raise { token } => {
                self.tokens = self.tokens.max(token);
                return;
            }
        };
        tell(replies, client, id, answer);
    }

    /// The client is gone: everything it held or wanted goes with it, in one step.
    pub fn depart(&mut self, client: ClientId, replies: &mut Vec<Reply>) {
        let Some(session) = self.sessions.get_mut(client.0 as usize).filter(|_| R::FREES_DEAD_CLIENTS) else {
            return;
        };
        for slot in std::mem::take(session).into_iter().filter(|slot| *slot != NIL) {
            self.take_out_unnamed(slot);
        }
        // Its own requests may have waited for each other: no grants for the dead.
        let records = &self.records;
        self.ready.retain(|slot| records.get(*slot).client != client.0);
        self.grant_ready(replies);
    }

    /// Alg. 4 lines 8–11.
    #[inline(always)]
    fn lock(
        &mut self,
        client: ClientId,
        id: u32,
        lock: u64,
        mode: Mode,
        (start, end): (u64, u64),
        wait: bool,
    ) -> Result<Taken, Refusal> {
        if start >= end {
            return Err(Refusal::EmptyRange);
        }
        self.free_id(client, id)?;
        self.arrivals += 1;
        let tree = self.tree_of(lock);
        let record = Record { stamp: self.arrivals, ..Record::new(client.0, id, tree, mode) };
        let slot = self.records.add(record);
        let alone = self.trees.insert(&mut self.records, slot, start, end);
        let writers = &mut self.locks[tree as usize].1;
        let writers_before = *writers;
        *writers += u32::from(mode == Mode::Exclusive);
        let readers_only = mode == Mode::Shared && writers_before == 0;
        let blocking = if alone || readers_only {
            0
        } else if mode == Mode::Exclusive && !wait {
            // A request that only tries, and to be alone, need not know how many there are.
            1
        } else {
            self.count_blocking(slot, tree, mode, start, end)
        };
        self.sessions[client.0 as usize][id as usize] = slot;
        if blocking == 0 {
            return Ok(Taken::Now { token: self.grant(slot) });
        }
        if wait {
            self.request_mut(slot).blocking = blocking;
            return Ok(Taken::Later);
        }
        self.take_out(slot);
        Ok(Taken::Not)
    }

    /// Alg. 4 lines 13–15.
    #[inline(always)]
    fn unlock(&mut self, client: ClientId, id: u32, replies: &mut Vec<Reply>) -> Result<(), Refusal> {
        let named = self.sessions.get_mut(client.0 as usize).and_then(|slots| slots.get_mut(id as usize));
        let slot = named.filter(|slot| **slot != NIL).ok_or(Refusal::NotHeld)?;
        if self.records.get(*slot).state == State::Waiting {
            return Err(Refusal::StillWaiting);
        }
        let slot = std::mem::replace(slot, NIL);
        self.take_out_unnamed(slot);
        self.grant_ready(replies);
        Ok(())
    }

    fn cancel(&mut self, client: ClientId, id: u32, replies: &mut Vec<Reply>) -> Answer {
        if let Ok(slot) = self.held(client, id) {
            self.take_out(slot);
            self.grant_ready(replies);
        }
        Answer::Cancelled
    }

    /// CountBlockingRanges: what conflicts with the new request and stands before it, which is all that conflicts.
    fn count_blocking(&mut self, slot: Slot, tree: u32, mode: Mode, start: u64, end: u64) -> u32 {
        let mut found = std::mem::take(&mut self.found);
        self.trees.overlapping(tree, start, end, &mut found);
        found.retain(|other| *other != slot && conflict(mode, bars(self.request(*other))));
        if !R::FIFO && found.iter().all(|other| self.request(*other).state == State::Waiting) {
            // The mutant: with nobody but waiters before it, it goes first.
            for other in found.drain(..) {
                self.request_mut(other).blocking += 1;
                self.request_mut(slot).blocks = true;
            }
        }
        for other in &found {
            self.request_mut(*other).blocks = true;
        }
        let blocking = found.len() as u32;
        found.clear();
        self.found = found;
        blocking
    }

    /// Takes a request out of everything, and notes in `ready` who waits for nothing more.
    fn take_out(&mut self, slot: Slot) {
        let Record { client, id, .. } = *self.request(slot);
        self.sessions[client as usize][id as usize] = NIL;
        self.take_out_unnamed(slot);
    }

    /// The same for one that its client's table no longer names.
    #[inline(always)]
    fn take_out_unnamed(&mut self, slot: Slot) {
        // Field by field: they were written one by one, perhaps just now, and a copy of the whole would wait for that.
        let request = self.request(slot);
        let (tree, barred) = (request.tree, bars(request));
        // Only a waiter makes it matter where it was.
        let gone = request.blocks.then(|| (*request, self.range(slot)));
        let is_bare = self.trees.remove(&mut self.records, slot);
        self.records.give_back(slot);
        self.locks[tree as usize].1 -= u32::from(barred == Mode::Exclusive);
        if let Some((gone, (start, end))) = gone {
            if self.is_for_permits(&gone) {
                self.pass_permits_on(&gone, slot, start);
            } else {
                self.lower(&gone, start, end);
            }
        }
        if is_bare && tree != NAMES_TREE {
            self.permits.remove(&tree);
            self.by_lock.remove(&self.locks[tree as usize].0);
            self.bare.push(tree);
            self.last = (NAMES, NAMES_TREE);
        }
    }

    /// DecrementBlockingRanges: `gone`, which was `start..end`, no longer stands before any request.
    fn lower(&mut self, gone: &Record, start: u64, end: u64) {
        let mut found = std::mem::take(&mut self.found);
        self.trees.overlapping(gone.tree, start, end, &mut found);
        for slot in found.drain(..) {
            let waiter = self.request_mut(slot);
            if !counts(waiter, gone) {
                continue;
            }
            waiter.blocking -= 1;
            if waiter.blocking == 0 {
                self.ready.push(slot);
            }
            if !R::LOWERS_ALL {
                break;
            }
        }
        self.found = found;
    }

    /// Grants the requests that wait for nothing more, in the order in which they came.
    #[inline(always)]
    fn grant_ready(&mut self, replies: &mut Vec<Reply>) {
        if !self.ready.is_empty() {
            self.grant_all_ready(replies);
        }
    }

    #[inline(never)]
    fn grant_all_ready(&mut self, replies: &mut Vec<Reply>) {
        let mut ready = std::mem::take(&mut self.ready);
        // The pieces of what was once one range share a stamp.
        ready.sort_unstable_by_key(|slot| {
            let request = self.request(*slot);
            (request.state != State::Upgrading, request.stamp, request.id)
        });
        for slot in ready.drain(..) {
            let token = self.grant(slot);
            let Record { client, id, .. } = *self.request(slot);
            replies.push(Reply { client: ClientId(client), id, answer: Answer::Granted { token } });
        }
        self.ready = ready;
    }

    #[inline]
    fn grant(&mut self, slot: Slot) -> u64 {
        self.tokens += 1;
        let token = self.tokens;
        let request = self.request_mut(slot);
        request.mode = bars(request);
        (request.state, request.stamp) = (State::Granted, token);
        token
    }

    // ---- who and where ----

    #[inline(always)]
    fn request(&self, slot: Slot) -> &Record {
        self.records.get(slot)
    }

    #[inline(always)]
    fn request_mut(&mut self, slot: Slot) -> &mut Record {
        self.records.get_mut(slot)
    }

    #[inline(always)]
    fn range(&self, slot: Slot) -> (u64, u64) {
        self.trees.range(&self.records, slot)
    }

    /// Makes room for the client's `id`, which must be free.
    #[inline]
    fn free_id(&mut self, client: ClientId, id: u32) -> Result<(), Refusal> {
        match self.sessions.get(client.0 as usize).and_then(|slots| slots.get(id as usize)) {
            Some(&NIL) => Ok(()),
            Some(_) => Err(Refusal::IdInUse),
            None => self.grow_session(client, id),
        }
    }

    #[cold]
    fn grow_session(&mut self, client: ClientId, id: u32) -> Result<(), Refusal> {
        if client.0 >= self.limits.clients || id >= self.limits.ids {
            return Err(Refusal::TooLarge);
        }
        let client = client.0 as usize;
        if self.sessions.len() <= client {
            self.sessions.resize_with(client + 1, Vec::new);
        }
        let slots = &mut self.sessions[client];
        if slots.len() <= id as usize {
            slots.resize(id as usize + 1, NIL);
        }
        Ok(())
    }

    #[inline]
    fn held(&self, client: ClientId, id: u32) -> Result<Slot, Refusal> {
        match self.sessions.get(client.0 as usize).and_then(|slots| slots.get(id as usize)) {
            None | Some(&NIL) => Err(Refusal::NotHeld),
            Some(slot) => Ok(*slot),
        }
    }

    #[inline]
    fn known_tree(&self, lock: u64) -> Option<u32> {
        if lock == self.last.0 {
            return Some(self.last.1);
        }
        if lock == NAMES { Some(NAMES_TREE) } else { self.by_lock.get(&lock).copied() }
    }

    #[inline]
    fn tree_of(&mut self, lock: u64) -> u32 {
        if let Some(tree) = self.known_tree(lock) {
            if lock != self.last.0 {
                self.last = (lock, tree);
            }
            return tree;
        }
        let tree = self.bare.pop().unwrap_or_else(|| {
            self.locks.push((lock, 0));
            self.trees.plant()
        });
        self.locks[tree as usize] = (lock, 0);
        self.by_lock.insert(lock, tree);
        tree
    }
}

#[cfg(test)]
mod tests;
