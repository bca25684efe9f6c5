//! A client on the host itself: its verbs are CPU atomics on the very words that NICs change.
//!
//! The two do not exclude each other: to this client a NIC's compare-and-swap is a read and a later write
//! ([`AtomicScope::Nic`]). Locks that both sides use must be made for it, as the asymmetric lock is.

use crate::addr::Value;
use crate::backend::inproc::InProcEndpoint;
use crate::capability::{AtomicScope, Capabilities};
use crate::endpoint::{Endpoint, FabricError};
use crate::wait::{Wait, Waited};

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
    crate::delegate!(inner: me home go send send_datagram recv_by now passed alarm is_gone sleep suspects random);

    fn capabilities(&self) -> Capabilities {
        Capabilities { masked: false, wide: false, guarded: false, messages: true, scope: AtomicScope::Nic }
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
}
