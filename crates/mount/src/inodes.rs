//! Files that the kernel knows by a number, each held by a descriptor that neither reads nor writes.
//!
//! A number is given when a file is first looked up, and goes when the kernel has forgotten it as often as it was told. While
//! a file is here, its inode number below belongs to no other.

use crate::abi::ROOT;
use crate::locks::FileLockNames;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A file of the source.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) node: u64,
    /// Device and inode number below.
    pub(crate) key: (u64, u64),
    fd: OwnedFd,
    open: Mutex<OpenState>,
}

/// What there is of a file while it is open.
#[derive(Debug, Default)]
pub(crate) struct OpenState {
    pub(crate) handles: usize,
    /// What the kernel reads and writes by itself. All who open the file use the same.
    pub(crate) backing: Option<u32>,
    /// Its locks, once one was asked for.
    pub(crate) locks: Option<Arc<FileLockNames>>,
    /// By which handle an owner of record locks took one. An owner that flushes is a process, and leaves; the others are open
    /// file descriptions, and end with the handle.
    pub(crate) owners: Vec<(u64, u64)>,
}

impl Inode {
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.fd, "", AtFlags::EMPTY_PATH)
    }

    pub(crate) fn open_state(&self) -> MutexGuard<'_, OpenState> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A path by which the file can be opened and changed.
    pub(crate) fn path(&self) -> String {
        path_of(self.fd.as_fd())
    }

    /// Opens the file itself.
    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::open(self.path(), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    }
}

impl AsFd for Inode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(crate) fn path_of(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[derive(Debug, Default)]
struct Table {
    /// With how often the kernel was told of each.
    by_node: HashMap<u64, (Arc<Inode>, u64)>,
    by_key: HashMap<(u64, u64), u64>,
    last: u64,
}

/// All that the kernel knows.
#[derive(Debug)]
pub(crate) struct Inodes(RwLock<Table>);

impl Inodes {
    /// The folder at the top, and nothing else.
    pub(crate) fn new(root: OwnedFd) -> Result<Self, Errno> {
        let inodes = Self(RwLock::new(Table { last: ROOT - 1, ..Table::default() }));
        inodes.enter(root)?;
        Ok(inodes)
    }

    /// The file with this number.
    pub(crate) fn get(&self, node: u64) -> Result<Arc<Inode>, Errno> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.by_node.get(&node).map(|(inode, _)| Arc::clone(inode)).ok_or(Errno::STALE)
    }

    /// The file of this name in a folder: the kernel knows it once more.
    pub(crate) fn look_up(&self, parent: &Inode, name: &OsStr) -> Result<(Arc<Inode>, Stat), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.enter(rustix::fs::openat(parent, name, flags, Mode::empty())?)
    }

    /// The file of a descriptor that only names it: the kernel knows it once more.
    pub(crate) fn enter(&self, fd: OwnedFd) -> Result<(Arc<Inode>, Stat), Errno> {
        let stat = rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH)?;
        let key = (stat.st_dev, stat.st_ino);
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Table { by_node, by_key, last } = &mut *table;
        if let Some((inode, times)) = by_key.get(&key).and_then(|node| by_node.get_mut(node)) {
            *times += 1;
            return Ok((Arc::clone(inode), stat));
        }
        *last += 1;
        let inode = Arc::new(Inode { node: *last, key, fd, open: Mutex::default() });
        by_key.insert(key, *last);
        by_node.insert(*last, (Arc::clone(&inode), 1));
        Ok((inode, stat))
    }

    /// The kernel has forgotten a file so many times.
    pub(crate) fn forget(&self, node: u64, times: u64) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Some((inode, known)) = table.by_node.get_mut(&node) else { return };
        *known = known.saturating_sub(times);
        if *known > 0 || node == ROOT {
            return;
        }
        let key = inode.key;
        table.by_node.remove(&node);
        table.by_key.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_number_until_it_was_forgotten_as_often_as_it_was_looked_up() {
        let open =
            |path: &str| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let inodes = Inodes::new(open("/")).unwrap();
        let root = inodes.get(ROOT).unwrap();
        let (proc, _) = inodes.look_up(&root, OsStr::new("proc")).unwrap();
        let (again, _) = inodes.look_up(&root, OsStr::new("proc")).unwrap();
        assert_eq!(proc.node, again.node);
        inodes.forget(proc.node, 1);
        assert!(inodes.get(proc.node).is_ok());
        inodes.forget(proc.node, 1);
        assert_eq!(inodes.get(proc.node).unwrap_err(), Errno::STALE);
        let (later, _) = inodes.look_up(&root, OsStr::new("proc")).unwrap();
        assert_ne!(later.node, proc.node, "a number is never given twice");
        inodes.forget(ROOT, 9);
        assert!(inodes.get(ROOT).is_ok());
        assert_eq!(inodes.look_up(&root, OsStr::new("no such file")).unwrap_err(), Errno::NOENT);
    }
}
