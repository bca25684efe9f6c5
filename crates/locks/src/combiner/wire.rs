//! The thesis's request of eight bytes (§4.2, Tables 1–4), with its limits enforced.
//!
//! | bits | Lock (mode 00) | Unlock (mode 01) | Poll (mode 10) |
//! |---|---|---|---|
//! | 63–62 | mode | mode | mode |
//! | 41 | flip | | |
//! | 40–33 | client | | |
//! | 32 | read only | | |
//! | 31–16 | last unit | | |
//! | 15–0 | first unit | 8 flip, 7–0 client | 7–0 client |
//!
//! Unused bits are zero. A response is four bytes, whose last bit says whether the lock is acquired. There is room for
//! 2^16 units, 256 clients and one range per client; `flip` tells a client's request from the one before it.

/// A request that fits into eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThesisRequest {
    /// The units `first..=last`.
    Lock {
        /// Who asks.
        client: u8,
        /// Changes with every lock of a client.
        flip: bool,
        /// Shared mode.
        read_only: bool,
        /// First unit.
        first: u16,
        /// Last unit.
        last: u16,
    },
    /// What was locked with the same `flip`.
    Unlock {
        /// Who asks.
        client: u8,
        /// As in the lock.
        flip: bool,
    },
    /// Whether the last lock is acquired.
    Poll {
        /// Who asks.
        client: u8,
    },
}

/// What eight bytes cannot say, or do not mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WireError {
    /// Client numbers have eight bits.
    #[error("client {0} does not fit into the eight bits that the thesis's format has for it")]
    Client(u64),
    /// Units have sixteen bits.
    #[error("unit {0} does not fit into the sixteen bits that the thesis's format has for it")]
    Unit(u64),
    /// A range has at least one unit.
    #[error("the range is empty or reversed")]
    Reversed,
    /// The fourth mode means nothing.
    #[error("mode 11 means nothing")]
    Mode,
    /// Unused bits are zero.
    #[error("bits are set that the format does not use")]
    Unused,
}

const FLIP: u32 = 41;
const CLIENT: u32 = 33;
const READ_ONLY: u32 = 32;
const UNLOCK_FLIP: u32 = 8;

impl ThesisRequest {
    /// A lock request for the units `start..end`.
    ///
    /// # Errors
    /// What does not fit.
    pub fn lock(client: u64, flip: bool, read_only: bool, start: u64, end: u64) -> Result<Self, WireError> {
        if start >= end {
            return Err(WireError::Reversed);
        }
        let unit = |unit: u64| u16::try_from(unit).map_err(|_| WireError::Unit(unit));
        Ok(Self::Lock { client: small(client)?, flip, read_only, first: unit(start)?, last: unit(end - 1)? })
    }

    /// The eight bytes.
    pub fn encode(self) -> u64 {
        let word = u64::from;
        match self {
            Self::Lock { client, flip, read_only, first, last } => {
                u64::from(flip) << FLIP
                    | u64::from(client) << CLIENT
                    | u64::from(read_only) << READ_ONLY
                    | word(last) << 16
                    | word(first)
            }
            Self::Unlock { client, flip } => 0b01 << 62 | u64::from(flip) << UNLOCK_FLIP | u64::from(client),
            Self::Poll { client } => 0b10 << 62 | u64::from(client),
        }
    }

    /// What eight bytes mean.
    ///
    /// # Errors
    /// If they mean nothing.
    pub fn decode(word: u64) -> Result<Self, WireError> {
        let bit = |at: u32| word >> at & 1 == 1;
        let (request, used) = match word >> 62 {
            0b00 => {
                let (first, last) = (word as u16, (word >> 16) as u16);
                if first > last {
                    return Err(WireError::Reversed);
                }
                let client = (word >> CLIENT) as u8;
                (Self::Lock { client, flip: bit(FLIP), read_only: bit(READ_ONLY), first, last }, FLIP + 1)
            }
            0b01 => (Self::Unlock { client: word as u8, flip: bit(UNLOCK_FLIP) }, UNLOCK_FLIP + 1),
            0b10 => (Self::Poll { client: word as u8 }, 8),
            _ => return Err(WireError::Mode),
        };
        if word << 2 >> 2 >> used != 0 {
            return Err(WireError::Unused);
        }
        Ok(request)
    }
}

/// A client's number in eight bits.
///
/// # Errors
/// If it needs more.
pub fn small(client: u64) -> Result<u8, WireError> {
    u8::try_from(client).map_err(|_| WireError::Client(client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_where_the_thesis_has_them() {
        let lock = ThesisRequest::lock(0xab, true, true, 0x1234, 0xfff0).unwrap();
        assert_eq!(lock.encode(), 1 << 41 | 0xab << 33 | 1 << 32 | 0xffef << 16 | 0x1234);
        assert_eq!(ThesisRequest::Unlock { client: 0xab, flip: true }.encode(), 1 << 62 | 1 << 8 | 0xab);
        assert_eq!(ThesisRequest::Poll { client: 0xab }.encode(), 2 << 62 | 0xab);
    }

    #[test]
    fn every_request_comes_out_as_it_went_in() {
        for flip in [false, true] {
            let lock = ThesisRequest::lock(255, flip, !flip, 0, 1 << 16).unwrap();
            for request in
                [lock, ThesisRequest::Unlock { client: 255, flip }, ThesisRequest::Poll { client: 7 }]
            {
                assert_eq!(ThesisRequest::decode(request.encode()), Ok(request));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_in_words() {
        let why = |result: Result<ThesisRequest, WireError>| result.unwrap_err().to_string();
        assert!(why(ThesisRequest::lock(256, false, false, 0, 1)).starts_with("client 256 does not fit"));
        assert!(why(ThesisRequest::lock(0, false, false, 0, 65_537)).starts_with("unit 65536 does not fit"));
        assert_eq!(ThesisRequest::lock(0, false, false, 5, 5), Err(WireError::Reversed));
    }

    #[test]
    fn bytes_that_mean_nothing_are_refused() {
        assert_eq!(ThesisRequest::decode(3 << 62), Err(WireError::Mode));
        assert_eq!(ThesisRequest::decode(1 << 50), Err(WireError::Unused));
        assert_eq!(ThesisRequest::decode(1 << 62 | 1 << 9), Err(WireError::Unused));
        assert_eq!(ThesisRequest::decode(2 << 62 | 1 << 8), Err(WireError::Unused));
        assert_eq!(ThesisRequest::decode(5), Err(WireError::Reversed));
    }
}
