//! Locks by their name, and acquiring them.

#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "what C has to promise stands once, at the head of the header")]

use crate::client::{CLIENTS, ClientHandle, out, too_many};
use crate::guard::{GuardHandle, insert};
use crate::handles::Table;
use crate::status::{Failure, Status, call};
use lockwright::{AnyGuard, LockGuard, RangeLock, RwLock};
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::time::Duration;

/// A lock that one writer or many readers have: a mutex, for those who only ever write.
pub struct LockHandle {
    _opaque: [u8; 0],
}

/// A lock on ranges of units (bytes, blocks, rows).
pub struct RangeLockHandle {
    _opaque: [u8; 0],
}

static LOCKS: Table<RwLock> = Table::new(9);
static RANGE_LOCKS: Table<RangeLock> = Table::new(10);

/// The timeout of those who wait as long as it takes.
pub const LW_FOREVER: i64 = -1;

/// What a timeout in milliseconds means.
pub(crate) enum Timeout {
    Forever,
    Try,
    After(Duration),
}

impl Timeout {
    #[inline(always)]
    pub(crate) fn from_ms(ms: i64) -> Self {
        match u64::try_from(ms) {
            Ok(0) => Self::Try,
            Ok(ms) => Self::After(Duration::from_millis(ms)),
            Err(_) => Self::Forever,
        }
    }
}

/// The lock called `name`: 1 to 255 bytes. Looks the name up once; keep the lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_lock_new(
    client: *mut ClientHandle,
    name: *const c_char,
    lock: *mut *mut LockHandle,
) -> Status {
    call(|| {
        // SAFETY: as the caller promises.
        let (name, out) = (unsafe { bytes(name)? }, out(lock)?);
        let lock = CLIENTS.with(client as u64, |client| client.rwlock(name))??;
        let handle = LOCKS.insert(lock, &Cell::new(0)).map_err(|_| too_many())?;
        // SAFETY: as the caller promises.
        unsafe { out.write(handle as *mut LockHandle) };
        Ok(())
    })
}

/// Frees a lock. Its guards stay valid, and threads that wait for it go on waiting.
#[unsafe(no_mangle)]
pub extern "C" fn lw_lock_free(lock: *mut LockHandle) -> Status {
    call(|| Ok(LOCKS.remove(lock as u64)?))
}

/// Takes the lock alone. Not re-entrant: who holds it already waits for itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_lock_acquire(
    lock: *mut LockHandle,
    timeout_ms: i64,
    guard: *mut *mut GuardHandle,
) -> Status {
    call(|| {
        let out = out(guard)?;
        let acquire = |lock: &RwLock| match Timeout::from_ms(timeout_ms) {
            Timeout::Forever => Attempt::Wait(lock.write()),
            Timeout::After(patience) => Attempt::Wait(lock.write_timeout(patience)),
            Timeout::Try => Attempt::Try(lock.try_write()),
        };
        // Waited for outside: a thread that waits does not keep the handle in use.
        let attempt = LOCKS.with(lock as u64, acquire)?;
        // SAFETY: as the caller promises.
        unsafe { insert(attempt.wait()?, out) }
    })
}

/// Takes the lock together with other readers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_lock_acquire_shared(
    lock: *mut LockHandle,
    timeout_ms: i64,
    guard: *mut *mut GuardHandle,
) -> Status {
    call(|| {
        let out = out(guard)?;
        let acquire = |lock: &RwLock| match Timeout::from_ms(timeout_ms) {
            Timeout::Forever => Attempt::Wait(lock.read()),
            Timeout::After(patience) => Attempt::Wait(lock.read_timeout(patience)),
            Timeout::Try => Attempt::Try(lock.try_read()),
        };
        let attempt = LOCKS.with(lock as u64, acquire)?;
        // SAFETY: as the caller promises.
        unsafe { insert(attempt.wait()?, out) }
    })
}

/// The range lock called `name`: 1 to 255 bytes. It has nothing to do with the lock of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_range_lock_new(
    client: *mut ClientHandle,
    name: *const c_char,
    lock: *mut *mut RangeLockHandle,
) -> Status {
    call(|| {
        // SAFETY: as the caller promises.
        let (name, out) = (unsafe { bytes(name)? }, out(lock)?);
        let lock = CLIENTS.with(client as u64, |client| client.range_lock(name))??;
        let handle = RANGE_LOCKS.insert(lock, &Cell::new(0)).map_err(|_| too_many())?;
        // SAFETY: as the caller promises.
        unsafe { out.write(handle as *mut RangeLockHandle) };
        Ok(())
    })
}

/// Frees a range lock. Its guards stay valid, and threads that wait for it go on waiting.
#[unsafe(no_mangle)]
pub extern "C" fn lw_range_lock_free(lock: *mut RangeLockHandle) -> Status {
    call(|| Ok(RANGE_LOCKS.remove(lock as u64)?))
}

/// Takes the units from `start` up to, and without, `end` alone. Ranges that do not overlap never wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_range_lock_acquire(
    lock: *mut RangeLockHandle,
    start: u64,
    end: u64,
    timeout_ms: i64,
    guard: *mut *mut GuardHandle,
) -> Status {
    call(|| {
        let (range, out) = (range(start, end), out(guard)?);
        let acquire = |lock: &RangeLock| match Timeout::from_ms(timeout_ms) {
            Timeout::Forever => Attempt::Wait(lock.write(range)),
            Timeout::After(patience) => Attempt::Wait(lock.write_timeout(range, patience)),
            Timeout::Try => Attempt::Try(lock.try_write(range)),
        };
        let attempt = RANGE_LOCKS.with(lock as u64, acquire)?;
        // SAFETY: as the caller promises.
        unsafe { insert(attempt.wait()?, out) }
    })
}

/// Takes the units from `start` up to, and without, `end` together with other readers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_range_lock_acquire_shared(
    lock: *mut RangeLockHandle,
    start: u64,
    end: u64,
    timeout_ms: i64,
    guard: *mut *mut GuardHandle,
) -> Status {
    call(|| {
        let (range, out) = (range(start, end), out(guard)?);
        let acquire = |lock: &RangeLock| match Timeout::from_ms(timeout_ms) {
            Timeout::Forever => Attempt::Wait(lock.read(range)),
            Timeout::After(patience) => Attempt::Wait(lock.read_timeout(range, patience)),
            Timeout::Try => Attempt::Try(lock.try_read(range)),
        };
        let attempt = RANGE_LOCKS.with(lock as u64, acquire)?;
        // SAFETY: as the caller promises.
        unsafe { insert(attempt.wait()?, out) }
    })
}

/// A lock that is about to be acquired.
enum Attempt<G: LockGuard> {
    Wait(lockwright::Acquire<G>),
    Try(lockwright::TryAcquire<G>),
}

impl<G: LockGuard> Attempt<G> {
    #[inline(always)]
    fn wait(self) -> Result<AnyGuard, Failure> {
        match self {
            Self::Wait(acquire) => Ok(acquire.wait()?.into_any()),
            Self::Try(acquire) => Ok(acquire.wait()?.into_any()),
        }
    }
}

/// Whether it is sound, the library says.
pub(crate) fn range(start: u64, end: u64) -> Range<u64> {
    Range { start, end }
}

/// # Safety
/// `name` is NULL or ends with a NUL byte.
unsafe fn bytes<'a>(name: *const c_char) -> Result<&'a [u8], Failure> {
    if name.is_null() {
        return Err(Failure::new(Status::LW_BAD_ARGUMENT, "the name is NULL"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { CStr::from_ptr(name) }.to_bytes())
}
