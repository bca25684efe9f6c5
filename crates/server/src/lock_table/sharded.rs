//! A lock table that is one shard of a cluster: what has to be in etcd before something happens waits here until it is.
//!
//! | what | waits until |
//! |---|---|
//! | the first lock or claim of a session, and what it says behind that | the session is registered |
//! | the end of a session that was lost | it is out of the registry: then its locks go to others |
//! | a lock that is to be broken | it is written down that its grant is over |
//! | a request about a value | it is written down what the value becomes |
//!
//! The node takes these out (`Sharded::work`), writes them to etcd, and says so ([`LockTable::written`]). Nothing here waits for
//! it. While the server is not certain of its lease the [gate](Gate) is shut, and nothing at all is applied.

use super::LockTable;
use super::shard_values::ValueWork;
use crate::directory::SpaceNumber;
use crate::session::{Session, Space};
use lockwright::LockName;
use lockwright::wire::{Kind, Request, Response};
use lockwright_cluster::Shard;
use lockwright_cluster::keys::SessionKey;
use lockwright_cluster::txn::{Op, Txn};
use lockwright_fabric::backend::since_boot;
use lockwright_fabric::backend::tcp::SessionEnd;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A client that has not probed for so long may be dead: they do several times a second.
const SILENT: Duration = Duration::from_secs(3);

/// Until when a server is certain of its lease, in nanoseconds by its own clock, as all its threads see it.
#[derive(Debug, Default)]
pub(crate) struct LeaseClock {
    until: AtomicU64,
}

impl LeaseClock {
    /// The time since the machine was started. It goes on while the machine is suspended, as etcd's does.
    pub(crate) fn now(&self) -> Duration {
        since_boot()
    }

    /// It is certain for `left` from `now` on, or not at all.
    pub(crate) fn set(&self, now: Duration, left: Option<Duration>) {
        let until = left.map_or(0, |left| u64::try_from((now + left).as_nanos()).unwrap_or(u64::MAX));
        self.until.store(until, SeqCst);
    }

    pub(crate) fn left(&self) -> Option<Duration> {
        let until = Duration::from_nanos(self.until.load(SeqCst));
        until.checked_sub(self.now()).filter(|left| !left.is_zero())
    }
}

impl Session {
    /// Whether it neither holds nor waits for anything.
    fn is_idle(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Whether its client may be dead.
    fn is_silent(&self, now: Instant) -> bool {
        self.probed.is_none_or(|at| now.saturating_duration_since(at) >= SILENT)
    }
}

/// Whether requests to a shard are applied.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) lease: Arc<LeaseClock>,
    /// The shard is about to be another server's.
    pub(crate) frozen: AtomicBool,
}

impl Gate {
    pub(crate) fn is_shut(&self) -> bool {
        self.frozen.load(SeqCst) || self.lease.left().is_none()
    }
}

/// A session that is to be registered.
#[derive(Clone, Debug, Default)]
struct Unregistered {
    /// The session of the same client that it goes on from.
    before: Option<SessionKey>,
    /// What it said that has to wait.
    waiting: Vec<Request>,
}

/// Something that must be in etcd before it happens. Sessions are named by number and [serial](crate::session::Session::serial).
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Register {
        peer: (u32, u64),
        key: SessionKey,
        before: Option<SessionKey>,
    },
    /// Its locks go to others.
    Evict {
        peer: (u32, u64),
        keys: Vec<SessionKey>,
    },
    /// It ended in order.
    Forget(SessionKey),
    Break {
        by: Breaker,
        grants: Vec<(u64, SessionKey)>,
    },
    Value(ValueWork),
    Reserve,
}

/// Who takes a lock away.
#[derive(Clone, Debug)]
pub(crate) enum Breaker {
    /// A session, by this request.
    Session { peer: (u32, u64), request: Request },
    /// The page, which hears whether there was such a grant.
    Page { space: SpaceNumber, name: LockName, token: u64, tell: UnboundedSender<bool> },
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Sharded {
    pub(crate) shard: Shard,
    pub(crate) gate: Arc<Gate>,
    /// Rung when there is something to write.
    pub(crate) bell: Arc<Notify>,
    unregistered: BTreeMap<u32, Unregistered>,
    to_write: Vec<Work>,
}

impl Sharded {
    pub(crate) fn new(shard: Shard, gate: Arc<Gate>, bell: Arc<Notify>) -> Self {
        Self { shard, gate, bell, unregistered: BTreeMap::new(), to_write: Vec::new() }
    }

    pub(super) fn ask_for(&mut self, work: Work) {
        self.to_write.push(work);
        self.bell.notify_one();
    }
}

impl LockTable {
    /// What a server of a cluster says that has no locks itself.
    fn sift_front(&mut self, peer: u32, request: Request) -> Option<Request> {
        match request {
            Request::Open { .. } => self.say(peer, &Response::Elsewhere),
            Request::Map { .. } | Request::Hand { .. } => return Some(request),
            // Said with the space, and of no use before it is found.
            _ => {}
        }
        None
    }

    /// The request, if it can be applied now; else it is kept until what it needs is in etcd.
    pub(super) fn sift(&mut self, peer: u32, request: Request) -> Option<Request> {
        if self.sharded.is_none() {
            return self.sift_front(peer, request);
        }
        if let Request::Break { token, ref name, .. } = request {
            let space = self.session(peer).and_then(|session| session.space.clone());
            let grants = match space {
                Some(Space::Own(space)) => self.grants_to_break(space, name, token),
                _ => Vec::new(),
            };
            if !grants.is_empty() {
                let peer = (peer, self.session(peer)?.serial);
                let by = Breaker::Session { peer, request };
                self.sharded.as_mut()?.ask_for(Work::Break { by, grants });
                return None;
            }
        }
        let request = self.sift_value(peer, request)?;
        let session = self.sessions.get(peer as usize)?.as_ref()?;
        if session.registered || matches!(request, Request::Probe { .. }) {
            return Some(request);
        }
        let (serial, key) = (session.serial, session.key);
        let sharded = self.sharded.as_mut()?;
        let (before, needs) = match request {
            Request::Claim { key, .. } => (Some(key), true),
            Request::Lock { .. } | Request::LockSet { .. } => (None, true),
            // It goes on from a session that is registered, and takes its place when there is time.
            Request::Claimed { key } => (Some(key), false),
            _ => (None, false),
        };
        let is_known = before.is_some_and(|before| sharded.shard.knows(before));
        if needs || is_known {
            let is_new = !sharded.unregistered.contains_key(&peer);
            let entry = sharded.unregistered.entry(peer).or_default();
            entry.before = entry.before.or(before);
            let before = entry.before;
            if is_new {
                sharded.ask_for(Work::Register { peer: (peer, serial), key, before });
            }
        }
        match sharded.unregistered.get_mut(&peer) {
            Some(entry) if needs || !entry.waiting.is_empty() => {
                entry.waiting.push(request);
                None
            }
            _ => Some(request),
        }
    }

    /// Whether the end of a session has to wait until it is out of the registry.
    pub(super) fn postpones_departure(&mut self, peer: u32, how: SessionEnd) -> bool {
        let Some(session) = self.sessions.get(peer as usize).and_then(Option::as_ref) else { return false };
        let Some(sharded) = &mut self.sharded else { return false };
        let left = sharded.unregistered.remove(&peer);
        if !session.registered {
            // A client that said it holds nothing no longer needs its last session's entry.
            let before = left.filter(|left| left.waiting.is_empty()).and_then(|left| left.before);
            if let Some(before) = before {
                sharded.ask_for(Work::Forget(before));
            }
            return false;
        }
        let key = session.key;
        if how == SessionEnd::Goodbye {
            sharded.ask_for(Work::Forget(key));
            return false;
        }
        let peer = (peer, session.serial);
        let keys = std::iter::once(key).chain(session.claimed.iter().copied()).collect();
        sharded.ask_for(Work::Evict { peer, keys });
        true
    }

    /// The grants that are to be broken: their tokens, and whose they are.
    fn grants_to_break(&mut self, space: SpaceNumber, name: &LockName, token: u64) -> Vec<(u64, SessionKey)> {
        let mut grants = Vec::new();
        for kind in [Kind::Keyed, Kind::Ranges, Kind::Semaphores] {
            let Some(lock) = self.directory.open(space, kind, name.clone()) else { continue };
            let holders = self.holders(lock).filter(|(_, request, _)| request.is_held_with(token));
            let key = |peer: u32| self.sessions.get(peer as usize)?.as_ref().map(|session| session.key);
            let tokens = holders.flat_map(|(peer, request, held)| {
                [Some(held), request.before].map(|token| token.zip(key(peer)))
            });
            grants.extend(tokens.flatten());
            self.directory.close(lock);
        }
        grants
    }

    /// Takes a lock of a shard away, as the page is asked to. Whether there was such a grant comes once that is in etcd; `None`: there
    /// is none here.
    pub(crate) fn break_for_page(
        &mut self,
        space: SpaceNumber,
        name: &LockName,
        token: u64,
    ) -> Option<UnboundedReceiver<bool>> {
        let grants = self.grants_to_break(space, name, token);
        let sharded = self.sharded.as_mut().filter(|_| !grants.is_empty())?;
        let (tell, told) = unbounded_channel();
        let by = Breaker::Page { space, name: name.clone(), token, tell };
        sharded.ask_for(Work::Break { by, grants });
        Some(told)
    }

    /// For how long this server is certain that it owns the shard.
    pub(super) fn probe(&mut self, peer: u32, sent: u64) {
        let left = self.sharded.as_ref().and_then(|sharded| sharded.gate.lease.left()).unwrap_or_default();
        let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        let now = self.now;
        if let Some(session) = self.session(peer) {
            session.probed = Some(now);
        }
        self.say(peer, &Response::Certain { sent, left });
    }

    /// Whether every client that holds something or waits for it was heard from lately. The server that takes the shard over would
    /// have to wait for the others.
    pub(crate) fn are_all_clients_here(&self, now: Instant) -> bool {
        let Some(sharded) = &self.sharded else { return true };
        let is_here = |session: &&Session| session.is_idle() || !session.is_silent(now);
        let here = self.registered_sessions().filter(is_here).filter(|s| sharded.shard.is_registered(s.key));
        here.count() == sharded.shard.sessions()
    }

    /// The registered sessions that neither hold nor wait for anything: silent ones first.
    pub(crate) fn idle_sessions(&self) -> Vec<SessionKey> {
        let mut idle: Vec<_> = self.registered_sessions().filter(|session| session.is_idle()).collect();
        idle.sort_by_key(|session| session.probed);
        idle.iter().map(|session| session.key).collect()
    }

    fn registered_sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter().flatten().filter(|session| session.registered)
    }

    /// The map of the cluster, as it is sent.
    pub(super) fn list_map(&mut self, _: u32) -> Result<Vec<u8>, String> {
        let map = self.map.as_ref().ok_or("this server is none of a cluster")?;
        Ok(map.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone().into_bytes())
    }

    /// Claims under `key` are over. Says whether nobody is awaited any more.
    pub(super) fn has_claimed(&mut self, key: u128) -> bool {
        match &mut self.sharded {
            Some(sharded) => sharded.shard.has_claimed(key),
            None => self.durable.has_claimed(key),
        }
    }

    /// Whether a claim can be that of the lock's holder.
    pub(super) fn accepts(&self, epoch: u64, key: u128, token: u64) -> bool {
        match &self.sharded {
            Some(sharded) => sharded.shard.accepts(key, token),
            None => self.durable.accepts(epoch, key, token),
        }
    }

    /// What is to be written now, at most so much, and the transactions that write it. Sessions do not leave the registry
    /// while claims are waited for.
    pub(crate) fn work(&mut self, most: usize) -> Vec<(Work, Txn)> {
        let used = self.durable.used_tokens();
        let Some(sharded) = &mut self.sharded else { return Vec::new() };
        let is_recovering = sharded.shard.is_recovering();
        // etcd takes no key twice in one transaction, and what becomes of a value is decided once it is known what it is.
        let mut values = BTreeSet::new();
        let is_ready = |work: &mut Work| match work {
            Work::Value(work) => values.insert(work.key.clone()) && !is_recovering,
            Work::Register { .. } | Work::Break { .. } => true,
            _ => !is_recovering,
        };
        let ready: Vec<_> = sharded.to_write.extract_if(.., is_ready).take(most).collect();
        let shard = &mut sharded.shard;
        let mut written = Vec::new();
        for mut work in ready {
            let txn = match &mut work {
                Work::Register { peer: (peer, _), key, before } => {
                    let known = sharded.unregistered.get(peer).and_then(|entry| entry.before);
                    Some(shard.register(*key, known.or(*before)))
                }
                Work::Evict { keys, .. } => Some(shard.evict(keys).unwrap_or_default()),
                Work::Forget(key) => shard.evict(&[*key]),
                Work::Break { grants, .. } => {
                    let txns = grants.iter().map(|(token, key)| shard.break_grant(*token, *key));
                    txns.reduce(|mut all, txn| {
                        all.then.extend(txn.then);
                        all
                    })
                }
                Work::Value(work) => Some(work.txn(&self.durable, shard)),
                Work::Reserve => None,
            };
            let registers = match work {
                Work::Register { peer, key, before } => {
                    let known = sharded.unregistered.get(&peer.0).and_then(|entry| entry.before);
                    Work::Register { peer, key, before: known.or(before) }
                }
                work => work,
            };
            written.extend(txn.map(|txn| (registers, txn)));
        }
        written.extend(used.and_then(|next| shard.reserve(next)).map(|txn| (Work::Reserve, txn)));
        written
    }

    /// It could not be written, and has to be again, before all else: of several the last is said first.
    pub(crate) fn unwritten(&mut self, work: Work) {
        let Some(sharded) = &mut self.sharded else { return };
        match work {
            Work::Reserve => sharded.shard.reserved(false),
            work => sharded.to_write.insert(0, work),
        }
    }

    /// It is in etcd.
    pub(crate) fn written(&mut self, work: Work) {
        let Some(sharded) = &mut self.sharded else { return };
        match work {
            Work::Register { peer: (peer, serial), key, before } => {
                sharded.shard.registered(key, before);
                self.registered((peer, serial), key);
            }
            Work::Evict { peer: (peer, serial), keys } => {
                sharded.shard.evicted(&keys);
                if sharded.shard.waits_until().is_some() {
                    self.forget_absent();
                }
                if self.session(peer).is_some_and(|session| session.serial == serial) {
                    self.depart(peer, SessionEnd::Lost);
                }
            }
            Work::Forget(key) => {
                sharded.shard.evicted(&[key]);
                if sharded.shard.waits_until().is_some() {
                    self.forget_absent();
                }
            }
            Work::Break { by: Breaker::Session { peer: (peer, serial), request }, grants } => {
                grants.into_iter().for_each(|(token, key)| sharded.shard.broke(token, key));
                if self.session(peer).is_some_and(|session| session.serial == serial) {
                    self.handle_rare(peer, request);
                }
            }
            Work::Break { by: Breaker::Page { space, name, token, tell }, grants } => {
                grants.into_iter().for_each(|(token, key)| sharded.shard.broke(token, key));
                self.decide();
                let broken = self.break_own(space, &name, token) == Ok(true);
                self.decide();
                self.totals.broken += u64::from(broken);
                // A page that has given up does not hear of it.
                let _ = tell.send(broken);
            }
            Work::Value(work) => self.value_written(work),
            Work::Reserve => {
                sharded.shard.reserved(true);
                self.durable.reserve(sharded.shard.tokens_below());
            }
        }
    }

    /// The session is in the registry: what waited for that is applied.
    fn registered(&mut self, (peer, serial): (u32, u64), key: SessionKey) {
        let Some(session) = self.session(peer).filter(|session| session.serial == serial) else {
            // It was over before.
            if let Some(sharded) = &mut self.sharded {
                sharded.ask_for(Work::Forget(key));
            }
            return;
        };
        session.registered = true;
        let waiting = self.sharded.as_mut().and_then(|sharded| sharded.unregistered.remove(&peer));
        for request in waiting.into_iter().flat_map(|entry| entry.waiting) {
            self.handle(peer, request);
        }
        self.decide();
        self.ack(peer);
    }

    /// Claims have been waited for long enough: the transaction that takes the sessions out of the registry that did not claim.
    /// A registered session that is here has said what it holds.
    pub(crate) fn end_wait(&mut self) -> Option<Txn> {
        let sharded = self.sharded.as_ref()?;
        let now = sharded.gate.lease.now();
        let is_over = sharded.shard.waits_until().is_some_and(|until| now >= until);
        if !is_over || !sharded.unregistered.is_empty() {
            return None;
        }
        let here = self.sessions.iter().enumerate().filter_map(|(peer, session)| {
            let session = session.as_ref().filter(|session| session.registered && !session.absent)?;
            Some((peer as u32, session.key))
        });
        for (peer, key) in here.collect::<Vec<_>>() {
            self.all_claimed(peer, key);
        }
        self.sharded.as_mut()?.shard.wait_over(now)
    }

    /// They are out of it.
    pub(crate) fn wait_ended(&mut self) {
        if let Some(sharded) = &mut self.sharded {
            sharded.shard.evicted_all();
        }
        self.open();
        self.forget_absent();
    }
}

/// The most operations that etcd executes in one transaction, unless told otherwise, are 128.
const MAX_OPS: usize = 100;

/// The same in pieces that etcd takes. Each compares what all of it would have.
pub(crate) fn in_pieces(txn: &Txn) -> impl Iterator<Item = Txn> {
    txn.then.chunks(MAX_OPS).map(|then: &[Op]| Txn { when: txn.when.clone(), then: then.to_vec() })
}
