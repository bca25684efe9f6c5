//! An endpoint that leaves no marks, for a lock inside a lock: DSLR's marks promise that nothing but DSLR's own locals
//! matters from there on, which is not so while a request of Citron is under way around it.

use lockwright_fabric::observe::Observation;
use lockwright_fabric::{
    Batch, Capabilities, Deadline, Endpoint, FabricError, Message, NodeId, PeerId, Time, Value, Wait, Waited,
};

/// The endpoint it wraps, but for marks.
#[derive(Clone, Debug)]
pub(super) struct Unmarked<E>(pub(super) E);

impl<E: Endpoint> Endpoint for Unmarked<E> {
    fn me(&self) -> PeerId {
        self.0.me()
    }

    fn home(&self) -> Option<NodeId> {
        self.0.home()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        self.0.go(batch)
    }

    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>> {
        self.0.wait_until(wait)
    }

    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        self.0.send(to, message)
    }

    fn send_datagram(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        self.0.send_datagram(to, message)
    }

    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        self.0.recv_by(deadline, pick)
    }

    fn now(&self) -> impl Future<Output = Time> {
        self.0.now()
    }

    fn passed(&self, deadline: Time) -> impl Future<Output = bool> {
        self.0.passed(deadline)
    }

    fn alarm(&self, deadline: Time) -> impl Future<Output = ()> {
        self.0.alarm(deadline)
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.0.sleep(ns)
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn observe(&self, what: Observation) {
        self.0.observe(what);
    }
}
