//! Which descriptors are of files whose locks are ours, and which description each has.
//!
//! A descriptor is looked at when it is first locked, and forgotten when it is closed. One that this process has not made
//! itself (it was there when the program began, or came with a fork) has a description that others share.

use crate::inside::{Closed, anew, inside};
use crate::pause::without_signals;
use crate::real::FCNTL;
use lockwright_posix::{Extent, FileId, Node, NodeFile, Owner};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A descriptor of a file that is ours.
#[derive(Clone)]
pub(crate) struct Descriptor {
    /// Device and inode.
    pub(crate) inode: (u64, u64),
    /// Record locks.
    pub(crate) records: Arc<NodeFile>,
    /// Flocks.
    pub(crate) flocks: Arc<NodeFile>,
    /// `None` if others share it.
    pub(crate) description: Option<u64>,
    /// Whether it reads, writes, or both.
    pub(crate) mode: i32,
}

/// What was known of a descriptor.
pub(crate) struct Forgotten {
    fd: i32,
    is_inherited: bool,
    /// If it was locked, or made of one that was.
    known: Option<Descriptor>,
    /// Its file, if the process has locked that by any descriptor. The description may be another one's.
    of_file: Option<Descriptor>,
}

/// Everything that belongs to this process. A child has one of its own.
pub(crate) struct Process {
    pub(crate) pid: u32,
    space: String,
    node: OnceLock<Result<Node, String>>,
    /// By number: those that were locked, or made of one that was. Of others nothing is kept: they may be closed unseen.
    known: Mutex<Vec<Option<Descriptor>>>,
    inherited: Mutex<Vec<i32>>,
    /// By device and inode: files that were locked.
    locked: Mutex<HashMap<(u64, u64), Descriptor>>,
    descriptions: AtomicU64,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

fn paths() -> &'static [PathBuf] {
    static PATHS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PATHS.get_or_init(|| {
        let named = std::env::var_os("LOCKWRIGHT_POSIX").unwrap_or_default();
        let named = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
        named.map(|path| path.canonicalize().unwrap_or(path)).collect()
    })
}

/// This process's, if it has begun and there are files that are ours. A signal handler may ask.
pub(crate) fn begun() -> Option<&'static Process> {
    // SAFETY: what was stored is never freed.
    unsafe { PROCESS.load(SeqCst).as_ref() }
}

/// This process's; `None` if no files are ours.
pub(crate) fn process() -> Option<&'static Process> {
    if let Some(process) = begun() {
        return Some(process);
    }
    if paths().is_empty() {
        return None;
    }
    let make = || Box::into_raw(Box::new(Process::new()));
    let (found, made) = (std::ptr::null_mut(), inside(make).unwrap_or_else(make));
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
    anew(|| PROCESS.store(Box::into_raw(Box::new(Process::new())), SeqCst));
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
        // But for the one by which they were listed.
        let inherited =
            open_descriptors().into_iter().filter(|fd| FCNTL.get()(*fd, libc::F_GETFD, 0) >= 0).collect();
        Self {
            pid: std::process::id(),
            space: std::env::var("LOCKWRIGHT_SPACE").unwrap_or_else(|_| "shm:".to_owned()),
            node: OnceLock::new(),
            known: Mutex::default(),
            inherited: Mutex::new(inherited),
            locked: Mutex::default(),
            descriptions: AtomicU64::new(1),
        }
    }

    /// Takes locks.
    pub(crate) fn node(&self) -> Result<&Node, &str> {
        let open =
            || Node::open(&self.space, &lockwright::Client::options()).map_err(|error| error.to_string());
        self.node.get_or_init(|| without_signals(open)).as_ref().map_err(String::as_str)
    }

    /// Whether its locks are in this host's memory.
    pub(crate) fn is_local(&self) -> bool {
        self.space.starts_with("shm:")
    }

    /// The number is a new descriptor's. What is known of it is another's, which was closed past libc.
    pub(crate) fn begin_anew(&self, fd: i32) {
        let known = usize::try_from(fd).ok().and_then(|fd| lock(&self.known).get_mut(fd)?.take());
        let is_inherited = lock(&self.inherited).contains(&fd);
        if known.is_none() && !is_inherited {
            return;
        }
        if !self.is_this() {
            return self.restore(Forgotten { fd, is_inherited: false, known, of_file: None });
        }
        lock(&self.inherited).retain(|other| *other != fd);
        self.release(&Forgotten { fd, is_inherited, of_file: known.clone(), known });
    }

    /// The descriptor, if its file is ours. What is known of its number is not looked at again, which would cost as much as all
    /// the rest: libc's functions that close are seen, and those that open, which [begin a number anew](Self::begin_anew). One
    /// that was closed and opened past libc is not noticed.
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

    /// Whether the descriptor is still what was found.
    pub(crate) fn still_has(&self, fd: i32, found: &Descriptor) -> bool {
        let same = |known: &Descriptor| (known.inode, known.description) == (found.inode, found.description);
        usize::try_from(fd)
            .is_ok_and(|fd| matches!(lock(&self.known).get(fd), Some(Some(known)) if same(known)))
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
        let descriptor = Descriptor { inode, records: file(false)?, flocks: file(true)?, description, mode };
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

    /// The descriptor is about to be closed: what is known of it, if anything is.
    pub(crate) fn forget(&self, fd: i32) -> Option<Forgotten> {
        if !self.is_this() {
            return None;
        }
        let mut inherited = lock(&self.inherited);
        let count = inherited.len();
        inherited.retain(|other| *other != fd);
        let is_inherited = inherited.len() < count;
        drop(inherited);
        let known = usize::try_from(fd).ok().and_then(|fd| lock(&self.known).get_mut(fd)?.take());
        let of_file = match &known {
            Some(known) => Some(known.clone()),
            None => self.locked_by_another(inode(fd)),
        };
        (is_inherited || of_file.is_some()).then_some(Forgotten { fd, is_inherited, known, of_file })
    }

    /// The file, if this process has locked it by any descriptor: closing another one frees its record locks, too.
    fn locked_by_another(&self, inode: Option<(u64, u64)>) -> Option<Descriptor> {
        let locked = lock(&self.locked);
        if locked.is_empty() {
            return None;
        }
        locked.get(&inode?).cloned()
    }

    /// It was not closed after all.
    pub(crate) fn restore(&self, forgotten: Forgotten) {
        if forgotten.is_inherited {
            lock(&self.inherited).push(forgotten.fd);
        }
        if let Some(known) = forgotten.known {
            self.keep(forgotten.fd, known);
        }
    }

    /// It was closed: the process's locks of the file go, and those of the description if it has ended.
    pub(crate) fn release(&self, forgotten: &Forgotten) {
        let (Some(of_file), Ok(node)) = (&forgotten.of_file, self.node()) else { return };
        let _ = node.unlock(&of_file.records, Owner::Process(u64::from(self.pid)), Extent::WHOLE);
        let Some(description) = forgotten.known.as_ref().and_then(|known| known.description) else { return };
        let same = |other: &Descriptor| other.description == Some(description);
        if lock(&self.known).iter().flatten().any(same) {
            return;
        }
        for file in [&of_file.records, &of_file.flocks] {
            let _ = node.unlock(file, Owner::Description(description), Extent::WHOLE);
        }
    }

    /// A descriptor was closed by a signal handler, while this could not be seen.
    pub(crate) fn release_closed(&self, closed: Closed) {
        let is_known = |known: &mut Descriptor| known.inode == closed.inode;
        let known =
            usize::try_from(closed.fd).ok().and_then(|fd| lock(&self.known).get_mut(fd)?.take_if(is_known));
        let of_file = known.clone().or_else(|| self.locked_by_another(Some(closed.inode)));
        self.release(&Forgotten { fd: closed.fd, is_inherited: false, known, of_file });
    }

    /// Descriptors that are not any more what is known of them were closed, unseen.
    pub(crate) fn release_all_closed(&self) {
        let is_other = |(fd, known): (usize, &Option<Descriptor>)| {
            let known = known.as_ref()?.inode;
            (inode(fd as i32) != Some(known)).then_some(Closed { fd: fd as i32, inode: known })
        };
        let closed: Vec<_> = lock(&self.known).iter().enumerate().filter_map(is_other).collect();
        closed.into_iter().for_each(|closed| self.release_closed(closed));
    }

    /// The descriptors from `first` to `last`, if any file was locked.
    pub(crate) fn between(&self, first: u32, last: u32) -> Vec<i32> {
        let is_between = |fd: &i32| u32::try_from(*fd).is_ok_and(|fd| (first..=last).contains(&fd));
        if lock(&self.locked).is_empty() {
            return lock(&self.inherited).iter().copied().filter(is_between).collect();
        }
        open_descriptors().into_iter().filter(is_between).collect()
    }
}

fn open_descriptors() -> Vec<i32> {
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a descriptor's file is ours. A signal handler may ask: nothing is allocated or locked.
pub(crate) fn is_of_ours(fd: i32) -> bool {
    let mut name = [0_u8; 32];
    let _ = write!(&mut name[..31], "/proc/self/fd/{fd}");
    let mut path = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: the name ends with a zero, and no more is written than there is room for.
    let len = unsafe { libc::readlink(name.as_ptr().cast(), path.as_mut_ptr().cast(), path.len()) };
    usize::try_from(len).is_ok_and(|len| is_ours(Path::new(OsStr::from_bytes(&path[..len]))))
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

/// Device and inode. A signal handler may ask.
pub(crate) fn inode(fd: i32) -> Option<(u64, u64)> {
    // SAFETY: the structure is plain numbers, and of our own.
    unsafe {
        let mut status: libc::stat64 = std::mem::zeroed();
        (libc::fstat64(fd, &raw mut status) == 0).then_some((status.st_dev, status.st_ino))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
