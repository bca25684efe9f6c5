//! Where a server's state is kept: nowhere, in files, or in memory for the explorer.
//!
//! What this file must not do: decide anything.

use super::file::{self, StateFile, alone, beside};
use super::holders::{self, Holders};
use super::journal::Journal;
use super::values;
use crate::lock_table::MAX_SESSIONS;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module. Clones of one in files are the same.
#[derive(Clone, Debug)]
pub(super) enum Disk {
    None,
    File(Arc<Mutex<FileDisk>>),
    Memory(Journal),
}

/// The state file, the file of who holds, and the lock that keeps other servers away from both.
#[derive(Debug)]
pub(super) struct FileDisk {
    path: PathBuf,
    file: Option<StateFile>,
    /// `None` if it is not written down who may hold something.
    holders: Option<Holders>,
    /// The values of locks, once there is one.
    values: Option<StateFile>,
    _alone: File,
}

impl FileDisk {
    /// Takes the files at `path`, and beside it, for this server alone.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        file::check(path)?;
        Ok(Self { path: path.to_owned(), file: None, holders: None, values: None, _alone: alone(path)? })
    }

    /// The file of values, made now if there is none.
    fn values(&mut self) -> io::Result<&mut StateFile> {
        if self.values.is_none() {
            let path = beside(&self.path, ".values");
            self.values = Some(match file::read(&path)? {
                Some(lines) => StateFile::go_on(&path, &lines)?,
                None => StateFile::replace(&path, &values::head())?,
            });
        }
        Ok(self.values.as_mut().expect("just made"))
    }

    /// Writes who holds; what cannot be written is not believed any more.
    fn write_holders(&mut self, write: impl FnOnce(&Holders) -> io::Result<()>) {
        if let Some(holders) = self.holders.take_if(|holders| write(holders).is_err()) {
            holders.discard();
        }
    }
}

fn locked(disk: &Arc<Mutex<FileDisk>>) -> MutexGuard<'_, FileDisk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    pub(super) fn file(disk: FileDisk) -> Self {
        Self::File(Arc::new(Mutex::new(disk)))
    }

    pub(super) const fn journal(&self) -> Option<&Journal> {
        match self {
            Self::Memory(journal) => Some(journal),
            _ => None,
        }
    }

    /// Puts another file in the place of the present one, which is returned.
    #[cfg(test)]
    pub(super) fn put_file(&self, other: Option<StateFile>) -> Option<StateFile> {
        let Self::File(disk) = self else { return None };
        std::mem::replace(&mut locked(disk).file, other)
    }

    /// The lines of the last run, if there was one.
    pub(super) fn read(&self) -> io::Result<Option<String>> {
        match self {
            Self::None => Ok(None),
            Self::File(disk) => file::read(&locked(disk).path),
            Self::Memory(journal) => Ok(journal.lines()),
        }
    }

    /// Who may hold something of what run `run` granted; `None` if that is not known.
    pub(super) fn read_holders(&self, run: u64) -> Option<HashSet<u128>> {
        match self {
            Self::None => None,
            Self::File(disk) => holders::read(&locked(disk).path, run),
            Self::Memory(journal) => journal.holders(run),
        }
    }

    /// Puts these lines in the place of all others, in one step.
    pub(super) fn replace(&mut self, text: &str) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::File(disk) => {
                let mut disk = locked(disk);
                disk.file = Some(StateFile::replace(&disk.path, text)?);
                Ok(())
            }
            Self::Memory(journal) => journal.replace(text),
        }
    }

    /// Goes on behind the `lines` that are there.
    pub(super) fn go_on(&mut self, lines: &str) -> io::Result<()> {
        if let Self::File(disk) = self {
            let mut disk = locked(disk);
            disk.file = Some(StateFile::go_on(&disk.path, lines)?);
        }
        Ok(())
    }

    /// Writes lines behind the others; they are on the disk when this returns.
    pub(super) fn append(&mut self, lines: &str) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::File(disk) => locked(disk).file.as_mut().map_or(Ok(()), |file| file.append(lines)),
            Self::Memory(journal) => journal.append(lines),
        }
    }

    /// Begins to write down who may hold something of this run. `complete`: nobody else may.
    pub(super) fn begin_holders(&mut self, run: u64, complete: bool) {
        match self {
            Self::None => {}
            Self::File(disk) => {
                let mut disk = locked(disk);
                disk.holders = Holders::begin(&disk.path, run, MAX_SESSIONS as u32 + 2, complete);
            }
            Self::Memory(journal) => journal.begin_holders(run, complete),
        }
    }

    /// Session `number` may hold something under this key; zero: it holds nothing any more.
    pub(super) fn put_holder(&mut self, number: u32, key: u128) {
        match self {
            Self::None => {}
            Self::File(disk) => locked(disk).write_holders(|holders| holders.put(number, key)),
            Self::Memory(journal) => journal.put_holder(number, key),
        }
    }

    /// The values of locks that earlier runs have left.
    pub(super) fn read_values(&self) -> io::Result<Option<String>> {
        match self {
            Self::None => Ok(None),
            Self::File(disk) => {
                let path = beside(&locked(disk).path, ".values");
                file::check(&path)?;
                file::read(&path)
            }
            Self::Memory(journal) => Ok(journal.values()),
        }
    }

    /// Puts these lines in the place of all others of the file of values.
    pub(super) fn replace_values(&mut self, text: &str) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::File(disk) => {
                let mut disk = locked(disk);
                disk.values = Some(StateFile::replace(&beside(&disk.path, ".values"), text)?);
                Ok(())
            }
            Self::Memory(journal) => journal.replace_values(text),
        }
    }

    /// Writes a line of a value; forced, it is on the disk when this returns, and else once the system finds time.
    pub(super) fn append_values(&mut self, line: &str, forced: bool) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::File(disk) => locked(disk).values()?.append_maybe_forced(line, forced),
            Self::Memory(journal) => journal.append_values(line),
        }
    }

    /// Whether what is written outlives the server.
    pub(super) const fn is_durable(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// From now on every session that may hold something is recorded.
    pub(super) fn complete_holders(&mut self) {
        match self {
            Self::None => {}
            Self::File(disk) => locked(disk).write_holders(Holders::complete),
            Self::Memory(journal) => journal.complete_holders(),
        }
    }
}
