//! A mount's life: it begins with an agreement on what both sides can do, is served by threads, and ends when it is unmounted.

use crate::abi::{self, BUFFER, Body, Fields, Header, MAX_WRITE, init, op};
use crate::data::{Handles, OpenFile, Passthrough};
use crate::device::{self, Device};
use crate::dispatch::Answer;
use crate::folders::OpenFolder;
use crate::inodes::Inodes;
use crate::locks::Locks;
use crate::{MountError, MountOptions};
use lockwright::ClientOptions;
use lockwright_posix::Node;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads that wait for requests, at most.
const IDLE: usize = 8;
/// Threads in all. Requests that block keep one each.
const THREADS: usize = 4096;
/// Of them, kept for requests that do not block.
const SPARE: usize = 64;

/// All that threads share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) device: Device,
    pub(crate) inodes: Inodes,
    pub(crate) files: Handles<OpenFile>,
    pub(crate) folders: Handles<OpenFolder>,
    pub(crate) locks: Locks,
    pub(crate) passthrough: Passthrough,
    pub(crate) cache: Duration,
    pub(crate) is_root: bool,
    /// Threads that wait for a request.
    idle: AtomicUsize,
    workers: Mutex<Vec<Arc<Worker>>>,
    all_ended: Condvar,
}

/// What a thread is at.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// The request, or 0.
    serves: AtomicU64,
    /// The one that is to give up.
    interrupted: AtomicU64,
}

impl Worker {
    /// Whether the request is to give up.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(SeqCst) == self.serves.load(SeqCst)
    }
}

/// A file system that is mounted. Dropped, it is unmounted.
#[derive(Debug)]
pub struct Mounted {
    session: Arc<Session>,
    at: PathBuf,
}

/// How it was unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// No program used it.
    Clean,
    /// A program uses it: it is out of sight, and ends when its last file is closed.
    InUse,
}

/// Mounts. Requests are served from now on.
///
/// # Errors
/// If it cannot be. Nothing is mounted then.
pub(crate) fn mount(options: &MountOptions, client: &ClientOptions) -> Result<Mounted, MountError> {
    check_name(options)?;
    let folder = |path: &Path| {
        let refuse = |why: &str| MountError::Folder { path: path.to_owned(), why: why.to_owned() };
        let found = path.canonicalize().map_err(|error| refuse(&plain(&error)))?;
        if found.is_dir() { Ok(found) } else { Err(refuse("it is not a folder")) }
    };
    // One that a killed daemon has left behind is in the way of the next.
    let absolute = std::path::absolute(&options.at).unwrap_or_else(|_| options.at.clone());
    if device::is_dead_mount(&absolute) {
        device::unmount(&absolute, true)
            .map_err(|error| MountError::System { what: "unmount what a killed daemon left", error })?;
    }
    let (source, at) = (folder(&options.source)?, folder(&options.at)?);
    if at != source && at.starts_with(&source) {
        let why = format!("it is inside {}, and would contain itself", source.display());
        return Err(MountError::Folder { path: at, why });
    }
    let options = MountOptions { source, at, ..options.clone() };
    let opened =
        rustix::fs::open(&options.source, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let system = |what| move |error: Errno| MountError::System { what, error: error.into() };
    let root = opened.map_err(system("open the source"))?;
    let stat = rustix::fs::statat(&root, "", AtFlags::EMPTY_PATH).map_err(system("look at the source"))?;
    let node = Node::open(&options.space, client)?;
    raise_descriptors();
    let device = device::mount(&options, FileType::Directory.as_raw_mode())?;
    let mut session = Session {
        device,
        inodes: Inodes::new(root).map_err(system("look at the source"))?,
        files: Handles::default(),
        folders: Handles::default(),
        locks: Locks::new(node, options.name.clone().map(|name| (name, stat.st_dev))),
        passthrough: Passthrough(AtomicBool::new(options.passthrough)),
        cache: options.cache,
        is_root: rustix::process::geteuid().is_root(),
        idle: AtomicUsize::new(0),
        workers: Mutex::default(),
        all_ended: Condvar::new(),
    };
    if let Err(error) = session.agree() {
        let _ = device::unmount(&options.at, true);
        return Err(error);
    }
    let session = Arc::new(session);
    if let Err(error) = Session::add_worker(&session) {
        let _ = device::unmount(&options.at, true);
        return Err(MountError::System { what: "start a thread", error });
    }
    Ok(Mounted { session, at: options.at })
}

fn check_name(options: &MountOptions) -> Result<(), MountError> {
    let fits = |name: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        (1..=64).contains(&name.len()) && name.chars().all(allowed)
    };
    match &options.name {
        Some(name) if !fits(name) => Err(MountError::Name(name.clone())),
        None if !options.space.starts_with("shm:") => Err(MountError::Nameless(options.space.clone())),
        _ => Ok(()),
    }
}

/// What went wrong, without the number.
fn plain(error: &std::io::Error) -> String {
    let said = error.to_string();
    said.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// Every file that the kernel knows takes a descriptor: as many as may be.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

impl Session {
    /// The first request and its answer: what both sides can do.
    fn agree(&mut self) -> Result<(), MountError> {
        let refuse = |why: &str| MountError::NoFuse(why.to_owned());
        let mut buffer = vec![0; BUFFER];
        let len = loop {
            match self.device.receive(&mut buffer) {
                Ok(len) => break len,
                Err(Errno::INTR) => {}
                Err(error) => return Err(MountError::System { what: "read /dev/fuse", error: error.into() }),
            }
        };
        let malformed = |_| refuse("the kernel says something else than FUSE");
        let (header, mut fields) = Fields::of(&buffer[..len]).map_err(malformed)?;
        let [major, minor, read_ahead, first] = {
            let mut words = [0; 4];
            for word in &mut words {
                *word = fields.u32().map_err(malformed)?;
            }
            words
        };
        if header.opcode != op::INIT || major != abi::MAJOR || minor < abi::OLDEST_MINOR {
            return Err(refuse(&format!(
                "this kernel speaks FUSE {major}.{minor}, and 7.36 is needed (Linux 5.17)"
            )));
        }
        let second = fields.u32().map_err(malformed)?;
        let offered = u64::from(first) | u64::from(second) << 32;
        if offered & init::POSIX_LOCKS == 0 || offered & init::FLOCK_LOCKS == 0 {
            return Err(refuse("this kernel hands over no locks"));
        }
        let wanted = init::ASYNC_READ
            | init::POSIX_LOCKS
            | init::ATOMIC_O_TRUNC
            | init::BIG_WRITES
            | init::DONT_MASK
            | init::FLOCK_LOCKS
            | init::PARALLEL_DIROPS
            | init::POSIX_ACL
            | init::MAX_PAGES
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP
            | init::PASSTHROUGH;
        let mut flags = wanted & offered;
        let passthrough = self.passthrough.0.get_mut();
        *passthrough &= self.is_root && offered & init::PASSTHROUGH != 0;
        if !*passthrough {
            flags &= !init::PASSTHROUGH;
        }
        let answer = Body::default()
            .u32(abi::MAJOR)
            .u32(abi::MINOR)
            .u32(read_ahead)
            .u32(flags as u32)
            // Requests that nobody waits for: reading ahead, forgetting.
            .u16(64)
            .u16(48)
            .u32(MAX_WRITE as u32)
            // Nanoseconds.
            .u32(1)
            .u16((MAX_WRITE / 4096) as u16)
            .u16(0)
            .u32((flags >> 32) as u32)
            // Files below may be of a plain file system, not of a stack.
            .u32(u32::from(*passthrough))
            .zeros(24);
        let sent = self.device.send(header.unique, Ok(&answer.0));
        sent.map_err(|error| MountError::System { what: "answer /dev/fuse", error: error.into() })
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request may keep its thread for as long as it takes.
    pub(crate) fn may_wait(&self) -> bool {
        self.workers().len() < THREADS - SPARE
    }

    /// One more thread, idle.
    fn add_worker(session: &Arc<Self>) -> std::io::Result<()> {
        let worker = Arc::new(Worker::default());
        let mut workers = session.workers();
        if workers.len() >= THREADS {
            return Err(std::io::ErrorKind::QuotaExceeded.into());
        }
        let (shared, mine) = (Arc::clone(session), Arc::clone(&worker));
        session.idle.fetch_add(1, SeqCst);
        let started = std::thread::Builder::new().name("mount".to_owned()).spawn(move || shared.work(&mine));
        match started {
            Ok(_) => workers.push(worker),
            Err(error) => {
                session.idle.fetch_sub(1, SeqCst);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A thread: reads requests and serves them.
    fn work(self: Arc<Self>, worker: &Arc<Worker>) {
        // A mask for new files of its own. Where that is not allowed, the mask of one may apply to another's.
        let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS);
        let (mut buffer, mut answer) = (vec![0; BUFFER], Vec::new());
        while !self.locks.ended.load(SeqCst) {
            match self.device.receive(&mut buffer) {
                Ok(len) => {
                    if self.idle.fetch_sub(1, SeqCst) == 1 {
                        // If there can be no more, requests wait for those that are served.
                        let _ = Self::add_worker(&self);
                    }
                    self.request(worker, &buffer[..len], &mut answer);
                    if self.idle.fetch_add(1, SeqCst) >= IDLE {
                        break;
                    }
                }
                // It was taken back, or is to be read once more.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(error) => {
                    if error != Errno::NODEV {
                        tracing::error!("/dev/fuse: {error}");
                    }
                    self.locks.ended.store(true, SeqCst);
                    self.locks.node.changes().tell();
                }
            }
        }
        self.idle.fetch_sub(1, SeqCst);
        self.workers().retain(|other| !Arc::ptr_eq(other, worker));
        self.all_ended.notify_all();
    }

    fn request(&self, worker: &Worker, message: &[u8], buffer: &mut Vec<u8>) {
        let (header, fields) = match Fields::of(message) {
            Ok(read) => read,
            Err(error) => return tracing::error!("a request of {} bytes: {error}", message.len()),
        };
        let Header { unique, .. } = header;
        if header.opcode != op::INTERRUPT {
            worker.serves.store(unique, SeqCst);
        }
        let answer = match self.serve(worker, header, fields, buffer) {
            Ok(Answer::Silence) => None,
            Ok(Answer::Body(body)) => Some(self.device.send(unique, Ok(&body.0))),
            Ok(Answer::Bytes(bytes)) => Some(self.device.send(unique, Ok(bytes))),
            Err(error) => Some(self.device.send(unique, Err(error))),
        };
        worker.serves.store(0, SeqCst);
        worker.interrupted.store(u64::MAX, SeqCst);
        match answer {
            // The program that asked is gone.
            None | Some(Ok(()) | Err(Errno::NOENT | Errno::NODEV)) => {}
            Some(Err(error)) => tracing::error!("an answer to operation {}: {error}", header.opcode),
        }
    }

    /// The request of this number is to give up.
    ///
    /// # Errors
    /// `EAGAIN`: the thread that has read it has not said so yet, or it is over. The kernel asks again in the first case.
    pub(crate) fn interrupt(&self, unique: u64) -> Result<(), Errno> {
        let workers = self.workers();
        let found = workers.iter().find(|worker| worker.serves.load(SeqCst) == unique).ok_or(Errno::AGAIN)?;
        found.interrupted.store(unique, SeqCst);
        drop(workers);
        self.locks.node.changes().tell();
        Ok(())
    }
}

impl Mounted {
    /// Mounts. Requests are served from now on.
    ///
    /// # Errors
    /// If it cannot be. Nothing is mounted then.
    pub fn new(options: &MountOptions, client: &ClientOptions) -> Result<Self, MountError> {
        mount(options, client)
    }

    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Whether the kernel reads and writes files by itself.
    pub fn is_passthrough(&self) -> bool {
        self.session.passthrough.0.load(SeqCst)
    }

    /// Waits until it is unmounted, by whomever; or for so long. Whether it is.
    pub fn wait(&self, at_most: Duration) -> bool {
        let workers = self.session.workers();
        let busy = |workers: &mut Vec<Arc<Worker>>| !workers.is_empty();
        let waited = self.session.all_ended.wait_timeout_while(workers, at_most, busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_empty()
    }

    /// Takes it out of sight, and ends it unless it is in use.
    ///
    /// # Errors
    /// If it cannot be unmounted.
    pub fn unmount(&self) -> std::io::Result<Unmounted> {
        match device::unmount(&self.at, false) {
            Ok(()) => Ok(Unmounted::Clean),
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                device::unmount(&self.at, true).map(|()| Unmounted::InUse)
            }
            // Another process has unmounted it before.
            Err(_) if self.session.locks.ended.load(SeqCst) => Ok(Unmounted::Clean),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.wait(Duration::ZERO) {
            let _ = device::unmount(&self.at, true);
        }
    }
}
