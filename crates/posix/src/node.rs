//! All files of a process's programs, as they use them: blocks until a lock is there, is interrupted, frees on close.
//!
//! A request that only another process blocks looks again after a while, and does not queue (`cover` says why). Requests of one
//! file are served one at a time; those of different files do not wait for each other.
//!
//! What this file must not do: hold a file's mutex while it takes that of the waits.

use crate::cover::{CoverError, SpaceCover};
use crate::extent::Extent;
use crate::file::{FileLocks, InTheWay, Refusal};
use crate::table::{Blocker, Kind, Owner, Piece};
use crate::waits::{Waiter, Waits};
use lockwright::{Client, ClientOptions, OpenError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Which locks of which file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// What the file is called among all who lock it: the same on every host, whatever path it was opened by.
    pub name: String,
    /// Whether these are its flocks. They and record locks know nothing of each other.
    pub flocks: bool,
}

/// Why a request ended without its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Another holder is in the way: `EAGAIN`.
    Busy,
    /// It would wait for itself: `EDEADLK`.
    Deadlock,
    /// A signal came: `EINTR`.
    Interrupted,
    /// The space cannot say, or has taken away what was held of it: `ENOLCK`.
    Lost(String),
}

impl Stop {
    /// The number that programs know it by.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Busy => libc::EAGAIN,
            Self::Deadlock => libc::EDEADLK,
            Self::Interrupted => libc::EINTR,
            Self::Lost(_) => libc::ENOLCK,
        }
    }
}

impl From<CoverError> for Stop {
    fn from(error: CoverError) -> Self {
        match error {
            CoverError::Busy => Self::Busy,
            CoverError::Lost(why) => Self::Lost(why),
        }
    }
}

/// How a request that blocks spends its time.
pub trait Pause {
    /// The request has to wait, and looks once more before it does.
    fn begin(&mut self) {}

    /// Lets `time` pass, or less if something has changed since `seen`. `false` if the request is to end.
    fn pause(&mut self, changes: &Changes, seen: u64, time: Duration) -> bool;
}

/// Counts what was given back in this process.
#[derive(Debug, Default)]
pub struct Changes {
    count: AtomicU64,
    /// Requests that wait. One that counts itself here before it looks misses nothing: a change is counted first.
    waiting: AtomicU64,
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Changes {
    /// How often something has changed.
    pub fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Something has changed: waiters look again.
    pub fn tell(&self) {
        self.count.fetch_add(1, SeqCst);
        if self.waiting.load(SeqCst) == 0 {
            return;
        }
        drop(self.mutex.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits for a change since `seen`, for so long at most.
    pub fn wait(&self, seen: u64, time: Duration) {
        let unchanged = |_: &mut ()| self.count() == seen;
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(guard, time, unchanged));
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Who asks.
    pub owner: Owner,
    /// The process that asks.
    pub pid: u32,
    /// For which bytes; a flock is for the whole.
    pub extent: Extent,
    /// Shared or exclusive.
    pub kind: Kind,
}

/// A file that locks are taken of.
#[derive(Debug)]
pub struct NodeFile {
    flocks: bool,
    locks: Mutex<FileLocks<SpaceCover>>,
}

/// What is waited for: a request, and in which file.
type Wanted = (Arc<NodeFile>, Extent, Kind);

/// See the module.
pub struct Node {
    client: Client,
    files: Mutex<HashMap<FileId, Arc<NodeFile>>>,
    waits: Mutex<Waits<Wanted>>,
    changes: Changes,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

/// What `F_GETLK` says of a lock that is no process's.
const NO_PROCESS: u32 = u32::MAX;
/// The first waits for another process: it gives its lock back within microseconds, or within who knows how long.
const SHORTEST: Duration = Duration::from_micros(1);
const LONGEST: Duration = Duration::from_millis(10);

impl Node {
    /// Locks come from the space at this address.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(space: &str, options: &ClientOptions) -> Result<Self, OpenError> {
        let client = options.open(space).wait()?;
        let (files, waits, changes) = Default::default();
        Ok(Self { client, files, waits, changes })
    }

    /// What has changed in this process.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The locks of a file. A caller that keeps them saves the next search.
    ///
    /// # Errors
    /// If the space is lost.
    pub fn file(&self, id: &FileId) -> Result<Arc<NodeFile>, Stop> {
        let mut files = lock(&self.files);
        if let Some(file) = files.get(id) {
            return Ok(Arc::clone(file));
        }
        let name = format!("{}{}", if id.flocks { "flock:" } else { "fcntl:" }, id.name);
        let ranges = self.client.range_lock(&name).map_err(|error| Stop::Lost(error.to_string()))?;
        let locks = Mutex::new(FileLocks::new(SpaceCover::new(ranges)));
        let file = Arc::new(NodeFile { flocks: id.flocks, locks });
        files.insert(id.clone(), Arc::clone(&file));
        Ok(file)
    }

    /// Takes a lock if no other holder is in the way.
    ///
    /// # Errors
    /// If one is, or the space is lost.
    pub fn try_lock(&self, file: &NodeFile, request: &Request) -> Result<(), Stop> {
        self.attempt(file, request).map_err(stopped)
    }

    /// Takes a lock, however long it takes.
    ///
    /// # Errors
    /// If it would wait for itself, is interrupted, or the space is lost.
    pub fn lock(&self, file: &Arc<NodeFile>, request: &Request, pause: &mut impl Pause) -> Result<(), Stop> {
        match self.attempt(file, request) {
            Err(Refusal::Held(_) | Refusal::Elsewhere) => {}
            outcome => return outcome.map_err(stopped),
        }
        pause.begin();
        self.changes.waiting.fetch_add(1, SeqCst);
        let outcome = self.wait(file, request, pause);
        self.changes.waiting.fetch_sub(1, SeqCst);
        outcome
    }

    fn wait(&self, file: &Arc<NodeFile>, request: &Request, pause: &mut impl Pause) -> Result<(), Stop> {
        let mut time = SHORTEST;
        loop {
            let seen = self.changes.count();
            let (waiter, longest) = match self.attempt(file, request) {
                Ok(()) => return Ok(()),
                Err(Refusal::Lost(why)) => return Err(Stop::Lost(why)),
                Err(Refusal::Held(_)) => (Some(self.begin_wait(file, request)?), LONGEST * 10),
                Err(Refusal::Elsewhere) => (None, LONGEST),
            };
            let goes_on = pause.pause(&self.changes, seen, time);
            if let Some(waiter) = waiter {
                lock(&self.waits).end(waiter);
            }
            if !goes_on {
                return Err(Stop::Interrupted);
            }
            time = (time * 2).min(longest);
        }
    }

    fn attempt(&self, file: &NodeFile, request: &Request) -> Result<(), Refusal> {
        let Request { owner, pid, extent, kind } = *request;
        let mut locks = lock(&file.locks);
        if !file.flocks {
            return locks.lock(owner, pid, extent, kind);
        }
        let had = !locks.table().pieces(owner).is_empty();
        let taken = locks.flock(owner, pid, kind);
        drop(locks);
        if had {
            self.changes.tell();
        }
        taken
    }

    /// Notes that an owner waits, unless it would wait for itself.
    ///
    /// Who is in the way is looked up here, not remembered from the attempt: an owner that has moved on since may by now wait
    /// for this one. While `waits` is locked, waiters neither take nor give back, so that all of a circle is there at one
    /// moment.
    fn begin_wait(&self, file: &Arc<NodeFile>, request: &Request) -> Result<Waiter, Stop> {
        let Request { owner, extent, kind, .. } = *request;
        let mut waits = lock(&self.waits);
        let blockers =
            |owner: Owner, (file, extent, kind): &Wanted| lock(&file.locks).blockers(owner, *extent, *kind);
        let owners = lock(&file.locks).blockers(owner, extent, kind);
        if waits.would_close_a_circle(owner, owners, blockers) {
            return Err(Stop::Deadlock);
        }
        Ok(waits.begin(owner, (Arc::clone(file), extent, kind)))
    }

    /// Gives back what `owner` has of `extent`.
    ///
    /// # Errors
    /// If the space had taken it away before: others may have had it meanwhile.
    pub fn unlock(&self, file: &NodeFile, owner: Owner, extent: Extent) -> Result<(), Stop> {
        let mut locks = lock(&file.locks);
        let given = locks.unlock(owner, extent);
        drop(locks);
        self.changes.tell();
        given.map_err(Stop::from)
    }

    /// The lock in the way of a request, and the process that has it if that is known: 0 if not, or if it is on another host.
    ///
    /// # Errors
    /// If the space is lost.
    pub fn test(&self, file: &NodeFile, request: &Request) -> Result<Option<Piece>, Stop> {
        let Request { owner, extent, kind, .. } = *request;
        let found = lock(&file.locks).test(owner, extent, kind)?;
        Ok(found.map(|found| match found {
            InTheWay::Here(Blocker { owner: Owner::Description(_), piece }) => {
                Piece { pid: NO_PROCESS, ..piece }
            }
            InTheWay::Here(Blocker { piece, .. }) | InTheWay::Elsewhere(piece) => piece,
        }))
    }

    /// Forgets a file, unless an owner holds a lock of it or a caller keeps it.
    pub fn forget(&self, id: &FileId) {
        let mut files = lock(&self.files);
        let unused = |file: &Arc<NodeFile>| Arc::strong_count(file) == 1 && lock(&file.locks).is_unused();
        if files.get(id).is_some_and(unused) {
            files.remove(id);
        }
    }

    /// Whether `owner` holds anything of the file.
    pub fn holds(&self, file: &NodeFile, owner: Owner) -> bool {
        !lock(&file.locks).table().pieces(owner).is_empty()
    }
}

fn stopped(refusal: Refusal) -> Stop {
    match refusal {
        Refusal::Held(_) | Refusal::Elsewhere => Stop::Busy,
        Refusal::Lost(why) => Stop::Lost(why),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
