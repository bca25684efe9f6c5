//! Callbacks for a client's session: cheaper than a task that waits for a message.

use super::close_reason::CloseReason;
use crate::addr::PeerId;
use crate::message::Message;
use std::fmt;
use std::sync::Weak;

/// Called with the events of a session: see [`TcpEndpoint::set_handler`](super::TcpEndpoint::set_handler). Called by the
/// task that reads the connection, so no method may block.
pub trait SessionHandler: Send + Sync {
    /// A message arrived. What is returned goes into the mailbox.
    fn message(&self, from: PeerId, message: Message) -> Option<Message>;

    /// The session was resumed on a new connection. What was [told](super::TcpEndpoint::tell) on the old one may be lost.
    fn reconnected(&self);

    /// The session is over, for any reason but [`TcpEndpoint::close`](super::TcpEndpoint::close).
    fn closed(&self, reason: &CloseReason);
}

/// A handler that may have been dropped.
pub(super) struct HandlerRef(pub(super) Weak<dyn SessionHandler>);

impl fmt::Debug for HandlerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandlerRef(…)")
    }
}
