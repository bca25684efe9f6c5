//! Locks that stay with this client, as its table sees them: what is granted here, what goes back, and what is said of it.
//!
//! The grant at the server is a request of the table like any other, held for as long as it is here. Its uses are counted in
//! [`Retention`]. What has to be said is collected in `to_say`, in order.
//!
//! | stage of a request | means |
//! |---|---|
//! | retained | granted, to be kept, and not yet seen by its waiter |
//! | local | granted here, under the grant `id`, and not yet seen |
//!
//! | retained grant | session ends, server goes on | server restarted |
//! |---|---|---|
//! | idle | is not here any more | is not here any more, and not claimed |
//! | in use | is lost | is claimed, and goes back with its last user |

use super::{Stage, Table};
use crate::remote::retained::{
    Asked, Certainty, Detached, LocalGrant, Recalled, Released, RetainedLock, Retention,
};
use crate::wire::{Request, RequestId, Units};
use std::task::Waker;

/// What came of a lock that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    Granted(LocalGrant),
    /// It was only tried, and is in use here.
    Busy,
    /// It waits, here or at the server.
    Request(RequestId),
}

impl Table {
    /// What stays here of the lock that `handle` stands for.
    pub(crate) fn retained_lock(&self, handle: u64) -> Option<RetainedLock> {
        self.retained.get(&handle).map(RetainedLock::share)
    }

    /// What is to be said now, in order.
    #[must_use]
    pub fn take_said(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.to_say)
    }

    /// Asks for a lock: here, if it is here and the session is `certain`, or else at the server.
    pub fn lock(&mut self, units: Units, wait: bool, certain: bool) -> Begun {
        if let Some(lock) = self.retained_lock(units.handle) {
            let mut inner = lock.lock();
            match inner.retention.ask(&units, certain, self.retention) {
                Asked::Granted(granted) => return Begun::Granted(granted),
                Asked::Waits if !wait => return Begun::Busy,
                Asked::Waits => {
                    let id = self.open(Some(units), Stage::Wanted { wait });
                    inner.retention.wait(id);
                    if let Some((held, ..)) = inner.retention.held() {
                        self.contended(held).into_iter().for_each(Waker::wake);
                    }
                    return Begun::Request(id);
                }
                Asked::Elsewhere(in_the_way) => {
                    if let Some(id) = in_the_way {
                        inner.certainty = None;
                        self.give_back(id);
                    }
                }
            }
        }
        let id = self.open(Some(units), Stage::Wanted { wait });
        self.to_say.push(Request::Lock { id, units, wait });
        Begun::Request(id)
    }

    /// The waiter sees a grant that is to be kept. `certainty`: of the session. The grant, if it is one.
    pub(crate) fn keep_grant(&mut self, id: RequestId, certainty: Option<Certainty>) -> Option<LocalGrant> {
        let origin = self.origin;
        let request = self.request(id)?;
        let Stage::Retained { token, first, count } = request.stage else { return None };
        request.stage = Stage::Held { token, origin };
        let units = request.units?;
        if let Some(lock) = self.retained.get(&units.handle) {
            let mut inner = lock.lock();
            inner.retention.keep(id, &units, token, (first, count));
            inner.certainty = certainty;
            self.with_grants.insert(units.handle);
        }
        Some(LocalGrant { id, token })
    }

    /// As the explorer's clients see it, who have no connection.
    pub fn see_retained(&mut self, id: RequestId) -> Option<LocalGrant> {
        self.keep_grant(id, None)
    }

    /// The waiter sees that it was granted here.
    pub fn see_local(&mut self, id: RequestId) -> Option<LocalGrant> {
        let Some(Stage::Local(granted)) = self.stage(id) else { return None };
        let granted = *granted;
        self.take(id);
        Some(granted)
    }

    /// Gives one use back of what is retained, and returns whom to wake. `None`: it is not retained here.
    pub fn release(&mut self, id: RequestId, certain: bool) -> Option<Vec<Waker>> {
        let lock = self.lock_of(id)?;
        let mut inner = lock.lock();
        let mut woken = Vec::new();
        match inner.retention.release(id, certain) {
            Released::NotHere => return None,
            Released::Stays if inner.retention.can_upgrade() => {
                woken.extend(self.request(id).and_then(|request| request.waker.take()));
            }
            Released::Stays => {}
            Released::Passed(waiter, granted) => {
                if let Some(request) = self.request(waiter) {
                    inner.retention.passed_to(request.units.and_then(|units| units.thread));
                    request.stage = Stage::Local(granted);
                    woken.extend(request.waker.take());
                }
            }
            Released::GoesBack => {
                inner.certainty = None;
                self.give_back(id);
                self.ask_for_waiters(&mut inner.retention);
            }
        }
        Some(woken)
    }

    /// Gives a request up, whether it waits or was granted, and returns whom to wake.
    pub fn give_up(&mut self, id: RequestId, certain: bool) -> Vec<Waker> {
        if let Some(granted) = self.see_local(id) {
            return self.release(granted.id, certain).unwrap_or_default();
        }
        if let Some(woken) = self.release(id, certain) {
            return woken;
        }
        let waited_here = self.lock_of(id).is_some_and(|lock| lock.lock().retention.leave(id));
        if self.take(id).is_some() && !waited_here {
            self.to_say.push(Request::Unlock { id, answer: false });
        }
        Vec::new()
    }

    /// Whether requests wait here for the user of grant `id`.
    pub(super) fn has_waiters_here(&self, id: RequestId) -> bool {
        self.lock_of(id).is_some_and(|lock| lock.lock().retention.has_waiters())
    }

    /// Whether it is held, and does not stay here between uses.
    pub(crate) fn is_plainly_held(&mut self, id: RequestId) -> bool {
        let stays = |lock: &RetainedLock| lock.lock().retention.held().is_some_and(|(held, ..)| held == id);
        matches!(self.stage(id), Some(Stage::Held { .. }))
            && !self.lock_of(id).is_some_and(|lock| stays(&lock))
    }

    /// Whether grants are here, or were at the last look.
    pub(crate) fn has_grants(&self) -> bool {
        !self.with_grants.is_empty()
    }

    /// How many grants are here that nobody uses.
    pub fn idle_grants(&self) -> usize {
        let idle = |lock: &&RetainedLock| matches!(lock.lock().retention.held(), Some((_, _, false)));
        self.retained.values().filter(idle).count()
    }

    /// What is retained goes back if nobody has used it for `most` looks.
    pub fn look_at_retained(&mut self, most: u8) {
        for lock in self.locks_with_grants() {
            let mut inner = lock.lock();
            if let Some(id) = inner.retention.look(most) {
                inner.certainty = None;
                self.give_back(id);
            }
        }
    }

    /// So many of the grants that nobody uses go back: those first that have not been used for most looks, and of these those with
    /// the oldest tokens.
    pub(super) fn relinquish(&mut self, count: usize) {
        let age = |lock: RetainedLock| {
            let age = lock.lock().retention.idle_age()?;
            Some((age, lock))
        };
        let mut idle: Vec<_> = self.locks_with_grants().into_iter().filter_map(age).collect();
        idle.sort_unstable_by_key(|(age, _)| *age);
        for (_, lock) in idle.into_iter().take(count) {
            let mut inner = lock.lock();
            // It may be in use meanwhile.
            if let Some(id) = inner.retention.end_idle() {
                inner.certainty = None;
                self.give_back(id);
            }
        }
    }

    /// A retained lock is about to be changed by the user with `token`: it is a plain one from then on. The error says why not.
    pub(super) fn detach(&mut self, id: RequestId, token: u64, wait: bool) -> Result<(), Option<Detached>> {
        let Some(lock) = self.lock_of(id) else { return Ok(()) };
        let mut inner = lock.lock();
        match inner.retention.detach(id, token) {
            Detached::NotHere => Ok(()),
            Detached::Plain(token) => {
                inner.certainty = None;
                self.ask_for_waiters(&mut inner.retention);
                if let Some(Stage::Held { token: held, .. } | Stage::Claimed { token: held, .. }) =
                    self.stage(id)
                {
                    *held = token;
                }
                Ok(())
            }
            Detached::Shared if wait => {
                inner.retention.upgrade(token);
                Err(None)
            }
            why => Err(Some(why)),
        }
    }

    /// The user with `token` does not want to be alone any more.
    pub(crate) fn stay_shared(&mut self, id: RequestId, token: u64) {
        if let Some(lock) = self.lock_of(id) {
            lock.lock().retention.give_up_upgrade(token);
        }
    }

    /// The server wants grant `id` back.
    pub(super) fn recall(&mut self, id: RequestId) {
        if let Some(Stage::Retained { token, .. }) = self.stage(id) {
            let token = *token;
            *self.stage(id).expect("just seen") = Stage::Granted { token };
            let thread = self.request(id).and_then(|request| request.units?.thread);
            return self.to_say.push(Request::Kept { id, thread });
        }
        let Some(lock) = self.lock_of(id) else { return self.obey_stale_recall(id) };
        let mut inner = lock.lock();
        match inner.retention.recall(id, self.retention) {
            Recalled::Stale => return,
            Recalled::InUse => {
                let thread = inner.retention.thread();
                self.to_say.push(Request::Kept { id, thread });
            }
            Recalled::GoesBack => {
                inner.certainty = None;
                self.give_back(id);
            }
        }
        self.ask_for_waiters(&mut inner.retention);
    }

    /// The mutant: a recall that crossed its unlock is taken for one of the next request.
    fn obey_stale_recall(&mut self, id: RequestId) {
        let next = self.slots.get(crate::wire::slot(id) as usize).and_then(Option::as_ref);
        if let Some(next) = next.map(|next| next.id).filter(|_| self.retention.obeys_stale_recalls) {
            self.give_back(next);
        }
    }

    /// Grant `id` was taken away, or its session is not certain any more: nothing is granted under it. `true` if nobody uses it,
    /// and it is gone.
    pub(super) fn end_retention(&mut self, id: RequestId) -> bool {
        let Some(lock) = self.lock_of(id) else { return false };
        let mut inner = lock.lock();
        if inner.retention.held().is_none_or(|(held, ..)| held != id) {
            return false;
        }
        inner.certainty = None;
        let idle = inner.retention.end().is_some();
        self.ask_for_waiters(&mut inner.retention);
        idle
    }

    /// The session is over. What is idle is dropped; what is in use is as if it were held with the token given last.
    pub(super) fn end_all_retention(&mut self) {
        for id in self.unseen_uses() {
            if let Some(lock) = self.lock_of(id) {
                lock.lock().retention.forget_use(id);
            }
        }
        for lock in self.locks_with_grants() {
            let mut inner = lock.lock();
            inner.certainty = None;
            inner.retention.take_waiters();
            let Some((id, token, _)) = inner.retention.held() else { continue };
            let thread = inner.retention.thread();
            if inner.retention.end().is_some() {
                self.take(id);
            } else if let Some(request) = self.request(id)
                && let Stage::Held { token: held, .. } = &mut request.stage
            {
                *held = token;
                request.units = request.units.map(|units| Units { thread, ..units });
            }
        }
        self.to_say.clear();
    }

    /// The lease is over: what is in use goes back with its last user, and a use that its waiter has not seen yet is void.
    /// Returns whom to wake.
    pub(super) fn expire_retained(&mut self) -> Vec<Waker> {
        for lock in self.locks_with_grants() {
            let mut inner = lock.lock();
            if inner.retention.held().is_some_and(|(_, _, in_use)| in_use) {
                inner.certainty = None;
                inner.retention.end();
                self.ask_for_waiters(&mut inner.retention);
            }
        }
        self.unseen_uses().into_iter().flat_map(|id| self.release(id, false).unwrap_or_default()).collect()
    }

    /// The locks of which a grant is here.
    fn locks_with_grants(&mut self) -> Vec<RetainedLock> {
        let Self { retained, with_grants, .. } = self;
        with_grants
            .retain(|handle| retained.get(handle).is_some_and(|lock| lock.lock().retention.held().is_some()));
        with_grants.iter().filter_map(|handle| retained.get(handle)).map(RetainedLock::share).collect()
    }

    /// The grants of uses that their waiters have not seen yet.
    fn unseen_uses(&self) -> Vec<RequestId> {
        let unseen = self.slots.iter().flatten().filter_map(|request| match request.stage {
            Stage::Local(granted) => Some(granted.id),
            _ => None,
        });
        unseen.collect()
    }

    /// Whether `id` is a grant that is here and that nobody uses.
    pub(super) fn is_idle(&self, id: RequestId) -> bool {
        let idle = |lock: RetainedLock| {
            lock.lock().retention.held().is_some_and(|(held, _, in_use)| held == id && !in_use)
        };
        self.lock_of(id).is_some_and(idle)
    }

    /// What stays here of the lock that a request is about.
    fn lock_of(&self, id: RequestId) -> Option<RetainedLock> {
        let request = self.slots.get(crate::wire::slot(id) as usize)?.as_ref()?;
        let units = request.units.filter(|_| request.id == id)?;
        self.retained_lock(units.handle)
    }

    pub(super) fn give_back(&mut self, id: RequestId) {
        if self.take(id).is_some() {
            self.to_say.push(Request::Unlock { id, answer: false });
        }
    }

    /// The requests that waited here ask the server.
    fn ask_for_waiters(&mut self, retention: &mut Retention) {
        for id in retention.take_waiters() {
            if let Some(request) = self.request(id)
                && let (Some(units), Stage::Wanted { wait }) = (request.units, &request.stage)
            {
                let wait = *wait;
                self.to_say.push(Request::Lock { id, units, wait });
            }
        }
    }
}
