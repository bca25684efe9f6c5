//! What all handles of one name in one client share: where the name leads, and the way to its space.

use super::places::Places;
#[cfg(target_os = "linux")]
use crate::backend::ProtocolGrant;
#[cfg(target_os = "linux")]
use crate::backend::member::Member;
use crate::backend::{Backend, Bound, Granted, Kind, threads};
use crate::error::LockError;
use crate::name::LockName;
#[cfg(target_os = "linux")]
use crate::one_sided::local::LocalMember;
use crate::progress::Progress;
#[cfg(target_os = "linux")]
use crate::remote::retained::RetainedLock;
use lockwright_fabric::backend::fork::Owner;
use lockwright_fabric::observe::Claim;
use std::sync::{Arc, PoisonError, RwLock};

/// A lock as one client knows it.
#[derive(Debug)]
pub(crate) struct Core {
    /// The process whose handle it is.
    owner: Owner,
    pub(crate) space: Arc<dyn Backend>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    /// The way to the lock without a virtual call, if it is a keyed one in this host's memory.
    #[cfg(target_os = "linux")]
    near: Option<Arc<Member>>,
    /// What stays with this client of it, if a server decides about it.
    #[cfg(target_os = "linux")]
    retained: Option<RetainedLock>,
    /// The way to it if it is one of a one-sided space of this host.
    #[cfg(target_os = "linux")]
    asymmetric: Option<Arc<LocalMember>>,
    /// Where the name led at first, and as long as this client is not declared dead: read without a lock.
    first: Bound,
    /// Where it leads since.
    later: RwLock<Option<Bound>>,
    /// This client's places in its queue.
    pub(super) places: Places,
}

impl Core {
    pub(crate) fn new(
        space: Arc<dyn Backend>,
        progress: Arc<Progress>,
        name: LockName,
        kind: Kind,
        bound: Bound,
    ) -> Self {
        #[cfg(target_os = "linux")]
        let near = space.local_member(&bound).filter(|_| kind == Kind::Keyed).cloned();
        Self {
            owner: Owner::current(),
            #[cfg(target_os = "linux")]
            near,
            #[cfg(target_os = "linux")]
            retained: space.retained_lock(&bound).filter(|_| kind == Kind::Keyed),
            #[cfg(target_os = "linux")]
            asymmetric: space.local_asymmetric().cloned(),
            space,
            progress,
            name,
            kind,
            first: bound,
            later: RwLock::default(),
            places: Places::default(),
        }
    }

    /// The pid of the process whose handle it is, if that is another one: then nothing may be done with it. What a space offers
    /// as a fast path fails in a child by itself; everything else asks here first.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), u32> {
        if self.owner.is_current() { Ok(()) } else { Err(self.owner.pid()) }
    }

    /// Whether nothing is to be done for what is dropped here, since another process has it. Says so once.
    pub(crate) fn is_inert(&self) -> bool {
        let inert = !self.owner.is_current();
        if inert {
            self.owner.warn_once();
        }
        inert
    }

    /// Takes the lock, which is filled in, if that is the usual case: a keyed lock in this host's memory that is free.
    /// `None`: nothing has happened.
    #[cfg(target_os = "linux")]
    #[inline(always)]
    pub(crate) fn try_acquire_fast(&self, claim: &mut Claim) -> Option<(Granted, u64)> {
        let Some(near) = self.near.as_ref() else { return self.take_other(claim) };
        claim.lock = self.first.lock;
        Some((near.try_take_fast(*claim)?, self.first.token_base))
    }

    /// The same of a lock that stays with this client, or of a one-sided space of this host.
    #[cfg(target_os = "linux")]
    #[inline(never)]
    fn take_other(&self, claim: &mut Claim) -> Option<(Granted, u64)> {
        if let Some(local) = &self.asymmetric {
            claim.lock = self.first.lock;
            return Some((local.try_take(*claim).ok()?, self.first.token_base));
        }
        let retained = self.retained.as_ref().filter(|_| self.owner.is_current())?;
        claim.lock = self.first.lock;
        Some((retained.take(claim.mode, threads::known())?.into(), self.first.token_base))
    }

    /// The same, if it becomes free within a moment, in which the calling thread is kept busy.
    #[cfg(target_os = "linux")]
    pub(crate) fn acquire_spinning(&self, claim: &mut Claim) -> Option<(Granted, u64)> {
        let near = self.near.as_ref()?;
        claim.lock = self.first.lock;
        Some((near.try_take_spinning(*claim)?, self.first.token_base))
    }

    /// Gives the lock back if that is the usual case: nobody waits for it. `false`: nothing has happened.
    #[cfg(target_os = "linux")]
    #[inline(always)]
    pub(crate) fn release_fast(&self, claim: Claim, granted: &Granted) -> bool {
        match &self.near {
            Some(near) => near.give_back_fast(claim, granted),
            None => self.release_other(claim, granted),
        }
    }

    #[cfg(target_os = "linux")]
    #[inline(never)]
    fn release_other(&self, claim: Claim, granted: &Granted) -> bool {
        if let Some(local) = &self.asymmetric {
            return local.give_back(claim, granted).is_ok();
        }
        let ProtocolGrant::Remote(grant) = granted.grant else { return false };
        let retained = self.retained.as_ref().filter(|_| self.owner.is_current());
        retained.is_some_and(|retained| retained.release(grant.id))
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn try_acquire_fast(&self, _: &mut Claim) -> Option<(Granted, u64)> {
        None
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn acquire_spinning(&self, _: &mut Claim) -> Option<(Granted, u64)> {
        None
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn release_fast(&self, _: Claim, _: &Granted) -> bool {
        false
    }

    /// Where the name leads. Looked up again only if this client was declared dead meanwhile, and has lost its names.
    #[inline]
    pub(crate) fn bound(&self) -> Result<Bound, LockError> {
        if self.space.is_bound(&self.first) { Ok(self.first) } else { self.bound_later() }
    }

    #[cold]
    fn bound_later(&self) -> Result<Bound, LockError> {
        let later = *self.later.read().unwrap_or_else(PoisonError::into_inner);
        match later {
            Some(bound) if self.space.is_bound(&bound) => Ok(bound),
            _ => self.bind_again(),
        }
    }

    /// Whether the name still led to where `granted` was granted. A name belongs to one membership; the lock was taken by
    /// that one, which was in after the grant, or by another: then the name may have been given up meanwhile.
    #[inline]
    pub(crate) fn leads(&self, bound: &Bound, granted: &Granted) -> bool {
        granted.record.member() == bound.by || self.space.is_bound(bound)
    }

    /// Gives back a lock that nobody is to have.
    #[cold]
    pub(crate) fn give_away(&self, claim: Claim, granted: Granted) {
        let release = self.space.release(self.kind, claim, granted);
        self.progress.adopt(Box::pin(async move {
            let _ = release.await;
        }));
    }

    #[cold]
    fn bind_again(&self) -> Result<Bound, LockError> {
        let mut later = self.later.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(bound) = *later
            && self.space.is_bound(&bound)
        {
            return Ok(bound);
        }
        let again = self.space.bind(&self.name, self.kind);
        let bound = again.map_err(|error| LockError::Disconnected(error.to_string()))?;
        *later = Some(bound);
        Ok(bound)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.is_inert() {
            return std::mem::forget((Arc::clone(&self.space), Arc::clone(&self.progress)));
        }
        let later = *self.later.get_mut().unwrap_or_else(PoisonError::into_inner);
        let bound = later.unwrap_or(self.first);
        self.space.unbind(&self.name, bound, self.kind);
    }
}
