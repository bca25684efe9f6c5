//! A client on the host itself: its verbs are CPU atomics on the very words that NICs change.
//!
//! The two do not exclude each other: to this client a NIC's compare-and-swap is a read and a later write
//! ([`AtomicScope::Nic`]). Locks that both sides use must be made for it, as the asymmetric lock is.

use crate::addr::{NodeId, PeerId, Value};
use crate::backend::inproc::InProcEndpoint;
use crate::capability::{AtomicScope, Capabilities};
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::verb::Batch;
use crate::wait::{Deadline, Time, Wait, Waited};

/// Looks at a word before its waiter begins to sleep in between.
const SPINS: u32 = 1_000;
/// How long it sleeps: a NIC's write wakes nobody.
const NAP_NS: u64 = 50_000;

/// A local client of an [`RdmaHost`](super::RdmaHost).
#[derive(Clone, Debug)]
pub struct RdmaLocal {
    inner: InProcEndpoint,
}

impl RdmaLocal {
    pub(super) const fn new(inner: InProcEndpoint) -> Self {
        Self { inner }
    }
}

impl Endpoint for RdmaLocal {
    fn me(&self) -> PeerId {
        self.inner.me()
    }

    fn home(&self) -> Option<NodeId> {
        self.inner.home()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { masked: false, wide: false, guarded: false, messages: true, scope: AtomicScope::Nic }
    }

    #[inline(always)]
    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        self.inner.go(batch)
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let mut looks = 0;
        loop {
            let value = self.inner.go(wait.word.read()).await?;
            let met = wait.met_by(value);
            if met || self.inner.clock().reached(wait.deadline) {
                return Ok(Waited { value, met, polls: 0 });
            }
            looks += 1;
            if looks < SPINS {
                std::hint::spin_loop();
            } else {
                self.inner.sleep(NAP_NS).await;
            }
        }
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

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.inner.sleep(ns)
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }
}
