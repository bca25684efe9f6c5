//! How a resource rejects old tokens: the half of fencing that is not the lock's.
//!
//! A process that is stopped long enough loses its lock, and when it wakes, its next write may already be on its way.
//! No lock service can call that write back. The resource can refuse it: every grant carries a token larger than that
//! of every earlier conflicting one, so whatever comes with a smaller token than the last comes from the past.
//! [`Fence`] is that rule; [`FencedFile`] is a file that keeps it across processes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Remembers the largest token and turns away whoever comes with a smaller one.
///
/// ```
/// use lockwright::fenced::Fence;
/// let mut fence = Fence::default();
/// assert!(fence.admit(33).is_ok());
/// assert!(fence.admit(34).is_ok()); // the next holder
/// assert!(fence.admit(33).is_err()); // the one before, who slept through its lease
/// assert!(fence.admit(34).is_ok()); // one holder may write often
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    newest: u64,
}

/// A write came with the token of a grant that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token} is old: {newest} has been here")]
pub struct StaleToken {
    /// The token it came with.
    pub token: u64,
    /// The newest token seen.
    pub newest: u64,
}

impl Fence {
    /// A fence that has seen `newest`.
    ///
    /// ```
    /// assert!(lockwright::fenced::Fence::at(7).admit(6).is_err());
    /// ```
    pub const fn at(newest: u64) -> Self {
        Self { newest }
    }

    /// Lets `token` pass if none larger was here before.
    ///
    /// # Errors
    /// If one was.
    ///
    /// ```
    /// # use lockwright::fenced::{Fence, StaleToken};
    /// assert_eq!(Fence::at(2).admit(1), Err(StaleToken { token: 1, newest: 2 }));
    /// ```
    pub const fn admit(&mut self, token: u64) -> Result<(), StaleToken> {
        if token < self.newest {
            return Err(StaleToken { token, newest: self.newest });
        }
        self.newest = token;
        Ok(())
    }

    /// The newest token seen.
    ///
    /// ```
    /// assert_eq!(lockwright::fenced::Fence::at(7).newest(), 7);
    /// ```
    pub const fn newest(&self) -> u64 {
        self.newest
    }
}

/// Why a fenced write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum FencedError {
    /// It came too late.
    #[error(transparent)]
    Stale(#[from] StaleToken),
    /// The file could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file was not written by [`FencedFile`].
    #[error("the file does not start with a token")]
    Foreign,
}

/// A small file that only takes writes with a token at least as large as the last: its first line is that token, the
/// rest is the content. Comparing and writing are one step, under the operating system's lock on the file.
///
/// ```
/// use lockwright::{Client, fenced::FencedFile};
/// # let folder = std::env::temp_dir().join(format!("lockwright-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("state");
/// let client = Client::open("mem:").wait().unwrap();
/// let guard = client.mutex("state").unwrap().lock().wait().unwrap();
/// let mut file = FencedFile::open(&path).unwrap();
/// file.write(guard.token(), b"42").unwrap();
/// assert_eq!(file.read().unwrap(), b"42");
/// assert!(file.write(guard.token() - 1, b"13").is_err());
/// # std::fs::remove_dir_all(&folder).unwrap();
/// ```
#[derive(Debug)]
pub struct FencedFile {
    file: File,
}

impl FencedFile {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// If the system refuses.
    ///
    /// ```
    /// assert!(lockwright::fenced::FencedFile::open("/no/such/folder/x").is_err());
    /// ```
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { file })
    }

    /// Replaces the content, unless somebody with a larger token has written before.
    ///
    /// # Errors
    /// If somebody has, or the file cannot be read or written. An old token changes nothing.
    ///
    /// ```no_run
    /// # let mut file = lockwright::fenced::FencedFile::open("state")?;
    /// file.write(7, b"content")?;
    /// # Ok::<(), lockwright::fenced::FencedError>(())
    /// ```
    pub fn write(&mut self, token: u64, content: &[u8]) -> Result<(), FencedError> {
        self.file.lock()?;
        let written = self.write_locked(token, content);
        self.file.unlock()?;
        written
    }

    /// The content.
    ///
    /// # Errors
    /// If the file cannot be read.
    ///
    /// ```no_run
    /// let content = lockwright::fenced::FencedFile::open("state")?.read()?;
    /// # Ok::<(), lockwright::fenced::FencedError>(())
    /// ```
    pub fn read(&mut self) -> Result<Vec<u8>, FencedError> {
        self.file.lock_shared()?;
        let parts = self.parts();
        self.file.unlock()?;
        Ok(parts?.1)
    }

    /// The content, for somebody who will write what follows from it: from here on the file takes no writes with a
    /// smaller token.
    ///
    /// Whoever reads, thinks and writes must begin like this. A [`read`](Self::read) alone leaves a gap: a holder from
    /// the past, whose token is still the largest that the file has seen, could write between the read and the write,
    /// and its update would be lost.
    ///
    /// # Errors
    /// If somebody with a larger token was here before, or the file cannot be read or written.
    ///
    /// ```
    /// # use lockwright::fenced::FencedFile;
    /// # let folder = std::env::temp_dir().join(format!("lockwright-doc-read-as-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// let mut file = FencedFile::open(folder.join("counter"))?;
    /// file.write(7, b"41")?;
    /// assert_eq!(file.read_as(8)?, b"41"); // the next holder looks
    /// assert!(file.write(7, b"13").is_err()); // the one before comes too late
    /// file.write(8, b"42")?;
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), lockwright::fenced::FencedError>(())
    /// ```
    pub fn read_as(&mut self, token: u64) -> Result<Vec<u8>, FencedError> {
        self.file.lock()?;
        let content = self.read_as_locked(token);
        self.file.unlock()?;
        content
    }

    fn read_as_locked(&mut self, token: u64) -> Result<Vec<u8>, FencedError> {
        let (newest, content) = self.parts()?;
        if token != newest {
            self.write_locked(token, &content)?;
        }
        Ok(content)
    }

    fn write_locked(&mut self, token: u64, content: &[u8]) -> Result<(), FencedError> {
        let (newest, _) = self.parts()?;
        Fence::at(newest).admit(token)?;
        let mut all = format!("{token}\n").into_bytes();
        all.extend_from_slice(content);
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&all)?;
        self.file.set_len(all.len() as u64)?;
        Ok(())
    }

    /// The token of the last write (0 if there was none) and the content.
    fn parts(&mut self) -> Result<(u64, Vec<u8>), FencedError> {
        let mut all = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut all)?;
        if all.is_empty() {
            return Ok((0, all));
        }
        let end = all.iter().position(|byte| *byte == b'\n').ok_or(FencedError::Foreign)?;
        let token = std::str::from_utf8(&all[..end]).ok().and_then(|token| token.parse().ok());
        let content = all.split_off(end + 1);
        Ok((token.ok_or(FencedError::Foreign)?, content))
    }
}
