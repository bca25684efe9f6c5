//! Which descriptors are of files whose locks are ours, and which description each has.
//!
//! A descriptor is looked at when it is first locked, and forgotten when it is closed. One that this process has not made
//! itself (it was there when the program began, or came with a fork) has a description that others share.

use crate::real::FCNTL;
use lockwright_posix::{FileId, Node, NodeFile};
use std::cell::Cell;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A descriptor of a file that is ours.
#[derive(Clone)]
pub(crate) struct Descriptor {
    /// Record locks.
    pub(crate) records: Arc<NodeFile>,
    /// Flocks.
    pub(crate) flocks: Arc<NodeFile>,
    /// `None` if others share it.
    pub(crate) description: Option<u64>,
    /// Whether it reads, writes, or both.
    pub(crate) mode: i32,
}

/// Everything that belongs to this process. A child has one of its own.
pub(crate) struct Process {
    pub(crate) pid: u32,
    node: OnceLock<Result<Node, String>>,
    /// By number: those that were locked, or made of one that was. Of others nothing is kept: they may be closed unseen.
    known: Mutex<Vec<Option<Descriptor>>>,
    inherited: Mutex<Vec<i32>>,
    /// By device and inode: files that were locked.
    locked: Mutex<HashMap<(u64, u64), Descriptor>>,
    descriptions: AtomicU64,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// Whether this thread is at work in here: what it opens and closes then is not the program's.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` if this thread is not at work in here already.
pub(crate) fn inside<T>(work: impl FnOnce() -> T) -> Option<T> {
    let was = INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true);
    if was {
        return None;
    }
    let done = work();
    let _ = INSIDE.try_with(|inside| inside.set(false));
    Some(done)
}

fn paths() -> &'static [PathBuf] {
    static PATHS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PATHS.get_or_init(|| {
        let named = std::env::var_os("LOCKWRIGHT_POSIX").unwrap_or_default();
        let named = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
        named.map(|path| path.canonicalize().unwrap_or(path)).collect()
    })
}

/// This process's; `None` if no files are ours.
pub(crate) fn process() -> Option<&'static Process> {
    let found = PROCESS.load(SeqCst);
    // SAFETY: what was stored is never freed.
    if let Some(process) = unsafe { found.as_ref() } {
        return Some(process);
    }
    if paths().is_empty() {
        return None;
    }
    let made = Box::into_raw(Box::new(Process::new()));
    // SAFETY: as above; the one that comes too late is used by no thread.
    match PROCESS.compare_exchange(found, made, SeqCst, SeqCst) {
        Ok(_) => {
            // SAFETY: the handler is a function that takes nothing.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            // SAFETY: it is never freed.
            Some(unsafe { &*made })
        }
        // SAFETY: likewise.
        Err(first) => Some(unsafe { &*first }),
    }
}

/// In the child: what the parent holds is the parent's.
extern "C" fn forked() {
    inside(|| PROCESS.store(Box::into_raw(Box::new(Process::new())), SeqCst));
}

/// Before the program's first own step: whatever descriptor there is was inherited.
extern "C" fn begin() {
    inside(process);
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

impl Process {
    fn new() -> Self {
        let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let listed: Vec<i32> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // But for the one by which they were listed.
        let inherited = listed.into_iter().filter(|fd| FCNTL.get()(*fd, libc::F_GETFD, 0) >= 0).collect();
        Self {
            pid: std::process::id(),
            node: OnceLock::new(),
            known: Mutex::default(),
            inherited: Mutex::new(inherited),
            locked: Mutex::default(),
            descriptions: AtomicU64::new(1),
        }
    }

    /// Takes locks.
    pub(crate) fn node(&self) -> Result<&Node, &str> {
        let open = || {
            let space = std::env::var("LOCKWRIGHT_SPACE").unwrap_or_else(|_| "shm:".to_owned());
            Node::open(&space, &lockwright::Client::options()).map_err(|error| error.to_string())
        };
        self.node.get_or_init(open).as_ref().map_err(String::as_str)
    }

    /// The descriptor, if its file is ours.
    pub(crate) fn find(&self, fd: i32) -> Result<Option<Descriptor>, String> {
        if let Some(Some(found)) = usize::try_from(fd).ok().and_then(|fd| lock(&self.known).get(fd).cloned())
        {
            return Ok(Some(found));
        }
        let found = self.look(fd)?;
        if let Some(found) = &found {
            self.keep(fd, found.clone());
        }
        Ok(found)
    }

    fn keep(&self, fd: i32, descriptor: Descriptor) {
        let (mut known, fd) = (lock(&self.known), fd as usize);
        if known.len() <= fd {
            known.resize(fd + 1, None);
        }
        known[fd] = Some(descriptor);
    }

    fn look(&self, fd: i32) -> Result<Option<Descriptor>, String> {
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{fd}")) else { return Ok(None) };
        if !is_ours(&path) {
            return Ok(None);
        }
        let Some(inode) = inode(fd) else { return Ok(None) };
        let node = self.node()?;
        let name = format!("{:x}:{:x}", inode.0, inode.1);
        let file = |flocks| {
            let id = FileId { name: name.clone(), flocks };
            node.file(&id).map_err(|stop| format!("{stop:?}"))
        };
        let shared = lock(&self.inherited).contains(&fd);
        let description = (!shared).then(|| self.descriptions.fetch_add(1, Relaxed));
        let mode = FCNTL.get()(fd, libc::F_GETFL, 0) & libc::O_ACCMODE;
        let descriptor = Descriptor { records: file(false)?, flocks: file(true)?, description, mode };
        lock(&self.locked).insert(inode, descriptor.clone());
        Ok(Some(descriptor))
    }

    /// `to` is another descriptor of what `from` is one of.
    pub(crate) fn duplicate(&self, from: i32, to: i32) {
        if !self.is_this() {
            return;
        }
        let mut inherited = lock(&self.inherited);
        inherited.retain(|fd| *fd != to);
        if inherited.contains(&from) {
            inherited.push(to);
        }
        drop(inherited);
        // Looked at now if it never was, so that both have one description. If that fails, a lock of it will, too.
        if let Ok(Some(found)) = self.find(from) {
            self.keep(to, found);
        }
    }

    /// Not a child that shares this memory (vfork) until it runs another program.
    fn is_this(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The descriptor is about to be closed: what it was of, if that was locked, and whether its description ends with it.
    pub(crate) fn forget(&self, fd: i32) -> Option<(Descriptor, bool)> {
        if !self.is_this() {
            return None;
        }
        lock(&self.inherited).retain(|other| *other != fd);
        if lock(&self.locked).is_empty() {
            return None;
        }
        let mut known = lock(&self.known);
        if let Some(descriptor) = usize::try_from(fd).ok().and_then(|fd| known.get_mut(fd)?.take()) {
            let same = |other: &Descriptor| other.description == descriptor.description;
            let ends = descriptor.description.is_some() && !known.iter().flatten().any(same);
            return Some((descriptor, ends));
        }
        drop(known);
        // Never locked by this one, perhaps by another: closing it frees the process's locks, too.
        let descriptor = lock(&self.locked).get(&inode(fd)?)?.clone();
        Some((descriptor, false))
    }

    /// The descriptors from `first` to `last` that are known.
    pub(crate) fn between(&self, first: u32, last: u32) -> Vec<i32> {
        let (first, last) = (first as usize, last as usize);
        let known = lock(&self.known);
        let known =
            known.iter().enumerate().filter(|(fd, known)| first <= *fd && *fd <= last && known.is_some());
        known.map(|(fd, _)| fd as i32).collect()
    }
}

fn is_ours(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    paths().iter().any(|ours| {
        let ours = ours.as_os_str().as_bytes();
        bytes
            .strip_prefix(ours)
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || rest.starts_with(b" ("))
    })
}

fn inode(fd: i32) -> Option<(u64, u64)> {
    // SAFETY: the structure is plain numbers, and of our own.
    unsafe {
        let mut status: libc::stat64 = std::mem::zeroed();
        (libc::fstat64(fd, &raw mut status) == 0).then_some((status.st_dev, status.st_ino))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
