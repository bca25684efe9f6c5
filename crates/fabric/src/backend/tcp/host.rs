//! [`VerbHost`]: the owner of the lock memory that a server exports.
//!
//! [`InProcHost`](super::InProcHost) implements it for memory of the server's own process, `lockwright serve` for its lock
//! table and exported spaces.

use super::session_state::Backlog;
use crate::addr::{Addr, PeerId, Width};
use crate::capability::Capabilities;
use crate::message::Message;
use crate::verb::RawVerb;
use crate::wait::{RawWait, Time};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Why a host did not execute a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The node of these words is dead.
    #[error("memory node {} is lost", .0.0)]
    NodeLost(crate::NodeId),
    /// The client asked for a word that does not exist. Nothing was executed.
    #[error("there is no word of {} bytes at {addr}", width.bytes())]
    NoSuchWord {
        /// Where it would be.
        addr: Addr,
        /// Its width.
        width: Width,
    },
}

/// Delivers messages to a session or role of the server.
///
/// ```
/// use lockwright_fabric::backend::tcp::Inbox;
/// use lockwright_fabric::{Message, PeerId};
/// let inbox = Inbox::new(|from, message| from == PeerId::client(1) && message.kind == 3);
/// assert!(inbox.deliver(PeerId::client(1), Message::new(0, 3, &[])));
/// ```
#[derive(Clone)]
pub struct Inbox(Arc<dyn Fn(PeerId, Message) -> bool + Send + Sync>);

impl Inbox {
    /// An inbox that calls `put`, which returns false if the receiver is gone.
    pub fn new(put: impl Fn(PeerId, Message) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(put))
    }

    /// Delivers a message; `false` if the receiver is gone.
    pub fn deliver(&self, from: PeerId, message: Message) -> bool {
        (self.0)(from, message)
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox(…)")
    }
}

/// The two ends of a connection, and the server's socket.
///
/// ```
/// use lockwright_fabric::backend::tcp::ConnectionInfo;
/// let connection = ConnectionInfo {
///     client: "127.0.0.1:40000".parse().unwrap(),
///     server: "127.0.0.1:5625".parse().unwrap(),
///     inode: 4711,
/// };
/// assert!(connection.client.ip().is_loopback());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub server: SocketAddr,
    /// The inode of the server's socket, which no other socket has while the connection is open; 0: not known.
    pub inode: u64,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client said goodbye.
    Goodbye,
    /// Its connection was lost for longer than the grace period, or its backlog was full.
    Lost,
}

/// The owner of lock memory that a server exports.
///
/// Called from many tasks concurrently; no method may block for long.
pub trait VerbHost: Send + Sync + 'static {
    /// What its fabric can do.
    fn capabilities(&self) -> Capabilities;

    /// The clock of clients and roles.
    fn now(&self) -> Time;

    /// Executes the verbs of `from`, a client or role of the server, in order and appends the old words to `olds`.
    ///
    /// # Errors
    /// If `from` has no such word (then nothing was executed), or its node is dead.
    fn execute(&self, from: PeerId, verbs: &[RawVerb], olds: &mut Vec<u128>) -> Result<(), HostError>;

    /// Waits for `from` until a word meets a condition, and returns it. Dropped when the client cancels the wait.
    fn watch(&self, from: PeerId, wait: RawWait) -> impl Future<Output = Result<u128, HostError>> + Send;

    /// Gives a new client its id, or `None` if there is no room. `name` is what it calls itself.
    fn admit(&self, name: &str) -> Option<PeerId>;

    /// The requests of the client `peer` come by this connection from now on: its first, or one that resumes its session.
    fn on_connected(&self, peer: PeerId, connection: ConnectionInfo) {
        let _ = (peer, connection);
    }

    /// From now on `inbox` reaches `peer`, a client or role of the server.
    fn attach(&self, peer: PeerId, inbox: Inbox) {
        let _ = (peer, inbox);
    }

    /// The bound, per receiver, on messages that the server relays between its clients. `None`: it relays none, and a
    /// client's message to another fails with `PeerLost`. Peer ids are easy to guess: only for clients that trust each
    /// other.
    fn relay(&self) -> Option<Backlog> {
        None
    }

    /// Delivers a message to a peer that is neither session nor role of the server; `false` if there is no such peer.
    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) -> bool {
        let _ = (from, to, message);
        false
    }

    /// End of a batch: all frames that one read from a client completed were handled. A host that queues requests may
    /// process them now; what it sends during this call leaves in one write per receiver.
    fn settle(&self) {}

    /// A session has ended: what its client held can be released. Called once per admitted client.
    fn on_session_lost(&self, peer: PeerId, how: SessionEnd) {
        let _ = (peer, how);
    }
}
