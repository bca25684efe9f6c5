//! An endpoint that hands everything on, but for what its filter says: fewer capabilities, no marks, a look at every
//! verb. One place that knows how to hand everything on, for whoever needs an endpoint that differs in one thing.

use crate::addr::{NodeId, PeerId, Value};
use crate::capability::Capabilities;
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::observe::Observation;
use crate::verb::{Batch, RawVerb};
use crate::wait::{Deadline, Time, Wait, Waited};

/// What is different.
pub trait Filter: Clone + 'static {
    /// Whether marks are handed on.
    const MARKS: bool = true;
    /// Whether [`look`](Filter::look) is called.
    const LOOKS: bool = false;

    /// What the fabric offers, where `inner` is what the endpoint beneath does.
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    /// A verb is about to be posted; the READ of a wait is one.
    fn look(&self, verb: &RawVerb) {
        let _ = verb;
    }
}

/// Leaves no marks: for a lock inside a lock. A mark promises that nothing but the locals it lists matters from there
/// on, which is not so of the inner lock's marks while a request of the outer one is under way around it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMarks;

impl Filter for NoMarks {
    const MARKS: bool = false;
}

/// An endpoint with a filter.
///
/// ```
/// use lockwright_fabric::backend::inproc::InProc;
/// use lockwright_fabric::layer::{Filter, Filtered};
/// use lockwright_fabric::{Capabilities, Endpoint, PeerId};
///
/// #[derive(Clone)]
/// struct Narrow;
/// impl Filter for Narrow {
///     fn capabilities(&self, inner: Capabilities) -> Capabilities {
///         Capabilities { wide: false, ..inner }
///     }
/// }
/// let fabric = InProc::new(1, 64);
/// let narrow = Filtered::new(fabric.endpoint(PeerId::client(0)), Narrow);
/// assert!(!narrow.capabilities().wide);
/// ```
#[derive(Clone, Debug)]
pub struct Filtered<E, F> {
    inner: E,
    filter: F,
}

impl<E, F> Filtered<E, F> {
    /// `inner`, seen through `filter`.
    pub const fn new(inner: E, filter: F) -> Self {
        Self { inner, filter }
    }
}

impl<E: Endpoint, F: Filter> Endpoint for Filtered<E, F> {
    fn me(&self) -> PeerId {
        self.inner.me()
    }

    fn home(&self) -> Option<NodeId> {
        self.inner.home()
    }

    fn capabilities(&self) -> Capabilities {
        self.filter.capabilities(self.inner.capabilities())
    }

    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        if F::LOOKS {
            batch.each(&mut |verb| {
                self.filter.look(&verb);
                0
            });
        }
        self.inner.go(batch)
    }

    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>> {
        if F::LOOKS {
            self.filter.look(&wait.word.read().raw());
        }
        self.inner.wait_until(wait)
    }

    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        self.inner.send(to, message)
    }

    fn send_datagram(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        self.inner.send_datagram(to, message)
    }

    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        self.inner.recv_by(deadline, pick)
    }

    fn now(&self) -> impl Future<Output = Time> {
        self.inner.now()
    }

    fn passed(&self, deadline: Time) -> impl Future<Output = bool> {
        self.inner.passed(deadline)
    }

    fn alarm(&self, deadline: Time) -> impl Future<Output = ()> {
        self.inner.alarm(deadline)
    }

    fn is_gone(&self, peer: PeerId) -> impl Future<Output = bool> {
        self.inner.is_gone(peer)
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.inner.sleep(ns)
    }

    fn suspects(&self, peer: PeerId) -> impl Future<Output = bool> {
        self.inner.suspects(peer)
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }

    fn mark(&self, label: &'static str, locals: &[u64]) {
        if F::MARKS {
            self.inner.mark(label, locals);
        }
    }

    fn checkpoint(&self, label: &'static str, locals: &[u64]) {
        if F::MARKS {
            self.inner.checkpoint(label, locals);
        }
    }

    fn observe(&self, what: Observation) {
        self.inner.observe(what);
    }
}
