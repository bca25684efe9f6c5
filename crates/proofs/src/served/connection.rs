//! A connection, as its two ends see it: either may know that it is over while the other does not.

use lockwright_fabric::Message;
use std::collections::VecDeque;

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Frame {
    Message(Message),
    /// It has received the server's messages up to this number.
    Ack(u64),
}

/// See the module. It is forgotten once both ends know.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Connection {
    pub(super) client: usize,
    /// The session it belongs to, and its number in there.
    pub(super) session: u64,
    pub(super) number: u64,
    pub(super) to_server: VecDeque<Frame>,
    /// With their numbers.
    pub(super) to_client: VecDeque<(u64, Message)>,
    /// So many of those were on their way when the client's machine woke up.
    pub(super) stale: usize,
    pub(super) open_at_client: bool,
    pub(super) open_at_server: bool,
}

impl Connection {
    pub(super) fn new(client: usize, session: u64, number: u64) -> Self {
        Self {
            client,
            session,
            number,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            stale: 0,
            open_at_client: true,
            open_at_server: true,
        }
    }
}
