//! The wire messages as messages of the fabric, and back.
//!
//! What this file must not do: trust a word of what it decodes. What is no request comes out as `None`.

use super::{
    DenyReason, Identity, Kind, LockName, MAX_SET, MAX_SPACE, MAX_VALUE, Mode, PAGE, Request, RequestId,
    Response, Units, ValueReport,
};
use lockwright_fabric::{Message, PeerId};

const EXCLUSIVE: u32 = 1 << 8;
const FLAG: u32 = 1 << 9;
const RANGES: u32 = 1 << 10;
const SEMAPHORES: u32 = 1 << 11;

/// Where the thread is that asks.
const THREAD: u32 = 12;

/// The bits of a thread; none for one whose number does not fit.
fn put_thread(thread: Option<u32>) -> u32 {
    let plus_one = thread.and_then(|thread| thread.checked_add(1)).unwrap_or(0);
    plus_one.checked_mul(1 << THREAD).unwrap_or(0)
}

fn thread_in(kind: u32) -> Option<u32> {
    (kind >> THREAD).checked_sub(1)
}

fn flag(set: bool, bit: u32) -> u32 {
    if set { bit } else { 0 }
}

fn message(kind: u32, lock: u64, words: [u64; 4], tail: Vec<u64>) -> Message {
    Message { lock, kind, words, tail }
}

fn of_units(kind: u32, id: RequestId, seq: u64, units: &Units, tail: Vec<u64>) -> Message {
    let kind = kind | flag(units.mode == Mode::Exclusive, EXCLUSIVE) | put_thread(units.thread);
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
            Request::List { id, of } => {
                let of = of.as_ref().map(|name| pack(name.as_bytes()));
                message(8, *id, [seq, 0, 0, 0], of.unwrap_or_default())
            }
            Request::Heat { id } => message(9, *id, [seq, 0, 0, 0], Vec::new()),
            Request::Break { id, token, name } => {
                message(10, *id, [seq, *token, 0, 0], pack(name.as_bytes()))
            }
            Request::Find { id, handle } => message(11, *id, [seq, *handle, 0, 0], Vec::new()),
            Request::Retains => message(24, 0, [seq, 0, 0, 0], Vec::new()),
            Request::Kept { id, thread } => {
                message(25 | put_thread(*thread), *id, [seq, 0, 0, 0], Vec::new())
            }
            Request::Probe { sent } => message(26, *sent, [seq, 0, 0, 0], Vec::new()),
            Request::Map { id } => message(27, *id, [seq, 0, 0, 0], Vec::new()),
            Request::Waited { id, ns } => message(28, *id, [seq, *ns, 0, 0], Vec::new()),
            Request::ReadValue { id, of, token } => message(29, *id, [seq, *of, *token, 0], Vec::new()),
            Request::SetValue { id, of, token, bytes } => {
                message(30, *id, [seq, *of, *token, 0], pack(bytes))
            }
            Request::CloseValue { of, token } => message(31, 0, [seq, *of, *token, 0], Vec::new()),
            Request::Watch { id } => message(32, *id, [seq, 0, 0, 0], Vec::new()),
            Request::LockSet { members } => {
                let (modes, tail) = pack_set(members);
                let thread = members.first().and_then(|(_, units)| units.thread);
                message(33 | put_thread(thread), 0, [seq, modes, 0, 0], tail)
            }
            Request::Hand { id, last, bytes } => {
                message(34 | flag(*last, FLAG), *id, [seq, 0, 0, 0], pack(bytes))
            }
        }
    }

    /// The request in a message and its number, if it is one.
    pub fn decode(message: &Message) -> Option<(u64, Self)> {
        let Message { lock, kind, words: [seq, a, b, c], ref tail } = *message;
        let has = |bit: u32| kind & bit != 0;
        let units = || {
            let mode = if has(EXCLUSIVE) { Mode::Exclusive } else { Mode::Shared };
            Units { handle: c, mode, start: a, end: b, thread: thread_in(kind) }
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
            8 => {
                let of = if tail.is_empty() { None } else { Some(name_in(tail)?) };
                Request::List { id: lock, of }
            }
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
            25 => Request::Kept { id: lock, thread: thread_in(kind) },
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
            33 => Request::LockSet { members: unpack_set(a, tail, thread_in(kind))? },
            34 => {
                let bytes = unpack(tail).filter(|bytes| bytes.len() <= PAGE)?;
                Request::Hand { id: lock, last: has(FLAG), bytes }
            }
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
            Response::Relinquish { count } => plain(86, 0, *count),
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
            86 => Response::Relinquish { count: a },
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

/// The members of a set, which one thread asks for: which of them are exclusive, by bit, and four words of each.
fn pack_set(members: &[(RequestId, Units)]) -> (u64, Vec<u64>) {
    debug_assert!(members.len() <= MAX_SET, "a set that is larger is asked for in parts");
    let exclusive = |(at, (_, units)): (usize, &(RequestId, Units))| {
        u64::from(units.mode == Mode::Exclusive) << (at % MAX_SET)
    };
    let modes = members.iter().enumerate().map(exclusive).fold(0, |modes, mode| modes | mode);
    let words = |(id, units): &(RequestId, Units)| [*id, units.handle, units.start, units.end];
    (modes, members.iter().flat_map(words).collect())
}

fn unpack_set(modes: u64, tail: &[u64], thread: Option<u32>) -> Option<Vec<(RequestId, Units)>> {
    let (members, rest) = tail.as_chunks::<4>();
    let unused = modes.checked_shr(members.len() as u32).unwrap_or(0);
    if !rest.is_empty() || members.is_empty() || members.len() > MAX_SET || unused != 0 {
        return None;
    }
    let member = |(at, [id, handle, start, end]): (usize, &[u64; 4])| {
        let mode = if modes >> at & 1 == 1 { Mode::Exclusive } else { Mode::Shared };
        (*id, Units { handle: *handle, mode, start: *start, end: *end, thread })
    };
    Some(members.iter().enumerate().map(member).collect())
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
