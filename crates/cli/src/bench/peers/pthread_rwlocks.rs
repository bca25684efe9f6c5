//! `pthread_rwlock_t`, process-shared: many of them in one file that all clients map, found by number. Unlike the mutex it cannot be
//! robust: a dead holder's stays locked.

#![allow(unsafe_code, reason = "pthread's functions, on memory that processes share")]

use super::pthread::ok;
use super::{Mode, process::Folder};
use anyhow::{Context, Result, ensure};
use nix::libc;
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// See the module.
#[derive(Debug)]
pub(super) struct RwLocks {
    first: NonNull<libc::pthread_rwlock_t>,
    count: usize,
    _folder: Folder,
}

// SAFETY: The locks are made for threads and processes that share them, and the map stays where it is until this is dropped.
unsafe impl Send for RwLocks {}
// SAFETY: As above.
unsafe impl Sync for RwLocks {}

impl RwLocks {
    /// So many, all free.
    pub(super) fn new(count: usize) -> Result<Self> {
        let folder = Folder::new("pthread-rwlocks")?;
        let file = OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .open(folder.0.join("locks"))
            .context("cannot make the file of the locks")?;
        file.set_len((count * size_of::<libc::pthread_rwlock_t>()) as u64)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let size = count * size_of::<libc::pthread_rwlock_t>();
        // SAFETY: A new map wherever the kernel likes, of a file that is open. It is as long as all locks, and stays so.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let first = NonNull::new(at.cast()).context("a map is nowhere")?;
        let locks = Self { first, count, _folder: folder };
        let mut attributes = MaybeUninit::<libc::pthread_rwlockattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: The attributes are initialised before they are used, and destroyed after. The locks are mapped, and nobody else
        // knows of them yet.
        unsafe {
            ok(libc::pthread_rwlockattr_init(attributes))?;
            ok(libc::pthread_rwlockattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))?;
            for number in 0..count {
                ok(libc::pthread_rwlock_init(locks.at(number)?, attributes))?;
            }
            ok(libc::pthread_rwlockattr_destroy(attributes))?;
        }
        Ok(locks)
    }

    fn at(&self, number: usize) -> Result<*mut libc::pthread_rwlock_t> {
        ensure!(number < self.count, "there is no lock {number}");
        // SAFETY: It is within the map.
        Ok(unsafe { self.first.add(number) }.as_ptr())
    }

    pub(super) fn lock(&self, number: usize, mode: Mode) -> Result<()> {
        let lock = self.at(number)?;
        // SAFETY: It was initialised by `new`, and is mapped as long as `self` is.
        ok(unsafe {
            match mode {
                Mode::Shared => libc::pthread_rwlock_rdlock(lock),
                Mode::Exclusive => libc::pthread_rwlock_wrlock(lock),
            }
        })
    }

    /// Gives it back. The calling thread has to hold it.
    pub(super) fn unlock(&self, number: usize) -> Result<()> {
        // SAFETY: As above; a client unlocks on the thread that has locked, and only what it has.
        ok(unsafe { libc::pthread_rwlock_unlock(self.at(number)?) })
    }
}

impl Drop for RwLocks {
    fn drop(&mut self) {
        let size = self.count * size_of::<libc::pthread_rwlock_t>();
        // SAFETY: The map is this value's, and nothing refers to it any more.
        unsafe { libc::munmap(self.first.as_ptr().cast(), size) };
    }
}
