//! What the client's own thread looks at for a guard's owner: whether the lock is still held, and whether a client waits for it.

use super::contention::Contention;
use super::core::Core;
use crate::backend::{Granted, Standing};
use crate::error::LostReason;
use crate::progress::Watched;
use lockwright_fabric::observe::Claim;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Waker};

/// How a grant stands.
pub(super) fn standing(core: &Core, claim: Claim, granted: &Granted) -> Standing {
    if core.check().is_err() {
        return Standing::Lost(LostReason::OtherProcess);
    }
    core.space.standing(core.kind, claim, granted)
}

/// Leaves the task's waker, once.
pub(super) fn register(wakers: &mut Vec<Waker>, cx: &Context<'_>) {
    wakers.retain(|waker| !waker.will_wake(cx.waker()));
    wakers.push(cx.waker().clone());
}

/// A grant whose state is looked at regularly, for those who want to hear of a change.
#[derive(Debug)]
pub(super) struct Watch {
    core: Arc<Core>,
    /// What is held, which can change.
    held: Mutex<(Claim, Granted)>,
    closed: AtomicBool,
    /// Whether this grant has read or set the lock's value, and not closed it.
    value_open: AtomicBool,
    /// If the guard's owner wants to hear of waiters.
    pub(super) contention: OnceLock<Arc<Contention>>,
    listeners: Mutex<Listeners>,
}

pub(super) struct Listeners {
    /// At the last look.
    pub(super) seen: Standing,
    pub(super) uncertain: Vec<Waker>,
    pub(super) lost: Vec<Waker>,
    pub(super) acts: Vec<Box<dyn FnOnce(LostReason) + Send>>,
    contended: Vec<Box<dyn FnOnce() + Send>>,
}

impl Default for Listeners {
    fn default() -> Self {
        let (uncertain, lost, acts, contended) = Default::default();
        Self { seen: Standing::Held, uncertain, lost, acts, contended }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) fn new(core: Arc<Core>, claim: Claim, granted: Granted) -> Self {
        Self {
            core,
            held: Mutex::new((claim, granted)),
            closed: AtomicBool::new(false),
            value_open: AtomicBool::new(false),
            contention: OnceLock::new(),
            listeners: Mutex::default(),
        }
    }

    /// It is held like that from now on.
    pub(super) fn change(&self, claim: Claim, granted: Granted) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = (claim, granted);
    }

    /// Nothing is told any more.
    pub(super) fn close(&self) {
        self.closed.store(true, SeqCst);
        self.contention.get().inspect(|contention| contention.end());
    }

    /// Notes whether the value is open; says whether it was.
    pub(super) fn set_value_open(&self, open: bool) -> bool {
        self.value_open.swap(open, SeqCst)
    }

    /// Calls `act` once a client waits.
    pub(super) fn on_contended(&self, act: Box<dyn FnOnce() + Send>) {
        self.listeners().contended.push(act);
    }

    /// Looks whether a client waits, where the space does not say so, and tells the guard's owner.
    fn look_for_waiters(&self, claim: Claim) {
        let Some(contention) = self.contention.get() else { return };
        if contention.is_quiet() && self.core.space.is_contended(self.core.kind, claim) == Some(true) {
            contention.set().into_iter().for_each(Waker::wake);
        }
        if contention.is_set() {
            let acts = std::mem::take(&mut self.listeners().contended);
            acts.into_iter().for_each(|act| act());
        }
    }

    pub(super) fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched for Watch {
    fn look(&self) -> bool {
        if self.closed.load(SeqCst) {
            return false;
        }
        let (claim, granted) = *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let standing = standing(&self.core, claim, &granted);
        // It was unlocked meanwhile: that is no loss.
        if self.closed.load(SeqCst) {
            return false;
        }
        let mut listeners = self.listeners();
        listeners.seen = standing;
        let mut woken = Vec::new();
        let mut acts = Vec::new();
        if standing != Standing::Held {
            woken.append(&mut listeners.uncertain);
        }
        if let Standing::Lost(_) = standing {
            woken.append(&mut listeners.lost);
            acts.append(&mut listeners.acts);
        }
        drop(listeners);
        woken.into_iter().for_each(Waker::wake);
        let Standing::Lost(reason) = standing else {
            self.look_for_waiters(claim);
            return true;
        };
        acts.into_iter().for_each(|act| act(reason));
        false
    }
}
