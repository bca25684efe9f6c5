//! What a server needs of whoever owns the lock memory: the seam between the tcp fabric and the memory it exports.
//!
//! [`InProcHost`](super::InProcHost) implements it for memory of the server's own process. A host for shared memory
//! implements it for a space that local processes use at the same time; the server knows neither.

use super::frame::WaitFrame;
use crate::addr::{Addr, PeerId, Width};
use crate::capability::Capabilities;
use crate::message::Message;
use crate::verb::RawVerb;
use crate::wait::{Cond, Time};
use std::fmt;
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

/// A word to be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawWait {
    /// Where it is.
    pub addr: Addr,
    /// How wide it is.
    pub width: Width,
    /// What is waited for.
    pub cond: Cond,
    /// A second way to be done.
    pub or: Option<Cond>,
}

impl RawWait {
    /// Whether `word` ends the wait.
    pub fn met_by(&self, word: u128) -> bool {
        self.cond.holds(word) || self.or.is_some_and(|or| or.holds(word))
    }
}

impl From<&WaitFrame> for RawWait {
    fn from(wait: &WaitFrame) -> Self {
        Self { addr: wait.addr, width: wait.width, cond: wait.cond, or: wait.or }
    }
}

/// The way to a session or role of the server, for peers that the host knows by itself.
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
    /// An inbox that calls `put`, which says whether there still is somebody.
    pub fn new(put: impl Fn(PeerId, Message) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(put))
    }

    /// Hands over a message; `false` if the session is over.
    pub fn deliver(&self, from: PeerId, message: Message) -> bool {
        (self.0)(from, message)
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox(…)")
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client said goodbye.
    Goodbye,
    /// Its connection was gone for longer than the grace period, or it let too many messages pile up.
    Lost,
}

/// The owner of lock memory that a server exports.
///
/// Called from many tasks at once; nothing here may block for long.
pub trait VerbHost: Send + Sync + 'static {
    /// What its verbs can do.
    fn capabilities(&self) -> Capabilities;

    /// The time that clients are told and roles see.
    fn now(&self) -> Time;

    /// Executes the verbs of `from`, a client or role of the server, in order and appends the old words to `olds`.
    ///
    /// # Errors
    /// If there is no such word for it (and then nothing was executed), or its node is dead.
    fn execute(&self, from: PeerId, verbs: &[RawVerb], olds: &mut Vec<u128>) -> Result<(), HostError>;

    /// Waits for `from` until a word meets a condition and returns it. The server drops the future when the client gives
    /// up.
    fn watch(&self, from: PeerId, watch: RawWait) -> impl Future<Output = Result<u128, HostError>> + Send;

    /// Gives a new client its id, or `None` if there is no room for another. `name` is what it calls itself.
    fn admit(&self, name: &str) -> Option<PeerId>;

    /// From now on `peer`, a client of the server or one of its roles, is reached through `inbox`.
    fn attach(&self, peer: PeerId, inbox: Inbox) {
        let _ = (peer, inbox);
    }

    /// Delivers a message to a peer that is not the server's; `false` if there is no such peer.
    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) -> bool {
        let _ = (from, to, message);
        false
    }

    /// Everything that came from a client together has been delivered: a host that gathers what it is given may act now.
    /// Whatever it sends while this runs leaves in one write for each receiver.
    fn settle(&self) {}

    /// A client is gone for good: what it held can be released. Called once per admitted client.
    fn on_session_lost(&self, peer: PeerId, how: SessionEnd) {
        let _ = (peer, how);
    }
}
