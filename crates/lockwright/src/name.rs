//! Names of locks: up to 255 bytes, any but NUL, compared byte by byte and never by a hash.
//!
//! This file only says what a name is. Which lock it stands for is the space's business.

use std::fmt;

/// The most bytes a name can have.
pub const MAX_NAME_BYTES: usize = 255;

/// A name that a lock can have.
///
/// ```
/// use lockwright::LockName;
/// let name: LockName = "orders/42".try_into().unwrap();
/// assert_eq!(name.as_bytes(), b"orders/42");
/// assert!(LockName::try_from("").is_err());
/// assert!(LockName::try_from("a\0b").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Box<[u8]>);

/// Why some bytes cannot be the name of a lock.
///
/// ```
/// use lockwright::{LockName, NameError};
/// assert_eq!(LockName::try_from("x".repeat(256).as_str()), Err(NameError::TooLong { bytes: 256 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is nothing in it.
    #[error("the name of a lock is empty")]
    Empty,
    /// It is too long.
    #[error("the name of a lock has {bytes} bytes, more than {MAX_NAME_BYTES}")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// There is a NUL byte in it.
    #[error("the name of a lock contains a NUL byte")]
    Nul,
}

impl LockName {
    /// The name with these bytes.
    ///
    /// # Errors
    /// If there are none, more than [`MAX_NAME_BYTES`], or one of them is NUL.
    ///
    /// ```
    /// use lockwright::LockName;
    /// // Names need not be text.
    /// assert_eq!(LockName::new(b"\xff\xfe").unwrap().to_string(), r"\xff\xfe");
    /// ```
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, NameError> {
        let bytes = bytes.as_ref();
        match bytes {
            [] => Err(NameError::Empty),
            _ if bytes.len() > MAX_NAME_BYTES => Err(NameError::TooLong { bytes: bytes.len() }),
            _ if bytes.contains(&0) => Err(NameError::Nul),
            _ => Ok(Self(bytes.into())),
        }
    }

    /// The name as text, for callers that quote it themselves (JSON): nothing is escaped, and what is not UTF-8 is replaced
    /// by U+FFFD.
    ///
    /// ```
    /// use lockwright::LockName;
    /// assert_eq!(LockName::new("tab\there").unwrap().to_text(), "tab\there");
    /// assert_eq!(LockName::new(b"a\xff").unwrap().to_text(), "a\u{fffd}");
    /// ```
    pub fn to_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Its bytes.
    ///
    /// ```
    /// assert_eq!(lockwright::LockName::new("a").unwrap().as_bytes(), b"a");
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&str> for LockName {
    type Error = NameError;
    fn try_from(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

/// Text as it is; what is not text, and what a terminal would act on, as `\x..`.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_255_bytes_is_the_longest() {
        assert!(LockName::new([b'x'; 255]).is_ok());
        assert_eq!(LockName::new([b'x'; 256]), Err(NameError::TooLong { bytes: 256 }));
    }

    #[test]
    fn a_name_is_shown_so_that_a_terminal_survives_it() {
        let name = LockName::new(b"a\x1b[2J\xff").unwrap();
        assert_eq!(name.to_string(), r"a\u{1b}[2J\xff");
    }
}
