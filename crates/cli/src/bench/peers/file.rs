//! The system's locks on files: flock(2), and the open file description locks of fcntl(2). Each client opens the files by itself.

use super::process::Folder;
use super::{Locker, Mode, Offers, Peer};
use anyhow::Result;
use nix::fcntl::{FcntlArg, fcntl};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Files that a client keeps open: closing one that is locked would unlock it, so only between cycles.
const OPEN: usize = 8;
/// The file whose ranges are locked.
const RANGES: &str = "ranges";

/// Which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Flock,
    Fcntl,
}

#[derive(Debug)]
pub(super) struct Files {
    call: Call,
    path: PathBuf,
    _folder: Option<Folder>,
}

impl Files {
    pub(super) fn new(call: Call) -> Result<Self> {
        let folder = Folder::new(if call == Call::Flock { "flock" } else { "fcntl" })?;
        Ok(Self { call, path: folder.0.clone(), _folder: Some(folder) })
    }
}

pub(super) fn at(call: Call, address: &str) -> Box<dyn Peer> {
    Box::new(Files { call, path: address.into(), _folder: None })
}

impl Peer for Files {
    fn name(&self) -> &'static str {
        if self.call == Call::Flock { "flock" } else { "fcntl" }
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, readers: true, ranges: self.call == Call::Fcntl }
    }

    fn address(&self) -> String {
        self.path.display().to_string()
    }

    fn sees_ends(&self) -> bool {
        true
    }

    fn lets_go_after(&self) -> Option<Duration> {
        None
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        Ok(Box::new(Client { call: self.call, folder: self.path.clone(), files: HashMap::new(), held: 0 }))
    }
}

struct Client {
    call: Call,
    folder: PathBuf,
    files: HashMap<String, File>,
    held: usize,
}

impl Client {
    fn file(&mut self, name: &str) -> Result<&File> {
        if !self.files.contains_key(name) {
            if self.held == 0 && self.files.len() >= OPEN {
                self.files.clear();
            }
            let path = self.folder.join(name);
            let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
            self.files.insert(name.to_owned(), file);
        }
        Ok(&self.files[name])
    }

    fn set(&mut self, name: &str, kind: i32, range: &Range<u64>) -> Result<()> {
        let lock = nix::libc::flock {
            l_type: kind as i16,
            l_whence: nix::libc::SEEK_SET as i16,
            l_start: range.start as i64,
            l_len: (range.end - range.start) as i64,
            l_pid: 0,
        };
        fcntl(self.file(name)?, FcntlArg::F_OFD_SETLKW(&lock))?;
        Ok(())
    }
}

/// Of length zero: to the end of the file, wherever that is.
const WHOLE: Range<u64> = 0..0;

impl Locker for Client {
    fn lock(&mut self, name: &str, mode: Mode) -> Result<()> {
        match (self.call, mode) {
            (Call::Flock, Mode::Exclusive) => self.file(name)?.lock()?,
            (Call::Flock, Mode::Shared) => self.file(name)?.lock_shared()?,
            (Call::Fcntl, Mode::Exclusive) => self.set(name, nix::libc::F_WRLCK, &WHOLE)?,
            (Call::Fcntl, Mode::Shared) => self.set(name, nix::libc::F_RDLCK, &WHOLE)?,
        }
        self.held += 1;
        Ok(())
    }

    fn unlock(&mut self, name: &str, _: Mode) -> Result<()> {
        self.held -= 1;
        match self.call {
            Call::Flock => Ok(self.file(name)?.unlock()?),
            Call::Fcntl => self.set(name, nix::libc::F_UNLCK, &WHOLE),
        }
    }

    fn lock_range(&mut self, range: &Range<u64>) -> Result<()> {
        self.set(RANGES, nix::libc::F_WRLCK, range)
    }

    fn unlock_range(&mut self, range: &Range<u64>) -> Result<()> {
        self.set(RANGES, nix::libc::F_UNLCK, range)
    }
}
