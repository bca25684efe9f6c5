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
use crate::session::{RequestRecord, RetainedGrant, Space};
use lockwright::wire::{RequestId, Response};
use lockwright_fabric::observe::Mode;
use std::time::{Duration, Instant};

/// How long a client has to say whether it uses what is recalled, before a try counts as busy.
pub(crate) const ANSWER: Duration = Duration::from_millis(500);
/// With more names in use than this, nothing stays.
const MOST_NAMES: usize = crate::directory::MAX_NAMES / 4 * 3;

/// What the server keeps in mind about locks that stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retention {
    pub(crate) policy: Policy,
    /// Nothing stays in any space, or in these.
    pub(crate) off: bool,
    pub(crate) off_in: Vec<Vec<u8>>,
    /// Tries that wait for a client's word, and since when.
    tries: Vec<(u32, RequestId, Instant)>,
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
        let roomy = self.directory.in_use() <= MOST_NAMES;
        let policy = self.retention.policy;
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
        if !quiet || !roomy || !is_once || lock.now.waiters > 0 || session.retained >= policy.per_client {
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
