//! What a combiner's state is, apart from where in memory it stands: who holds what, who waits, in which order.
//!
//! The explorer tells states apart by this, and people see it as the list of holders and waiters.

use super::{ClientId, Core, IntervalTrees, NIL, Record, Rules, Slot, State};
use lockwright_fabric::observe::Mode;
use std::hash::{Hash, Hasher};

/// One request, as lists show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holding {
    /// Whose.
    pub client: ClientId,
    /// The client's number for it.
    pub id: u32,
    /// Which lock.
    pub lock: u64,
    /// How; of an upgrade that waits, how it is held.
    pub mode: Mode,
    /// First unit.
    pub start: u64,
    /// One past the last unit.
    pub end: u64,
    /// The fencing token, if it is held.
    pub token: Option<u64>,
    /// How many requests it waits for: none if it is held, but for upgrades.
    pub waits_for: u32,
}

/// Where a client's request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The client has nothing of that number.
    Unknown,
    /// It waits, or its upgrade does.
    Waiting,
    /// It is held.
    Granted {
        /// The fencing token.
        token: u64,
    },
}

impl<R: Rules> Core<R> {
    /// The highest token that was given out, or [raised](super::Request::Raise) to.
    pub const fn last_token(&self) -> u64 {
        self.tokens
    }

    /// Where the client's request stands: what a poll asks for.
    pub fn status(&self, client: ClientId, id: u32) -> Status {
        let Ok(slot) = self.held(client, id) else { return Status::Unknown };
        let request = self.request(slot);
        if request.state == State::Granted {
            Status::Granted { token: request.stamp }
        } else {
            Status::Waiting
        }
    }

    /// Everything held, by client, and then everything that waits, in order of arrival.
    pub fn holdings(&self) -> Vec<Holding> {
        let mut slots = Vec::with_capacity(self.len());
        for tree in 0..self.locks.len() {
            self.trees.walk(tree as u32, &mut slots);
        }
        let (mut waiting, held): (Vec<_>, Vec<_>) =
            slots.into_iter().partition(|slot| self.request(*slot).state == State::Waiting);
        let mut all: Vec<_> = held.into_iter().map(|slot| self.holding(slot)).collect();
        all.sort_unstable();
        waiting.sort_unstable_by_key(|slot| self.request(*slot).stamp);
        all.extend(waiting.into_iter().map(|slot| self.holding(slot)));
        all
    }

    /// Requests held and waiting.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether nobody holds or wants anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many requests of `client` are held or wait.
    pub fn requests_of(&self, client: ClientId) -> usize {
        let slots = self.sessions.get(client.0 as usize).into_iter().flatten();
        slots.filter(|slot| **slot != NIL).count()
    }

    /// Bytes of memory taken.
    pub fn bytes(&self) -> usize {
        let sessions = self.sessions.iter().map(|session| session.capacity() * 4 + 24).sum::<usize>();
        self.records.bytes()
            + self.trees.bytes()
            + sessions
            + self.locks.capacity() * 16
            + self.by_lock.len() * 16
    }

    fn holding(&self, slot: Slot) -> Holding {
        let Record { client, id, tree, mode, state, stamp, blocking, .. } = *self.request(slot);
        let (start, end) = self.range(slot);
        Holding {
            client: ClientId(client),
            id,
            lock: self.locks[tree as usize].0,
            mode,
            start,
            end,
            token: (state != State::Waiting).then_some(stamp),
            waits_for: blocking,
        }
    }
}

impl<R: Rules> PartialEq for Core<R> {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens && self.holdings() == other.holdings()
    }
}

impl<R: Rules> Eq for Core<R> {}

impl<R: Rules> Hash for Core<R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.tokens.hash(state);
        self.holdings().hash(state);
    }
}
