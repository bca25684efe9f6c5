//! A member's endpoint: that of its session, whichever that is, under the number that the space knows the member by.
//!
//! Messages go to clients of the space, and come from them.

use super::super::transport::{Session, each};
#[cfg(feature = "rdma")]
use crate::one_sided::layout::NEXT_SPACE;
use crate::one_sided::reach::Reach;
use lockwright_fabric::{
    Batch, Capabilities, Deadline, Endpoint, FabricError, Message, PeerId, RawVerb, RegionId, Time, Value,
    Wait, Waited,
};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Batches of verbs that were waited for, of this process.
static ROUND_TRIPS: AtomicU64 = AtomicU64::new(0);

/// Batches of verbs that members of one-sided spaces in this process have waited for: for benches.
pub fn round_trips() -> u64 {
    ROUND_TRIPS.load(Relaxed)
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct OneSidedEndpoint {
    session: Session,
    me: PeerId,
    /// To be added to a number in the space: what the fabric calls that client.
    first: u32,
}

impl OneSidedEndpoint {
    /// The way over `session`; who this is in the space is said later.
    pub(crate) fn over(session: &Session) -> Self {
        let (me, first) = match session {
            Session::Tcp(ep) => (ep.me(), 0),
            // The fabric numbers the clients of one one-sided space after those of another.
            #[cfg(feature = "rdma")]
            Session::Rdma(ep) => (ep.me(), ep.me().0 / NEXT_SPACE * NEXT_SPACE),
        };
        Self { session: session.clone(), me, first }
    }

    /// The same, under a number.
    pub(super) fn of(self, me: PeerId) -> Self {
        Self { me, ..self }
    }

    /// How much of a region the server lends. One that executes verbs itself looks at every one of them.
    pub(crate) fn lends_in(&self, region: RegionId) -> u64 {
        match (&self.session, region) {
            (Session::Tcp(_), _) => u64::MAX,
            #[cfg(feature = "rdma")]
            (Session::Rdma(ep), region) => ep.lends_in(lockwright_fabric::NodeId(0), region),
        }
    }
}

impl Endpoint for OneSidedEndpoint {
    fn me(&self) -> PeerId {
        self.me
    }

    fn capabilities(&self) -> Capabilities {
        each!(&self.session, ep => ep.capabilities())
    }

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        ROUND_TRIPS.fetch_add(1, Relaxed);
        each!(&self.session, ep => ep.go(batch).await)
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        each!(&self.session, ep => ep.wait_until(wait).await)
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        let to = PeerId(self.first + to.0);
        each!(&self.session, ep => ep.send(to, message).await)
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        let to = PeerId(self.first + to.0);
        each!(&self.session, ep => ep.send_datagram(to, message).await)
    }

    async fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> Option<T> {
        each!(&self.session, ep => ep.recv_by(deadline, pick).await)
    }

    async fn now(&self) -> Time {
        each!(&self.session, ep => ep.now().await)
    }

    async fn sleep(&self, ns: u64) {
        each!(&self.session, ep => ep.sleep(ns).await);
    }

    fn random(&self) -> u64 {
        each!(&self.session, ep => ep.random())
    }
}

impl Reach for OneSidedEndpoint {
    fn post(&self, verbs: &[RawVerb]) -> bool {
        each!(&self.session, ep => Reach::post(ep, verbs))
    }

    fn breaks(&self) -> u64 {
        each!(&self.session, ep => Reach::breaks(ep))
    }

    fn is_fresh(&self) -> bool {
        each!(&self.session, ep => ep.is_fresh())
    }

    fn is_over(&self) -> bool {
        each!(&self.session, ep => ep.is_over())
    }
}
