//! Which bytes of a file: `struct flock`'s whence, start and length, as the kernel reads them.

use std::fmt;
use std::ops::Range;

/// Bytes of a file from `start` to before `end`. Never empty; the end of all files is [`Extent::END`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// The first byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// Why there are no such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadExtent {
    /// They would begin before the file does: `EINVAL`.
    BeforeTheFile,
    /// They would end after the largest file does: `EOVERFLOW`.
    TooFar,
}

impl fmt::Display for BadExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BeforeTheFile => "the range begins before the file",
            Self::TooFar => "the range ends after the largest file",
        })
    }
}

impl std::error::Error for BadExtent {}

impl Extent {
    /// One past the last byte that a file can have.
    pub const END: u64 = 1 << 63;
    /// All of a file.
    pub const WHOLE: Self = Self { start: 0, end: Self::END };

    /// The bytes that `struct flock` names: `start` relative to `base` (0, the offset, or the size: its whence), and `len`
    /// bytes; to the end of the file if that is 0, and the bytes before if it is negative.
    ///
    /// # Errors
    /// If there are no such bytes.
    pub fn new(base: i64, start: i64, len: i64) -> Result<Self, BadExtent> {
        let start = base.checked_add(start).ok_or(BadExtent::TooFar)?;
        let from = |start: i64| u64::try_from(start).map_err(|_| BadExtent::BeforeTheFile);
        let first = from(start)?;
        match len {
            0 => Ok(Self { start: first, end: Self::END }),
            1.. => {
                let end = first + len.unsigned_abs();
                if end > Self::END { Err(BadExtent::TooFar) } else { Ok(Self { start: first, end }) }
            }
            _ => {
                Ok(Self { start: from(start.checked_add(len).ok_or(BadExtent::BeforeTheFile)?)?, end: first })
            }
        }
    }

    /// The same, from the first byte to the last, as FUSE says it.
    pub fn inclusive(first: u64, last: u64) -> Option<Self> {
        let end = last.min(Self::END - 1) + 1;
        (first < end).then_some(Self { start: first, end })
    }

    /// The length as `struct flock` says it: 0 is to the end.
    pub fn len(&self) -> i64 {
        if self.end == Self::END { 0 } else { i64::try_from(self.end - self.start).unwrap_or(0) }
    }

    /// An extent has at least one byte.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Whether they have a byte in common.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// What they have in common.
    pub fn common(&self, other: &Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// As a range.
    pub const fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_length_is_the_bytes_before_and_none_is_to_the_end() {
        let extent = |base, start, len| Extent::new(base, start, len).map(|found| (found.start, found.end));
        assert_eq!(extent(0, 10, 5), Ok((10, 15)));
        assert_eq!(extent(100, -10, 5), Ok((90, 95)));
        assert_eq!(extent(0, 10, -5), Ok((5, 10)));
        assert_eq!(extent(0, 10, -10), Ok((0, 10)));
        assert_eq!(extent(0, 10, -11), Err(BadExtent::BeforeTheFile));
        assert_eq!(extent(0, 10, 0), Ok((10, Extent::END)));
        assert_eq!(extent(0, -1, 5), Err(BadExtent::BeforeTheFile));
        assert_eq!(extent(1, i64::MAX, 1), Err(BadExtent::TooFar));
        assert_eq!(extent(0, i64::MAX, 1), Ok((Extent::END - 1, Extent::END)));
        assert_eq!(extent(0, i64::MAX, 2), Err(BadExtent::TooFar));
        assert_eq!(Extent::inclusive(0, u64::MAX), Some(Extent::WHOLE));
        assert_eq!(Extent::WHOLE.len(), 0);
        assert_eq!(Extent::inclusive(5, 5).map(|extent| extent.len()), Some(1));
    }
}
