//! Range locks that a server's CPUs keep, behind RPCs: the kind that Citron is compared with (§4.1, Table 1, type I).
//!
//! One server and one client for all of them; what differs is the [`Store`] in which the server keeps what is held:
//! a linked list ([`list`], LLC), an interval tree ([`interval`], IT), a B-tree in the maple tree's manner ([`maple`], MT).
//! The server answers at once. A client that is refused asks again: a server thread that waited for a range would
//! serve no other client meanwhile, not even the holder of that range.
//!
//! | message | words |
//! |---|---|
//! | Acquire, Release | first unit, one past the last |
//! | Reply | whether it was done |
//!
//! Every store says how many cache lines it fetched from other cores for a request, and whether the server's threads
//! may do so side by side, so that the simulator can charge for it. It is what makes these locks differ there.
//!
//! Exclusive ranges only: shared wants are served as exclusive ones. What a client holds ends with it.

pub mod interval;
pub mod list;
pub mod maple;

use crate::cas::out_of_patience;
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{BoxedRole, Endpoint, FabricError, Message, Needs, Outbox, PeerId, Role, Time};
use lockwright_locks::{Denied, Grant, Info, LockClient, Lost, Offers, Protocol, Reason, Space, Want};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

/// What is held of one lock.
pub trait Store: Clone + Debug + Default + Eq + Hash + Send + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// One line for lists.
    const SUMMARY: &'static str;
    /// Whether the server's threads use it one at a time.
    const ALONE: bool;

    /// Takes `start..end` if no client has any of it. Says whether, and what it cost.
    fn take(&mut self, start: u64, end: u64) -> (bool, Lines);

    /// Gives `start..end` back, which is held.
    fn give(&mut self, start: u64, end: u64) -> Lines;

    /// Whether nothing is held and nothing is left to be tidied up.
    fn is_bare(&self) -> bool;
}

/// Cache lines fetched from other cores.
pub type Lines = u64;

/// A range lock at a server, kept in `S`.
#[derive(Debug)]
pub struct Served<S>(PhantomData<S>);

/// Tunables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedParams {
    /// Pause after a refusal; none, as in ShiftLock's RPC lock and the combiner thesis's interval tree.
    pub retry_ns: u64,
}

const ACQUIRE: u32 = 1;
const RELEASE: u32 = 2;
const REPLY: u32 = 3;

impl<S: Store> Protocol for Served<S> {
    type Params = ServedParams;
    type Client<E: Endpoint> = ServedClient<E>;

    const INFO: Info = Info {
        name: S::NAME,
        summary: S::SUMMARY,
        source: "Citron §4.1, Table 1",
        offers: Offers { ranges: true, tries: true, timeouts: true, recovery: true, ..Offers::NONE },
    };

    fn needs(_: &ServedParams) -> Needs {
        Needs { messages: true, ..Needs::default() }
    }

    fn bytes_per_node(_: &Space, _: &ServedParams) -> u64 {
        0
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &ServedParams) -> ServedClient<E> {
        ServedClient { ep, space: *space, params: *params }
    }

    fn roles(space: &Space, _: &ServedParams) -> Vec<BoxedRole> {
        (0..space.nodes).map(|_| BoxedRole::new(Server::<S>::default())).collect()
    }

    fn message_name(kind: u32) -> &'static str {
        ["message", "Acquire", "Release", "Reply"].get(kind as usize).copied().unwrap_or("message")
    }
}

/// The server: what is held of which lock, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server<S> {
    stores: BTreeMap<u64, S>,
    /// By lock and first unit.
    holders: BTreeMap<(u64, u64), (u64, PeerId)>,
}

impl<S: Store> Server<S> {
    fn acquire(&mut self, lock: u64, (start, end): (u64, u64), from: PeerId) -> (bool, Lines) {
        if start >= end {
            return (false, 0);
        }
        let (taken, lines) = self.stores.entry(lock).or_default().take(start, end);
        if taken {
            self.holders.insert((lock, start), (end, from));
        }
        (taken, lines)
    }

    /// A foreign release changes nothing.
    fn release(&mut self, lock: u64, (start, end): (u64, u64), from: PeerId) -> (bool, Lines) {
        if self.holders.get(&(lock, start)) != Some(&(end, from)) {
            return (false, 0);
        }
        self.holders.remove(&(lock, start));
        let Some(store) = self.stores.get_mut(&lock) else { return (false, 0) };
        let lines = store.give(start, end);
        if store.is_bare() {
            self.stores.remove(&lock);
        }
        (true, lines)
    }

    fn depart(&mut self, who: PeerId) {
        let theirs = self.holders.iter().filter(|(_, (_, holder))| *holder == who);
        let theirs: Vec<_> = theirs.map(|((lock, start), (end, _))| (*lock, *start, *end)).collect();
        for (lock, start, end) in theirs {
            self.release(lock, (start, end), who);
        }
    }
}

impl<S: Store> Role for Server<S> {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        let (lock, range) = (message.lock, (message.words[0], message.words[1]));
        let (done, lines) = match message.kind {
            ACQUIRE => self.acquire(lock, range, from),
            RELEASE => self.release(lock, range, from),
            Message::DEPARTED => return self.depart(from),
            _ => (false, 0),
        };
        if S::ALONE {
            // The lock around the store is a line, too.
            out.touch_alone(lines + 1);
        } else {
            out.touch(lines);
        }
        out.send(from, Message::new(lock, REPLY, &[u64::from(done), range.0]));
    }

    fn wants_departures(&self) -> bool {
        true
    }
}

/// A range that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedGrant {
    lock: u64,
    start: u64,
    end: u64,
}

impl Grant for ServedGrant {}

/// A client of a range lock at a server.
#[derive(Clone, Debug)]
pub struct ServedClient<E> {
    ep: E,
    space: Space,
    params: ServedParams,
}

impl<E: Endpoint> LockClient for ServedClient<E> {
    type Grant = ServedGrant;

    async fn acquire(&self, want: Want) -> Result<ServedGrant, Denied> {
        let grant = self.units(&want).map_err(Denied::BadRequest)?;
        while !self.call(grant, ACQUIRE).await? {
            self.ep.mark("served retry", &[grant.lock, grant.start]);
            out_of_patience(&self.ep, want).await?;
            self.ep.sleep(self.params.retry_ns).await;
            self.ep.observe(Observation::Retried(want.claim));
        }
        Ok(grant)
    }

    async fn release(&self, grant: ServedGrant) -> Result<(), Lost> {
        if self.call(grant, RELEASE).await? { Ok(()) } else { Err(Lost::Recovered) }
    }
}

impl<E: Endpoint> ServedClient<E> {
    async fn call(&self, range: ServedGrant, kind: u32) -> Result<bool, FabricError> {
        let ServedGrant { lock, start, end } = range;
        let server = PeerId::role(self.space.node_of(lock).0 as usize);
        self.ep.send(server, Message::new(lock, kind, &[start, end])).await?;
        let is_reply = |_, message: &Message| {
            let mine = message.lock == lock && message.kind == REPLY && message.words[1] == start;
            mine.then(|| message.words[0] == 1)
        };
        Ok(self.ep.recv(is_reply).await)
    }

    fn units(&self, want: &Want) -> Result<ServedGrant, &'static Reason> {
        let (claim, units) = (want.claim, self.space.units);
        if claim.lock >= self.space.locks {
            return Err(&Reason("there is no such lock in this space"));
        }
        let whole = (claim.start, claim.end) == (0, u64::MAX);
        let (start, end) = if whole { (0, units) } else { (claim.start, claim.end) };
        if start >= end {
            return Err(&Reason("the range is empty or reversed"));
        }
        if end > units {
            return Err(&Reason("the range ends past the last unit of the lock"));
        }
        Ok(ServedGrant { lock: claim.lock, start, end })
    }
}

#[cfg(test)]
mod tests {
    use super::interval::Interval;
    use super::list::List;
    use super::maple::Maple;
    use super::*;
    use lockwright_fabric::random::SplitMix;

    /// Thousands of random takes and gives, each answer held against a plain map's.
    fn agrees_with_a_map<S: Store>() {
        let (mut store, mut random) = (S::default(), SplitMix::new(7));
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        for step in 0..20_000 {
            if random.below(100) < 55 {
                let start = random.below(4_000);
                let end = start + 1 + random.below(if step % 10 == 0 { 500 } else { 12 });
                let free = held.range(..end).next_back().is_none_or(|(_, other)| *other <= start);
                assert_eq!(store.take(start, end).0, free, "{} at step {step}", S::NAME);
                if free {
                    held.insert(start, end);
                }
            } else if !held.is_empty() {
                let (start, end) = held.iter().nth(random.below(held.len() as u64) as usize).unwrap();
                let (start, end) = (*start, *end);
                store.give(start, end);
                held.remove(&start);
            }
        }
        for (start, end) in held {
            store.give(start, end);
        }
        // The list is tidied up by a client that walks by.
        assert!(store.take(0, u64::MAX).0, "{}", S::NAME);
    }

    #[test]
    fn every_store_agrees_with_a_plain_map() {
        agrees_with_a_map::<List>();
        agrees_with_a_map::<Interval>();
        agrees_with_a_map::<Maple>();
    }

    #[test]
    fn a_foreign_release_changes_nothing() {
        let mut server = Server::<List>::default();
        let (mine, other) = (PeerId::client(0), PeerId::client(1));
        assert!(server.acquire(0, (2, 5), mine).0);
        assert!(!server.release(0, (2, 5), other).0);
        assert!(!server.acquire(0, (4, 6), other).0);
        server.depart(mine);
        assert!(server.acquire(0, (4, 6), other).0);
    }
}
