//! A lock that stays with this client between uses: granted by the server once, and here until the server recalls it.
//!
//! | the grant is | a lock here | the last unlock | a recall |
//! |---|---|---|---|
//! | not here | asks the server | | means nothing |
//! | idle | is granted, in the grant's mode, with the next token of its block | | takes it back at once |
//! | in use, exclusive | waits here | leaves it to the first who waits here; else it is idle | takes it back with the unlock |
//! | in use, shared | is granted to readers | makes it idle | takes it back with the last unlock |
//! | in use, over | asks the server | gives it back | has come before |
//!
//! Nothing is granted here while the session is not certain: by the rule that makes a guard `Held`. A recall names the grant, so
//! one that crosses the unlock it asks for means nothing. A waiter that is here when the grant is over then asks the server, and
//! queues behind the client it was recalled for.
//!
//! What this file must not do: know of messages, threads or time. The table around it does.

use super::transport::Session;
use crate::wire::{RequestId, Units};
use lockwright_fabric::observe::Mode;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where a broken client differs from what is shipped: all `false`, none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RetentionRules {
    /// A recall is ignored while others wait here.
    pub serves_waiters_first: bool,
    /// A recall is taken for one of whatever request has the grant's slot now.
    pub obeys_stale_recalls: bool,
    /// Grants are given here though the session is not certain.
    pub grants_uncertain: bool,
    /// Writers are let in under a shared grant.
    pub ignores_mode: bool,
}

/// A use of a retained grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalGrant {
    /// The grant at the server.
    pub id: RequestId,
    pub token: u64,
}

/// The grant that is here.
#[derive(Clone, Copy, Debug, Hash)]
struct Grant {
    id: RequestId,
    mode: Mode,
    /// The token given last, and the block of those still to be given: from, and up to but not.
    token: u64,
    next: u64,
    end: u64,
    users: u32,
    /// The thread of its only user, if that is known.
    thread: Option<u32>,
    /// It goes back with its last user.
    over: bool,
    /// A reader that waits to be alone, to be upgraded: by its token.
    upgrades: Option<u64>,
    /// Looks since it was last used.
    looks: u8,
}

/// One lock, as far as it stays here. See the module.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Retention {
    grant: Option<Grant>,
    /// Requests that wait for the grant's user, the first first.
    waiters: VecDeque<RequestId>,
}

/// What comes of a lock that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Granted(LocalGrant),
    /// Behind a user of this client.
    Waits,
    /// The server is to be asked; what is here and in the way goes back first.
    Elsewhere(Option<RequestId>),
}

/// What comes of an unlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Released {
    /// It is none of the grant that is here.
    NotHere,
    Stays,
    /// To this request, which waited.
    Passed(RequestId, LocalGrant),
    GoesBack,
}

/// What comes of a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recalled {
    Stale,
    GoesBack,
    InUse,
}

/// How a reader stands that is to be upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detached {
    /// It is none of the grant that is here.
    NotHere,
    /// The grant is a plain one from now on, with this token.
    Plain(u64),
    /// Other readers use it.
    Shared,
    /// Another one waits for the same.
    Deadlock,
}

impl Grant {
    /// The next use.
    fn take(&mut self, thread: Option<u32>) -> LocalGrant {
        (self.token, self.next) = (self.next, self.next + 1);
        self.users += 1;
        self.thread = thread.filter(|_| self.users == 1);
        self.looks = 0;
        LocalGrant { id: self.id, token: self.token }
    }

    /// Whether it can be granted here in `mode`, if the session is certain.
    fn offers(&self, mode: Mode, rules: RetentionRules) -> bool {
        !self.over && (self.mode == mode || rules.ignores_mode) && self.next < self.end
    }
}

impl Retention {
    /// The server has granted `id`, to be kept, and its first use has begun.
    pub(super) fn keep(&mut self, id: RequestId, units: &Units, token: u64, (first, count): (u64, u64)) {
        let (next, end) = (first, first.saturating_add(count));
        let (mode, thread) = (units.mode, units.thread);
        let (users, over, upgrades, looks) = (1, false, None, 0);
        self.grant = Some(Grant { id, mode, token, next, end, users, thread, over, upgrades, looks });
    }

    /// Takes the lock if it is here and nobody is in the way: the usual case.
    #[inline]
    pub(super) fn take(
        &mut self,
        (mode, thread): (Mode, Option<u32>),
        certain: impl FnOnce() -> bool,
        rules: RetentionRules,
    ) -> Option<LocalGrant> {
        let grant = self.grant.as_mut()?;
        let free = grant.users == 0 || mode == Mode::Shared;
        if !free || !grant.offers(mode, rules) || !(certain() || rules.grants_uncertain) {
            return None;
        }
        Some(grant.take(thread))
    }

    /// Takes the lock, or says where to wait for it.
    pub(super) fn ask(&mut self, units: &Units, certain: bool, rules: RetentionRules) -> Asked {
        let mode = units.mode;
        if let Some(granted) = self.take((mode, units.thread), || certain, rules) {
            return Asked::Granted(granted);
        }
        let Some(grant) = &self.grant else { return Asked::Elsewhere(None) };
        if grant.users > 0 {
            let waits = self.waits(mode, certain, rules);
            return if waits { Asked::Waits } else { Asked::Elsewhere(None) };
        }
        // Idle, and of no use: the other mode, or its tokens are used up.
        let id = grant.id;
        self.grant = None;
        Asked::Elsewhere(Some(id))
    }

    /// Whether a request waits here for the grant's user, rather than at the server.
    pub(super) fn waits(&self, mode: Mode, certain: bool, rules: RetentionRules) -> bool {
        let offers = |grant: &Grant| grant.users > 0 && grant.offers(mode, rules);
        certain && mode == Mode::Exclusive && self.grant.as_ref().is_some_and(offers)
    }

    /// A request waits here.
    pub(super) fn wait(&mut self, id: RequestId) {
        self.waiters.push_back(id);
    }

    /// A request waits no longer. `false` if it did not wait here.
    pub(super) fn leave(&mut self, id: RequestId) -> bool {
        let before = self.waiters.len();
        self.waiters.retain(|waiter| *waiter != id);
        self.waiters.len() < before
    }

    /// Gives a use back if nobody else is concerned: the usual case. `false`: nothing has happened.
    #[inline]
    pub(super) fn release_fast(&mut self, id: RequestId) -> bool {
        let Some(grant) = self.grant.as_mut().filter(|grant| grant.id == id) else { return false };
        let concerns_nobody = !grant.over && self.waiters.is_empty() && grant.upgrades.is_none();
        if concerns_nobody {
            grant.users -= 1;
        }
        concerns_nobody
    }

    /// Gives a use back.
    pub(super) fn release(&mut self, id: RequestId, certain: bool) -> Released {
        let Some(grant) = self.grant.as_mut().filter(|grant| grant.id == id) else {
            return Released::NotHere;
        };
        grant.users -= 1;
        if grant.users > 0 {
            return Released::Stays;
        }
        let offers = certain && grant.offers(grant.mode, RetentionRules::default());
        match self.waiters.front().copied() {
            Some(waiter) if offers => {
                let granted = grant.take(None);
                self.waiters.pop_front();
                Released::Passed(waiter, granted)
            }
            None if !grant.over => Released::Stays,
            _ => {
                self.grant = None;
                Released::GoesBack
            }
        }
    }

    /// A use that nobody has seen is none, and nothing comes of that.
    pub(super) fn forget_use(&mut self, id: RequestId) {
        if let Some(grant) = self.grant.as_mut().filter(|grant| grant.id == id) {
            grant.users -= 1;
        }
    }

    /// The server wants grant `id` back.
    pub(super) fn recall(&mut self, id: RequestId, rules: RetentionRules) -> Recalled {
        let Some(grant) = self.grant.as_mut().filter(|grant| grant.id == id) else { return Recalled::Stale };
        if rules.serves_waiters_first && !self.waiters.is_empty() {
            return Recalled::Stale;
        }
        if grant.users == 0 {
            self.grant = None;
            return Recalled::GoesBack;
        }
        grant.over = true;
        Recalled::InUse
    }

    /// Nothing is granted here any more. What is in use stays until its last user is done; what is idle is returned, and is
    /// not here any more.
    pub(super) fn end(&mut self) -> Option<RequestId> {
        let grant = self.grant.as_mut()?;
        grant.over = true;
        let idle = (grant.users == 0).then_some(grant.id)?;
        self.grant = None;
        Some(idle)
    }

    /// By what idle grants are ordered, the one first that was used least recently. `None`: it is not idle.
    pub(super) fn idle_age(&self) -> Option<(Reverse<u8>, u64)> {
        self.grant.filter(|grant| grant.users == 0).map(|grant| (Reverse(grant.looks), grant.token))
    }

    /// What is idle is returned, and is not here any more.
    pub(super) fn end_idle(&mut self) -> Option<RequestId> {
        self.grant.take_if(|grant| grant.users == 0).map(|grant| grant.id)
    }

    /// A use is about to be changed, and the grant with it: it has to be the only one.
    pub(super) fn detach(&mut self, id: RequestId, token: u64) -> Detached {
        let Some(grant) = self.grant.as_mut().filter(|grant| grant.id == id) else {
            return Detached::NotHere;
        };
        if grant.users == 1 {
            let token = grant.token;
            self.grant = None;
            return Detached::Plain(token);
        }
        if grant.upgrades.is_some_and(|other| other != token) {
            return Detached::Deadlock;
        }
        Detached::Shared
    }

    /// The reader with `token` waits until it is alone. Nobody is let in here meanwhile.
    pub(super) fn upgrade(&mut self, token: u64) {
        if let Some(grant) = &mut self.grant {
            (grant.over, grant.upgrades) = (true, Some(token));
        }
    }

    /// It waits no longer.
    pub(super) fn give_up_upgrade(&mut self, token: u64) {
        if let Some(grant) = self.grant.as_mut().filter(|grant| grant.upgrades == Some(token)) {
            grant.upgrades = None;
        }
    }

    /// Whether a reader that waits to be alone now is.
    pub(super) fn can_upgrade(&self) -> bool {
        self.grant.is_some_and(|grant| grant.users == 1 && grant.upgrades.is_some())
    }

    /// The thread of its only user, if that is known.
    pub(super) fn thread(&self) -> Option<u32> {
        self.grant?.thread
    }

    /// A waiter of this thread has got it.
    pub(super) fn passed_to(&mut self, thread: Option<u32>) {
        if let Some(grant) = &mut self.grant {
            grant.thread = thread;
        }
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Takes out all that wait here.
    pub(super) fn take_waiters(&mut self) -> VecDeque<RequestId> {
        std::mem::take(&mut self.waiters)
    }

    /// The grant that is here, the token that was given last, and whether it is in use.
    pub(super) fn held(&self) -> Option<(RequestId, u64, bool)> {
        self.grant.map(|grant| (grant.id, grant.token, grant.users > 0))
    }

    /// Looks at it. Unused for `most` looks, it goes back.
    pub(super) fn look(&mut self, most: u8) -> Option<RequestId> {
        let grant = self.grant.as_mut().filter(|grant| grant.users == 0)?;
        grant.looks += 1;
        let id = (grant.looks > most).then_some(grant.id)?;
        self.grant = None;
        Some(id)
    }
}

/// The session that a grant belongs to, and how long it is certain.
#[derive(Clone, Debug)]
pub(crate) struct Certainty {
    pub(super) session: Session,
    pub(super) lease: Duration,
}

impl Certainty {
    fn holds(&self) -> bool {
        self.session.is_certain(self.lease)
    }
}

/// A [`Retention`] that the handles of a lock use without the table around it. A copy is one of its own, as a copied table needs it;
/// handles [share](Self::share) theirs with the table.
#[derive(Debug, Default)]
pub(crate) struct RetainedLock(Arc<Mutex<Inner>>);

#[derive(Clone, Debug, Default)]
pub(super) struct Inner {
    pub(super) retention: Retention,
    /// While the grant is here.
    pub(super) certainty: Option<Certainty>,
}

impl Clone for RetainedLock {
    fn clone(&self) -> Self {
        Self(Arc::new(Mutex::new(self.lock().clone())))
    }
}

impl RetainedLock {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same lock once more.
    pub(crate) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// Takes the lock if it is here, and nobody is in the way.
    #[inline]
    pub(crate) fn take(&self, mode: Mode, thread: Option<u32>) -> Option<LocalGrant> {
        let mut inner = self.lock();
        let Inner { retention, certainty } = &mut *inner;
        let certain = || certainty.as_ref().is_some_and(Certainty::holds);
        retention.take((mode, thread), certain, RetentionRules::default())
    }

    /// Gives a use back that nobody waits for. `false`: nothing has happened.
    #[inline]
    pub(crate) fn release(&self, id: RequestId) -> bool {
        self.lock().retention.release_fast(id)
    }

    /// The same, if the session is certain, so that the lock was held until now.
    pub(crate) fn release_held(&self, id: RequestId) -> bool {
        let mut inner = self.lock();
        inner.certainty.as_ref().is_some_and(Certainty::holds) && inner.retention.release_fast(id)
    }
}
