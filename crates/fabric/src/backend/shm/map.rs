//! The mapped file, and references to the atomics in it.
//!
//! One of the two files of this backend with `unsafe`; the other is `area.rs`.

#![allow(unsafe_code)]

use super::error::SpaceError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A file mapped for as long as this lives.
#[derive(Debug)]
pub(super) struct Map {
    base: NonNull<u8>,
    span: usize,
    /// So many bytes existed when the file was mapped, and it never shrinks.
    file_bytes: u64,
    /// The metadata, which [`Map::u64`] and [`Map::u32`] reach, ends here.
    meta_bytes: u64,
    file: OwnedFd,
    path: PathBuf,
}

// SAFETY: the mapping belongs to the value, stays in place, and is only reached as atomics.
unsafe impl Send for Map {}
// SAFETY: as above; every method takes `&self` and gives out atomics.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `span` bytes of `file`, which is or will be at `path` and whose first `meta_bytes` are metadata.
    pub(super) fn new(file: OwnedFd, path: &Path, span: u64, meta_bytes: u64) -> Result<Self, SpaceError> {
        let stat = fstat(&file).map_err(SpaceError::system("look at the lock space"))?;
        let file_bytes = (stat.st_size as u64).min(span);
        if file_bytes < meta_bytes {
            return Err(SpaceError::Damaged("it is shorter than its header says"));
        }
        let span =
            usize::try_from(span).map_err(|_| SpaceError::BadOptions("larger than the address space"))?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base =
            unsafe { mmap(std::ptr::null_mut(), span, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0) };
        let base = base.map_err(SpaceError::system("map the lock space into memory"))?;
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        Ok(Self { base, span, file_bytes, meta_bytes, file, path: path.to_owned() })
    }

    /// Another descriptor of the file, to be mapped in another size.
    pub(super) fn duplicate_file(&self) -> Result<OwnedFd, SpaceError> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 3)
            .map_err(SpaceError::system("duplicate a file descriptor"))
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Allocates memory for these bytes, so that a full file system is an error here and not a signal later. To be called
    /// before they are touched for the first time: on tmpfs, a page that is only read is allocated, too.
    pub(super) fn allocate(&self, start: u64, bytes: u64) -> Result<(), SpaceError> {
        loop {
            match fallocate(&self.file, FallocateFlags::empty(), start, bytes) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT) => return Err(SpaceError::Full(self.path.clone())),
                Err(error) => {
                    return Err(SpaceError::System { doing: "get memory for the lock space", error });
                }
            }
        }
    }

    /// The address of byte `start`: aligned to 64, and `bytes` bytes from there on exist.
    ///
    /// # Panics
    /// If that is not so.
    pub(super) fn range(&self, start: u64, bytes: u64) -> NonNull<u8> {
        assert!(
            start.is_multiple_of(64) && start.checked_add(bytes).is_some_and(|end| end <= self.file_bytes),
            "{bytes} bytes at {start} lie outside the file"
        );
        // SAFETY: inside the mapping, which spans at least `file_bytes`.
        unsafe { self.base.add(start as usize) }
    }

    /// The 8-byte word at `offset`.
    #[inline(always)]
    pub(super) fn u64(&self, offset: u64) -> &AtomicU64 {
        self.atomic(offset)
    }

    /// The 4-byte word at `offset`.
    #[inline(always)]
    pub(super) fn u32(&self, offset: u64) -> &AtomicU32 {
        self.atomic(offset)
    }

    #[inline(always)]
    fn atomic<A: Atomic>(&self, offset: u64) -> &A {
        let size = size_of::<A>() as u64;
        assert!(
            offset.is_multiple_of(size) && offset.checked_add(size).is_some_and(|end| end <= self.meta_bytes),
            "no word at byte {offset}"
        );
        // SAFETY: aligned, since the mapping starts at a page, and inside the part of the file that exists (`new`). All
        // processes reach it as an atomic of this size. (A user who truncates the file gets SIGBUS, here as with any
        // mapped file; that takes the rights of the space's owner.)
        unsafe { self.base.add(offset as usize).cast::<A>().as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size; references into it borrow from `self` or hold it alive.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.span) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The types that shared bytes may be viewed as.
trait Atomic {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}
