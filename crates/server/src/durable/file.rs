//! The file of a server's or a decider's state: lines of text in front, zeros behind them, so that most lines need no new space on the disk.
//!
//! It is replaced at every start, by one with nothing but what still counts. If the disk has no room for that, the server goes
//! on in the file that is there.
//!
//! What this file must not do: know what the lines mean.

use lockwright_fabric::backend::shm::open_regular;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Zeros behind the lines, and how many more when they are used up.
const ROOM: usize = 64 << 10;
/// Longer files are no state.
const LONGEST: u64 = 1 << 30;

/// An opened state file.
#[derive(Debug)]
pub(crate) struct StateFile {
    file: File,
    /// Where the next line goes, and how long the file is.
    end: u64,
    size: u64,
    /// So many bytes from `end` on may be left of lines that could not be written.
    dirty: usize,
}

/// Whether there was no room for it, which may pass.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

#[cfg(test)]
thread_local! {
    /// The disk has no room for another file.
    pub(crate) static FULL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether what is at `path` can be a state file, if anything is there.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    match open_regular(path, false).and_then(|file| file.metadata()) {
        Ok(meta) if meta.len() > LONGEST => Err(io::Error::other("it is too long")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The lines in the file at `path`, if there is one. A last line without its end was not yet true when it was written.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    match open_regular(path, false).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => drop(read?),
    }
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
    let foreign = |_| io::Error::new(io::ErrorKind::InvalidData, "this is not a state");
    String::from_utf8(bytes).map(Some).map_err(foreign)
}

/// The neighbour of the state file whose name ends so.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// A lock on the file's neighbour: the file itself is replaced at every start.
pub(crate) fn alone(path: &Path) -> io::Result<File> {
    let file = open_regular(&beside(path, ".lock"), true)?;
    file.try_lock().map_err(|error| match error {
        std::fs::TryLockError::WouldBlock => io::Error::other("another server uses it"),
        std::fs::TryLockError::Error(error) => error,
    })?;
    Ok(file)
}

impl StateFile {
    /// Puts a file with these lines in the place of the one at `path`, in one step.
    pub(crate) fn replace(path: &Path, text: &str) -> io::Result<Self> {
        let fresh = path.with_extension("new");
        let written = (|| {
            // Left by a server that was killed, or something else of that name: it is not written to.
            let _ = std::fs::remove_file(&fresh);
            // A decider's has the keys of its clients in it.
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
            #[cfg(test)]
            if FULL.get() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.write_all(text.as_bytes())?;
            file.write_all(&[0; ROOM])?;
            file.sync_all()?;
            std::fs::rename(&fresh, path)?;
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                File::open(folder)?.sync_all()?;
            }
            let end = text.len() as u64;
            Ok(Self { file, end, size: end + ROOM as u64, dirty: 0 })
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&fresh);
        }
        written
    }

    /// Goes on behind the `lines` in the file at `path`.
    pub(crate) fn go_on(path: &Path, lines: &str) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(path)?;
        let size = file.metadata()?.len();
        // A line that was cut off.
        let dirty = usize::try_from(size.saturating_sub(lines.len() as u64)).unwrap_or(0).min(ROOM);
        Ok(Self { file, end: lines.len() as u64, size, dirty })
    }

    /// Writes lines, which are on the disk when this returns. After an error nothing of them counts.
    pub(crate) fn append(&mut self, lines: &str) -> io::Result<()> {
        self.append_maybe_forced(lines, true)
    }

    /// The same; not forced, they are there for readers of the file, and on the disk once the system finds time.
    pub(crate) fn append_maybe_forced(&mut self, lines: &str, forced: bool) -> io::Result<()> {
        if self.end + lines.len().max(self.dirty) as u64 > self.size
            || self.end + lines.len() as u64 == self.size
        {
            self.file.write_all_at(&[0; ROOM], self.size)?;
            self.size += ROOM as u64;
        }
        let mut bytes = lines.as_bytes().to_vec();
        bytes.resize(bytes.len().max(self.dirty), 0);
        self.dirty = bytes.len();
        self.file.write_all_at(&bytes, self.end)?;
        if forced {
            self.file.sync_data()?;
        }
        self.end += lines.len() as u64;
        self.dirty = 0;
        Ok(())
    }
}
