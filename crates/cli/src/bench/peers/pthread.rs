//! The system's own mutex for processes: `pthread_mutex_t`, process-shared and robust, each in a file that all clients map. The next
//! to lock a dead holder's mutex is told so, and makes it consistent again. Names with readers have a `pthread_rwlock_t` each.
//!
//! What this file must not do: unmap a mutex that is locked. Maps stay until their client is gone.

#![allow(unsafe_code, reason = "pthread's functions, on memory that processes share")]

use super::process::Folder;
use super::pthread_rwlocks::RwLocks;
use super::workload::{NAMES, ZIPF};
use super::{Locker, Mode, Offers, Peer};
use anyhow::{Context, Result, bail};
use nix::libc;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

const SIZE: usize = size_of::<libc::pthread_mutex_t>();

#[derive(Debug)]
pub(super) struct Pthread {
    path: PathBuf,
    /// Made when the first is used.
    rwlocks: Arc<OnceLock<RwLocks>>,
    _folder: Option<Folder>,
}

impl Pthread {
    pub(super) fn new() -> Result<Self> {
        let folder = Folder::new("pthread")?;
        Ok(Self { path: folder.0.clone(), rwlocks: Arc::default(), _folder: Some(folder) })
    }
}

pub(super) fn at(address: &str) -> Box<dyn Peer> {
    Box::new(Pthread { path: address.into(), rwlocks: Arc::default(), _folder: None })
}

impl Peer for Pthread {
    fn name(&self) -> &'static str {
        "pthread"
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, readers: true, ranges: false }
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
        let rwlocks = Arc::clone(&self.rwlocks);
        Ok(Box::new(Client { folder: self.path.clone(), mutexes: HashMap::new(), rwlocks }))
    }
}

struct Client {
    folder: PathBuf,
    mutexes: HashMap<String, Mapped>,
    rwlocks: Arc<OnceLock<RwLocks>>,
}

/// The number of a name with readers.
fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix(ZIPF)?.parse().ok()
}

impl Client {
    fn rwlocks(&self) -> Result<&RwLocks> {
        if let Some(locks) = self.rwlocks.get() {
            return Ok(locks);
        }
        static MAKES: Mutex<()> = Mutex::new(());
        let _one = MAKES.lock().unwrap_or_else(PoisonError::into_inner);
        if self.rwlocks.get().is_none() {
            let _ = self.rwlocks.set(RwLocks::new(NAMES as usize)?);
        }
        self.rwlocks.get().context("just made")
    }
}

impl Locker for Client {
    fn lock(&mut self, name: &str, mode: Mode) -> Result<()> {
        if let Some(number) = number_of(name) {
            return self.rwlocks()?.lock(number, mode);
        }
        if !self.mutexes.contains_key(name) {
            self.mutexes.insert(name.to_owned(), Mapped::open(&self.folder, name)?);
        }
        self.mutexes[name].lock()
    }

    fn unlock(&mut self, name: &str, _: Mode) -> Result<()> {
        if let Some(number) = number_of(name) {
            return self.rwlocks()?.unlock(number);
        }
        self.mutexes.get(name).context("it is held")?.unlock()
    }
}

/// A mutex in a file.
struct Mapped(NonNull<libc::pthread_mutex_t>);

impl Mapped {
    /// The mutex called `name`, which is there with its first client.
    fn open(folder: &Path, name: &str) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let path = folder.join(name);
        if !path.exists() {
            // Made elsewhere, so that no other client sees it before it is initialised.
            let (process, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
            let fresh = folder.join(format!("fresh {process} {number}"));
            let file = OpenOptions::new().create_new(true).read(true).write(true).open(&fresh)?;
            file.set_len(SIZE as u64)?;
            Self::map(&file)?.initialise()?;
            let linked = std::fs::hard_link(&fresh, &path);
            std::fs::remove_file(&fresh)?;
            linked.or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()),
                _ => Err(error),
            })?;
        }
        Self::map(&OpenOptions::new().read(true).write(true).open(path)?)
    }

    fn map(file: &File) -> Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: A new map wherever the kernel likes, of a file that is open. It is as long as the mutex, and stays so.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        Ok(Self(NonNull::new(at.cast()).context("a map is nowhere")?))
    }

    fn initialise(&self) -> Result<()> {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: The attributes are initialised before they are used, and destroyed after. The memory is this mutex's, mapped as
        // long as `self` is, and nobody else knows of the file yet.
        unsafe {
            ok(libc::pthread_mutexattr_init(attributes))?;
            ok(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))?;
            ok(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST))?;
            ok(libc::pthread_mutex_init(self.0.as_ptr(), attributes))?;
            ok(libc::pthread_mutexattr_destroy(attributes))
        }
    }

    fn lock(&self) -> Result<()> {
        // SAFETY: It was initialised before its file had its name, and is mapped as long as `self` is.
        match unsafe { libc::pthread_mutex_lock(self.0.as_ptr()) } {
            // SAFETY: As above; the calling thread has just locked it.
            libc::EOWNERDEAD => ok(unsafe { libc::pthread_mutex_consistent(self.0.as_ptr()) }),
            code => ok(code),
        }
    }

    fn unlock(&self) -> Result<()> {
        // SAFETY: As above. A robust mutex refuses a thread that does not hold it.
        ok(unsafe { libc::pthread_mutex_unlock(self.0.as_ptr()) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: The map is this value's, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

pub(super) fn ok(code: i32) -> Result<()> {
    if code != 0 {
        bail!(io::Error::from_raw_os_error(code));
    }
    Ok(())
}
