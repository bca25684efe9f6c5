//! Which process made something. After fork(2) the child has copies of all that its parent made: memory that both share,
//! connections, the names of threads that do not run in it. It must use none of that, and has to find out without a
//! system call.
//!
//! A page that the kernel fills with zeros in children (`MADV_WIPEONFORK`, Linux 4.14) holds the number of this process. The
//! first use of it in a child gives the child the next number, which none of its ancestors has had.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The page; null until it is first asked for, and where there is none.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The last number given out in this process or, before it was forked off, in its ancestors.
static LAST: AtomicU64 = AtomicU64::new(0);
/// Stands in for the page where the kernel has none. It is never written, so processes are told apart by their pids.
static NO_PAGE: AtomicU64 = AtomicU64::new(0);
static WARNED: AtomicBool = AtomicBool::new(false);

/// The process that made something.
///
/// ```
/// use lockwright_fabric::backend::fork::Owner;
/// let owner = Owner::current();
/// assert!(owner.is_current()); // until this process forks, and in the parent afterwards
/// assert_eq!(owner.pid(), std::process::id());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    word: &'static AtomicU64,
    number: u64,
    pid: u32,
}

impl Owner {
    /// This process.
    pub fn current() -> Self {
        let word = word();
        if word.load(SeqCst) == 0 && !std::ptr::eq(word, &raw const NO_PAGE) {
            // Another thread may be first.
            let _ = word.compare_exchange(0, LAST.fetch_add(1, SeqCst) + 1, SeqCst, SeqCst);
        }
        Self { word, number: word.load(SeqCst), pid: std::process::id() }
    }

    /// Whether that is the process that asks.
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        self.word.load(Relaxed) == self.number && (self.number != 0 || self.has_same_pid())
    }

    #[cold]
    fn has_same_pid(&self) -> bool {
        std::process::id() == self.pid
    }

    /// Its pid.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Says on standard error, once in this process, that what belongs to the owner was dropped here and nothing was done.
    /// Takes no lock: in a child, a thread that does not run there may hold it.
    pub fn warn_once(&self) {
        if !WARNED.swap(true, SeqCst) {
            write_to_stderr(&format!(
                "lockwright: process {} dropped a lock or client of process {}, which keeps it; open your own after fork\n",
                std::process::id(),
                self.pid
            ));
        }
    }
}

#[cfg(all(feature = "shm", target_os = "linux"))]
fn write_to_stderr(line: &str) {
    // SAFETY: nothing is assumed of descriptor 2 but its number; closed, writing to it is an error, which is ignored.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, line.as_bytes());
}

#[cfg(not(all(feature = "shm", target_os = "linux")))]
fn write_to_stderr(line: &str) {
    eprint!("{line}");
}

/// The word that holds the number of this process; 0 in a child that has none yet.
fn word() -> &'static AtomicU64 {
    let mut page = PAGE.load(SeqCst);
    if page.is_null() {
        let Some(new) = map() else { return &NO_PAGE };
        // Another thread may have been first: then its page counts, and this one stays unused.
        page = match PAGE.compare_exchange(std::ptr::null_mut(), new, SeqCst, SeqCst) {
            Ok(_) => new,
            Err(first) => first,
        };
    }
    // SAFETY: `map` made it, aligned and zeroed; it is never unmapped, and only reached as an atomic.
    unsafe { &*page }
}

#[cfg(all(feature = "shm", target_os = "linux"))]
fn map() -> Option<*mut AtomicU64> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    const PAGE_BYTES: usize = 4096;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page was just mapped, and nobody else knows of it.
    unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }.ok()?;
    Some(page.cast())
}

#[cfg(not(all(feature = "shm", target_os = "linux")))]
fn map() -> Option<*mut AtomicU64> {
    None
}
