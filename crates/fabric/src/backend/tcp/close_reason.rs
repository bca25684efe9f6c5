//! Why a client's session ended.

/// Why a client's session ended. Its endpoint is of no more use; another can be connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client closed it.
    #[error("the session was closed")]
    Closed,
    /// The server could not be reached within the grace period, or has ended the session.
    #[error("the session expired while the server could not be reached")]
    Expired,
    /// The server was restarted. It knows nothing of this client any more.
    #[error("the server was restarted")]
    Restarted {
        /// The new run.
        epoch: u64,
    },
    /// The server refused a request of this client.
    #[error("the server ended the session: {0}")]
    Refused(String),
    /// The mailbox is full: messages arrived faster than the client received them.
    #[error("too many messages piled up unread")]
    Overrun,
}
