//! A guest's endpoint: the session's own, under the number that the space knows the guest by.

use lockwright_fabric::backend::tcp::TcpEndpoint;
use lockwright_fabric::{
    Batch, Capabilities, Deadline, Endpoint, FabricError, Message, PeerId, Time, Value, Wait, Waited,
};

/// Verbs are executed by the server on the words of its host's space; messages go to whoever is in the space, and come
/// from there.
#[derive(Clone, Debug)]
pub(crate) struct GuestEndpoint {
    pub(super) ep: TcpEndpoint,
    pub(super) me: PeerId,
}

impl Endpoint for GuestEndpoint {
    fn me(&self) -> PeerId {
        self.me
    }

    fn capabilities(&self) -> Capabilities {
        self.ep.capabilities()
    }

    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        self.ep.go(batch)
    }

    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>> {
        self.ep.wait_until(wait)
    }

    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        self.ep.send(to, message)
    }

    fn send_datagram(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        self.ep.send_datagram(to, message)
    }

    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        self.ep.recv_by(deadline, pick)
    }

    fn now(&self) -> impl Future<Output = Time> {
        self.ep.now()
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.ep.sleep(ns)
    }

    fn random(&self) -> u64 {
        self.ep.random()
    }
}
