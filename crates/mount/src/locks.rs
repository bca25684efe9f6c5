//! Record locks and flocks of files that are mounted.
//!
//! | who asks | is known by |
//! |---|---|
//! | a process, for a record lock | the owner that the kernel made of its table of descriptors; `flush` says that it closes one |
//! | an open file description, for a record lock | the owner that the kernel made of it; it never flushes, and ends with its handle |
//! | an open file description, for a flock | likewise, and its end says so |
//!
//! **What a file is called.** On one host by its device and inode numbers, as the preloaded library calls it, so that both
//! exclude each other. Among hosts, device numbers differ: there it is the name of the source, on which people have to agree,
//! and the inode number. That is enough without a generation: a file that is locked is open, and while it is, the file system
//! below gives its number to no other. Files of another file system, mounted somewhere inside the source, have numbers that
//! say nothing among hosts: their locks are refused.

use crate::abi::{Body, Fields, LK_FLOCK, RELEASE_FLOCK_UNLOCK};
use crate::inodes::Inode;
use crate::session::Worker;
use lockwright_posix::node::Changes;
use lockwright_posix::{Extent, FileId, Kind, Node, NodeFile, Owner, Pause, Request, Stop};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Waits shorter than this are not slept.
const YIELD: Duration = Duration::from_micros(200);

/// A file's locks, while it is open.
#[derive(Debug)]
pub(crate) struct FileLockNames {
    name: String,
    records: Arc<NodeFile>,
    flocks: Arc<NodeFile>,
}

/// All locks of a mount.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(crate) node: Node,
    /// What the source is called, and the device that it is on.
    pub(crate) shared_name: Option<(String, u64)>,
    /// Whether the mount is gone, and nobody waits for locks any more.
    pub(crate) ended: AtomicBool,
    /// What was complained of last.
    complaint: Mutex<String>,
}

/// A request, as the kernel makes it.
struct Asked {
    handle: u64,
    is_flock: bool,
    owner: u64,
    extent: Extent,
    /// `None`: it is given back.
    kind: Option<Kind>,
    pid: u32,
}

impl Asked {
    fn read(mut fields: Fields<'_>) -> Result<Self, Errno> {
        let (handle, owner) = (fields.u64()?, fields.u64()?);
        let (first, last) = (fields.u64()?, fields.u64()?);
        let kind = match fields.u32()? as i32 {
            libc::F_RDLCK => Some(Kind::Read),
            libc::F_WRLCK => Some(Kind::Write),
            libc::F_UNLCK => None,
            _ => return Err(Errno::INVAL),
        };
        let pid = fields.u32()?;
        let is_flock = fields.u32()? & LK_FLOCK != 0;
        let extent = if is_flock { Some(Extent::WHOLE) } else { Extent::inclusive(first, last) };
        Ok(Self { handle, is_flock, owner, extent: extent.ok_or(Errno::INVAL)?, kind, pid })
    }

    fn owner(&self) -> Owner {
        if self.is_flock { Owner::Description(self.owner) } else { Owner::Process(self.owner) }
    }

    fn request(&self, kind: Kind) -> Request {
        Request { owner: self.owner(), pid: self.pid, extent: self.extent, kind }
    }
}

/// A request that blocks, on its thread.
struct Waiting<'a> {
    worker: &'a Worker,
    ended: &'a AtomicBool,
}

impl Waiting<'_> {
    fn is_over(&self) -> bool {
        self.worker.is_interrupted() || self.ended.load(SeqCst)
    }
}

impl Pause for Waiting<'_> {
    fn pause(&mut self, changes: &Changes, seen: u64, time: Duration) -> bool {
        if time < YIELD {
            let begin = Instant::now();
            while begin.elapsed() < time && changes.count() == seen {
                std::thread::yield_now();
            }
        } else if !self.is_over() {
            changes.wait(seen, time);
        }
        !self.is_over()
    }
}

impl Locks {
    pub(crate) fn new(node: Node, shared_name: Option<(String, u64)>) -> Self {
        Self { node, shared_name, ended: AtomicBool::new(false), complaint: Mutex::default() }
    }

    fn stopped(&self, stop: &Stop) -> Errno {
        if let Stop::Lost(why) = stop {
            self.complain(why);
        }
        Errno::from_raw_os_error(stop.errno())
    }

    fn complain(&self, why: &str) {
        let mut last = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != why {
            tracing::warn!("{why}: locks fail with ENOLCK");
            why.clone_into(&mut last);
        }
    }

    /// The file's locks.
    fn of(&self, inode: &Inode) -> Result<Arc<FileLockNames>, Errno> {
        if let Some(locks) = &inode.open_state().locks {
            return Ok(Arc::clone(locks));
        }
        let (device, number) = inode.key;
        let name = match &self.shared_name {
            None => format!("{device:x}:{number:x}"),
            Some((name, root)) if *root == device => format!("{name}:{number:x}"),
            Some((name, _)) => {
                let elsewhere = "a file is on a file system mounted inside";
                self.complain(&format!("{elsewhere} {name}, and has no number that all hosts know it by"));
                return Err(Errno::NOLCK);
            }
        };
        let file = |flocks| {
            let id = FileId { name: name.clone(), flocks };
            self.node.file(&id).map_err(|stop| self.stopped(&stop))
        };
        let (records, flocks) = (file(false)?, file(true)?);
        let made = Arc::new(FileLockNames { name, records, flocks });
        Ok(Arc::clone(inode.open_state().locks.get_or_insert(made)))
    }

    /// Takes a lock, or gives it back. With a worker, until it is there.
    pub(crate) fn set(
        &self,
        inode: &Inode,
        fields: Fields<'_>,
        waiting: Option<&Worker>,
    ) -> Result<Body, Errno> {
        let asked = Asked::read(fields)?;
        let locks = self.of(inode)?;
        let file = if asked.is_flock { &locks.flocks } else { &locks.records };
        let Some(kind) = asked.kind else {
            let given = self.node.unlock(file, asked.owner(), asked.extent);
            return given.map(|()| Body::default()).map_err(|stop| self.stopped(&stop));
        };
        if !asked.is_flock {
            let taken = (asked.handle, asked.owner);
            let mut open = inode.open_state();
            if !open.owners.contains(&taken) {
                open.owners.push(taken);
            }
        }
        let request = asked.request(kind);
        let taken = match waiting {
            None => self.node.try_lock(file, &request),
            Some(worker) => self.node.lock(file, &request, &mut Waiting { worker, ended: &self.ended }),
        };
        taken.map(|()| Body::default()).map_err(|stop| self.stopped(&stop))
    }

    /// Says who is in the way.
    pub(crate) fn test(&self, inode: &Inode, fields: Fields<'_>) -> Result<Body, Errno> {
        let asked = Asked::read(fields)?;
        let locks = self.of(inode)?;
        let file = if asked.is_flock { &locks.flocks } else { &locks.records };
        let kind = asked.kind.ok_or(Errno::INVAL)?;
        let found = self.node.test(file, &asked.request(kind)).map_err(|stop| self.stopped(&stop))?;
        let (extent, kind, pid) = match found {
            None => (asked.extent, libc::F_UNLCK, 0),
            Some(piece) if piece.kind == Kind::Read => (piece.extent, libc::F_RDLCK, piece.pid),
            Some(piece) => (piece.extent, libc::F_WRLCK, piece.pid),
        };
        Ok(Body::default().u64(extent.start).u64(extent.end - 1).u32(kind as u32).u32(pid))
    }

    /// A process closes a descriptor: its record locks of the file go.
    pub(crate) fn flush(&self, inode: &Inode, owner: u64) {
        let mut open = inode.open_state();
        let Some(locks) = open.locks.clone() else { return };
        open.owners.retain(|(_, other)| *other != owner);
        drop(open);
        self.give_back(&locks.records, Owner::Process(owner));
    }

    /// An open file description ends: so do its locks.
    pub(crate) fn release(&self, inode: &Inode, handle: u64, flags: u32, owner: u64) {
        let mut open = inode.open_state();
        let Some(locks) = open.locks.clone() else { return };
        let descriptions: Vec<_> = open.owners.extract_if(.., |(taken_by, _)| *taken_by == handle).collect();
        drop(open);
        for (_, description) in descriptions {
            self.give_back(&locks.records, Owner::Process(description));
        }
        if flags & RELEASE_FLOCK_UNLOCK != 0 {
            self.give_back(&locks.flocks, Owner::Description(owner));
        }
    }

    /// A program that closes a file is not told that its lock was lost before.
    fn give_back(&self, file: &NodeFile, owner: Owner) {
        if let Err(stop) = self.node.unlock(file, owner, Extent::WHOLE) {
            self.stopped(&stop);
        }
    }

    /// The file is not open any more.
    pub(crate) fn forget(&self, locks: Option<Arc<FileLockNames>>) {
        let Some(name) = locks.map(|locks| locks.name.clone()) else { return };
        for flocks in [false, true] {
            self.node.forget(&FileId { name: name.clone(), flocks });
        }
    }
}
