//! The wire messages of lock spaces: what a client and a server say to each other, as messages of the tcp fabric.
//!
//! The fabric carries messages to the client once each and in order, whatever becomes of connections. In the other
//! direction what was on its way when a connection broke may be lost, so requests are numbered: the server takes only the
//! next one, and answers say how far it got; after a break the client says again what was not taken.
//!
//! | field of a request | holds |
//! |---|---|
//! | `kind` | which (bits 0..8), exclusive (8), wait, answer or one-sided (9), range lock (10), semaphore (11), the thread that asks, plus one (12..32) |
//! | `lock` | the request, or the name's handle |
//! | `words[0]` | its number in the session, from 1 |
//! | `words[1..4]` | start, end (of a semaphore: permits, and one more than there are), and the handle, or the request that a second piece is to be |
//! | `tail` | what is longer |
//!
//! | field of an answer | holds |
//! |---|---|
//! | `kind` | which, from 65 |
//! | `lock` | the request it is about |
//! | `words[0]`, `words[1]` | token, held or not, why not; exclusive or not |
//! | `words[3]` | the number of the last request taken |
//!
//! | change of what is held | as request | answered |
//! |---|---|---|
//! | upgrade | 15, flag: wait | `Changed`, exclusive, when it is; `Unchanged` if it was busy, would deadlock, or is refused |
//! | downgrade | 16; flag: of an upgrade that is given up | `Changed`, shared |
//! | part given back | 17: `words[1..4]` start, end, the second piece's request | `Granted` for the second piece, if there is one; `Lost` if there was nothing to cut |
//!
//! | several locks | as message | means |
//! |---|---|---|
//! | set, request 33 | `words[1]` exclusive or not, by bit; `tail` request, handle, start, end of each member | each is waited for once the one before it is granted, and answered like a lock |
//!
//! | lock that stays with its client | as message | means |
//! |---|---|---|
//! | retains, request 24 | | grants to this session may stay with it |
//! | retained, answer 80 | `words[0..3]` token, first further token, how many | granted, and the client's until it is recalled |
//! | recall, answer 81 | | it is wanted back: unlocked at once if nobody uses it, or else with its last use |
//! | kept, request 25 | | it is in use |
//! | relinquish, answer 86 | `words[0]` how many | there is no room for more: so many that nobody uses go back, those that were used last a while ago first |
//!
//! | several servers as one | as message | means |
//! |---|---|---|
//! | probe, request 26 | `lock` when it was sent, by the client's clock | for how long is this server certain that it owns the shard? |
//! | certain, answer 82 | `lock` as in the probe, `words[0]` nanoseconds | for so long from when the probe arrived |
//! | map, request 27 | | answered in pages: who serves what |
//! | hand, request 34 | flag: the last part; `tail` | of one server to another: this is the table of the shard that you own now. The last part is answered by an empty page |
//! | elsewhere, answer 83 | | this server is one of several: the map says where the space's locks are |
//!
//! | waiter of an earlier session | as message | means |
//! |---|---|---|
//! | waited, request 28 | `words[1]` nanoseconds | the request has waited for so long: it keeps its place among those who do |
//!
//! | value of a lock | as message | means |
//! |---|---|---|
//! | read, request 29 | `words[1..3]` the held request, its token | which value? An exclusive holder *opens* it with that |
//! | set, request 30 | the same, and the bytes in `tail` | this is the value from now on; it is open |
//! | close, request 31 | the same | the holder is about to unlock: the value is as it left it |
//! | value, answer 84 | `words[0]` bits: there is one, clean, kept over restarts; `words[1]` age in nanoseconds; `tail` | to read and set |
//!
//! | others wait | as message | means |
//! |---|---|---|
//! | watch, request 32 | | tell me, once, when a client waits for what I hold |
//! | contended, answer 85 | | a client does |
//!
//! | whose locks | as message | means |
//! |---|---|---|
//! | identify, request 20 | | whose are the locks of this space? |
//! | identity, answer 76 | `words[0..2]` a number; `words[2]` 1: of shared memory | the server's own, or those of that memory |
//!
//! A request's id has two halves: a slot, used again by the client, and above it a number that never is. So an answer
//! that comes late is never taken for another request's.
//!
//! `codec.rs` lays them out in a message and reads them back.

pub use crate::backend::Kind;
pub(crate) mod codec;
pub mod listing;
mod value;

pub use value::{MAX_VALUE, ValueReport};

use crate::name::LockName;
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::Mode;

/// Raised when the meaning of a message changes, or there are new ones: 2 has changes of what is held; in 3 `Open` says whether the
/// client takes the locks by verbs of its own; in lock words tokens and generations are fields of their own, and the holder table
/// says who holds what; 4 has locks that stay with their last user; 5 has semaphores, and waiters say
/// how long they have waited; 6 has values of locks, and holders who are told that others wait; in 7 clients say which of their
/// threads asks, listings say that and whose a process is, and there are sets of locks.
pub const VERSION: u64 = 7;
/// The oldest version that a server still understands: nothing that was said in it has another meaning now.
pub const OLDEST: u64 = 1;
/// Whom clients write to.
pub const SERVER: PeerId = PeerId::role(0);
/// Requests of one client at a time, held or waiting.
pub const MAX_REQUESTS: u32 = 1 << 16;
/// The longest name of a space.
pub const MAX_SPACE: usize = 255;
/// Bytes of a listing in one message: they fit into a message of the RDMA fabric, which is shorter than tcp's frames.
pub const PAGE: usize = 3 << 10;
/// Locks that are asked for in one message.
pub const MAX_SET: usize = 64;

/// A request's id: its slot in the lower half.
pub type RequestId = u64;

/// The slot of a request.
pub const fn slot(id: RequestId) -> u32 {
    id as u32
}

/// What is wanted, or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Units {
    pub handle: u64,
    pub mode: Mode,
    pub start: u64,
    pub end: u64,
    /// Which thread of the client's process asked, if one did that sleeps until it has what it asked for: for listings.
    pub thread: Option<u32>,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first of a session: which space it is about, and under which key the client will claim what it holds if the
    /// server should be restarted.
    Open {
        version: u64,
        key: u128,
        space: Vec<u8>,
        /// Whether the client takes the locks of the space by verbs of its own.
        one_sided: bool,
        /// The highest token that the client has seen of this server: its next ones are higher.
        seen: u64,
    },
    /// From now on `handle` stands for this lock.
    Name {
        handle: u64,
        kind: Kind,
        name: LockName,
    },
    /// The handle is of no more use.
    Forget {
        handle: u64,
    },
    Lock {
        id: RequestId,
        units: Units,
        wait: bool,
    },
    /// Waits for several locks, each of which is asked for when the one before it is granted. Every grant is said as that of a
    /// lock; a member is given up like a lock.
    LockSet {
        members: Vec<(RequestId, Units)>,
    },
    /// Gives a lock back, or gives up a request that still waits; answered only if that is asked for.
    Unlock {
        id: RequestId,
        answer: bool,
    },
    /// From shared to exclusive, before all waiters.
    Upgrade {
        id: RequestId,
        wait: bool,
    },
    /// From exclusive to shared; or an upgrade is given up, whatever has become of it.
    Downgrade {
        id: RequestId,
        gives_up: bool,
    },
    /// Gives back these units and keeps the rest; if that leaves two pieces, the second is `rest` from then on.
    Part {
        id: RequestId,
        start: u64,
        end: u64,
        rest: RequestId,
    },
    /// A lock that is held since an earlier run of the server, by a session that had this key.
    Claim {
        id: RequestId,
        units: Units,
        token: u64,
        epoch: u64,
        key: u128,
    },
    /// The client that had a session with this key before a restart has claimed all that it still holds.
    Claimed {
        key: u128,
    },
    /// The client that had a session with this key, in this run, has stopped what it did under the locks of that session.
    Stopped {
        key: u128,
    },
    /// Whose are the locks of the session's space?
    Identify {
        id: RequestId,
    },
    /// All holders and waiters, or those of the locks `of` this name, in pages. A server that does not know of names lists
    /// all.
    List {
        id: RequestId,
        of: Option<LockName>,
    },
    /// What every lock has seen, in pages.
    Heat {
        id: RequestId,
    },
    /// Takes a lock away from the client that holds it with this token.
    Break {
        id: RequestId,
        token: u64,
        name: LockName,
    },
    /// Of a one-sided client: where in the space the handle's lock is.
    Find {
        id: RequestId,
        handle: u64,
    },
    /// Grants to this session may stay with its client until they are recalled.
    Retains,
    /// What was recalled is in use, by this thread if one is known: it comes back when it is unlocked.
    Kept {
        id: RequestId,
        thread: Option<u32>,
    },
    /// For how long the server is certain that it owns the shard; `sent` comes back with the answer.
    Probe {
        sent: u64,
    },
    /// Which server of a cluster serves what, in pages.
    Map {
        id: RequestId,
    },
    /// From one server of a cluster to another: a part of the table of a shard that the other one owns now.
    Hand {
        id: RequestId,
        last: bool,
        bytes: Vec<u8>,
    },
    /// A request that was said in an earlier session, too, has waited for so many nanoseconds.
    Waited {
        id: RequestId,
        ns: u64,
    },
    /// The value of the lock that request `of` holds with `token`.
    ReadValue {
        id: RequestId,
        of: RequestId,
        token: u64,
    },
    /// From now on the lock has this value.
    SetValue {
        id: RequestId,
        of: RequestId,
        token: u64,
        bytes: Vec<u8>,
    },
    /// The holder is about to unlock in order: the value is as it left it.
    CloseValue {
        of: RequestId,
        token: u64,
    },
    /// The holder wants to be told when a client waits for what it holds.
    Watch {
        id: RequestId,
    },
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    Granted {
        id: RequestId,
        token: u64,
    },
    Busy {
        id: RequestId,
    },
    /// Nonsense, or too much, and why.
    Refused {
        id: RequestId,
        why: String,
    },
    /// It was taken away, or could not be claimed.
    Lost {
        id: RequestId,
    },
    /// It was given back; `held`: until then it was held. Also the answer to `Break`: whether it is broken.
    Unlocked {
        id: RequestId,
        held: bool,
    },
    /// It is held in this mode from now on, with this token.
    Changed {
        id: RequestId,
        token: u64,
        mode: Mode,
    },
    /// An upgrade or downgrade came to nothing: it is held as it was, if it was.
    Unchanged {
        id: RequestId,
        why: DenyReason,
    },
    /// A piece of a listing.
    Page {
        id: RequestId,
        more: bool,
        bytes: Vec<u8>,
    },
    /// Whose the locks of the session's space are.
    Identity {
        id: RequestId,
        identity: Identity,
    },
    /// Nothing but how far the server got.
    Ack,
    /// Where in the space a lock is, and what is to be added to its tokens.
    Found {
        id: RequestId,
        lock: u64,
        token_base: u64,
    },
    /// The session's client is in the space, under this number.
    Joined {
        peer: PeerId,
    },
    /// Granted, and the client's until it is recalled: further grants there have the `count` tokens from `first` on.
    Retained {
        id: RequestId,
        token: u64,
        first: u64,
        count: u64,
    },
    /// What is retained is wanted back.
    Recall {
        id: RequestId,
    },
    /// There is no room for more locks that stay: so many of those that are not used are to come back.
    Relinquish {
        count: u64,
    },
    /// The server is certain that it owns the shard for `left` nanoseconds from when the probe arrived.
    Certain {
        sent: u64,
        left: u64,
    },
    /// The space is one of a cluster, whose map says which server has which lock.
    Elsewhere,
    /// The value of a lock, after it was read or set.
    Value {
        id: RequestId,
        value: ValueReport,
    },
    /// A client waits for what is held.
    Contended {
        id: RequestId,
    },
}

/// Whose the locks of a space are: a lock that can be had in two ways is known by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The server's own: its number, which stays with its state.
    Server(u128),
    /// Of memory that processes of the server's host share: the same number that they have for it.
    Memory(u128),
}

/// Why a held lock was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenyReason {
    /// Others read, and it was only tried.
    Busy,
    /// Another reader already waits for the same.
    Deadlock,
    /// In words.
    Refused(String),
}

#[cfg(test)]
mod tests;
