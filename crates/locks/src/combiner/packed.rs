//! A request as five words, for the list between threads.
//!
//! | word | bits | content |
//! |---|---|---|
//! | 0 | 0–63 | lock, or (Raise) the token, or (UnlockPart) the id of the second piece |
//! | 1 | 0–63 | start |
//! | 2 | 0–63 | end |
//! | 3 | 0–31, 32–63 | id, client |
//! | 4 | 0–7, 8, 9 | kind, exclusive, wait |

use super::core::{ClientId, Request};
use lockwright_fabric::observe::Mode;

/// How many words a request takes.
pub(super) const WORDS: usize = 5;

/// A request in words.
pub(super) type Packed = [u64; WORDS];

const LOCK: u64 = 0;
const UNLOCK: u64 = 1;
const UNLOCK_PART: u64 = 2;
const UPGRADE: u64 = 3;
const DOWNGRADE: u64 = 4;
const CANCEL: u64 = 5;
const RAISE: u64 = 6;

const EXCLUSIVE: u64 = 1 << 8;
const WAIT: u64 = 1 << 9;

/// `client`'s request in words.
#[inline]
pub(super) fn pack(client: ClientId, request: Request) -> Packed {
    let flag = |set: bool, bit: u64| if set { bit } else { 0 };
    let (first, (start, end), id, how) = match request {
        Request::Lock { id, lock, mode, start, end, wait } => {
            (lock, (start, end), id, LOCK | flag(mode == Mode::Exclusive, EXCLUSIVE) | flag(wait, WAIT))
        }
        Request::Unlock { id } => (0, (0, 0), id, UNLOCK),
        Request::UnlockPart { id, start, end, rest } => (u64::from(rest), (start, end), id, UNLOCK_PART),
        Request::Upgrade { id, wait } => (0, (0, 0), id, UPGRADE | flag(wait, WAIT)),
        Request::Downgrade { id } => (0, (0, 0), id, DOWNGRADE),
        Request::Cancel { id } => (0, (0, 0), id, CANCEL),
        Request::Raise { token } => (token, (0, 0), 0, RAISE),
    };
    [first, start, end, u64::from(id) | u64::from(client.0) << 32, how]
}

/// The request in the words.
#[inline]
pub(super) fn unpack(&[first, start, end, who, how]: &Packed) -> (ClientId, Request) {
    let (id, client, wait) = (who as u32, ClientId((who >> 32) as u32), how & WAIT != 0);
    let request = match how & 0xff {
        LOCK => {
            let mode = if how & EXCLUSIVE != 0 { Mode::Exclusive } else { Mode::Shared };
            Request::Lock { id, lock: first, mode, start, end, wait }
        }
        UNLOCK => Request::Unlock { id },
        UNLOCK_PART => Request::UnlockPart { id, start, end, rest: first as u32 },
        UPGRADE => Request::Upgrade { id, wait },
        DOWNGRADE => Request::Downgrade { id },
        CANCEL => Request::Cancel { id },
        RAISE => Request::Raise { token: first },
        other => unreachable!("only `pack` fills slots, and it knows no kind {other}"),
    };
    (client, request)
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
            assert_eq!(unpack(&pack(ClientId(u32::MAX), request)), (ClientId(u32::MAX), request));
        }
    }
}
