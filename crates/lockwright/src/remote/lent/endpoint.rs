//! The endpoint of a lent space's client: that of its session, whichever that is, under its number in the space.

use super::super::transport::Session;
#[cfg(feature = "rdma")]
use crate::lent::layout::{self, NUMBERS};
use crate::lent::reach::Reach;
use lockwright_fabric::backend::tcp::TcpEndpoint;
use lockwright_fabric::{
    Batch, Capabilities, Deadline, Endpoint, FabricError, Message, PeerId, RawVerb, Time, Value, Wait, Waited,
};
#[cfg(feature = "rdma")]
use lockwright_fabric::{NodeId, RegionId};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct LentEndpoint {
    by: By,
    me: PeerId,
    /// To be added to a number in the space: what the fabric calls that client.
    first: u32,
}

#[derive(Clone, Debug)]
enum By {
    Tcp(TcpEndpoint),
    #[cfg(feature = "rdma")]
    Rdma(lockwright_fabric::backend::rdma::RdmaEndpoint),
}

/// The same call on whichever it is.
macro_rules! each {
    ($self:expr, $ep:ident => $call:expr) => {
        match &$self.by {
            By::Tcp($ep) => $call,
            #[cfg(feature = "rdma")]
            By::Rdma($ep) => $call,
        }
    };
}

impl LentEndpoint {
    /// The way over `session`; who this is in the space is said later.
    pub(crate) fn over(session: &Session) -> Self {
        match session {
            Session::Tcp(ep) => Self { by: By::Tcp(ep.clone()), me: ep.me(), first: 0 },
            #[cfg(feature = "rdma")]
            Session::Rdma(ep) => {
                // The fabric numbers the clients of one lent space after those of another.
                let first = ep.me().0 / (NUMBERS as u32 + 1) * (NUMBERS as u32 + 1);
                Self { by: By::Rdma(ep.clone()), me: ep.me(), first }
            }
        }
    }

    /// The same, under a number.
    pub(super) fn of(self, me: PeerId) -> Self {
        Self { me, ..self }
    }

    /// Whether as much is lent as a space takes.
    ///
    /// # Errors
    /// In words.
    pub(super) fn is_large_enough(&self) -> Result<(), String> {
        match &self.by {
            By::Tcp(_) => Ok(()),
            #[cfg(feature = "rdma")]
            By::Rdma(ep) => {
                for (region, needs) in (0..).map(RegionId).zip(layout::regions()) {
                    let has = ep.lends_in(NodeId(0), region);
                    if has < needs {
                        return Err(format!(
                            "the server lends {has} bytes where this client needs {needs}: it is of another release, or \
                             lends no memory"
                        ));
                    }
                }
                Ok(())
            }
        }
    }
}

impl Endpoint for LentEndpoint {
    fn me(&self) -> PeerId {
        self.me
    }

    fn capabilities(&self) -> Capabilities {
        each!(self, ep => ep.capabilities())
    }

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        each!(self, ep => ep.go(batch).await)
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        each!(self, ep => ep.wait_until(wait).await)
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        let to = PeerId(self.first + to.0);
        each!(self, ep => ep.send(to, message).await)
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        let to = PeerId(self.first + to.0);
        each!(self, ep => ep.send_datagram(to, message).await)
    }

    async fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> Option<T> {
        each!(self, ep => ep.recv_by(deadline, pick).await)
    }

    async fn now(&self) -> Time {
        each!(self, ep => ep.now().await)
    }

    async fn sleep(&self, ns: u64) {
        each!(self, ep => ep.sleep(ns).await);
    }

    fn random(&self) -> u64 {
        each!(self, ep => ep.random())
    }
}

impl Reach for LentEndpoint {
    fn post(&self, verbs: &[RawVerb]) -> bool {
        each!(self, ep => Reach::post(ep, verbs))
    }

    fn breaks(&self) -> u64 {
        each!(self, ep => Reach::breaks(ep))
    }

    fn is_fresh(&self) -> bool {
        each!(self, ep => ep.is_fresh())
    }

    fn is_over(&self) -> bool {
        each!(self, ep => ep.is_over())
    }
}
