//! What a client of a one-sided space needs of its fabric beyond verbs: writes that are not waited for, and to know what became
//! of its connection.

use lockwright_fabric::backend::inproc::InProcEndpoint;
use lockwright_fabric::backend::tcp::TcpEndpoint;
use lockwright_fabric::{Endpoint, RawVerb};

/// A fabric by which one-sided memory is reached.
pub trait Reach: Endpoint {
    /// Executes `verbs` before all that are issued later, and waits for nothing. `false` if there is no room just now: then
    /// nothing has happened.
    fn post(&self, verbs: &[RawVerb]) -> bool;

    /// How many connections broke so far. If it is the same before a post and after the completion of a later verb, both
    /// were executed, in order.
    fn breaks(&self) -> u64;

    /// Whether the server has heard of this client so lately that it will not strike it off the directory for a while.
    fn is_fresh(&self) -> bool;

    /// Whether the server has given this client up, or is gone itself.
    fn is_over(&self) -> bool;
}

/// In the server's own process: for what the server does itself, where verbs are executed by its CPU.
impl Reach for InProcEndpoint {
    fn post(&self, verbs: &[RawVerb]) -> bool {
        lockwright_fabric::backend::block_on(self.go(verbs)).is_ok()
    }

    fn breaks(&self) -> u64 {
        0
    }

    fn is_fresh(&self) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        false
    }
}

/// Over tcp, where the server's CPU executes verbs.
impl Reach for TcpEndpoint {
    fn post(&self, verbs: &[RawVerb]) -> bool {
        TcpEndpoint::post(self, verbs).is_ok()
    }

    fn breaks(&self) -> u64 {
        TcpEndpoint::breaks(self)
    }

    /// The server gives a client up after three silent heartbeats and the grace period.
    fn is_fresh(&self) -> bool {
        self.acknowledged() <= self.lease().heartbeat * 2
    }

    fn is_over(&self) -> bool {
        self.close_reason().is_some()
    }
}

#[cfg(feature = "rdma")]
impl Reach for lockwright_fabric::backend::rdma::RdmaEndpoint {
    fn post(&self, verbs: &[RawVerb]) -> bool {
        Self::post(self, verbs)
    }

    fn breaks(&self) -> u64 {
        self.renewals()
    }

    /// The host gives a client up three heartbeats and the grace period after the last sign of life that it heard.
    fn is_fresh(&self) -> bool {
        self.acknowledged() <= self.heartbeat() * 2
    }

    fn is_over(&self) -> bool {
        self.is_lost()
    }
}
