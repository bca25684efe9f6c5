//! Somebody who is called when a client's session has news, where it would cost a task and a wake-up to wait for it.
//!
//! What it must not do: block. It is called by the task that reads the connection.

use super::close_reason::CloseReason;
use crate::addr::PeerId;
use crate::message::Message;
use std::fmt;
use std::sync::Weak;

/// Hears what comes for a client: see [`TcpEndpoint::set_handler`](super::TcpEndpoint::set_handler).
pub trait SessionHandler: Send + Sync {
    /// A message came. What is given back goes into the mailbox.
    fn message(&self, from: PeerId, message: Message) -> Option<Message>;

    /// The session goes on over a new connection. What was [told](super::TcpEndpoint::tell) on the old one may not
    /// have arrived.
    fn reconnected(&self);

    /// The session is over, by whatever but [`TcpEndpoint::close`](super::TcpEndpoint::close).
    fn closed(&self, fate: &CloseReason);
}

/// A listener, which may be gone.
pub(super) struct Ear(pub(super) Weak<dyn SessionHandler>);

impl fmt::Debug for Ear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ear(…)")
    }
}
