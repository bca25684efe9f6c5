//! A service behind an RDMA host: gets the messages of its clients, and may register memory for some of them.

use crate::addr::PeerId;
use crate::backend::inproc::InProc;
use crate::backend::tcp::{Inbox, SessionEnd};
use crate::message::Message;
use std::sync::Arc;

/// A service over RDMA: see [`RdmaHost::serve`](super::RdmaHost::serve).
///
/// Called from many threads at once; nothing here may block for long.
pub trait RdmaService: Send + Sync + 'static {
    /// Gives a new client its id, or `None` if there is no room for another. `name` is what it calls itself.
    fn admit(&self, name: &str) -> Option<PeerId>;

    /// The memory that is lent to `peer`, who was just admitted; most get none. A service that lends memory promises
    /// that its words are changed by verbs of this NIC only, and by no CPU: its atomics then have global scope.
    fn memory(&self, peer: PeerId) -> Option<Arc<InProc>> {
        let _ = peer;
        None
    }

    /// From now on `peer` is reached through `inbox`.
    fn attach(&self, peer: PeerId, inbox: Inbox);

    /// A client's message. Those that came together are followed by one [`settle`](Self::settle).
    fn deliver(&self, from: PeerId, to: PeerId, message: &Message);

    /// That was the last of the messages that came together: what they ask for can be done in one go.
    fn settle(&self) {}

    /// A client is gone for good, and its queue pair is destroyed. Called once per admitted client, but not for those who are
    /// there when the host itself is dropped.
    fn on_lost(&self, peer: PeerId, how: SessionEnd);
}
