//! A request in two to five words, for the list between threads: short ones, so that a cache line carries several.
//!
//! | word | bits | content |
//! |---|---|---|
//! | 0 | 0–31, 32–63 | id, client |
//! | 1 | 0–7, 8, 9 | kind, exclusive, wait |
//! | 1 | 32–63 | (UnlockPart) the id of the second piece |
//! | 2, 3 | 0–63 | (Lock, UnlockPart) start, end; (Raise) word 2 is the token |
//! | 4 | 0–63 | (Lock) the lock |

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

const EXCLUSIVE: u64 = 1 << 8;
const WAIT: u64 = 1 << 9;

/// Hands `client`'s request to `put`, word by word and numbered. Returns how many there were.
#[inline(always)]
fn pack(client: ClientId, request: Request, mut put: impl FnMut(usize, u64)) -> usize {
    let flag = |set: bool, bit: u64| if set { bit } else { 0 };
    let (id, how, words) = match request {
        Request::Lock { id, lock, mode, start, end, wait } => {
            put(2, start);
            put(3, end);
            put(4, lock);
            (id, LOCK | flag(mode == Mode::Exclusive, EXCLUSIVE) | flag(wait, WAIT), 5)
        }
        Request::Unlock { id } => (id, UNLOCK, 2),
        Request::UnlockPart { id, start, end, rest } => {
            put(2, start);
            put(3, end);
            (id, UNLOCK_PART | u64::from(rest) << 32, 4)
        }
        Request::Upgrade { id, wait } => (id, UPGRADE | flag(wait, WAIT), 2),
        Request::Downgrade { id } => (id, DOWNGRADE, 2),
        Request::Cancel { id } => (id, CANCEL, 2),
        Request::Raise { token } => {
            put(2, token);
            (0, RAISE, 3)
        }
    };
    put(0, u64::from(id) | u64::from(client.0) << 32);
    put(1, how);
    words
}

/// The request whose words `get` has, and how many there are.
#[inline(always)]
fn unpack(get: impl Fn(usize) -> u64) -> (ClientId, Request, usize) {
    let (who, how) = (get(0), get(1));
    let (id, client, wait) = (who as u32, ClientId((who >> 32) as u32), how & WAIT != 0);
    let (request, words) = match how & 0xff {
        LOCK => {
            let mode = if how & EXCLUSIVE != 0 { Mode::Exclusive } else { Mode::Shared };
            (Request::Lock { id, lock: get(4), mode, start: get(2), end: get(3), wait }, 5)
        }
        UNLOCK => (Request::Unlock { id }, 2),
        UNLOCK_PART => (Request::UnlockPart { id, start: get(2), end: get(3), rest: (how >> 32) as u32 }, 4),
        UPGRADE => (Request::Upgrade { id, wait }, 2),
        DOWNGRADE => (Request::Downgrade { id }, 2),
        CANCEL => (Request::Cancel { id }, 2),
        RAISE => (Request::Raise { token: get(2) }, 3),
        other => unreachable!("only `pack` fills nodes, and it knows no kind {other}"),
    };
    (client, request, words)
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
            Request::Unlock { id },
            Request::UnlockPart { id, start, end, rest },
            Request::Upgrade { id, wait: true },
            Request::Upgrade { id, wait: false },
            Request::Downgrade { id },
            Request::Cancel { id },
            Request::Raise { token: u64::MAX },
        ] {
            let mut words = [0; Request::MOST_WORDS];
            let count = pack(ClientId(u32::MAX), request, |place, word| words[place] = word);
            assert_eq!(unpack(|place| words[place]), (ClientId(u32::MAX), request, count));
            assert!(words[count..].iter().all(|word| *word == 0), "{count} words are all there is");
        }
    }
}
