//! What opens files: a number that it returns is not what it was before, should that have been closed past libc.
//!
//! Nothing is looked at or kept of a file before it is locked. Not here: what makes descriptors of no files.

use crate::descriptors::begun;
use crate::inside::inside;
use crate::real::Real;
use libc::{FILE, c_char, c_int};
use std::ffi::CStr;

fn opened(fd: c_int) -> c_int {
    if fd >= 0
        && let Some(process) = begun()
    {
        // What a handler closes and opens while its thread is at work in here is written down as closed.
        inside(|| process.begin_anew(fd));
    }
    fd
}

const fn name(of: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(of.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with a zero"),
    }
}

/// Functions of libc that return a descriptor. Those with a variable number of arguments as in `calls`.
macro_rules! opens {
    ($($function:ident($($argument:ident: $kind:ty),*);)*) => {$(
        /// # Safety
        /// As of libc's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function($($argument: $kind),*) -> c_int {
            static REAL: Real<extern "C" fn($($kind),*) -> c_int> =
                Real::new(name(concat!(stringify!($function), "\0")));
            opened(REAL.get()($($argument),*))
        }
    )*};
}

opens! {
    open(path: *const c_char, flags: c_int, mode: usize);
    open64(path: *const c_char, flags: c_int, mode: usize);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: usize);
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: usize);
    creat(path: *const c_char, mode: usize);
    creat64(path: *const c_char, mode: usize);
    mkstemp(template: *mut c_char);
    mkstemp64(template: *mut c_char);
    mkostemp(template: *mut c_char, flags: c_int);
    mkostemp64(template: *mut c_char, flags: c_int);
    // What the first four are with `_FORTIFY_SOURCE`.
    __open_2(path: *const c_char, flags: c_int);
    __open64_2(path: *const c_char, flags: c_int);
    __openat_2(folder: c_int, path: *const c_char, flags: c_int);
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int);
}

type Open = extern "C" fn(*const c_char, *const c_char) -> *mut FILE;

fn opened_stream(file: *mut FILE) -> *mut FILE {
    if !file.is_null() {
        // SAFETY: libc has just made it.
        opened(unsafe { libc::fileno(file) });
    }
    file
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    static REAL: Real<Open> = Real::new(c"fopen");
    opened_stream(REAL.get()(path, mode))
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    static REAL: Real<Open> = Real::new(c"fopen64");
    opened_stream(REAL.get()(path, mode))
}
