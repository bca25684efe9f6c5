//! A server: its lease, its shard, and a table of one lock.

use super::client::{Answer, Ask};
use super::etcd::{Etcd, keys};
use super::handed::Table;
use super::model::{BLOCK, DRIFT, TICK, TTL, WAIT};
use lockwright_cluster::keys::ServerId;
use lockwright_cluster::plan;
use lockwright_cluster::shard::{Shard, Taker, Taking};
use lockwright_cluster::txn::{Outcome, Revision, Txn};
use lockwright_cluster::{Ownership, Rules};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Runs,
    Paused,
    Dead,
}

/// What a transaction on its way is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    Take(Taking),
    Register { key: u128, before: Option<u128> },
    EvictAll,
    Evict(u128),
    Break { key: u128, token: u64 },
    HandOver { to: ServerId },
}

/// A transaction on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) purpose: Purpose,
    txn: Txn,
    pub(super) outcome: Option<Outcome>,
}

/// A session at its server; what it said waits there until it is registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Session {
    client: usize,
    waiting: Vec<Ask>,
    before: Option<u128>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) life: Life,
    pub(super) clock: Duration,
    /// Its number and when its key was made, as long as it has a lease as far as it knows.
    pub(super) id: Option<(ServerId, Revision)>,
    pub(super) ownership: Ownership,
    /// When a renewal was sent that is not answered, and whether there was something to renew.
    pub(super) renewal: Option<(Duration, bool)>,
    pub(super) request: Option<Request>,
    pub(super) shard: Option<Shard>,
    pub(super) holder: Option<(u128, u64)>,
    pub(super) queue: Vec<u128>,
    next_token: u64,
    sessions: BTreeMap<u128, Session>,
    /// What it says, and to which session.
    pub(super) said: Vec<(usize, u128, Answer)>,
    /// What it tells the server that it has handed the shard to.
    pub(super) hands: Option<Table>,
    /// It renews its lease in time, whenever time passes.
    pub(super) is_prompt: bool,
    /// It does not reach etcd.
    pub(super) is_cut: bool,
    pub(super) rules: Rules,
}

impl Server {
    pub(super) fn new(rules: Rules, is_prompt: bool) -> Self {
        Self {
            is_prompt,
            is_cut: false,
            life: Life::Runs,
            clock: Duration::ZERO,
            id: None,
            ownership: Ownership::default(),
            renewal: None,
            request: None,
            shard: None,
            holder: None,
            queue: Vec::new(),
            next_token: 0,
            sessions: BTreeMap::new(),
            said: Vec::new(),
            hands: None,
            rules,
        }
    }

    pub(super) fn is_certain(&self) -> bool {
        self.ownership.left(self.clock).is_some()
    }

    pub(super) fn join(&mut self, id: ServerId, made: Revision) {
        self.id = Some((id, made));
        self.renewed(self.clock);
    }

    /// A renewal that was sent at `sent` has succeeded.
    pub(super) fn renewed(&mut self, sent: Duration) {
        // Without a margin, and what is rounded up for it.
        let (sent, drift) = if self.rules.no_margin { (sent + TICK, u32::MAX) } else { (sent, DRIFT) };
        self.ownership.renewed_within(sent, TTL, drift);
    }

    /// The answer to a renewal has come.
    pub(super) fn hear_renewal(&mut self) {
        let Some((sent, renewed)) = self.renewal.take() else { return };
        if renewed {
            self.renewed(if self.rules.counts_from_answer { self.clock } else { sent });
        } else {
            self.ownership.end();
            self.id = None;
            self.close();
        }
    }

    fn taker(&self) -> Option<Taker> {
        let (server, made) = self.id?;
        Some(Taker { keys: keys(), server, made, block: BLOCK, first_token: 1, ttl: TTL, rules: self.rules })
    }

    /// The takeover of the shard, if it is to be taken: by this server, or by the first to try if maps of different age were
    /// `read`.
    pub(super) fn take(&self, etcd: &Etcd, read: bool) -> Option<(Purpose, Txn)> {
        let (map, (me, _)) = (etcd.map(), self.id?);
        let is_mine = plan::takes(map, me).contains(&0) || read && map.state(0).owner.is_none();
        let (taking, txn) = is_mine.then(|| self.taker())??.take(0, &map.state(0));
        Some((Purpose::Take(taking), txn))
    }

    pub(super) fn adopt(&self, etcd: &Etcd) -> Option<(Purpose, Txn)> {
        let (taking, txn) = self.taker()?.adopt(0, &etcd.map().state(0))?;
        Some((Purpose::Take(taking), txn))
    }

    pub(super) fn send(&mut self, (purpose, txn): (Purpose, Txn)) {
        self.request = Some(Request { purpose, txn, outcome: None });
    }

    /// etcd executes what was sent, whatever has become of the server.
    pub(super) fn execute(&mut self, me: usize, etcd: &mut Etcd) {
        let request = self.request.as_mut().expect("it was listed");
        request.outcome = Some(etcd.apply(me, &request.txn));
    }

    /// What came of it.
    pub(super) fn hear_outcome(&mut self, etcd: &Etcd) {
        let Some(Request { purpose, outcome: Some(outcome), .. }) = self.request.take() else { return };
        let (purpose, revision) = match (purpose, outcome) {
            (purpose, Outcome::Done(revision)) => (purpose, revision),
            (purpose, Outcome::Refused) => {
                // Another server has the shard, and this one sees that and closes it; or there was no server to hand it to.
                let shard = self.shard.as_mut().filter(|shard| shard.is_still(&etcd.map().state(0)));
                if let (Purpose::HandOver { .. }, Some(shard)) = (purpose, shard) {
                    shard.thaw();
                    self.grant();
                }
                return;
            }
        };
        match purpose {
            Purpose::Take(taking) => {
                if self.id.is_none() {
                    return;
                }
                let shard = taking.taken(revision, etcd.sessions(), etcd.broken(), self.clock, WAIT);
                self.next_token = shard.next_token();
                self.shard = Some(shard);
            }
            Purpose::Register { key, before } => {
                if let Some(shard) = &mut self.shard {
                    shard.registered(key, before);
                }
                self.serve_waiting(key);
            }
            Purpose::EvictAll => {
                if let Some(shard) = &mut self.shard {
                    shard.evicted_all();
                }
                self.forget_evicted();
                self.grant();
            }
            Purpose::Evict(key) => {
                if let Some(shard) = &mut self.shard {
                    shard.evicted(&[key]);
                }
                self.forget(key);
            }
            Purpose::Break { key, token } => {
                if let Some(shard) = &mut self.shard {
                    shard.broke(token, key);
                }
                if self.holder.take_if(|holder| *holder == (key, token)).is_some() {
                    self.say(key, Answer::Lost);
                    self.grant();
                }
            }
            Purpose::HandOver { to } => {
                self.hand_table(to);
                self.close();
            }
        }
    }

    /// The shard is another's.
    pub(super) fn close(&mut self) {
        (self.shard, self.holder) = (None, None);
        self.queue.clear();
        self.sessions.clear();
    }

    /// Hands the frozen shard over.
    pub(super) fn hand_over(&mut self, to: ServerId) {
        let idle: Vec<_> = self.sessions.keys().copied().filter(|key| !self.is_in_the_way(*key)).collect();
        if let Some(shard) = &self.shard {
            let txn = shard.hand_over(to, &idle, 0);
            self.send((Purpose::HandOver { to }, txn));
        }
    }

    /// The grant that could be broken now.
    pub(super) fn breakable(&self) -> Option<(u128, u64)> {
        self.holder.filter(|_| self.shard.as_ref().is_some_and(|shard| !shard.is_recovering()))
    }

    /// An operator breaks the grant.
    pub(super) fn break_grant(&mut self) {
        if let (Some((key, token)), Some(shard)) = (self.holder, &self.shard) {
            let txn = shard.break_grant(token, key);
            self.send((Purpose::Break { key, token }, txn));
        }
    }

    /// Evicts a session.
    pub(super) fn evict(&mut self, key: u128) {
        match self.shard.as_ref().and_then(|shard| shard.evict(&[key])) {
            Some(txn) => self.send((Purpose::Evict(key), txn)),
            None => self.forget(key),
        }
    }

    fn forget(&mut self, key: u128) {
        self.sessions.remove(&key);
        self.unlock(key);
    }

    pub(super) fn has_session(&self, key: u128) -> bool {
        self.sessions.contains_key(&key)
    }

    /// Whether a session holds the lock, or waits for it.
    pub(super) fn is_in_the_way(&self, key: u128) -> bool {
        self.holder.is_some_and(|(holder, _)| holder == key) || self.queue.contains(&key)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = (u128, usize)> {
        self.sessions.iter().map(|(key, session)| (*key, session.client))
    }

    pub(super) fn admit(&mut self, key: u128, client: usize) {
        self.sessions.insert(key, Session { client, ..Session::default() });
    }

    /// A session that waits to be registered.
    pub(super) fn unregistered(&self) -> Option<(u128, Option<u128>)> {
        let waits = self.sessions.iter().find(|(_, session)| !session.waiting.is_empty());
        waits.map(|(key, session)| (*key, session.before))
    }

    pub(super) fn register(&mut self) {
        if self.request.is_some() {
            return;
        }
        if let (Some((key, before)), Some(shard)) = (self.unregistered(), &self.shard) {
            let txn = shard.register(key, before);
            self.send((Purpose::Register { key, before }, txn));
        }
    }

    fn serve_waiting(&mut self, key: u128) {
        let waiting = self.sessions.get_mut(&key).map(|session| std::mem::take(&mut session.waiting));
        for ask in waiting.into_iter().flatten() {
            self.serve(key, ask);
        }
    }

    /// A message of a session.
    pub(super) fn hear(&mut self, key: u128, ask: Ask) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let is_registered = self.shard.as_ref().is_some_and(|shard| shard.is_registered(key));
        let needs = matches!(ask, Ask::Claim { .. } | Ask::Lock) && !is_registered;
        if let Ask::Claim { before, .. } | Ask::Claimed { before } = ask {
            session.before.get_or_insert(before);
        }
        // What is certain now is certain now, in whatever order it is said.
        let is_probe = matches!(ask, Ask::Probe { .. });
        if needs || !session.waiting.is_empty() && !is_probe {
            session.waiting.push(ask);
        } else {
            self.serve(key, ask);
        }
    }

    pub(super) fn say(&mut self, key: u128, answer: Answer) {
        if let Some(session) = self.sessions.get(&key) {
            self.said.push((session.client, key, answer));
        }
    }

    fn serve(&mut self, key: u128, ask: Ask) {
        match ask {
            Ask::Probe { sent } => {
                let left = self.ownership.left(self.clock);
                let left = if self.rules.answers_uncertain { left.or(Some(TTL)) } else { left };
                self.say(key, Answer::Certain { sent, left: left.unwrap_or_default() });
            }
            Ask::Claim { before, token } => self.claim(key, before, token),
            Ask::Claimed { before } => {
                self.has_claimed(before);
                // It may have had a session since that nobody heard of.
                self.has_claimed(key);
                self.settle(key);
            }
            Ask::Lock => {
                self.queue.push(key);
                self.grant();
            }
            Ask::Unlock => self.unlock(key),
        }
    }

    fn has_claimed(&mut self, key: u128) {
        if self.shard.as_mut().is_some_and(|shard| shard.has_claimed(key)) {
            self.grant();
        }
    }

    /// Claims have been waited for long enough. A registered session that is here has said what it holds.
    pub(super) fn end_wait(&mut self) {
        let is_registered = |key: &u128| self.shard.as_ref().is_some_and(|shard| shard.is_registered(*key));
        let here: Vec<_> = self.sessions.keys().copied().filter(is_registered).collect();
        for key in here {
            self.has_claimed(key);
            self.settle(key);
        }
        let now = self.clock;
        if let Some(txn) = self.shard.as_mut().and_then(|shard| shard.wait_over(now)) {
            self.send((Purpose::EvictAll, txn));
        }
    }

    fn claim(&mut self, key: u128, before: u128, token: u64) {
        let is_heard = self.shard.as_ref().is_some_and(|shard| shard.accepts(before, token));
        if is_heard && self.shard.as_ref().is_some_and(|shard| !shard.is_recovering()) {
            return self.attach(key, before, token);
        }
        let has_rival = self.holder.is_some_and(|(_, other)| other > token);
        if !is_heard || has_rival {
            return self.say(key, Answer::Lost);
        }
        if let Some((rival, _)) = self.holder.replace((key, token)) {
            self.say(rival, Answer::Lost);
        }
        self.say(key, Answer::Granted { token });
    }

    fn unlock(&mut self, key: u128) {
        self.queue.retain(|waiting| *waiting != key);
        self.holder.take_if(|(holder, _)| *holder == key);
        self.grant();
    }

    pub(super) fn grant(&mut self) {
        let (None, Some(&key), Some(shard)) = (self.holder, self.queue.first(), &self.shard) else { return };
        if shard.may_grant(key, self.next_token) {
            self.queue.remove(0);
            let token = self.next_token;
            self.holder = Some((key, token));
            self.next_token += 1;
            self.say(key, Answer::Granted { token });
        }
    }

    /// As it looks when times are counted from now.
    pub(super) fn hash_into<H: Hasher>(&self, state: &mut H) {
        (
            self.life,
            self.is_prompt,
            self.is_cut,
            self.id,
            self.ownership.counted_from(self.clock),
            &self.request,
        )
            .hash(state);
        self.renewal.map(|(sent, renewed)| (self.clock.saturating_sub(sent).min(TTL), renewed)).hash(state);
        self.shard.as_ref().map(|shard| shard.counted_from(self.clock)).hash(state);
        (self.holder, &self.queue, self.next_token, &self.hands).hash(state);
        for (key, session) in &self.sessions {
            (key, session).hash(state);
        }
    }
}
