//! What closes and duplicates descriptors. A file's locks go when its descriptor is gone, and stay if it is not: libc's function
//! comes first, since it may fail.
//!
//! Not here: `fcloseall`, which closes no descriptor (glibc), and what closes in a child before it runs another program.

use crate::descriptors::{Forgotten, begun, inode};
use crate::inside::{Closed, inside, write_down};
use crate::real::{
    CLOSE, CLOSE_RANGE, CLOSEDIR, CLOSEFROM, DUP, DUP2, DUP3, FCLOSE, FREOPEN, FREOPEN64, Reopen,
};
use libc::{DIR, FILE, c_char, c_int, c_uint};

/// `made` is a new descriptor of what `fd` is one of, if it is one at all.
pub(crate) fn duplicated(fd: c_int, made: c_int) -> c_int {
    if made >= 0
        && fd != made
        && let Some(process) = begun()
    {
        inside(|| {
            process.begin_anew(made);
            process.duplicate(fd, made);
        });
    }
    made
}

/// Closes a descriptor by `close`, which says whether it `is_closed` now.
fn closing<T>(fd: c_int, close: impl FnOnce() -> T, is_closed: impl FnOnce(&T) -> bool) -> T {
    let Some(process) = begun() else { return close() };
    match inside(|| process.forget(fd)) {
        Some(None) => close(),
        Some(Some(forgotten)) => {
            let done = close();
            let is_closed = is_closed(&done);
            settled(forgotten, is_closed);
            done
        }
        // A signal handler's, or our own.
        None => {
            let inode = inode(fd);
            let done = close();
            if let Some(inode) = inode.filter(|_| is_closed(&done)) {
                write_down(Some(Closed { fd, inode }));
            }
            done
        }
    }
}

fn settled(forgotten: Forgotten, is_closed: bool) {
    let Some(process) = begun() else { return };
    // SAFETY: the thread's own; it is the program's again afterwards.
    let error = unsafe { *libc::__errno_location() };
    inside(|| if is_closed { process.release(&forgotten) } else { process.restore(forgotten) });
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
}

/// What was closed while the thread was at work in here. It still is.
pub(crate) fn settle(closed: impl Iterator<Item = Closed>, and_more: bool) {
    let Some(process) = begun() else { return };
    closed.for_each(|closed| process.release_closed(closed));
    if and_more {
        process.release_all_closed();
    }
}

/// Closes the descriptors from `first` to `last` by `close`, which says whether it has.
fn closing_all(first: c_uint, last: c_uint, close: impl FnOnce() -> bool) {
    let Some(process) = begun() else {
        close();
        return;
    };
    let forget = || process.between(first, last).into_iter().filter_map(|fd| process.forget(fd)).collect();
    let forgotten: Option<Vec<_>> = inside(forget);
    let is_closed = close();
    match forgotten {
        Some(forgotten) => forgotten.into_iter().for_each(|forgotten| settled(forgotten, is_closed)),
        None => write_down(None),
    }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    // Whatever it says, a descriptor that was there is closed.
    closing(fd, || CLOSE.get()(fd), |_| true)
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(file: *mut FILE) -> c_int {
    // SAFETY: the caller's file.
    let fd = unsafe { libc::fileno(file) };
    closing(fd, || FCLOSE.get()(file), |_| true)
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(folder: *mut DIR) -> c_int {
    // SAFETY: the caller's folder.
    let fd = if folder.is_null() { -1 } else { unsafe { libc::dirfd(folder) } };
    closing(fd, || CLOSEDIR.get()(folder), |_| true)
}

fn reopen(real: Reopen, path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    // SAFETY: the caller's file.
    let fd = unsafe { libc::fileno(file) };
    // Also if what it should be now cannot be opened.
    closing(fd, || real(path, mode, file), |_| true)
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    reopen(FREOPEN.get(), path, mode, file)
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    reopen(FREOPEN64.get(), path, mode, file)
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    if flags & CLOEXEC != 0 {
        return CLOSE_RANGE.get()(first, last, flags);
    }
    let mut done = 0;
    closing_all(first, last, || {
        done = CLOSE_RANGE.get()(first, last, flags);
        done == 0
    });
    done
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    closing_all(first.max(0) as c_uint, c_uint::MAX, || {
        CLOSEFROM.get()(first);
        true
    });
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    duplicated(fd, DUP.get()(fd))
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd == to {
        return DUP2.get()(fd, to);
    }
    duplicated(fd, closing(to, || DUP2.get()(fd, to), |made| *made >= 0))
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd == to {
        return DUP3.get()(fd, to, flags);
    }
    duplicated(fd, closing(to, || DUP3.get()(fd, to, flags), |made| *made >= 0))
}
