//! Changing m and T_wait while locks are in use, in two phases (Citron §3.5.5).
//!
//! Whoever coordinates (the paper's cluster manager) tells every client to **prepare**. From then on a client goes by
//! both values at once, so that it gets along with clients of either:
//!
//! | | prepared |
//! |---|---|
//! | tell every m-th ancestor | the smaller m |
//! | look for notes within m levels | the larger m |
//! | abort after T_wait | the smaller T_wait |
//! | wait T_wait for requests below | the larger T_wait |
//!
//! When all have acknowledged, it tells them to **commit**, and they go by the new values alone.
//!
//! One thing print does not say: a client may acknowledge only when everything that it began before it prepared is over,
//! *locks that it holds* included. Their notes are every m-th by the old m; a client that has committed to a smaller one
//! looks at too few levels to see them.

use super::params::{Synchrony, Timing};
use super::tree::View;
use super::{CitronClient, Params, Rules};
use crate::protocol::Reason;
use lockwright_fabric::Endpoint;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

/// What can be changed while locks are in use.
///
/// ```
/// use lockwright_fabric::backend::inproc::InProc;
/// use lockwright_fabric::PeerId;
/// use lockwright_locks::citron::{Citron, Params, Tuning};
/// use lockwright_locks::{Protocol, Space};
///
/// let (space, params) = (Space::of(1).units(1 << 20), Params { tunable: true, ..Params::default() });
/// let fabric = InProc::new(1, <Citron>::bytes_per_node(&space, &params));
/// let clients = [0, 1].map(|i| <Citron>::client(fabric.endpoint(PeerId::client(i)), &space, &params));
/// for client in &clients {
///     client.prepare(Tuning { m: 2, t_wait_ns: 0 }).unwrap();
/// }
/// // Nobody holds anything from before.
/// assert!(clients.iter().all(|client| client.is_prepared()));
/// assert!(clients.iter().all(|client| client.commit()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The meet-in-the-middle distance.
    pub m: u32,
    /// Wait mode's T_wait; nothing in handshake mode.
    pub t_wait_ns: u64,
}

/// How far a client is with a change, for the explorer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has not heard of it.
    Old,
    /// It goes by both values.
    Prepared,
    /// It goes by the new values.
    New,
}

/// A change of m that clients with even and odd numbers are at different stages of, for the explorer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The new m.
    pub m: u32,
    /// Where clients with even numbers are.
    pub even: Stage,
    /// Where those with odd numbers are.
    pub odd: Stage,
}

/// A client's values, and what it began with older ones.
#[derive(Debug)]
pub(super) struct Tunings {
    now: Tuning,
    next: Option<Tuning>,
    /// Everything that is begun holds on to this.
    stage: Arc<()>,
    /// What was begun at earlier stages.
    older: Vec<Weak<()>>,
}

impl Tunings {
    pub(super) fn new(params: &Params) -> Self {
        let t_wait_ns = match params.synchrony {
            Synchrony::Handshake => 0,
            Synchrony::Wait(Timing { t_wait_ns, .. }) => t_wait_ns,
        };
        let now = Tuning { m: params.m, t_wait_ns };
        Self { now, next: None, stage: Arc::default(), older: Vec::new() }
    }

    /// What a request goes by, on a tree that has grown so often.
    fn view(&self, grown: u32, config: u64) -> View {
        let (now, next) = (self.now, self.next.unwrap_or(self.now));
        View {
            grown,
            config,
            tell: now.m.min(next.m),
            look: now.m.max(next.m),
            abort_ns: now.t_wait_ns.min(next.t_wait_ns),
            wait_ns: now.t_wait_ns.max(next.t_wait_ns),
        }
    }

    fn is_prepared(&self) -> bool {
        self.next.is_some() && self.older.iter().all(|stage| stage.strong_count() == 0)
    }
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// First phase: new requests go by both the values so far and `new`.
    ///
    /// # Errors
    /// The space is not tunable, the values make no sense, or a change is under way already.
    pub fn prepare(&self, new: Tuning) -> Result<(), &'static Reason> {
        if !self.params.tunable {
            return Err(&Reason("this space is not tunable"));
        }
        if self.shape.grows() && new.m != self.params.m {
            return Err(&Reason("a tree that grows does so by m levels, so m stays"));
        }
        Params { m: new.m, ..self.params }.check()?;
        let mut tunings = self.tunings();
        if tunings.next.is_some() {
            return Err(&Reason("another change is under way"));
        }
        tunings.next = Some(new);
        let before = std::mem::take(&mut tunings.stage);
        tunings.older.retain(|stage| stage.strong_count() > 0);
        tunings.older.push(Arc::downgrade(&before));
        Ok(())
    }

    /// Whether this client can acknowledge: it has prepared, and everything it began before is over.
    pub fn is_prepared(&self) -> bool {
        self.tunings().is_prepared()
    }

    /// Second phase, when every client has acknowledged: the new values alone. Says whether that was so of this one.
    pub fn commit(&self) -> bool {
        let mut tunings = self.tunings();
        if !tunings.is_prepared() {
            return false;
        }
        if let Some(next) = tunings.next.take() {
            tunings.now = next;
            let before = std::mem::take(&mut tunings.stage);
            tunings.older.push(Arc::downgrade(&before));
        }
        true
    }

    /// Something begins. It counts as long as this lives.
    pub(super) fn stage(&self) -> Option<Arc<()>> {
        self.params.tunable.then(|| Arc::clone(&self.tunings().stage))
    }

    /// What a request goes by.
    pub(super) fn view(&self, grown: u32, config: u64) -> View {
        if self.params.tunable {
            return self.tunings().view(grown, config);
        }
        let mut tunings = Tunings::new(&self.params);
        if let Some(trial) = self.params.trial {
            let stage = if self.ep.me().index().0.is_multiple_of(2) { trial.even } else { trial.odd };
            let new = Tuning { m: trial.m, ..tunings.now };
            match stage {
                Stage::Old => {}
                Stage::Prepared => tunings.next = Some(new),
                Stage::New => tunings.now = new,
            }
        }
        tunings.view(grown, config)
    }

    fn tunings(&self) -> MutexGuard<'_, Tunings> {
        self.tunings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
