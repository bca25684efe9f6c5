//! The last grants of every lock, for the page: who had it, for how long, and how that ended.
//!
//! Bounded, however many locks there are: so many of a lock, and so many of all. Kept only by a server that has a page.

use super::{LockTable, RequestRecord, Stage};
use crate::inspection::entry;
use lockwright::inspect::Entry;
use lockwright::wire::RequestId;
use lockwright_fabric::backend::tcp::SessionEnd;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Grants of one lock, and of all.
const OF_A_LOCK: usize = 20;
const OF_ALL: usize = 8192;

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantEnd {
    Unlocked,
    /// It was broken, or another client had a better claim.
    TakenAway,
    /// Its client was gone.
    Lost,
}

/// A grant that is over.
#[derive(Clone, Debug)]
pub(crate) struct PastGrant {
    /// As it was listed at its end.
    pub(crate) entry: Entry,
    pub(crate) at: Instant,
    pub(crate) end: GrantEnd,
    /// Which request of which session, by its serial number.
    of: (u64, RequestId),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct GrantHistory {
    by_lock: HashMap<u64, VecDeque<PastGrant>>,
    /// The lock of each that is kept, those kept for longest first.
    order: VecDeque<u64>,
}

impl GrantHistory {
    /// The last grants of a lock, the latest first.
    pub(crate) fn of(&self, lock: u64) -> impl Iterator<Item = &PastGrant> {
        self.by_lock.get(&lock).into_iter().flat_map(|grants| grants.iter().rev())
    }

    fn add(&mut self, lock: u64, grant: PastGrant) {
        let grants = self.by_lock.entry(lock).or_default();
        // What is taken away is then unlocked.
        if grants.back().is_some_and(|last| last.of == grant.of && last.entry.token == grant.entry.token) {
            return;
        }
        grants.push_back(grant);
        if grants.len() > OF_A_LOCK {
            // The new one has its place in the order.
            grants.pop_front();
            return;
        }
        self.order.push_back(lock);
        if self.order.len() > OF_ALL
            && let Some(oldest) = self.order.pop_front()
            && let Some(grants) = self.by_lock.get_mut(&oldest)
        {
            grants.pop_front();
            if grants.is_empty() {
                self.by_lock.remove(&oldest);
            }
        }
    }
}

impl LockTable {
    /// From now on grants that end are remembered.
    pub(crate) fn keep_history(&mut self) {
        self.history = Some(Box::default());
    }

    /// A request is about to be over; if it is held, it is remembered.
    #[inline]
    pub(super) fn remember(&mut self, peer: u32, id: RequestId, end: GrantEnd) {
        if self.history.is_some() {
            self.remember_if(peer, end, |request| request.id == id);
        }
    }

    /// So are all of a client that is gone.
    pub(super) fn remember_departure(&mut self, peer: u32, how: SessionEnd) {
        if self.history.is_some() {
            let end = if how == SessionEnd::Lost { GrantEnd::Lost } else { GrantEnd::Unlocked };
            self.remember_if(peer, end, |_| true);
        }
    }

    #[cold]
    fn remember_if(&mut self, peer: u32, end: GrantEnd, is_meant: impl Fn(&RequestRecord) -> bool) {
        let (at, Some(history)) = (self.now, &mut self.history) else { return };
        let Some(session) = self.sessions.get(peer as usize).and_then(Option::as_ref) else { return };
        for request in session.slots.iter().flatten().filter(|request| is_meant(request)) {
            if let (Stage::Held { .. }, Some(lock)) = (&request.stage, request.lock) {
                let entry = entry(session, request, self.directory.lock(lock), at);
                history.add(lock, PastGrant { entry, at, end, of: (session.serial, request.id) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright::LockName;
    use lockwright::inspect::EntryState;

    fn grant(token: u64) -> PastGrant {
        let mut entry = Entry::new(LockName::new("a").unwrap(), EntryState::Held);
        entry.token = Some(token);
        PastGrant { entry, at: Instant::now(), end: GrantEnd::Unlocked, of: (1, token) }
    }

    #[test]
    fn so_many_grants_of_a_lock_are_kept_and_so_many_of_all() {
        let mut history = GrantHistory::default();
        for token in 0..100 {
            history.add(7, grant(token));
            history.add(7, PastGrant { end: GrantEnd::TakenAway, ..grant(token) });
        }
        let tokens: Vec<_> = history.of(7).filter_map(|grant| grant.entry.token).collect();
        assert_eq!(tokens, (100 - OF_A_LOCK as u64..100).rev().collect::<Vec<_>>());
        for lock in 1000..1000 + 3 * OF_ALL as u64 {
            history.add(lock, grant(lock));
        }
        let kept: usize = history.by_lock.values().map(VecDeque::len).sum();
        assert_eq!((kept, history.order.len(), history.of(7).count()), (OF_ALL, OF_ALL, 0));
    }
}
