//! Who receives the clients of a host that lends no memory: a service that is spoken to by letters only.

use crate::addr::PeerId;
use crate::backend::tcp::{Inbox, SessionEnd};
use crate::message::Message;

/// The owner of a service over RDMA: see [`RdmaHost::receive`](super::RdmaHost::receive).
///
/// Called from many threads at once; nothing here may block for long.
pub trait Reception: Send + Sync + 'static {
    /// Gives a new client its id, or `None` if there is no room for another. `name` is what it calls itself.
    fn admit(&self, name: &str) -> Option<PeerId>;

    /// From now on `peer` is reached through `inbox`.
    fn attach(&self, peer: PeerId, inbox: Inbox);

    /// A client's letter.
    fn deliver(&self, from: PeerId, to: PeerId, message: &Message);

    /// A client is gone for good, and its queue pair is destroyed. Called once per admitted client, but not for those who are
    /// there when the host itself is dropped.
    fn on_lost(&self, peer: PeerId, how: SessionEnd);
}
