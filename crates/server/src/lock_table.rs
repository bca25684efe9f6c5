//! Decides who holds what: sessions, their requests, names, and the combiner's core that grants.
//!
//! A state machine that one thread at a time has locked: events come in by [`LockTable::apply`], the time by
//! [`LockTable::begin_batch`], responses leave by the sessions' inboxes in the order in which they were decided. After a restart it
//! begins by hearing claims: what was held is held again, and other requests wait.
//!
//! Locks, unlocks and changes are collected and [decided](LockTable::decide) together: at the end of a batch, or before anything
//! that depends on what is decided or is sent to a client. So every client is told the same, in the same order, as if they had
//! been decided one by one. What stands behind a grant in its set is asked for behind all that was collected with it.
//!
//! | file | |
//! |---|---|
//! | this | sessions, requests of locks, grants |
//! | `claims` | what was held before a restart |
//! | `changes` | upgrades, downgrades, parts given back |
//! | `noted` | the server's record, if there is one |
//! | `history` | the last grants of every lock, for the page |
//! | `refusals` | why something was refused, in words |
//! | `spaces` | sessions enter a space, name locks, and end |
//! | `sets` | several locks in one message |
//! | `retained` | locks that stay with their last user |
//! | `values`, `watched` | what holders leave for the next one; who wants to hear that others wait |
//! | `sharded`, `shard_values` | what has to be in etcd first, if it is a shard of a cluster |
//! | `handed` | what such a shard's last owner has told of its table |
//!
//! What this file must not do: let one session's malformed request reach another, or wait for anything but its own disk.

mod changes;
mod claims;
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "only a cluster has shards"))]
pub(crate) mod handed;
pub(crate) mod history;
mod noted;
mod refusals;
pub(crate) mod retained;
mod sets;
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "only a cluster has shards"))]
mod shard_values;
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "only a cluster has shards"))]
pub(crate) mod sharded;
mod spaces;
mod state;
mod values;
mod watched;

use self::refusals::{why_not, words};
use crate::directory::Directory;
use crate::dispatcher::{Event, EventSender};
use crate::durable::Durable;
use crate::exported::{self, Exported};
use crate::machine::MachineRules;
use crate::one_sided::OneSidedSpace;
use crate::one_sided::sessions;
use crate::record::Record;
use crate::session::{MAX_REQUESTS, RequestRecord, Session, Stage, Target};
use crate::totals::Totals;
use lockwright::wire::{DenyReason, Kind, Request, RequestId, Response, Units, slot};
use lockwright_fabric::observe::Mode;
use lockwright_locks::combiner::core::{
    Answer as CoreAnswer, ClientId, Core, Limits, NAMES, Reply, Request as CoreRequest,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Clients at a time.
pub(crate) const MAX_SESSIONS: usize = 1 << 16;
/// An answer is sent at least after so many requests, so that the client can forget them.
const ACK_EVERY: u64 = 64;

/// The lock table of a server.
#[derive(Clone, Debug)]
pub(crate) struct LockTable {
    core: Core,
    pub(crate) directory: Directory,
    pub(crate) sessions: Vec<Option<Session>>,
    free: Vec<u32>,
    pub(crate) durable: Durable,
    /// Requests that wait until claims are over; `None` once they are.
    held_back: Option<Vec<(u32, RequestId)>>,
    pub(crate) totals: Totals,
    /// Spaces of this host's shared memory that are offered, and those that a client asked for.
    exports: Vec<String>,
    opened: HashMap<String, Arc<Exported>>,
    /// One-sided spaces.
    pub(crate) one_sided: Vec<Arc<OneSidedSpace>>,
    /// How tasks that wait for locks in shared memory tell what came of it, and where they run.
    pub(crate) events: EventSender,
    pub(crate) runtime: Option<Handle>,
    /// Collected, and not yet decided; empty between batches.
    asked: Vec<(ClientId, CoreRequest)>,
    replies: Vec<Reply>,
    /// How many of them were passed on; all, unless that panicked.
    answered: usize,
    /// The history of all events, if it is recorded.
    pub(crate) record: Option<Record>,
    pub(crate) history: Option<Box<history::GrantHistory>>,
    /// Where a broken one differs.
    pub(crate) rules: MachineRules,
    pub(crate) retention: retained::Retention,
    /// The cluster's map, if the server is one of several; and the shard that this is.
    pub(crate) map: Option<Arc<Mutex<String>>>,
    pub(crate) sharded: Option<Box<sharded::Sharded>>,
    /// Where tables of shards go that other servers hand over.
    pub(crate) tables: Option<Arc<handed::Tables>>,
    /// When the server was started, and when this batch began.
    pub(crate) began: Instant,
    now: Instant,
}

impl LockTable {
    /// An empty table, which starts tasks on the calling thread's runtime. `recovering`: claims are to be heard first.
    pub(crate) fn new(
        mut durable: Durable,
        recovering: bool,
        exports: Vec<String>,
        one_sided: Vec<Arc<OneSidedSpace>>,
    ) -> Self {
        durable.track_holders(!recovering);
        let mut core = Core::new(Limits { clients: MAX_SESSIONS as u32 + 2, ids: MAX_REQUESTS });
        core.handle(ClientId(0), CoreRequest::Raise { token: durable.first_token() }, &mut Vec::new());
        Self {
            core,
            directory: Directory::default(),
            sessions: vec![None],
            free: Vec::new(),
            durable,
            held_back: recovering.then(Vec::new),
            totals: Totals::default(),
            exports,
            opened: HashMap::new(),
            one_sided,
            events: EventSender::default(),
            runtime: Handle::try_current().ok(),
            asked: Vec::new(),
            replies: Vec::new(),
            answered: 0,
            record: None,
            history: None,
            rules: MachineRules::default(),
            retention: retained::Retention::default(),
            map: None,
            sharded: None,
            tables: None,
            began: Instant::now(),
            now: Instant::now(),
        }
    }

    pub(crate) const fn is_recovering(&self) -> bool {
        self.held_back.is_some()
    }

    /// Requests held and waiting, in the server's own spaces.
    pub(crate) fn requests(&self) -> usize {
        self.core.len()
    }

    #[cfg(test)]
    pub(crate) const fn core(&self) -> &Core {
        &self.core
    }

    /// So many events are about to be applied, and it is `now`.
    pub(crate) fn begin_batch(&mut self, now: Instant, size: usize) {
        self.now = now;
        self.durable.retry(now);
        self.totals.passes += 1;
        self.totals.messages += size as u64;
    }

    /// Applies what happened to a client.
    #[inline]
    pub(crate) fn apply(&mut self, peer: u32, event: Event) {
        match event {
            // Others were sent before, or by a client that is gone.
            Event::Request { seq, request } => {
                if self.takes(peer, seq) {
                    let request = if self.map.is_none() { Some(request) } else { self.sift(peer, request) };
                    if let Some(request) = request {
                        self.handle(peer, request);
                    }
                    self.ack(peer);
                }
            }
            Event::Forbidden { seq, id, why } => {
                if self.takes(peer, seq) {
                    let (by, user, from) = self.origin(peer);
                    tracing::warn!(by, user, from, "a client may not break locks");
                    self.refuse(peer, id, why);
                }
            }
            Event::Malformed => {
                if self.session(peer).is_some() {
                    tracing::debug!(client = peer, "malformed message");
                    self.refuse(peer, 0, "a message was sent that makes no sense to this server");
                }
            }
            Event::Departed(how) => {
                if !self.postpones_departure(peer, how) {
                    self.depart(peer, how);
                }
            }
            Event::Acquired { session, id, outcome } => exported::acquired(self, peer, session, id, outcome),
            Event::Revoked { session, id } => exported::revoked(self, peer, session, id),
        }
    }

    #[inline]
    fn handle(&mut self, peer: u32, request: Request) {
        match request {
            Request::Lock { id, units, wait } => self.lock(peer, id, units, wait),
            Request::LockSet { members } => self.lock_set(peer, &members),
            Request::Unlock { id, answer } => {
                let held = self.unlock(peer, id);
                if answer {
                    self.say(peer, &Response::Unlocked { id, held });
                }
            }
            Request::Upgrade { id, wait } => self.upgrade(peer, id, wait),
            Request::Downgrade { id, gives_up } => self.downgrade(peer, id, gives_up),
            Request::Part { id, start, end, rest } => self.unlock_part(peer, id, (start, end), rest),
            request => {
                self.decide();
                self.handle_rare(peer, request);
            }
        }
    }

    /// Requests that come less often. Everything before them is decided.
    fn handle_rare(&mut self, peer: u32, request: Request) {
        match request {
            Request::Open { version, key, space, one_sided, seen } => {
                match self.open_space(peer, version, key, &space, one_sided) {
                    Ok(()) if self.sharded.is_some() => {}
                    Ok(()) => self.raise_tokens(seen),
                    Err(why) => self.refuse(peer, 0, why),
                }
            }
            Request::Name { handle, kind, name } => self.name(peer, handle, kind, &name),
            Request::Forget { handle } => self.forget_name(peer, handle),
            Request::Claim { id, units, token, epoch, key } => {
                match self.session(peer).and_then(|session| session.handles.get(&units.handle)) {
                    Some(&Target::Own(lock)) => self.claim(peer, lock, id, units, (token, epoch, key)),
                    // It was free from the moment the server died.
                    Some(Target::Exported(_) | Target::OneSided { .. }) => {
                        self.say(peer, &Response::Lost { id });
                    }
                    None => self.refuse(peer, id, "the claim names a lock that was refused or never named"),
                }
            }
            Request::Claimed { key } => self.all_claimed(peer, key),
            Request::Stopped { key } => self.release_all(peer, key),
            Request::Identify { id } => {
                let identity = self.identity(peer);
                self.say(peer, &Response::Identity { id, identity });
            }
            Request::List { id, of } => {
                self.answer_in_pages(peer, id, |table, peer| table.list(peer, of.as_ref()));
            }
            Request::Heat { id } => self.answer_in_pages(peer, id, Self::list_heat),
            Request::Break { id, token, name } => match self.break_grant(peer, &name, token) {
                Ok(held) => {
                    self.totals.broken += u64::from(held);
                    if held {
                        let (by, user, from) = self.origin(peer);
                        tracing::warn!(%name, token, by, user, from, "a lock is broken");
                    }
                    self.say(peer, &Response::Unlocked { id, held });
                }
                Err(why) => self.refuse(peer, id, why),
            },
            Request::Retains => self.retains(peer),
            Request::Kept { id, thread } => self.kept(peer, id, thread),
            Request::Probe { sent } => self.probe(peer, sent),
            Request::Map { id } => self.answer_in_pages(peer, id, Self::list_map),
            Request::Hand { id, last, bytes } => self.hear_table(peer, id, last, &bytes),
            Request::Waited { id, ns } => self.waited(peer, id, Duration::from_nanos(ns)),
            Request::Find { id, handle } => sessions::find(self, peer, id, handle),
            request => self.about_held(peer, request),
        }
    }

    /// Whether something was collected and not decided, or decided and not passed on.
    pub(crate) fn is_undecided(&self) -> bool {
        !self.asked.is_empty() || !self.replies.is_empty()
    }

    /// Lets the core decide about everything that was collected, and passes it on.
    #[inline]
    pub(crate) fn decide(&mut self) {
        if self.is_undecided() {
            self.decide_all();
        }
    }

    fn decide_all(&mut self) {
        loop {
            let mut asked = std::mem::take(&mut self.asked);
            self.core.serve(&asked, &mut self.replies);
            self.answer_all();
            for (ClientId(peer), asked) in asked.drain(..) {
                if let Some(place) = watched::place_of(&asked) {
                    self.note_if_waiting(peer, place);
                }
            }
            // What stood behind a grant of these is asked for now; a set has an end.
            if self.asked.is_empty() {
                self.asked = asked;
                return;
            }
        }
    }

    /// Whether this is the session's next message, which is then taken. Others were said again after a broken connection, or
    /// too early: then they will be said again.
    #[inline]
    pub(crate) fn takes(&mut self, peer: u32, seq: u64) -> bool {
        let Some(session) = self.session(peer).filter(|session| seq == session.taken + 1) else {
            return false;
        };
        session.taken = seq;
        true
    }

    /// A place for a new client; numbers start at one.
    pub(crate) fn admit(&mut self, label: &str) -> Option<u32> {
        let peer = match self.free.pop() {
            Some(peer) => peer,
            None if self.sessions.len() <= MAX_SESSIONS => {
                self.sessions.push(None);
                self.sessions.len() as u32 - 1
            }
            None => return None,
        };
        self.totals.sessions += 1;
        self.totals.sessions_begun += 1;
        let serial = self.totals.sessions_begun;
        tracing::debug!(client = peer, label, "session begins");
        self.sessions[peer as usize] =
            Some(Session { label: label.to_owned(), serial, ..Session::default() });
        Some(peer)
    }

    pub(crate) fn session(&mut self, peer: u32) -> Option<&mut Session> {
        self.sessions.get_mut(peer as usize)?.as_mut()
    }

    /// Who asks, for the log: what the client calls itself, its process's user as the kernel knows it, and its address.
    fn origin(&mut self, peer: u32) -> (String, Option<u32>, Option<String>) {
        let Some(session) = self.session(peer) else { return Default::default() };
        let from = session.connection.map(|connection| connection.client.to_string());
        (session.label.clone(), session.uid, from)
    }

    /// Says something that the combiner has not decided, behind all that it has.
    pub(crate) fn say(&mut self, peer: u32, answer: &Response) {
        self.decide();
        if let Some(session) = self.session(peer) {
            session.say(answer);
        }
    }

    /// Refuses something, in words, to the one who asked for it.
    pub(crate) fn refuse(&mut self, peer: u32, id: RequestId, why: impl Into<String>) {
        self.totals.refused += 1;
        self.say(peer, &Response::Refused { id, why: why.into() });
    }

    /// Tells the client how far the server got, if it has not heard for a while.
    #[inline]
    pub(crate) fn ack(&mut self, peer: u32) {
        let is_due = |session: &&mut Session| session.taken - session.told >= ACK_EVERY;
        if self.session(peer).filter(is_due).is_some() {
            // Any answer will do.
            self.decide();
            if let Some(session) = self.session(peer).filter(is_due) {
                session.say(&Response::Ack);
            }
        }
    }

    /// A request that is over, as far as counts are concerned.
    fn forget(&mut self, peer: u32, request: &RequestRecord) {
        let Some(id) = request.lock else { return };
        if let Some(grant) = request.retained {
            self.retained_is_over(peer, request.id, id, grant);
        }
        if matches!(request.stage, Stage::Behind) {
            return self.directory.close(id);
        }
        let held = matches!(request.stage, Stage::Held { .. });
        let upgrades = request.upgrades.is_some();
        self.directory.close_after(id, |lock| {
            lock.watched.retain(|watched| *watched != (peer, request.id));
            lock.now.ended(held);
            if upgrades {
                lock.now.ended(false);
            }
        });
        self.totals.now.ended(held);
        if upgrades {
            self.totals.now.ended(false);
        }
        if held {
            self.totals.hold.add(self.now - request.since);
        }
    }

    /// Asks the combiner about what `lock` is made of.
    fn request_for(&self, request: &RequestRecord, lock: u64, wait: bool) -> CoreRequest {
        let Units { mode, start, end, .. } = request.units;
        let id = slot(request.id);
        match self.directory.lock(lock).kind {
            Kind::Keyed => CoreRequest::Lock { id, lock: NAMES, mode, start: lock, end: lock + 1, wait },
            Kind::Ranges => CoreRequest::Lock { id, lock, mode, start, end, wait },
            Kind::Semaphores => CoreRequest::Permits { id, lock, weight: start, limit: end - 1, wait },
        }
    }

    #[inline]
    fn lock(&mut self, peer: u32, id: RequestId, units: Units, wait: bool) {
        match self.session(peer).and_then(|session| session.handles.get(&units.handle)) {
            Some(&Target::Own(lock)) => self.lock_own(peer, lock, id, units, wait),
            Some(Target::Exported(handle)) => {
                let handle = handle.clone();
                self.decide();
                handle.lock(self, peer, (id, units, wait));
            }
            Some(Target::OneSided { .. }) => self.refuse(peer, id, sessions::BY_ITSELF),
            None => self.refuse(peer, id, "the request names a lock that was refused or never named"),
        }
    }

    /// A request for a lock of the server's own.
    fn lock_own(&mut self, peer: u32, lock: u64, id: RequestId, units: Units, wait: bool) {
        if units.start >= units.end {
            return self.refuse(peer, id, "the range is empty or reversed");
        }
        if self.is_recovering() && !wait {
            // A client may still claim it.
            self.totals.busy += 1;
            return self.say(peer, &Response::Busy { id });
        }
        let tries = !wait && self.waits_for_word(lock, units.mode);
        let wait = wait || tries;
        let queued = self.is_recovering();
        let stage = if queued && !self.rules.grants_early { Stage::HeldBack } else { Stage::Waiting };
        let mut request = RequestRecord::new(id, Some(lock), units, self.now, stage, queued);
        request.tries = tries;
        let asked = self.request_for(&request, lock, wait);
        if self.session(peer).is_some_and(|session| session.has_slot_of(id)) {
            // The other request may come to nothing.
            self.decide();
        }
        let Some(session) = self.session(peer) else { return };
        if let Err(why) = session.put(request) {
            return self.refuse(peer, id, why);
        }
        self.directory.use_again(lock).now.asked();
        self.totals.now.asked();
        if tries {
            self.note_try(peer, id);
        }
        if let Some(held_back) = &mut self.held_back
            && !self.rules.grants_early
        {
            held_back.push((peer, id));
            return;
        }
        self.asked.push((ClientId(peer), asked));
    }

    /// Gives a lock back, or gives a request up. Says whether it was held until now.
    pub(crate) fn unlock(&mut self, peer: u32, id: RequestId) -> bool {
        let open = |request: &&mut RequestRecord| {
            matches!(request.stage, Stage::Behind | Stage::Waiting) || request.change.is_some()
        };
        if self.session(peer).and_then(|session| session.request(id)).filter(open).is_some() {
            // It may be granted, or changed, by what was noted before.
            self.decide();
        }
        self.note_end(peer, id);
        self.remember(peer, id, history::GrantEnd::Unlocked);
        let Some(request) = self.session(peer).and_then(|session| session.take(id)) else { return false };
        self.forget(peer, &request);
        let held = match &request.stage {
            Stage::Exported(held) => held.is_held(),
            stage => matches!(stage, Stage::Held { .. }),
        };
        let id = slot(id);
        match request.stage {
            Stage::Held { .. } => self.asked.push((ClientId(peer), CoreRequest::Unlock { id })),
            Stage::Waiting => self.asked.push((ClientId(peer), CoreRequest::Cancel { id })),
            Stage::Behind | Stage::HeldBack | Stage::Exported(_) => {}
        }
        held
    }

    /// Passes on what the combiner decided.
    fn answer_all(&mut self) {
        // A grant that cannot be given is taken back, which can lead to others.
        while let Some(&Reply { client: ClientId(peer), id: place, answer }) = self.replies.get(self.answered)
        {
            self.answered += 1;
            match answer {
                CoreAnswer::Granted { token } => self.granted(peer, place, token),
                CoreAnswer::Busy => {
                    self.totals.busy += 1;
                    if !self.stays(peer, place, &DenyReason::Busy) {
                        self.end(peer, place, |id| Response::Busy { id });
                    }
                }
                CoreAnswer::Refused(why) => {
                    self.totals.refused += 1;
                    if !self.stays(peer, place, &why_not(why)) {
                        self.end(peer, place, |id| Response::Refused { id, why: words(why) });
                    }
                }
                CoreAnswer::Downgraded { token } => self.downgraded(peer, place, token),
                // A client that gave up needs no confirmation.
                CoreAnswer::Cancelled => {}
            }
        }
        self.replies.clear();
        self.answered = 0;
    }

    #[inline]
    fn granted(&mut self, peer: u32, place: u32, token: u64) {
        if !self.rules.tokens_unwritten
            && let Err(why) = self.durable.before_grant(token)
        {
            if self.undo(peer, place, &why) {
                return;
            }
            self.core.handle(ClientId(peer), CoreRequest::Cancel { id: place }, &mut self.replies);
            return self.end(peer, place, |id| Response::Refused { id, why });
        }
        let now = self.now;
        let Some(session) = self.sessions.get_mut(peer as usize).and_then(Option::as_mut) else { return };
        if !session.noted {
            session.noted = true;
            self.durable.holds(peer, session.key);
        }
        let Some(request) = session.slots.get_mut(place as usize).and_then(Option::as_mut) else { return };
        if request.change.is_some() {
            return self.upgraded(peer, place, token);
        }
        let waited = now - request.since;
        (request.stage, request.since) = (Stage::Held { token }, now);
        let (id, lock) = (request.id, request.lock.expect("the combiner decides about the server's own"));
        let next = request.next.take();
        let (shared, queued) = (request.units.mode == Mode::Shared, request.queued);
        let seen = self.directory.lock_mut(lock);
        seen.now.granted();
        seen.grants += 1;
        self.totals.grant(shared, waited);
        if queued {
            seen.contended += 1;
            seen.waited += waited;
        }
        if session.retains {
            self.say_granted(peer, place, token);
        } else {
            session.say(&Response::Granted { id, token });
            self.note("granted", peer, place);
        }
        if let Some(next) = next {
            self.take_turn(peer, next);
        }
    }

    /// A request that came to nothing.
    fn end(&mut self, peer: u32, place: u32, answer: impl FnOnce(RequestId) -> Response) {
        let Some(session) = self.session(peer) else { return };
        let Some(request) = session.slots.get_mut(place as usize).and_then(Option::take) else { return };
        session.say(&answer(request.id));
        self.forget(peer, &request);
    }
}
