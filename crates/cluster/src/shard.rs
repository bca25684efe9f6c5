//! One shard at the server that owns it: taken over from another, waiting for claims, open.
//!
//! | phase | grants | claims | ends |
//! |---|---|---|---|
//! | recovering | none | heard | every session in the registry has claimed; or the wait is over; or the last owner's table has [come](handover) |
//! | open | to registered sessions, below the reserved tokens | of what the last owner's table has, as long as they are awaited | the owner changes |
//! | evicting | as before it | refused | those who did not claim are out of the registry |
//! | frozen | none | refused | the shard is another server's; or it stays, if that failed |
//!
//! Every transaction compares the revision in which this server became the owner. So a server that was paused and has lost
//! the shard meanwhile changes nothing.
//!
//! A session is in the registry before its first grant, and out of it before its locks go to others against its will. So the
//! server that takes over knows which sessions to wait for, and which not to believe.

pub mod handover;

use crate::keys::{BrokenGrants, Keys, Owner, Registered, ServerId, SessionKey, ShardState};
use crate::txn::{Compare, Op, Revision, Txn};
use std::collections::BTreeSet;
use std::time::Duration;

/// How many keys of idle sessions go with the transaction that hands a shard over. etcd takes 128 operations at once.
const MOST_IDLE: usize = 100;

/// Where a broken one differs from what is shipped: all `false`, none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    /// A server's certainty has no margin for clocks of different rates.
    pub no_margin: bool,
    /// A server's certainty counts from when the answer to its renewal came.
    pub counts_from_answer: bool,
    /// A new owner grants before claims are over.
    pub opens_early: bool,
    /// A new owner begins with the tokens that the old one had reserved.
    pub tokens_unreserved: bool,
    /// Transactions do not compare who the owner is.
    pub owner_uncompared: bool,
    /// Claims of sessions that are not in the registry are accepted.
    pub dead_sessions_claim: bool,
    /// A session's first grant does not wait until it is registered.
    pub grants_unregistered: bool,
    /// A server that is not certain answers probes as if it were.
    pub answers_uncertain: bool,
    /// A client believes every grant.
    pub believes_all: bool,
    /// A new owner does not wait for what an earlier one has promised before it handed the shard over.
    pub promise_forgotten: bool,
    /// A new owner gives the tokens that the old one had reserved, though it hears claims as it should.
    pub tokens_reused: bool,
    /// A new owner refuses all claims.
    pub claims_refused: bool,
    /// A new owner does not ask which grants were broken.
    pub broken_unread: bool,
    /// A server that hands a shard over takes everybody out of the registry, holders too.
    pub holders_forgotten: bool,
    /// A server writes down what it hands over, and goes on granting.
    pub table_early: bool,
    /// A table is heard, whichever owner it is for.
    pub table_of_any_epoch: bool,
    /// A table is heard though claims were, too.
    pub table_over_claims: bool,
    /// A table is heard by a shard that is open.
    pub table_when_open: bool,
    /// A shard is opened by a table, and nobody holds what it says.
    pub table_unread: bool,
    /// Who holds something by a table, and is silent, is waited for without end.
    pub silent_for_ever: bool,
}

/// A shard that is about to be taken, if the transaction succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taking {
    keys: Keys,
    number: u16,
    owner: Owner,
    /// When the owner was written, if that is not this transaction.
    changed: Option<Revision>,
    tokens: (u64, u64),
    block: u64,
    /// How long clients may believe what an earlier owner said, though it is none any more.
    promised: Duration,
    rules: Rules,
}

/// What a server knows when it looks for shards to take.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taker {
    /// The keys of the cluster.
    pub keys: Keys,
    /// The server, and when its own key was made: under a lease that must not be over.
    pub server: ServerId,
    /// See `server`.
    pub made: Revision,
    /// Tokens reserved at a time.
    pub block: u64,
    /// No token is lower than this.
    pub first_token: u64,
    /// The longest that a server can be certain of its lease, and say so to clients.
    pub ttl: Duration,
    /// Where it is broken.
    pub rules: Rules,
}

impl Taker {
    /// Takes a shard whose owner's lease is over, or that never had one.
    pub fn take(&self, number: u16, seen: &ShardState) -> (Taking, Txn) {
        let epoch = seen.owner.map_or(0, |owner| owner.epoch) + 1;
        let owner = Owner { epoch, server: self.server };
        let taking = self.taking(number, seen, owner, None);
        let mut txn = taking.reserving(seen);
        if !self.rules.owner_uncompared {
            txn.when.push(Compare::Changed(self.keys.shard(number), seen.owner_changed));
        }
        txn.when.push(Compare::Made(self.keys.server(self.server), self.made));
        if let Some(old) = seen.owner {
            txn.when.push(Compare::Made(self.keys.server(old.server), 0));
        }
        txn.then.push(Op::Put(self.keys.shard(number), owner.text()));
        txn.then.push(Op::Delete(self.keys.serving(number)));
        (taking, txn)
    }

    /// Goes on with a shard that the last owner has handed to this server. `None`: it has not.
    pub fn adopt(&self, number: u16, seen: &ShardState) -> Option<(Taking, Txn)> {
        let owner = seen.owner.filter(|owner| owner.server == self.server)?;
        let taking = self.taking(number, seen, owner, Some(seen.owner_changed));
        let mut txn = taking.reserving(seen);
        txn.when.push(Compare::Changed(self.keys.shard(number), seen.owner_changed));
        txn.when.push(Compare::Made(self.keys.server(self.server), self.made));
        Some((taking, txn))
    }

    fn taking(&self, number: u16, seen: &ShardState, owner: Owner, changed: Option<Revision>) -> Taking {
        let first = match self.rules.tokens_unreserved {
            true => seen.tokens_below.saturating_sub(self.block),
            false => seen.tokens_below,
        };
        let first = first.max(self.first_token);
        let (keys, block, rules) = (self.keys.clone(), self.block, self.rules);
        // An owner whose lease is over has promised nothing beyond that, but one that has handed the shard over may have.
        let promised =
            if seen.may_be_handed() && !rules.promise_forgotten { self.ttl } else { Duration::ZERO };
        Taking { keys, number, owner, changed, tokens: (first, first + block), block, promised, rules }
    }
}

impl Taking {
    /// Which shard.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// The next block of tokens.
    fn reserving(&self, seen: &ShardState) -> Txn {
        let key = self.keys.tokens(self.number);
        let when = match self.rules.owner_uncompared {
            true => Vec::new(),
            false => vec![Compare::Changed(key.clone(), seen.tokens_changed)],
        };
        Txn { when, then: vec![Op::Put(key, self.tokens.1.to_string())] }
    }

    /// The transaction was done in `revision`, and this was in the registry and among broken grants *after* that. Registered
    /// sessions are waited for, but not for longer than `wait` from `now` on.
    pub fn taken(
        self,
        revision: Revision,
        sessions: impl IntoIterator<Item = Registered>,
        broken: BrokenGrants,
        now: Duration,
        wait: Duration,
    ) -> Shard {
        let Self { keys, number, owner, changed, tokens, block, promised, rules } = self;
        let registry: Vec<_> = sessions.into_iter().map(|session| Entry { session, awaited: true }).collect();
        let is_open = registry.is_empty() || rules.opens_early;
        let until = now + promised + wait;
        let phase = if is_open { Phase::OPEN } else { Phase::Recovering { until, heard: false } };
        let changed = changed.unwrap_or(revision);
        let (first_token, tokens_below) = tokens;
        let reserving = None;
        let broken = if rules.broken_unread { BrokenGrants::new() } else { broken };
        Shard {
            keys,
            number,
            owner,
            changed,
            first_token,
            tokens_below,
            reserving,
            block,
            broken,
            registry,
            phase,
            rules,
        }
    }
}

/// A registered session, and whether its claims are waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    session: Registered,
    awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// `heard`: of a session that goes on here.
    Recovering { until: Duration, heard: bool },
    /// `open`: it was, and is.
    Evicting { open: bool },
    /// `until`: so long are those awaited who hold or want something by the last owner's table.
    Open { until: Option<Duration> },
    /// It was open.
    Frozen { until: Option<Duration> },
}

impl Phase {
    /// Nobody is awaited.
    const OPEN: Self = Self::Open { until: None };
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    keys: Keys,
    number: u16,
    owner: Owner,
    changed: Revision,
    first_token: u64,
    tokens_below: u64,
    /// What they will be below, once etcd has said so.
    reserving: Option<u64>,
    block: u64,
    broken: BrokenGrants,
    registry: Vec<Entry>,
    phase: Phase,
    rules: Rules,
}

impl Shard {
    /// Its number.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// The epoch of this owner.
    pub const fn epoch(&self) -> u64 {
        self.owner.epoch
    }

    /// All tokens that earlier owners have given are below this.
    pub const fn first_token(&self) -> u64 {
        self.first_token
    }

    /// The token of its first grant.
    pub const fn next_token(&self) -> u64 {
        if self.rules.tokens_reused { self.first_token.saturating_sub(self.block) } else { self.first_token }
    }

    /// No token of this or above is given.
    pub const fn tokens_below(&self) -> u64 {
        self.tokens_below
    }

    /// Whether the session, or one that goes on from it, is in the registry.
    pub fn knows(&self, key: SessionKey) -> bool {
        self.registry.iter().any(|entry| entry.session.was(key))
    }

    /// Whether nothing is granted before claims are over, or those who did not claim are evicted.
    pub const fn is_recovering(&self) -> bool {
        matches!(self.phase, Phase::Recovering { .. } | Phase::Evicting { open: false })
    }

    /// How many sessions are in the registry.
    pub const fn sessions(&self) -> usize {
        self.registry.len()
    }

    /// How many sessions are waited for.
    pub fn awaited(&self) -> usize {
        self.registry.iter().filter(|entry| entry.awaited).count()
    }

    /// Whether this is still who owns it, by what was read.
    pub fn is_still(&self, seen: &ShardState) -> bool {
        seen.owner == Some(self.owner)
    }

    /// What it is compared with in every transaction.
    fn owned(&self, then: Vec<Op>) -> Txn {
        let when = match self.rules.owner_uncompared {
            true => Vec::new(),
            false => vec![Compare::Changed(self.keys.shard(self.number), self.changed)],
        };
        Txn { when, then }
    }

    /// Says where it is served, and whether it is open.
    pub fn announce(&self, at: &str) -> Txn {
        let state = if self.is_recovering() { "recovering" } else { "open" };
        let text = format!("epoch {} at {at} {state}", self.owner.epoch);
        self.owned(vec![Op::PutLeased(self.keys.serving(self.number), text)])
    }

    /// Whether a lock that was granted in the session `key`, with this token, can still be its client's.
    pub fn accepts(&self, key: SessionKey, token: u64) -> bool {
        let is_known = |awaited: bool| {
            self.registry.iter().any(|entry| (entry.awaited || !awaited) && entry.session.was(key))
        };
        let is_heard = match self.phase {
            Phase::Recovering { .. } => self.rules.dead_sessions_claim || is_known(false),
            Phase::Open { until: Some(_) } => is_known(true),
            _ => false,
        };
        is_heard
            && !self.rules.claims_refused
            && token < self.first_token
            && !self.broken.contains_key(&token)
    }

    /// The client that had the session `key` has claimed all that it holds. Says whether the shard is open by that.
    pub fn has_claimed(&mut self, key: SessionKey) -> bool {
        for entry in self.registry.iter_mut().filter(|entry| entry.session.was(key)) {
            entry.awaited = false;
        }
        self.was_heard();
        let is_last = self.awaited() == 0;
        match self.phase {
            Phase::Recovering { .. } | Phase::Open { .. } if is_last => {
                !matches!(std::mem::replace(&mut self.phase, Phase::OPEN), Phase::Open { .. })
            }
            _ => false,
        }
    }

    /// From now on what clients say counts, and no table.
    const fn was_heard(&mut self) {
        if let Phase::Recovering { heard, .. } = &mut self.phase {
            *heard = true;
        }
    }

    /// Those who have been waited for long enough are evicted; what is awaited must be out of the registry before the shard is
    /// [opened](Self::evicted_all).
    pub fn wait_over(&mut self, now: Duration) -> Option<Txn> {
        if now < self.waits_until()? {
            return None;
        }
        self.phase = Phase::Evicting { open: matches!(self.phase, Phase::Open { .. }) };
        let awaited: Vec<_> = self.registry.iter().filter(|entry| entry.awaited).collect();
        Some(self.owned(self.removal(&awaited)))
    }

    /// What takes sessions out of the registry, and with them those of their grants that were broken: nobody can claim them any more.
    fn removal(&self, gone: &[&Entry]) -> Vec<Op> {
        let is_left = |entry: &Entry| !gone.iter().any(|gone| gone.session.key == entry.session.key);
        let left = |key| self.registry.iter().any(|entry| is_left(entry) && entry.session.was(key));
        let over = self.broken.iter().filter(|(_, key)| !left(**key));
        let sessions = gone.iter().map(|entry| Op::Delete(self.keys.session(self.number, entry.session.key)));
        sessions.chain(over.map(|(token, _)| Op::Delete(self.keys.broken(self.number, *token)))).collect()
    }

    /// [It](Self::removal) was done.
    fn removed(&mut self) {
        let registry = &self.registry;
        self.broken.retain(|_, key| registry.iter().any(|entry| entry.session.was(*key)));
    }

    /// How long claims are waited for, at most.
    pub const fn waits_until(&self) -> Option<Duration> {
        match self.phase {
            Phase::Recovering { until, .. } => Some(until),
            Phase::Open { until } if !self.rules.silent_for_ever => until,
            _ => None,
        }
    }

    /// Those who did not claim are out of the registry: the shard is open.
    pub fn evicted_all(&mut self) {
        self.registry.retain(|entry| !entry.awaited);
        self.removed();
        self.phase = Phase::OPEN;
    }

    /// Whether the session may be granted something.
    pub fn is_registered(&self, key: SessionKey) -> bool {
        self.rules.grants_unregistered || self.registry.iter().any(|entry| entry.session.key == key)
    }

    /// Puts a session into the registry; `before` is the session of the same client that it goes on from.
    pub fn register(&self, key: SessionKey, before: Option<SessionKey>) -> Txn {
        let (entry, then) = self.registration(key, before);
        let put = Op::Put(self.keys.session(self.number, key), entry.text());
        let replaced =
            then.map(|at| Op::Delete(self.keys.session(self.number, self.registry[at].session.key)));
        self.owned(std::iter::once(put).chain(replaced).collect())
    }

    /// The entry of a session, and which one it replaces.
    fn registration(&self, key: SessionKey, before: Option<SessionKey>) -> (Registered, Option<usize>) {
        let replaced =
            before.and_then(|before| self.registry.iter().position(|entry| entry.session.was(before)));
        let mut entry = Registered { key, before: BTreeSet::new() };
        if let Some(Entry { session, .. }) = replaced.map(|at| &self.registry[at]) {
            entry.before.clone_from(&session.before);
            entry.before.insert(session.key);
            entry.before.remove(&key);
        }
        (entry, replaced)
    }

    /// [It](Self::register) is in the registry.
    pub fn registered(&mut self, key: SessionKey, before: Option<SessionKey>) {
        self.was_heard();
        let (session, replaced) = self.registration(key, before);
        match replaced {
            Some(at) => self.registry[at].session = session,
            None if self.registry.iter().any(|entry| entry.session.key == key) => {}
            None => self.registry.push(Entry { session, awaited: false }),
        }
    }

    /// Takes sessions out of the registry: before their locks go to others, or because they have ended in order. `None` if
    /// none of them is in it.
    pub fn evict(&self, keys: &[SessionKey]) -> Option<Txn> {
        let known: Vec<_> = self.registry.iter().filter(|entry| keys.contains(&entry.session.key)).collect();
        (!known.is_empty()).then(|| self.owned(self.removal(&known)))
    }

    /// [They](Self::evict) are out of it.
    pub fn evicted(&mut self, keys: &[SessionKey]) {
        self.registry.retain(|entry| !keys.contains(&entry.session.key));
        self.removed();
    }

    /// Writes down that a grant of the session `key` is over, before others get the lock. It is kept for as long as the session: its
    /// client may claim the grant from one owner after the other until it has heard.
    pub fn break_grant(&self, token: u64, key: SessionKey) -> Txn {
        self.owned(vec![Op::Put(self.keys.broken(self.number, token), format!("{key:032x}"))])
    }

    /// [It](Self::break_grant) is written.
    pub fn broke(&mut self, token: u64, key: SessionKey) {
        self.broken.insert(token, key);
    }

    /// Whether a grant with this token was broken, whose client may not have heard it.
    pub fn is_broken(&self, token: u64) -> bool {
        self.broken.contains_key(&token)
    }

    /// Writes down the value of a lock, or that there is none; `key`: behind [those of the shard](Keys::values).
    pub fn put_value(&self, key: &str, value: Option<String>) -> Txn {
        let key = self.keys.values(self.number) + key;
        self.owned(vec![match value {
            Some(value) => Op::Put(key, value),
            None => Op::Delete(key),
        }])
    }

    /// Whether something may be granted to the session, with this token.
    pub fn may_grant(&self, key: SessionKey, token: u64) -> bool {
        let is_open = matches!(self.phase, Phase::Open { .. } | Phase::Evicting { open: true });
        is_open && token < self.tokens_below && self.is_registered(key)
    }

    /// Reserves further tokens, if half of them are used up and that is not under way.
    pub fn reserve(&mut self, next: u64) -> Option<Txn> {
        if self.reserving.is_some() || self.tokens_below.saturating_sub(next) > self.block / 2 {
            return None;
        }
        let below = self.tokens_below.max(next) + self.block;
        self.reserving = Some(below);
        Some(self.owned(vec![Op::Put(self.keys.tokens(self.number), below.to_string())]))
    }

    /// Whether they are reserved: `done`, or it has to be tried again.
    pub fn reserved(&mut self, done: bool) {
        if let Some(below) = self.reserving.take().filter(|_| done) {
            self.tokens_below = below;
        }
    }

    /// Nothing is granted any more, so that another server can go on with it.
    pub const fn freeze(&mut self) -> bool {
        let Phase::Open { until } = self.phase else { return false };
        self.phase = Phase::Frozen { until };
        true
    }

    /// It stays here: nobody else has it, as was read from etcd.
    pub const fn thaw(&mut self) {
        if let Phase::Frozen { until } = self.phase {
            self.phase = Phase::Open { until };
        }
    }

    /// Hands a frozen shard to another server. Who neither holds nor waits for anything leaves the registry with that: the new owner
    /// need not wait for it, though it may be silent. The first of `idle` go first, if they are too many for one transaction.
    /// A table that says `proof` is this server's.
    pub fn hand_over(&self, to: ServerId, idle: &[SessionKey], proof: u128) -> Txn {
        let owner = Owner { epoch: self.owner.epoch + 1, server: to };
        let idle: BTreeSet<_> = idle.iter().take(MOST_IDLE).collect();
        // Who is awaited may have more than it has said.
        let is_idle = |entry: &&Entry| {
            !entry.awaited && idle.contains(&entry.session.key) || self.rules.holders_forgotten
        };
        let gone: Vec<_> = self.registry.iter().filter(is_idle).collect();
        let mut then = vec![
            Op::Put(self.keys.shard(self.number), owner.text()),
            Op::Delete(self.keys.serving(self.number)),
            Op::Put(self.keys.handed(self.number), Keys::proof(owner.epoch, proof)),
        ];
        then.extend(self.removal(&gone).into_iter().take(MOST_IDLE));
        let mut txn = self.owned(then);
        txn.when.push(Compare::Exists(self.keys.server(to)));
        txn
    }

    /// As it looks when times are counted from `now`: what is over is over.
    #[must_use]
    pub fn counted_from(&self, now: Duration) -> Self {
        let mut shard = self.clone();
        if let Phase::Recovering { until, .. }
        | Phase::Open { until: Some(until) }
        | Phase::Frozen { until: Some(until) } = &mut shard.phase
        {
            *until = until.saturating_sub(now);
        }
        shard
    }
}

#[cfg(test)]
mod tests;
