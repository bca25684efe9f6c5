//! The functions that ours hide: those of the next library, which is libc.

use libc::{DIR, FILE, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A function that is looked up when it is first called.
pub(crate) struct Real<F> {
    name: *const c_char,
    found: AtomicPtr<c_void>,
    kind: std::marker::PhantomData<F>,
}

// SAFETY: the name is a constant, and the pointer is found once and for all.
unsafe impl<F> Sync for Real<F> {}

impl<F: Copy> Real<F> {
    pub(crate) const fn new(name: &'static std::ffi::CStr) -> Self {
        let found = AtomicPtr::new(std::ptr::null_mut());
        Self { name: name.as_ptr(), found, kind: std::marker::PhantomData }
    }

    /// The function.
    pub(crate) fn get(&self) -> F {
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name) };
            assert!(!found.is_null(), "libc has every function that is hidden here");
            self.found.store(found, Relaxed);
        }
        // SAFETY: F is the type of the function of that name, by the table below, and as large as a pointer.
        unsafe { transmute_copy(&found) }
    }
}

pub(crate) static FCNTL: Real<extern "C" fn(c_int, c_int, usize) -> c_int> = Real::new(c"fcntl");
pub(crate) static FLOCK: Real<extern "C" fn(c_int, c_int) -> c_int> = Real::new(c"flock");
pub(crate) static LOCKF: Real<extern "C" fn(c_int, c_int, i64) -> c_int> = Real::new(c"lockf64");
pub(crate) static CLOSE: Real<extern "C" fn(c_int) -> c_int> = Real::new(c"close");
pub(crate) static FCLOSE: Real<extern "C" fn(*mut FILE) -> c_int> = Real::new(c"fclose");
pub(crate) static DUP: Real<extern "C" fn(c_int) -> c_int> = Real::new(c"dup");
pub(crate) static DUP2: Real<extern "C" fn(c_int, c_int) -> c_int> = Real::new(c"dup2");
pub(crate) static DUP3: Real<extern "C" fn(c_int, c_int, c_int) -> c_int> = Real::new(c"dup3");
pub(crate) static CLOSE_RANGE: Real<extern "C" fn(c_uint, c_uint, c_int) -> c_int> =
    Real::new(c"close_range");
pub(crate) static CLOSEFROM: Real<extern "C" fn(c_int)> = Real::new(c"closefrom");
pub(crate) static CLOSEDIR: Real<extern "C" fn(*mut DIR) -> c_int> = Real::new(c"closedir");
pub(crate) type Reopen = extern "C" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;
pub(crate) static FREOPEN: Real<Reopen> = Real::new(c"freopen");
pub(crate) static FREOPEN64: Real<Reopen> = Real::new(c"freopen64");
