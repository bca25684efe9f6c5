//! A request in one to five words, for the list between threads. What is short takes little room: every cache line has to
//! travel from core to core, so what fits into one of them counts.
//!
//! | word | bits | content |
//! |---|---|---|
//! | 0 | 0–31 | id |
//! | 0 | 32–55 | client, its lower bits |
//! | 0 | 56–58, 59, 60 | kind, exclusive, wait |
//! | 0 | 61 | far: the last word has the rest of the client's number |
//! | 0 | 62 | (Lock) brief: lock and length are below 2^32, and share word 2 |
//! | 1 | 0–63 | (Lock, UnlockPart) start; (Raise) the token |
//! | 2 | 0–63 | (Lock, UnlockPart) end; (brief) the lock in bits 0–31, the length in 32–63 |
//! | 3 | 0–63 | (Lock, not brief) the lock; (UnlockPart) the id of the second piece |

use super::core::{ClientId, Request};
use lockwright_fabric::observe::Mode;

/// What a list can carry for its clients, in words. Servers that have more to say than the combiner's own requests
/// carry that.
pub trait Carried: Copy {
    /// The most words it takes with its client.
    const MOST_WORDS: usize;

    /// Hands it, asked for by `client`, to `put`, word by word and numbered. Returns how many there were.
    fn pack(self, client: ClientId, put: impl FnMut(usize, u64)) -> usize;

    /// What `pack` handed out, whose words `get` has, and how many there are.
    fn unpack(get: impl Fn(usize) -> u64) -> (ClientId, Self, usize);
}

impl Carried for Request {
    const MOST_WORDS: usize = 5;

    #[inline(always)]
    fn pack(self, client: ClientId, put: impl FnMut(usize, u64)) -> usize {
        pack(client, self, put)
    }

    #[inline(always)]
    fn unpack(get: impl Fn(usize) -> u64) -> (ClientId, Self, usize) {
        unpack(get)
    }
}

const LOCK: u64 = 0;
const UNLOCK: u64 = 1;
const UNLOCK_PART: u64 = 2;
const UPGRADE: u64 = 3;
const DOWNGRADE: u64 = 4;
const CANCEL: u64 = 5;
const RAISE: u64 = 6;

const KIND: u64 = 7 << 56;
const EXCLUSIVE: u64 = 1 << 59;
const WAIT: u64 = 1 << 60;
const FAR: u64 = 1 << 61;
const BRIEF: u64 = 1 << 62;
/// Bits of a client's number in the first word.
const CLIENT_BITS: u32 = 24;

#[inline(always)]
const fn flag(set: bool, bit: u64) -> u64 {
    if set { bit } else { 0 }
}

/// Hands `client`'s request to `put`, word by word and numbered. Returns how many there were.
#[inline(always)]
fn pack(client: ClientId, request: Request, mut put: impl FnMut(usize, u64)) -> usize {
    let (id, how, words) = match request {
        Request::Lock { id, lock, mode, start, end, wait } => {
            let how = LOCK << 56 | flag(mode == Mode::Exclusive, EXCLUSIVE) | flag(wait, WAIT);
            put(1, start);
            // What ends before it begins is refused by the combiner, and has to come through as it is.
            match end.checked_sub(start) {
                Some(length) if length.max(lock) <= u64::from(u32::MAX) => {
                    put(2, lock | length << 32);
                    (id, how | BRIEF, 3)
                }
                _ => {
                    put(2, end);
                    put(3, lock);
                    (id, how, 4)
                }
            }
        }
        Request::Unlock { id } => (id, UNLOCK << 56, 1),
        Request::UnlockPart { id, start, end, rest } => {
            put(1, start);
            put(2, end);
            put(3, u64::from(rest));
            (id, UNLOCK_PART << 56, 4)
        }
        Request::Upgrade { id, wait } => (id, UPGRADE << 56 | flag(wait, WAIT), 1),
        Request::Downgrade { id } => (id, DOWNGRADE << 56, 1),
        Request::Cancel { id } => (id, CANCEL << 56, 1),
        Request::Raise { token } => {
            put(1, token);
            (0, RAISE << 56, 2)
        }
    };
    let (client, more) =
        (u64::from(client.0) << 32 & !(u64::MAX << (32 + CLIENT_BITS)), client.0 >> CLIENT_BITS);
    put(0, u64::from(id) | client | how | flag(more != 0, FAR));
    if more != 0 {
        put(words, u64::from(more));
    }
    words + usize::from(more != 0)
}

/// The request whose words `get` has, and how many there are.
#[inline(always)]
fn unpack(get: impl Fn(usize) -> u64) -> (ClientId, Request, usize) {
    let head = get(0);
    let (id, wait) = (head as u32, head & WAIT != 0);
    let (request, words) = match (head & KIND) >> 56 {
        LOCK => {
            let mode = if head & EXCLUSIVE != 0 { Mode::Exclusive } else { Mode::Shared };
            let (start, second) = (get(1), get(2));
            let is_brief = head & BRIEF != 0;
            let end = if is_brief { start + (second >> 32) } else { second };
            let lock = if is_brief { second & u64::from(u32::MAX) } else { get(3) };
            (Request::Lock { id, lock, mode, start, end, wait }, if is_brief { 3 } else { 4 })
        }
        UNLOCK => (Request::Unlock { id }, 1),
        UNLOCK_PART => (Request::UnlockPart { id, start: get(1), end: get(2), rest: get(3) as u32 }, 4),
        UPGRADE => (Request::Upgrade { id, wait }, 1),
        DOWNGRADE => (Request::Downgrade { id }, 1),
        CANCEL => (Request::Cancel { id }, 1),
        RAISE => (Request::Raise { token: get(1) }, 2),
        other => unreachable!("only `pack` fills nodes, and it knows no kind {other}"),
    };
    let client = (head >> 32) as u32 & ((1 << CLIENT_BITS) - 1);
    let is_far = head & FAR != 0;
    let more = if is_far { (get(words) as u32) << CLIENT_BITS } else { 0 };
    (ClientId(client | more), request, words + usize::from(is_far))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_comes_out_as_it_went_in() {
        let (id, start, end, rest, lock) = (u32::MAX, 3, u64::MAX, 7, 1 << 63);
        for request in [
            Request::Lock { id, lock, mode: Mode::Exclusive, start, end, wait: false },
            Request::Lock { id: 0, lock, mode: Mode::Shared, start, end, wait: true },
            Request::Lock { id, lock: 0, mode: Mode::Shared, start, end: start + 1, wait: true },
            Request::Lock {
                id,
                lock: 9,
                mode: Mode::Exclusive,
                start: 0,
                end: u64::from(u32::MAX),
                wait: false,
            },
            Request::Lock { id, lock: 9, mode: Mode::Exclusive, start: 0, end: 1 << 32, wait: false },
            Request::Lock { id, lock, mode: Mode::Exclusive, start, end: start + 1, wait: false },
            Request::Lock { id, lock: 0, mode: Mode::Shared, start: end, end: start, wait: false },
            Request::Unlock { id },
            Request::UnlockPart { id, start, end, rest },
            Request::Upgrade { id, wait: true },
            Request::Upgrade { id, wait: false },
            Request::Downgrade { id },
            Request::Cancel { id },
            Request::Raise { token: u64::MAX },
        ] {
            for client in [0, 1, (1 << 24) - 1, 1 << 24, u32::MAX].map(ClientId) {
                let mut words = [0; Request::MOST_WORDS];
                let count = pack(client, request, |place, word| words[place] = word);
                assert_eq!(unpack(|place| words[place]), (client, request, count));
                assert!(words[count..].iter().all(|word| *word == 0), "{count} words are all there is");
            }
        }
    }
}
