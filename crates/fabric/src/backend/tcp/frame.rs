//! The frames that client and server exchange; `encode` and `decode` convert them to and from bytes.
//!
//! A frame is a header of 16 bytes and a body. Numbers are little-endian, reserved bytes are zero.
//!
//! | header | bytes | meaning |
//! |---|---|---|
//! | length | 4 | bytes of the body, at most [`MAX_BODY`] |
//! | kind | 1 | see [`Frame`] |
//! | flags | 1 | bit 0: no answer wanted (GO, SEND); met (WAITED) |
//! | zero | 2 | |
//! | id | 8 | the request that this is or answers; the number of a delivered message |

pub use super::decode::{Decoded, decode};

use crate::addr::PeerId;
use crate::message::Message;
use crate::verb::RawVerb;
use crate::wait::RawWait;

/// The protocol's version: must be the same on both sides.
pub const VERSION: u16 = 1;
/// Bytes of a header.
pub const HEADER: usize = 16;
/// The most bytes a body may have.
pub const MAX_BODY: usize = 64 << 10;
/// The most verbs of one batch.
pub const MAX_VERBS: usize = 255;
/// The most bytes of a client's name, and of a refusal's text.
pub const MAX_TEXT: usize = 512;

pub(super) const MAGIC: [u8; 8] = *b"lockwrgt";

/// A session's id: random, known to its client and the server only.
pub type SessionId = [u8; 16];

/// Why bytes are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The magic number is missing.
    #[error("this is not a Lockwright client")]
    Magic,
    /// The other side has another version.
    #[error("protocol version {0} is not spoken here, only {VERSION}")]
    Version(u16),
    /// The body is longer than allowed.
    #[error("a frame of {0} bytes is longer than {MAX_BODY}")]
    TooLong(usize),
    /// The body ends before its content does.
    #[error("the frame is cut short")]
    Truncated,
    /// The body goes on after its content.
    #[error("the frame has bytes left over")]
    Trailing,
    /// Reserved bytes are not zero.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// No such kind of frame.
    #[error("there is no frame of kind {0:#x}")]
    Kind(u8),
    /// No such verb.
    #[error("there is no verb {0}")]
    Op(u8),
    /// No such width.
    #[error("a word has 8 or 16 bytes, not {0}")]
    Width(u8),
    /// No such condition.
    #[error("there is no condition {0}")]
    Cond(u8),
    /// A field that does not lie inside a word.
    #[error("a field of {bits} bits at bit {shift} does not fit into a word")]
    Field {
        /// Its lowest bit.
        shift: u32,
        /// Its width.
        bits: u32,
    },
    /// Too many verbs.
    #[error("a batch of {0} verbs is longer than {MAX_VERBS}")]
    Verbs(usize),
    /// Too long a message.
    #[error("a message with a tail of {0} words is too long")]
    Tail(usize),
    /// A text that is too long or no text.
    #[error("a name or reason is no text of at most {MAX_TEXT} bytes")]
    Text,
    /// Peer 0, which does not exist.
    #[error("there is no peer 0")]
    Peer,
}

/// Why a server ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Refusal {
    /// A frame is malformed.
    BadFrame = 1,
    /// The client has another version.
    Version = 2,
    /// The client does not know the secret.
    Unauthorised = 3,
    /// The session is not known (any more): the server restarted, or the grace period is over.
    UnknownSession = 4,
    /// The server is full.
    Full = 5,
    /// A verb or wait on a word that does not exist.
    NoSuchWord = 6,
    /// Too many waits at once.
    TooMany = 7,
    /// The frame is not expected at this point.
    Unexpected = 8,
    /// The session is used by a newer connection.
    Replaced = 9,
}

impl Refusal {
    const ALL: [Self; 9] = [
        Self::BadFrame,
        Self::Version,
        Self::Unauthorised,
        Self::UnknownSession,
        Self::Full,
        Self::NoSuchWord,
        Self::TooMany,
        Self::Unexpected,
        Self::Replaced,
    ];

    /// A code that this version does not know counts as a bad frame: the text says more.
    pub(super) fn from_code(code: u16) -> Self {
        Self::ALL.into_iter().find(|refusal| *refusal as u16 == code).unwrap_or(Self::BadFrame)
    }
}

/// A client opens a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Feature bits; none so far.
    pub features: u32,
    /// The session to resume, or zeros for a new one.
    pub session: SessionId,
    /// The server's epoch in which that session began.
    pub epoch: u64,
    /// The last message that the client has received in that session.
    pub seen: u64,
    /// Random bytes for the proof.
    pub nonce: [u8; 32],
    /// Which process it is.
    pub process: ClientProcess,
    /// The client's name for operators: host and process.
    pub name: String,
}

/// A client's process, as its host knows it; all zeros if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientProcess {
    /// The host's boot id.
    pub boot: u128,
    /// The pid namespace.
    pub pid_namespace: u64,
    /// The time namespace, which start times depend on.
    pub time_namespace: u64,
    /// Clock ticks from boot to its start.
    pub start: u64,
    /// Its pid.
    pub pid: u32,
}

/// The server accepts a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Bits: 0 masked, 1 wide, 2 guarded, 3 messages, 4 global scope.
    pub capabilities: u16,
    /// The client's id.
    pub peer: PeerId,
    /// Its session.
    pub session: SessionId,
    /// This run of the server.
    pub epoch: u64,
    /// The server's clock.
    pub now_ns: u64,
    /// How often an idle client has to ping.
    pub heartbeat_ns: u64,
    /// How long a session outlives its connection.
    pub grace_ns: u64,
    /// The most waits at once.
    pub max_waits: u32,
    /// Whether the session was resumed, or is new.
    pub resumed: bool,
    /// The server's proof that it knows the secret; zeros without one.
    pub proof: [u8; 32],
}

/// One frame. The number of its kind is in brackets; answers have the top bit set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// \[01\] A client opens a connection.
    Hello(Hello),
    /// \[02\] A client proves that it knows the secret.
    Proof([u8; 32]),
    /// \[03\] Execute verbs in order.
    Go {
        /// The request.
        id: u64,
        /// No answer wanted.
        quiet: bool,
        /// The verbs.
        verbs: Vec<RawVerb>,
    },
    /// \[04\] Wait for a word.
    Wait {
        /// The request.
        id: u64,
        /// The word and its conditions.
        wait: RawWait,
        /// How long, from the frame's arrival; `u64::MAX` for ever.
        timeout_ns: u64,
    },
    /// \[05\] Cancel a wait.
    Cancel {
        /// The wait's request.
        id: u64,
    },
    /// \[06\] Deliver a message.
    Send {
        /// The request.
        id: u64,
        /// No answer wanted.
        quiet: bool,
        /// The receiver.
        to: PeerId,
        /// The message.
        message: Message,
    },
    /// \[07\] Heartbeat, and an acknowledgement. Answered by a pong.
    Ping {
        /// The last message received.
        seen: u64,
    },
    /// \[08\] Acknowledgement.
    Ack {
        /// The last message received.
        seen: u64,
    },
    /// \[09\] The client ends the session.
    Goodbye,
    /// \[81\] The client must prove that it knows the secret.
    Challenge([u8; 32]),
    /// \[82\] The client is accepted.
    Welcome(Welcome),
    /// \[83\] The server refuses and closes the connection.
    Refused {
        /// Why.
        why: Refusal,
        /// The server's epoch.
        epoch: u64,
        /// The reason in words.
        text: String,
    },
    /// \[84\] The verbs were executed, or the message was delivered.
    Done {
        /// The request.
        id: u64,
        /// The old words.
        olds: Vec<u128>,
    },
    /// \[85\] The node of the verbs is dead.
    NodeLost {
        /// The request.
        id: u64,
        /// The node.
        node: u16,
    },
    /// \[86\] There is no such peer.
    PeerLost {
        /// The request.
        id: u64,
        /// The peer.
        peer: u32,
    },
    /// \[87\] The wait is over.
    Waited {
        /// The request.
        id: u64,
        /// Whether a condition holds.
        met: bool,
        /// The word.
        value: u128,
    },
    /// \[88\] A message.
    Deliver {
        /// Its number in this session, from one.
        seq: u64,
        /// The sender.
        from: PeerId,
        /// The message.
        message: Message,
    },
    /// \[89\] Answer to a ping.
    Pong,
}
