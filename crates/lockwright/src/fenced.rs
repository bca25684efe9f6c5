//! How a resource rejects old tokens: the half of fencing that is not the lock's.
//!
//! A process that is stopped long enough loses its lock, and when it wakes, its next write may already be on its way.
//! No lock service can call that write back. The resource can refuse it: every grant carries a token larger than that
//! of every earlier conflicting one, so whatever comes with a smaller token than the last comes from the past.
//! [`Fence`] is that rule; [`FencedFile`] is a file that keeps it across processes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Remembers the largest token and refuses requests with a smaller one.
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
///
/// ```
/// let stale = lockwright::fenced::Fence::at(34).admit(33).unwrap_err();
/// assert_eq!(stale.to_string(), "token 33 is old: 34 has been here");
/// ```
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
///
/// ```
/// use lockwright::fenced::{FencedError, StaleToken};
/// let stop = |error: &FencedError| matches!(error, FencedError::Stale(_)); // the lock has gone to others
/// assert!(stop(&StaleToken { token: 1, newest: 2 }.into()));
/// ```
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
/// A write makes a new file beside it and renames that: a process that is killed at any moment leaves what was there
/// before, or all of what it wrote. So the folder must be writable, too.
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
    /// Without links: what is renamed takes the place of the file, not of a link to it.
    path: PathBuf,
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
        let path = path.as_ref();
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { path: path.canonicalize()? })
    }

    /// Replaces the content, unless a writer with a larger token was here before.
    ///
    /// # Errors
    /// If one was, or the file cannot be read or written. An old token changes nothing.
    ///
    /// ```no_run
    /// # let mut file = lockwright::fenced::FencedFile::open("state")?;
    /// file.write(7, b"content")?;
    /// # Ok::<(), lockwright::fenced::FencedError>(())
    /// ```
    pub fn write(&mut self, token: u64, content: &[u8]) -> Result<(), FencedError> {
        let mut file = self.locked(File::lock)?;
        self.write_locked(&mut file, token, content)
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
        Ok(parts(&mut self.locked(File::lock_shared)?)?.1)
    }

    /// The content, for a read-modify-write: from here on the file takes no writes with a smaller token.
    ///
    /// A client that reads, computes and writes must begin like this. A [`read`](Self::read) alone leaves a gap: a holder
    /// from the past, whose token is still the largest that the file has seen, could write between the read and the write,
    /// and its update would be lost.
    ///
    /// # Errors
    /// If a client with a larger token was here before, or the file cannot be read or written.
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
        let mut file = self.locked(File::lock)?;
        let (newest, content) = parts(&mut file)?;
        if token != newest {
            self.write_locked(&mut file, token, &content)?;
        }
        Ok(content)
    }

    /// The file, locked as long as it is open. The previous holder of that lock may have put another file in its place.
    fn locked(&self, lock: fn(&File) -> io::Result<()>) -> io::Result<File> {
        loop {
            let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
            lock(&file)?;
            if is_at(&file, &self.path)? {
                return Ok(file);
            }
        }
    }

    fn write_locked(&self, file: &mut File, token: u64, content: &[u8]) -> Result<(), FencedError> {
        let (newest, _) = parts(file)?;
        Fence::at(newest).admit(token)?;
        let mut replacement = Replacement::new(&self.path, file, token, content)?;
        STEPS.into_iter().try_for_each(|step| replacement.take(step))?;
        Ok(())
    }
}

/// Whether `path` leads to `file`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (this, there) = (file.metadata()?, std::fs::metadata(path)?);
    Ok((this.dev(), this.ino()) == (there.dev(), there.ino()))
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// The token of the last write (0 if there was none) and the content.
fn parts(file: &mut File) -> Result<(u64, Vec<u8>), FencedError> {
    let mut all = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut all)?;
    if all.is_empty() {
        return Ok((0, all));
    }
    let end = all.iter().position(|byte| *byte == b'\n').ok_or(FencedError::Foreign)?;
    let token = std::str::from_utf8(&all[..end]).ok().and_then(|token| token.parse().ok());
    let content = all.split_off(end + 1);
    Ok((token.ok_or(FencedError::Foreign)?, content))
}

/// A write, step by step: only the last one can be seen.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create,
    Write,
    /// Or a crash of the machine could leave the new name with nothing in it.
    Sync,
    Rename,
}

const STEPS: [Step; 4] = [Step::Create, Step::Write, Step::Sync, Step::Rename];

/// The file that is to take the place of another. Its maker has that one locked, so there is one at a time.
struct Replacement<'a> {
    path: &'a Path,
    old: &'a File,
    fresh: PathBuf,
    file: Option<File>,
    all: Vec<u8>,
}

impl<'a> Replacement<'a> {
    fn new(path: &'a Path, old: &'a File, token: u64, content: &[u8]) -> io::Result<Self> {
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(".new");
        let mut all = format!("{token}\n").into_bytes();
        all.extend_from_slice(content);
        Ok(Self { path, old, fresh: path.with_file_name(name), file: None, all })
    }

    fn take(&mut self, step: Step) -> io::Result<()> {
        match (step, &mut self.file) {
            (Step::Create, _) => {
                // One that a killed process left.
                match std::fs::remove_file(&self.fresh) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                let file = File::create_new(&self.fresh)?;
                file.set_permissions(self.old.metadata()?.permissions())?;
                self.file = Some(file);
            }
            (Step::Write, Some(file)) => file.write_all(&self.all)?,
            (Step::Sync, Some(file)) => file.sync_data()?,
            (Step::Rename, _) => std::fs::rename(&self.fresh, self.path)?,
            (Step::Write | Step::Sync, None) => unreachable!("it is created first"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("lockwright-fenced-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_writer_killed_at_any_step_leaves_the_old_content_or_the_new() {
        let scratch = Scratch::new("killed");
        let path = scratch.0.join("state");
        let mut file = FencedFile::open(&path).unwrap();
        for killed_after in 0..=STEPS.len() {
            file.write(5, b"500500").unwrap();
            let old = file.locked(File::lock).unwrap();
            let mut replacement = Replacement::new(&path, &old, 5, b"7").unwrap();
            for step in &STEPS[..killed_after] {
                replacement.take(*step).unwrap();
            }
            // The kernel unlocks and closes what a killed process had open.
            drop(replacement);
            drop(old);
            let expected: &[u8] = if killed_after == STEPS.len() { b"7" } else { b"500500" };
            assert_eq!(file.read().unwrap(), expected, "killed after {killed_after} steps");
            assert!(file.write(4, b"late").is_err());
        }
        file.write(6, b"goes on").unwrap();
        assert_eq!(file.read().unwrap(), b"goes on");
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn writers_that_wait_for_each_other_lose_no_update_though_the_file_is_replaced() {
        let scratch = Scratch::new("writers");
        let path = scratch.0.join("counter");
        FencedFile::open(&path).unwrap().write(1, b"0").unwrap();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    let file = FencedFile::open(&path).unwrap();
                    for _ in 0..25 {
                        let mut locked = file.locked(File::lock).unwrap();
                        let (_, content) = parts(&mut locked).unwrap();
                        let count: u64 = std::str::from_utf8(&content).unwrap().parse().unwrap();
                        let mut next =
                            Replacement::new(&path, &locked, 1, (count + 1).to_string().as_bytes()).unwrap();
                        STEPS.into_iter().for_each(|step| next.take(step).unwrap());
                    }
                });
            }
        });
        assert_eq!(FencedFile::open(&path).unwrap().read().unwrap(), b"100");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_keeps_its_mode_and_a_link_to_it_stays_a_link() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new("link");
        let (path, link) = (scratch.0.join("state"), scratch.0.join("link"));
        std::fs::write(&path, "1\nold").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        FencedFile::open(&link).unwrap().write(2, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2\nnew");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }
}
