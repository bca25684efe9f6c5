//! Locks that stay with their last user until another client wants them.
//!
//! For the combiner such a lock is held. Here it is noted that its client may not be using it:
//!
//! | noted | means | a request that conflicts | a try that conflicts |
//! |---|---|---|---|
//! | retained | its client uses it or not | waits, and it is recalled | the same, until the client has said which |
//! | recalled | its client has been told, and will unlock it | waits | likewise |
//! | in use | its client has said so: as good as held | waits | is busy |
//!
//! A try waits for at most [`ANSWER`], since a client that is stopped says nothing.

use super::{ClientId, CoreRequest, Kind, LockTable, Stage, slot};
use crate::directory::Lock;
use crate::retention::Policy;
use crate::session::{RequestRecord, RetainedGrant, Session, Space};
use lockwright::wire::{RequestId, Response};
use lockwright_fabric::observe::Mode;
use std::time::{Duration, Instant};

/// How long a client has to say whether it uses what is recalled, before a try counts as busy.
pub(crate) const ANSWER: Duration = Duration::from_millis(500);
/// How often a client is asked to give locks back that it does not use, for want of room; and of so many that stay with it one.
const RELIEF_EVERY: Duration = Duration::from_secs(1);
const RELIEF: u32 = 8;

/// What the server keeps in mind about locks that stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retention {
    pub(crate) policy: Policy,
    /// Nothing stays in any space, or in these.
    pub(crate) off: bool,
    pub(crate) off_in: Vec<Vec<u8>>,
    /// Tries that wait for a client's word, and since when.
    tries: Vec<(u32, RequestId, Instant)>,
    /// When clients were last asked to give back what they do not use.
    relieved: Option<Instant>,
}

/// A client is to give back a part of what stays with it, unless it was asked a moment ago.
fn relinquish(session: &mut Session, now: Instant) {
    let is_due = |at: Instant| now.saturating_duration_since(at) >= RELIEF_EVERY;
    if session.retained > 0 && session.relinquishes.is_none_or(is_due) {
        session.relinquishes = Some(now);
        session.say(&Response::Relinquish { count: u64::from(session.retained.div_ceil(RELIEF)) });
    }
}

const fn conflict(a: Mode, b: Mode) -> bool {
    matches!(a, Mode::Exclusive) || matches!(b, Mode::Exclusive)
}

impl LockTable {
    /// A client lets grants stay with it, if its space allows that.
    pub(super) fn retains(&mut self, peer: u32) {
        let Some(Space::Own(number)) = self.session(peer).and_then(|session| session.space.clone()) else {
            return;
        };
        let name = self.directory.space_name(number);
        let off = self.retention.off || self.retention.off_in.iter().any(|off| name == off.as_slice());
        if let Some(session) = self.session(peer) {
            session.retains = !off;
        }
    }

    /// Tells a client of a grant, which may stay with it.
    pub(super) fn say_granted(&mut self, peer: u32, place: u32, token: u64) {
        let retained = self.retain(peer, place);
        self.note("granted", peer, place);
        if let Some(block) = retained {
            self.note_retained(peer, place, block);
        }
        let Some(session) = self.session(peer) else { return };
        let Some(request) = session.slots.get(place as usize).and_then(Option::as_ref) else { return };
        let id = request.id;
        session.say(&match retained {
            Some((first, count)) => Response::Retained { id, token, first, count },
            None => Response::Granted { id, token },
        });
    }

    /// Decides whether a grant stays with its client; the tokens that come with it, as the first and how many.
    fn retain(&mut self, peer: u32, place: u32) -> Option<(u64, u64)> {
        let policy = self.retention.policy;
        let roomy = self.directory.in_use() <= policy.most_names;
        if !roomy {
            self.relieve();
        }
        let session = self.sessions.get_mut(peer as usize)?.as_mut()?;
        let request = session.slots.get_mut(place as usize)?.as_mut()?;
        let (queued, id) = (request.queued || request.tries, request.id);
        let lock = self.directory.lock_mut(request.lock?);
        if queued || !lock.affinity.is_of(peer) {
            lock.other_at = Some(self.now);
        }
        let quiet = lock.other_at.is_none_or(|at| self.now.saturating_duration_since(at) >= policy.quiet);
        if lock.kind != Kind::Keyed || !lock.affinity.granted(peer, queued, &policy) {
            return None;
        }
        let is_once = lock.retained.iter().all(|(other, _)| *other != peer);
        if !quiet || !roomy || !is_once || lock.now.waiters > 0 {
            return None;
        }
        if session.retained >= policy.per_client {
            relinquish(session, self.now);
            return None;
        }
        let count = lock.affinity.block(&policy);
        let first = self.core.last_token() + 1;
        let last = first + count - 1;
        self.durable.before_grant(last).ok()?;
        if policy.reserves {
            self.core.handle(ClientId(0), CoreRequest::Raise { token: last }, &mut Vec::new());
        }
        lock.retained.push((peer, id));
        session.retained += 1;
        self.totals.retained += 1;
        request.retained = Some(RetainedGrant::default());
        request.block = Some((first, last));
        Some((first, count))
    }

    /// There are too many names: every client gives back a part of what it does not use.
    pub(super) fn relieve(&mut self) {
        let now = self.now;
        let is_due =
            |at: Option<Instant>| at.is_none_or(|at| now.saturating_duration_since(at) >= RELIEF_EVERY);
        if self.totals.retained > 0 && is_due(self.retention.relieved) {
            self.retention.relieved = Some(now);
            self.sessions.iter_mut().flatten().for_each(|session| relinquish(session, now));
        }
    }

    /// A request in `mode` waits: what stays with clients and is in its way is recalled. `but`: its own.
    pub(super) fn recall_for(&mut self, lock: u64, mode: Mode, but: Option<(u32, RequestId)>) {
        let Self { directory, sessions, retention, totals, .. } = self;
        let lock = directory.lock_mut(lock);
        for (peer, id) in &lock.retained {
            let Some(session) = sessions.get_mut(*peer as usize).and_then(Option::as_mut) else { continue };
            let Some(request) = session.request(*id) else { continue };
            let Some(grant) = &mut request.retained else { continue };
            if !grant.recalled && conflict(mode, request.units.mode) && but != Some((*peer, *id)) {
                grant.recalled = true;
                totals.recalls += 1;
                lock.affinity.recalled(&retention.policy);
                session.say(&Response::Recall { id: *id });
            }
        }
    }

    /// How many clients keep a lock without having said that they use it.
    pub(crate) fn kept_without_word(&self, lock: &Lock) -> u64 {
        let says_nothing = |(peer, id): &&(u32, RequestId)| {
            let session = self.sessions.get(*peer as usize).and_then(Option::as_ref);
            let request = session.and_then(|session| session.slots.get(slot(*id) as usize)?.as_ref());
            request.is_some_and(RequestRecord::is_retained)
        };
        lock.retained.iter().filter(says_nothing).count() as u64
    }

    /// Whether a try waits: all that is in its way stays with clients, who have not said that they use it.
    pub(super) fn waits_for_word(&mut self, lock: u64, mode: Mode) -> bool {
        if self.directory.lock(lock).retained.is_empty() {
            return false;
        }
        self.decide();
        let lock = self.directory.lock(lock);
        if lock.now.waiters > 0 || lock.now.holders != lock.retained.len() as u64 {
            return false;
        }
        let known = |(peer, id): &(u32, RequestId)| {
            let session = self.sessions.get(*peer as usize)?.as_ref()?;
            let request = session.slots.get(slot(*id) as usize)?.as_ref()?;
            Some((request.units.mode, request.retained?.in_use))
        };
        let mut grants = lock.retained.iter().filter_map(known).filter(|(held, _)| conflict(*held, mode));
        grants.clone().next().is_some() && grants.all(|(_, in_use)| !in_use)
    }

    /// A try waits from now on.
    pub(super) fn note_try(&mut self, peer: u32, id: RequestId) {
        self.retention.tries.push((peer, id, self.now));
    }

    /// A client says that what was recalled is in use.
    pub(super) fn kept(&mut self, peer: u32, id: RequestId, thread: Option<u32>) {
        let Some(request) = self.session(peer).and_then(|session| session.request(id)) else { return };
        let Some(grant) = &mut request.retained else { return };
        grant.in_use = true;
        request.units.thread = thread;
        if let Some(lock) = request.lock {
            self.deny_tries(|table, peer, id| {
                let request = table.session(peer).and_then(|session| session.request(id));
                request.is_some_and(|request| request.lock == Some(lock))
            });
        }
    }

    /// A retained grant is about to be changed by its user: from now on it is held like any other.
    pub(super) fn is_changed(&mut self, peer: u32, id: RequestId) {
        let thread = self.session(peer).and_then(|session| session.request(id)?.units.thread);
        self.kept(peer, id, thread);
        let Some(request) = self.session(peer).and_then(|session| session.request(id)) else { return };
        let (lock, retained) = (request.lock, request.retained.take());
        if let (Some(lock), Some(_)) = (lock, retained) {
            self.stays_no_more(peer, id, lock);
        }
    }

    /// A request is over that may have been retained.
    pub(super) fn retained_is_over(&mut self, peer: u32, id: RequestId, lock: u64, grant: RetainedGrant) {
        if !grant.recalled {
            let policy = self.retention.policy;
            self.directory.lock_mut(lock).affinity.came_back(&policy);
        }
        self.stays_no_more(peer, id, lock);
    }

    fn stays_no_more(&mut self, peer: u32, id: RequestId, lock: u64) {
        self.totals.retained -= 1;
        self.directory.lock_mut(lock).retained.retain(|grant| *grant != (peer, id));
        if let Some(session) = self.session(peer) {
            session.retained -= 1;
        }
    }

    /// Tries that have waited for longer than [`ANSWER`] at `now` are busy.
    pub(crate) fn deny_late_tries(&mut self, now: Instant) {
        if self.retention.tries.is_empty() {
            return;
        }
        let tries = &self.retention.tries;
        let late: Vec<_> = tries.iter().filter(|(_, _, since)| now.duration_since(*since) > ANSWER).collect();
        let late: Vec<_> = late.into_iter().map(|(peer, id, _)| (*peer, *id)).collect();
        self.deny_tries(|_, peer, id| late.contains(&(peer, id)));
        self.decide();
    }

    /// Tries that wait for a client's word, and for which `is_denied`, are busy. Those that do not wait any more are forgotten.
    fn deny_tries(&mut self, is_denied: impl Fn(&mut Self, u32, RequestId) -> bool) {
        self.decide();
        let tries = std::mem::take(&mut self.retention.tries);
        for (peer, id, since) in tries {
            let waits = self
                .session(peer)
                .and_then(|session| session.request(id))
                .is_some_and(|request| request.tries && matches!(request.stage, Stage::Waiting));
            if !waits {
                continue;
            }
            if is_denied(self, peer, id) {
                self.unlock(peer, id);
                self.totals.busy += 1;
                self.say(peer, &Response::Busy { id });
            } else {
                self.retention.tries.push((peer, id, since));
            }
        }
    }

    /// All tries that wait for a client's word are busy.
    pub(crate) fn deny_all_tries(&mut self) {
        self.deny_tries(|_, _, _| true);
    }

    pub(crate) fn has_tries(&self) -> bool {
        !self.retention.tries.is_empty()
    }

    /// Tries that wait, for the explorer: which, and not since when.
    pub(super) fn waiting_tries(&self) -> Vec<(u32, RequestId)> {
        self.retention.tries.iter().map(|(peer, id, _)| (*peer, *id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::Event;
    use crate::durable::Durable;
    use lockwright::LockName;
    use lockwright::wire::{Request, Units, VERSION};
    use lockwright_fabric::PeerId;
    use lockwright_fabric::backend::tcp::Inbox;
    use std::sync::{Arc, Mutex};

    /// A client that says its next request with every call.
    struct Client {
        peer: u32,
        seq: u64,
        told: Arc<Mutex<Vec<Response>>>,
    }

    impl Client {
        fn come_in(table: &mut LockTable) -> Self {
            let peer = table.admit("1 here test").unwrap();
            let told = Arc::<Mutex<Vec<Response>>>::default();
            let heard = Arc::clone(&told);
            table.session(peer).unwrap().inbox = Some(Inbox::new(move |_: PeerId, message| {
                heard.lock().unwrap().extend(Response::decode(&message).map(|(_, response)| response));
                true
            }));
            let mut client = Self { peer, seq: 0, told };
            let open =
                Request::Open { version: VERSION, key: 1, space: Vec::new(), one_sided: false, seen: 0 };
            client.say(table, open);
            client.say(table, Request::Retains);
            client
        }

        /// What the server answers.
        fn say(&mut self, table: &mut LockTable, request: Request) -> Vec<Response> {
            self.seq += 1;
            table.begin_batch(Instant::now(), 1);
            table.apply(self.peer, Event::Request { seq: self.seq, request });
            table.decide();
            std::mem::take(&mut *self.told.lock().unwrap())
        }

        /// Names and locks one more lock.
        fn lock(&mut self, table: &mut LockTable) -> Vec<Response> {
            let handle = self.seq;
            let name = LockName::new(format!("{} {handle}", self.peer)).unwrap();
            self.say(table, Request::Name { handle, kind: Kind::Keyed, name });
            let units = Units { handle, mode: Mode::Exclusive, start: 0, end: u64::MAX, thread: None };
            self.say(table, Request::Lock { id: handle << 32 | handle, units, wait: true })
        }
    }

    /// A table in which every grant stays that has room.
    fn table(per_client: u32, most_names: usize) -> LockTable {
        let (durable, recovering) = Durable::begin(None, Duration::ZERO).unwrap();
        let mut table = LockTable::new(durable, recovering, Vec::new(), Vec::new());
        let policy = &mut table.retention.policy;
        (policy.after, policy.at_most_after, policy.quiet) = (0, 0, Duration::ZERO);
        (policy.per_client, policy.most_names) = (per_client, most_names);
        table
    }

    const fn stays(response: &Response) -> bool {
        matches!(response, Response::Retained { .. })
    }

    #[test]
    fn at_its_bound_a_client_is_asked_once_to_give_back_what_it_does_not_use() {
        let mut table = table(16, usize::MAX);
        let mut client = Client::come_in(&mut table);
        for _ in 0..16 {
            assert!(client.lock(&mut table).iter().all(stays));
        }
        let told = client.lock(&mut table);
        assert!(
            matches!(told[..], [Response::Relinquish { count: 2 }, Response::Granted { .. }]),
            "{told:?}"
        );
        let told = client.lock(&mut table);
        assert!(matches!(told[..], [Response::Granted { .. }]), "not again at once: {told:?}");
    }

    #[test]
    fn with_too_many_names_every_client_is_asked_to_give_back_what_it_does_not_use() {
        let mut table = table(u32::MAX, 8);
        let (mut one, mut two) = (Client::come_in(&mut table), Client::come_in(&mut table));
        for _ in 0..4 {
            assert!(one.lock(&mut table).iter().all(stays));
            assert!(two.lock(&mut table).iter().all(stays));
        }
        let told = two.lock(&mut table);
        assert!(
            matches!(told[..], [Response::Relinquish { count: 1 }, Response::Granted { .. }]),
            "{told:?}"
        );
        assert!(matches!(one.told.lock().unwrap()[..], [Response::Relinquish { count: 1 }]));
    }
}
