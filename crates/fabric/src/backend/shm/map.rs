//! The mapped file: its address space, and references to the atomics in it.
//!
//! The whole span that the file can ever come to need is mapped at once; pages behind the file's end are not touched
//! until the file has grown over them. So nothing ever moves, and a process sees growth by looking at one word.
//!
//! One of the three files of this backend with `unsafe` (the others: `area.rs` for lock words).

#![allow(unsafe_code)]

use super::error::SpaceError;
use super::layout::PAGE;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A file mapped for as long as this lives.
#[derive(Debug)]
pub(super) struct Map {
    base: NonNull<u8>,
    span: usize,
    /// Up to here the file is there from the start, and may be reached by the methods below.
    meta_bytes: u64,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to the value, stays in place, and is only reached as atomics.
unsafe impl Send for Map {}
// SAFETY: as above; every method takes `&self` and gives out atomics.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `span` bytes of `file`, of which the first `meta_bytes` exist.
    pub(super) fn new(file: OwnedFd, span: u64, meta_bytes: u64) -> Result<Self, SpaceError> {
        let span =
            usize::try_from(span).map_err(|_| SpaceError::BadOptions("larger than the address space"))?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base =
            unsafe { mmap(std::ptr::null_mut(), span, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0) };
        let base = base.map_err(SpaceError::system("map the lock space into memory"))?;
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        Ok(Self { base, span, meta_bytes, file })
    }

    /// Gives the file up again, to be mapped in another size.
    pub(super) fn reopen(&self) -> Result<OwnedFd, SpaceError> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 3)
            .map_err(SpaceError::system("duplicate a file descriptor"))
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes the file at least `bytes` long. Never makes it shorter, whoever else grows it at the same time: that is
    /// why this is not a truncate.
    pub(super) fn extend(&self, bytes: u64) -> Result<(), SpaceError> {
        let last = bytes.next_multiple_of(PAGE) - PAGE;
        fallocate(&self.file, FallocateFlags::empty(), last, PAGE)
            .map_err(SpaceError::system("grow the lock space"))
    }

    /// Takes memory for these bytes, so that a full file system is an error here and not a signal later.
    pub(super) fn provide(&self, start: u64, bytes: u64) -> Result<(), SpaceError> {
        fallocate(&self.file, FallocateFlags::empty(), start, bytes)
            .map_err(SpaceError::system("get memory for the lock space"))
    }

    /// The address of byte `offset`, which need not exist yet.
    pub(super) fn pointer(&self, offset: u64) -> NonNull<u8> {
        assert!(offset < self.span as u64, "byte {offset} lies outside the mapping");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.add(offset as usize) }
    }

    /// The 8-byte word at `offset`.
    #[inline(always)]
    pub(super) fn u64(&self, offset: u64) -> &AtomicU64 {
        self.atom(offset)
    }

    /// The 4-byte word at `offset`.
    #[inline(always)]
    pub(super) fn u32(&self, offset: u64) -> &AtomicU32 {
        self.atom(offset)
    }

    #[inline(always)]
    fn atom<A: Atom>(&self, offset: u64) -> &A {
        let size = size_of::<A>() as u64;
        assert!(
            offset.is_multiple_of(size) && offset.checked_add(size).is_some_and(|end| end <= self.meta_bytes),
            "no word at byte {offset}"
        );
        // SAFETY: aligned, since the mapping starts at a page, and inside the part of the file that exists. All
        // processes reach it as an atomic of this size. (A user who truncates the file under us gets SIGBUS, here
        // as with any mapped file; that takes the rights of the space's owner.)
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

/// What may be made of bytes that other processes change.
trait Atom {}
impl Atom for AtomicU32 {}
impl Atom for AtomicU64 {}
