//! What programs lock by. Each function decides whether the file is ours; if not, libc's does what it always did.
//!
//! Those with a variable number of arguments are declared with the most that they take: on x86-64 and aarch64 Linux these are
//! passed the same way.

use crate::closing::duplicated;
use crate::descriptors::{Descriptor, Process, is_of_ours, process};
use crate::inside::inside;
use crate::pause::Signals;
use crate::real::{FCNTL, FLOCK, LOCKF};
use libc::c_int;
use lockwright_posix::{BadExtent, Extent, Kind, Node, NodeFile, Owner, Request, Stop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Of `flock`; libc does not have it.
const LOCK_MAND: c_int = 32;

/// An error number, or the answer.
type Answer = Result<c_int, c_int>;

fn tell(answer: Answer) -> c_int {
    answer.unwrap_or_else(|error| {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = error };
        -1
    })
}

/// The error number of a request that ended without its lock. Why the space is lost is said once, aloud.
fn number(stop: &Stop) -> c_int {
    if let Stop::Lost(why) = stop {
        complain(why);
    }
    stop.errno()
}

fn complain(why: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        eprintln!("lockwright: {why}; locks fail with ENOLCK");
    }
}

/// Does `work` with the descriptor if its file is ours, and `otherwise` if not.
///
/// Nothing in here locks files of its own: a thread that is inside already is one that a signal handler has interrupted.
fn ours(
    fd: c_int,
    work: impl FnOnce(&Process, &Node, &Descriptor) -> Answer,
    otherwise: impl FnOnce() -> c_int,
) -> c_int {
    let Some(process) = process() else { return otherwise() };
    let done = inside(|| match process.find(fd) {
        Ok(None) => None,
        Ok(Some(found)) => Some(match process.node() {
            Ok(node) => work(process, node, &found),
            Err(_) => Err(libc::ENOLCK),
        }),
        Err(why) => {
            complain(&why);
            Some(Err(libc::ENOLCK))
        }
    });
    match done {
        Some(done) => done.map_or_else(otherwise, tell),
        None if is_of_ours(fd) => tell(Err(libc::ENOLCK)),
        None => otherwise(),
    }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let real = || FCNTL.get()(fd, command, argument);
    match command {
        libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK => {
            ours(fd, |process, node, found| record(process, node, found, (fd, command, argument)), real)
        }
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK => {
            ours(fd, |process, node, found| record(process, node, found, (fd, command, argument)), real)
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, real()),
        _ => real(),
    }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: passed on. On 64-bit systems both have the same `struct flock`.
    unsafe { fcntl(fd, command, argument) }
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("struct flock has two layouts on 32-bit systems, and this library knows one");

fn record(
    process: &Process,
    node: &Node,
    found: &Descriptor,
    (fd, command, argument): (c_int, c_int, usize),
) -> Answer {
    // SAFETY: for these commands the argument is a `struct flock` of the caller's, or null.
    let asked = unsafe { (argument as *mut libc::flock).as_mut() }.ok_or(libc::EFAULT)?;
    let by_description = matches!(command, libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK);
    if by_description && asked.l_pid != 0 {
        return Err(libc::EINVAL);
    }
    let owner = match by_description {
        false => Owner::Process(u64::from(process.pid)),
        true => Owner::Description(found.description.ok_or_else(not_shared)?),
    };
    let extent = extent(fd, i32::from(asked.l_whence), asked.l_start, asked.l_len)?;
    let kind = match i32::from(asked.l_type) {
        libc::F_RDLCK => Some(Kind::Read),
        libc::F_WRLCK => Some(Kind::Write),
        libc::F_UNLCK => None,
        _ => return Err(libc::EINVAL),
    };
    let pid = process.pid;
    let file = &found.records;
    match (command, kind) {
        (libc::F_GETLK | libc::F_OFD_GETLK, None) => Err(libc::EINVAL),
        (libc::F_GETLK | libc::F_OFD_GETLK, Some(kind)) => {
            let blocker = node.test(file, &Request { owner, pid, extent, kind });
            match blocker.map_err(|stop| number(&stop))? {
                None => asked.l_type = libc::F_UNLCK as i16,
                Some(piece) => {
                    asked.l_type =
                        if piece.kind == Kind::Read { libc::F_RDLCK } else { libc::F_WRLCK } as i16;
                    asked.l_whence = libc::SEEK_SET as i16;
                    (asked.l_start, asked.l_len) = (piece.extent.start as i64, piece.extent.len());
                    asked.l_pid = piece.pid as i32;
                }
            }
            Ok(0)
        }
        (_, None) => node.unlock(file, owner, extent).map(|()| 0).map_err(|stop| number(&stop)),
        (command, Some(kind)) => {
            may(found, kind)?;
            let request = Request { owner, pid, extent, kind };
            match command {
                libc::F_SETLKW | libc::F_OFD_SETLKW => take(process, node, (fd, found), file, &request),
                _ => try_take(node, file, &request),
            }
        }
    }
}

fn take(
    process: &Process,
    node: &Node,
    (fd, found): (c_int, &Descriptor),
    file: &Arc<NodeFile>,
    request: &Request,
) -> Answer {
    let mut signals = Signals::new();
    // The first attempt in this host's memory is over sooner than signals are held back.
    if !process.is_local() {
        signals.hold();
    }
    node.lock(file, request, &mut signals).map_err(|stop| number(&stop))?;
    if process.still_has(fd, found) {
        return Ok(0);
    }
    // Closed meanwhile, by another thread or by the handler of a signal: its locks have been freed before this one.
    let _ = node.unlock(file, request.owner, request.extent);
    Err(libc::EBADF)
}

fn try_take(node: &Node, file: &NodeFile, request: &Request) -> Answer {
    node.try_lock(file, request).map(|()| 0).map_err(|stop| number(&stop))
}

/// A lock for reading needs a descriptor that reads, one for writing one that writes.
fn may(found: &Descriptor, kind: Kind) -> Result<(), c_int> {
    let refused = if kind == Kind::Read { libc::O_WRONLY } else { libc::O_RDONLY };
    if found.mode == refused { Err(libc::EBADF) } else { Ok(()) }
}

fn extent(fd: c_int, whence: c_int, start: i64, len: i64) -> Result<Extent, c_int> {
    let base = match whence {
        libc::SEEK_SET => 0,
        // SAFETY: plain system calls.
        libc::SEEK_CUR => unsafe { libc::lseek64(fd, 0, libc::SEEK_CUR) },
        libc::SEEK_END => {
            // SAFETY: the structure is plain numbers, and of our own.
            unsafe {
                let mut status: libc::stat64 = std::mem::zeroed();
                if libc::fstat64(fd, &raw mut status) != 0 {
                    return Err(libc::EBADF);
                }
                status.st_size
            }
        }
        _ => return Err(libc::EINVAL),
    };
    Extent::new(base, start, len).map_err(|bad| match bad {
        BadExtent::BeforeTheFile => libc::EINVAL,
        BadExtent::TooFar => libc::EOVERFLOW,
    })
}

/// The description is shared with a process that knows nothing of what is taken here.
fn not_shared() -> c_int {
    complain("flocks and locks of open file descriptions cannot be taken by inherited descriptors");
    libc::ENOLCK
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flock(fd: c_int, operation: c_int) -> c_int {
    let work = |process: &Process, node: &Node, found: &Descriptor| {
        let owner = Owner::Description(found.description.ok_or_else(not_shared)?);
        let kind = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => Kind::Read,
            libc::LOCK_EX => Kind::Write,
            libc::LOCK_UN => {
                let given = node.unlock(&found.flocks, owner, Extent::WHOLE);
                return given.map(|()| 0).map_err(|stop| number(&stop));
            }
            // As Linux does, which has ignored mandatory locks since 5.15.
            operation if operation & LOCK_MAND != 0 => return Ok(0),
            _ => return Err(libc::EINVAL),
        };
        let request = Request { owner, pid: process.pid, extent: Extent::WHOLE, kind };
        match operation & libc::LOCK_NB {
            0 => take(process, node, (fd, found), &found.flocks, &request),
            _ => try_take(node, &found.flocks, &request),
        }
    };
    ours(fd, work, || FLOCK.get()(fd, operation))
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn lockf64(fd: c_int, command: c_int, len: i64) -> c_int {
    let work = |process: &Process, node: &Node, found: &Descriptor| {
        let (owner, pid, kind) = (Owner::Process(u64::from(process.pid)), process.pid, Kind::Write);
        let extent = extent(fd, libc::SEEK_CUR, 0, len)?;
        let request = Request { owner, pid, extent, kind };
        match command {
            libc::F_ULOCK => {
                node.unlock(&found.records, owner, extent).map(|()| 0).map_err(|stop| number(&stop))
            }
            libc::F_LOCK => {
                may(found, kind)?;
                take(process, node, (fd, found), &found.records, &request)
            }
            libc::F_TLOCK => {
                may(found, kind)?;
                try_take(node, &found.records, &request)
            }
            libc::F_TEST => {
                // As glibc asks: readers are not in the way of a test.
                let asked = Request { kind: Kind::Read, ..request };
                match node.test(&found.records, &asked).map_err(|stop| number(&stop))? {
                    None => Ok(0),
                    Some(_) => Err(libc::EACCES),
                }
            }
            _ => Err(libc::EINVAL),
        }
    };
    ours(fd, work, || LOCKF.get()(fd, command, len))
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn lockf(fd: c_int, command: c_int, len: i64) -> c_int {
    // SAFETY: passed on; the same on 64-bit systems.
    unsafe { lockf64(fd, command, len) }
}
