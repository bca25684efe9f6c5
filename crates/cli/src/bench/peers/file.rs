//! The system's locks on files: flock(2), and the open file description locks of fcntl(2). Each client opens the files by itself.

use super::process::Folder;
use super::{Locker, Peer};
use anyhow::Result;
use nix::fcntl::{FcntlArg, fcntl};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::path::PathBuf;

/// Which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Flock,
    Fcntl,
}

#[derive(Debug)]
pub(super) struct Files {
    call: Call,
    folder: Folder,
}

impl Files {
    pub(super) fn new(call: Call) -> Result<Self> {
        Ok(Self { call, folder: Folder::new(if call == Call::Flock { "flock" } else { "fcntl" })? })
    }
}

impl Peer for Files {
    fn name(&self) -> &'static str {
        if self.call == Call::Flock { "flock" } else { "fcntl" }
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        Ok(Box::new(Client { call: self.call, folder: self.folder.0.clone(), files: HashMap::new() }))
    }
}

struct Client {
    call: Call,
    folder: PathBuf,
    files: HashMap<String, File>,
}

impl Client {
    fn file(&mut self, name: &str) -> Result<&File> {
        if !self.files.contains_key(name) {
            let path = self.folder.join(name);
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
            self.files.insert(name.to_owned(), file);
        }
        Ok(&self.files[name])
    }

    fn set(&mut self, name: &str, kind: i32) -> Result<()> {
        let whole = nix::libc::flock {
            l_type: kind as i16,
            l_whence: nix::libc::SEEK_SET as i16,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        fcntl(self.file(name)?, FcntlArg::F_OFD_SETLKW(&whole))?;
        Ok(())
    }
}

impl Locker for Client {
    fn lock(&mut self, name: &str) -> Result<()> {
        match self.call {
            Call::Flock => Ok(self.file(name)?.lock()?),
            Call::Fcntl => self.set(name, nix::libc::F_WRLCK),
        }
    }

    fn unlock(&mut self, name: &str) -> Result<()> {
        match self.call {
            Call::Flock => Ok(self.file(name)?.unlock()?),
            Call::Fcntl => self.set(name, nix::libc::F_UNLCK),
        }
    }
}
