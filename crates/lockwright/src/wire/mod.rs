//! The wire messages of lock spaces: what a client and a server say to each other, as messages of the tcp fabric.
//!
//! The fabric carries messages to the client once each and in order, whatever becomes of connections. In the other
//! direction what was on its way when a connection broke may be lost, so requests are numbered: the server takes only the
//! next one, and answers say how far it got; after a break the client says again what was not taken.
//!
//! | field of a request | holds |
//! |---|---|
//! | `kind` | which (bits 0..8), exclusive (8), wait, answer or one-sided (9), range lock (10), semaphore (11) |
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
//! | lock that stays with its client | as message | means |
//! |---|---|---|
//! | retains, request 24 | | grants to this session may stay with it |
//! | retained, answer 80 | `words[0..3]` token, first further token, how many | granted, and the client's until it is recalled |
//! | recall, answer 81 | | it is wanted back: unlocked at once if nobody uses it, or else with its last use |
//! | kept, request 25 | | it is in use |
//!
//! | several servers as one | as message | means |
//! |---|---|---|
//! | probe, request 26 | `lock` when it was sent, by the client's clock | for how long is this server certain that it owns the shard? |
//! | certain, answer 82 | `lock` as in the probe, `words[0]` nanoseconds | for so long from when the probe arrived |
//! | map, request 27 | | answered in pages: who serves what |
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
//! What this file must not do: trust a word of what it decodes. Whatever is no request comes out as `None`.

pub use crate::backend::Kind;
pub mod listing;
mod value;

pub use value::{MAX_VALUE, ValueReport};

use crate::name::LockName;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Message, PeerId};

/// Raised when the meaning of a message changes, or there are new ones: 2 has changes of what is held; in 3 `Open` says whether the
/// client takes the locks by verbs of its own; in lock words tokens and generations are fields of their own, and the holder table
/// says who holds what; 4 has locks that stay with their last user; 5 has semaphores, and waiters say
/// how long they have waited; 6 has values of locks, and holders who are told that others wait.
pub const VERSION: u64 = 6;
/// The oldest version that a server still understands: nothing that was said in it has another meaning now.
pub const OLDEST: u64 = 1;
/// Whom clients write to.
pub const SERVER: PeerId = PeerId::role(0);
/// Requests of one client at a time, held or waiting.
pub const MAX_REQUESTS: u32 = 1 << 16;
/// The longest name of a space.
pub const MAX_SPACE: usize = 255;
/// Bytes of a listing in one message: they fit into a letter of the RDMA fabric, which is shorter than tcp's frames.
pub const PAGE: usize = 3 << 10;

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
    /// All holders and waiters, in pages.
    List {
        id: RequestId,
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
    /// What was recalled is in use: it comes back when it is unlocked.
    Kept {
        id: RequestId,
    },
    /// For how long the server is certain that it owns the shard; `sent` comes back with the answer.
    Probe {
        sent: u64,
    },
    /// Which server of a cluster serves what, in pages.
    Map {
        id: RequestId,
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

const EXCLUSIVE: u32 = 1 << 8;
const FLAG: u32 = 1 << 9;
const RANGES: u32 = 1 << 10;
const SEMAPHORES: u32 = 1 << 11;

fn flag(set: bool, bit: u32) -> u32 {
    if set { bit } else { 0 }
}

fn message(kind: u32, lock: u64, words: [u64; 4], tail: Vec<u64>) -> Message {
    Message { lock, kind, words, tail }
}

fn of_units(kind: u32, id: RequestId, seq: u64, units: &Units, tail: Vec<u64>) -> Message {
    let kind = kind | flag(units.mode == Mode::Exclusive, EXCLUSIVE);
    message(kind, id, [seq, units.start, units.end, units.handle], tail)
}

fn halves(key: u128) -> [u64; 2] {
    [key as u64, (key >> 64) as u64]
}

impl Request {
    /// The message that says this, as number `seq` of the session.
    pub fn encode(&self, seq: u64) -> Message {
        match self {
            Request::Open { version, key, space, one_sided, seen } => {
                let [low, high] = halves(*key);
                message(1 | flag(*one_sided, FLAG), *version, [seq, low, high, *seen], pack(space))
            }
            Request::Name { handle, kind, name } => {
                let kind =
                    2 | flag(*kind == Kind::Ranges, RANGES) | flag(*kind == Kind::Semaphores, SEMAPHORES);
                message(kind, *handle, [seq, 0, 0, 0], pack(name.as_bytes()))
            }
            Request::Forget { handle } => message(3, *handle, [seq, 0, 0, 0], Vec::new()),
            Request::Lock { id, units, wait } => of_units(4 | flag(*wait, FLAG), *id, seq, units, Vec::new()),
            Request::Unlock { id, answer } => {
                message(5 | flag(*answer, FLAG), *id, [seq, 0, 0, 0], Vec::new())
            }
            Request::Upgrade { id, wait } => message(15 | flag(*wait, FLAG), *id, [seq, 0, 0, 0], Vec::new()),
            Request::Downgrade { id, gives_up } => {
                message(16 | flag(*gives_up, FLAG), *id, [seq, 0, 0, 0], Vec::new())
            }
            Request::Part { id, start, end, rest } => {
                message(17, *id, [seq, *start, *end, *rest], Vec::new())
            }
            Request::Claim { id, units, token, epoch, key } => {
                let [low, high] = halves(*key);
                of_units(7, *id, seq, units, vec![*token, *epoch, low, high])
            }
            Request::Claimed { key } => {
                let [low, high] = halves(*key);
                message(18, 0, [seq, low, high, 0], Vec::new())
            }
            Request::Stopped { key } => {
                let [low, high] = halves(*key);
                message(19, 0, [seq, low, high, 0], Vec::new())
            }
            Request::Identify { id } => message(20, *id, [seq, 0, 0, 0], Vec::new()),
            Request::List { id } => message(8, *id, [seq, 0, 0, 0], Vec::new()),
            Request::Heat { id } => message(9, *id, [seq, 0, 0, 0], Vec::new()),
            Request::Break { id, token, name } => {
                message(10, *id, [seq, *token, 0, 0], pack(name.as_bytes()))
            }
            Request::Find { id, handle } => message(11, *id, [seq, *handle, 0, 0], Vec::new()),
            Request::Retains => message(24, 0, [seq, 0, 0, 0], Vec::new()),
            Request::Kept { id } => message(25, *id, [seq, 0, 0, 0], Vec::new()),
            Request::Probe { sent } => message(26, *sent, [seq, 0, 0, 0], Vec::new()),
            Request::Map { id } => message(27, *id, [seq, 0, 0, 0], Vec::new()),
            Request::Waited { id, ns } => message(28, *id, [seq, *ns, 0, 0], Vec::new()),
            Request::ReadValue { id, of, token } => message(29, *id, [seq, *of, *token, 0], Vec::new()),
            Request::SetValue { id, of, token, bytes } => {
                message(30, *id, [seq, *of, *token, 0], pack(bytes))
            }
            Request::CloseValue { of, token } => message(31, 0, [seq, *of, *token, 0], Vec::new()),
            Request::Watch { id } => message(32, *id, [seq, 0, 0, 0], Vec::new()),
        }
    }

    /// The request in a message and its number, if it is one.
    pub fn decode(message: &Message) -> Option<(u64, Self)> {
        let Message { lock, kind, words: [seq, a, b, c], ref tail } = *message;
        let has = |bit: u32| kind & bit != 0;
        let units = || {
            let mode = if has(EXCLUSIVE) { Mode::Exclusive } else { Mode::Shared };
            Units { handle: c, mode, start: a, end: b }
        };
        let key = |low: u64, high: u64| u128::from(high) << 64 | u128::from(low);
        let ask = match kind & 0xff {
            1 => {
                let space = unpack(tail).filter(|space| space.len() <= MAX_SPACE)?;
                Request::Open { version: lock, key: key(a, b), space, one_sided: has(FLAG), seen: c }
            }
            2 => {
                let kind = match (has(RANGES), has(SEMAPHORES)) {
                    (false, false) => Kind::Keyed,
                    (true, false) => Kind::Ranges,
                    (false, true) => Kind::Semaphores,
                    (true, true) => return None,
                };
                Request::Name { handle: lock, kind, name: name_in(tail)? }
            }
            3 => Request::Forget { handle: lock },
            4 => Request::Lock { id: lock, units: units(), wait: has(FLAG) },
            5 => Request::Unlock { id: lock, answer: has(FLAG) },
            7 => {
                let [token, epoch, low, high] = *tail.first_chunk()?;
                Request::Claim { id: lock, units: units(), token, epoch, key: key(low, high) }
            }
            8 => Request::List { id: lock },
            9 => Request::Heat { id: lock },
            10 => Request::Break { id: lock, token: a, name: name_in(tail)? },
            11 => Request::Find { id: lock, handle: a },
            15 => Request::Upgrade { id: lock, wait: has(FLAG) },
            16 => Request::Downgrade { id: lock, gives_up: has(FLAG) },
            18 => Request::Claimed { key: key(a, b) },
            19 => Request::Stopped { key: key(a, b) },
            20 => Request::Identify { id: lock },
            17 => Request::Part { id: lock, start: a, end: b, rest: c },
            24 => Request::Retains,
            25 => Request::Kept { id: lock },
            26 => Request::Probe { sent: lock },
            27 => Request::Map { id: lock },
            28 => Request::Waited { id: lock, ns: a },
            29 => Request::ReadValue { id: lock, of: a, token: b },
            30 => {
                let bytes = unpack(tail).filter(|bytes| bytes.len() <= MAX_VALUE)?;
                Request::SetValue { id: lock, of: a, token: b, bytes }
            }
            31 => Request::CloseValue { of: a, token: b },
            32 => Request::Watch { id: lock },
            _ => return None,
        };
        Some((seq, ask))
    }
}

impl Response {
    /// The message that says this, and that requests up to number `taken` were taken.
    pub fn encode(&self, taken: u64) -> Message {
        let plain = |kind, id, word| message(kind, id, [word, 0, 0, taken], Vec::new());
        match self {
            Response::Granted { id, token } => plain(65, *id, *token),
            Response::Busy { id } => plain(66, *id, 0),
            Response::Refused { id, why } => message(67, *id, [0, 0, 0, taken], pack(why.as_bytes())),
            Response::Lost { id } => plain(68, *id, 0),
            Response::Unlocked { id, held } => plain(69, *id, u64::from(*held)),
            Response::Page { id, more, bytes } => {
                message(70, *id, [u64::from(*more), 0, 0, taken], pack(bytes))
            }
            Response::Ack => plain(71, 0, 0),
            Response::Identity { id, identity } => {
                let (Identity::Server(number) | Identity::Memory(number)) = identity;
                let [low, high] = halves(*number);
                let is_memory = matches!(identity, Identity::Memory(_));
                message(76, *id, [low, high, u64::from(is_memory), taken], Vec::new())
            }
            Response::Found { id, lock, token_base } => {
                message(72, *id, [*lock, *token_base, 0, taken], Vec::new())
            }
            Response::Joined { peer } => plain(73, u64::from(peer.0), 0),
            Response::Retained { id, token, first, count } => {
                message(80, *id, [*token, *first, *count, taken], Vec::new())
            }
            Response::Recall { id } => plain(81, *id, 0),
            Response::Certain { sent, left } => plain(82, *sent, *left),
            Response::Elsewhere => plain(83, 0, 0),
            Response::Value { id, value } => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                message(84, *id, [value.bits(), value.age_ns, 0, taken], pack(bytes))
            }
            Response::Contended { id } => plain(85, *id, 0),
            Response::Changed { id, token, mode } => {
                message(74, *id, [*token, u64::from(*mode == Mode::Exclusive), 0, taken], Vec::new())
            }
            Response::Unchanged { id, why } => match why {
                DenyReason::Busy => plain(75, *id, 1),
                DenyReason::Deadlock => plain(75, *id, 2),
                DenyReason::Refused(why) => message(75, *id, [0, 0, 0, taken], pack(why.as_bytes())),
            },
        }
    }

    /// The answer in a message and how far the server got, if it is one.
    pub fn decode(message: &Message) -> Option<(u64, Self)> {
        let Message { lock: id, kind, words: [a, b, c, taken], ref tail } = *message;
        let answer = match kind {
            65 => Response::Granted { id, token: a },
            66 => Response::Busy { id },
            67 => Response::Refused { id, why: String::from_utf8_lossy(&unpack(tail)?).into_owned() },
            68 => Response::Lost { id },
            69 => Response::Unlocked { id, held: a == 1 },
            70 => Response::Page { id, more: a == 1, bytes: unpack(tail)? },
            71 => Response::Ack,
            76 => {
                let number = u128::from(b) << 64 | u128::from(a);
                let identity = if c == 1 { Identity::Memory(number) } else { Identity::Server(number) };
                Response::Identity { id, identity }
            }
            72 => Response::Found { id, lock: a, token_base: b },
            73 => Response::Joined { peer: PeerId(u32::try_from(id).ok()?) },
            80 => Response::Retained { id, token: a, first: b, count: c },
            81 => Response::Recall { id },
            82 => Response::Certain { sent: id, left: a },
            83 => Response::Elsewhere,
            84 => Response::Value { id, value: ValueReport::of_words(a, b, unpack(tail)?) },
            85 => Response::Contended { id },
            74 => {
                let mode = if b == 1 { Mode::Exclusive } else { Mode::Shared };
                Response::Changed { id, token: a, mode }
            }
            75 => {
                let why = match a {
                    0 => DenyReason::Refused(String::from_utf8_lossy(&unpack(tail)?).into_owned()),
                    1 => DenyReason::Busy,
                    2 => DenyReason::Deadlock,
                    _ => return None,
                };
                Response::Unchanged { id, why }
            }
            _ => return None,
        };
        Some((taken, answer))
    }
}

fn name_in(tail: &[u64]) -> Option<LockName> {
    LockName::new(unpack(tail)?).ok()
}

/// Bytes as words: how many, then eight to a word.
pub(crate) fn pack(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    std::iter::once(bytes.len() as u64).chain(bytes.chunks(8).map(word)).collect()
}

/// The bytes in words; `None` if there are not as many words as their number asks for.
pub(crate) fn unpack(words: &[u64]) -> Option<Vec<u8>> {
    let (len, words) = words.split_first()?;
    let len = usize::try_from(*len).ok()?;
    if words.len() != len.div_ceil(8) {
        return None;
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(len);
    Some(bytes)
}

#[cfg(test)]
mod tests;
