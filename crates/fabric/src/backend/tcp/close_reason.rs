//! How sessions end.

/// How a client's session ended. Its endpoint is of no more use; another can be connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client itself ended it.
    #[error("the session was closed")]
    Closed,
    /// The server could not be reached within the grace period, or has given the session up.
    #[error("the session expired while the server could not be reached")]
    Expired,
    /// The server was restarted. What the old one knew of this client is gone.
    #[error("the server was restarted")]
    Restarted {
        /// The new run.
        epoch: u64,
    },
    /// The server refused something this client did.
    #[error("the server ended the session: {0}")]
    Refused(String),
    /// More messages came than anybody took.
    #[error("too many messages piled up unread")]
    Overrun,
}
