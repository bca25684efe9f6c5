//! Locks by their name, and acquiring them.

#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "what C has to promise stands once, at the head of the header")]

use crate::client::{CLIENTS, ClientHandle, out, too_many};
use crate::guard::{GuardHandle, insert};
use crate::handles::Table;
use crate::status::{Failure, Status, call};
use lockwright::{AnyGuard, Client, HandleError, LockGuard, RangeLock, RwLock, Semaphore};
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

/// A semaphore: at most so many permits are held at a time.
pub struct SemaphoreHandle {
    _opaque: [u8; 0],
}

pub(crate) static LOCKS: Table<RwLock> = Table::new(9);
pub(crate) static RANGE_LOCKS: Table<RangeLock> = Table::new(10);
pub(crate) static SEMAPHORES: Table<Semaphore> = Table::new(12);

/// The timeout of those who wait as long as it takes.
pub const LW_FOREVER: i64 = -1;

/// What a timeout in milliseconds means.
#[derive(Clone, Copy)]
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
    // SAFETY: as the caller promises.
    unsafe { create(&LOCKS, client, name, lock, |client, name| client.rwlock(name)) }
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
    let begin = |lock: &RwLock| match Timeout::from_ms(timeout_ms) {
        Timeout::Forever => Attempt::Wait(lock.write()),
        Timeout::After(patience) => Attempt::Wait(lock.write_timeout(patience)),
        Timeout::Try => Attempt::Try(lock.try_write()),
    };
    // SAFETY: as the caller promises.
    unsafe { acquire(&LOCKS, lock as u64, guard, begin) }
}

/// Takes the lock together with other readers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_lock_acquire_shared(
    lock: *mut LockHandle,
    timeout_ms: i64,
    guard: *mut *mut GuardHandle,
) -> Status {
    let begin = |lock: &RwLock| match Timeout::from_ms(timeout_ms) {
        Timeout::Forever => Attempt::Wait(lock.read()),
        Timeout::After(patience) => Attempt::Wait(lock.read_timeout(patience)),
        Timeout::Try => Attempt::Try(lock.try_read()),
    };
    // SAFETY: as the caller promises.
    unsafe { acquire(&LOCKS, lock as u64, guard, begin) }
}

/// The range lock called `name`: 1 to 255 bytes. It has nothing to do with the lock of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_range_lock_new(
    client: *mut ClientHandle,
    name: *const c_char,
    lock: *mut *mut RangeLockHandle,
) -> Status {
    // SAFETY: as the caller promises.
    unsafe { create(&RANGE_LOCKS, client, name, lock, |client, name| client.range_lock(name)) }
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
    let begin = |lock: &RangeLock| match Timeout::from_ms(timeout_ms) {
        Timeout::Forever => Attempt::Wait(lock.write(range(start, end))),
        Timeout::After(patience) => Attempt::Wait(lock.write_timeout(range(start, end), patience)),
        Timeout::Try => Attempt::Try(lock.try_write(range(start, end))),
    };
    // SAFETY: as the caller promises.
    unsafe { acquire(&RANGE_LOCKS, lock as u64, guard, begin) }
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
    let begin = |lock: &RangeLock| match Timeout::from_ms(timeout_ms) {
        Timeout::Forever => Attempt::Wait(lock.read(range(start, end))),
        Timeout::After(patience) => Attempt::Wait(lock.read_timeout(range(start, end), patience)),
        Timeout::Try => Attempt::Try(lock.try_read(range(start, end))),
    };
    // SAFETY: as the caller promises.
    unsafe { acquire(&RANGE_LOCKS, lock as u64, guard, begin) }
}

/// The semaphore called `name`, 1 to 255 bytes, with `limit` permits, 1 to 2^32. It has nothing to do with the locks of that
/// name. All who use it at a time must name the same limit: another one is refused (LW_REFUSED) when permits are acquired.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_semaphore_new(
    client: *mut ClientHandle,
    name: *const c_char,
    limit: u64,
    semaphore: *mut *mut SemaphoreHandle,
) -> Status {
    // SAFETY: as the caller promises.
    unsafe { create(&SEMAPHORES, client, name, semaphore, |client, name| client.semaphore(name, limit)) }
}

/// Frees a semaphore. Its guards stay valid, and threads that wait for it go on waiting.
#[unsafe(no_mangle)]
pub extern "C" fn lw_semaphore_free(semaphore: *mut SemaphoreHandle) -> Status {
    call(|| Ok(SEMAPHORES.remove(semaphore as u64)?))
}

/// Takes `count` permits together: first come, first served. The guard has them all, and unlocking it gives them all back; so
/// does the end of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_semaphore_acquire(
    semaphore: *mut SemaphoreHandle,
    count: u64,
    timeout_ms: i64,
    guard: *mut *mut GuardHandle,
) -> Status {
    let begin = |semaphore: &Semaphore| match Timeout::from_ms(timeout_ms) {
        Timeout::Forever => Attempt::Wait(semaphore.acquire_many(count)),
        Timeout::After(patience) => Attempt::Wait(semaphore.acquire_timeout(count, patience)),
        Timeout::Try => Attempt::Try(semaphore.try_acquire_many(count)),
    };
    // SAFETY: as the caller promises.
    unsafe { acquire(&SEMAPHORES, semaphore as u64, guard, begin) }
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

/// Makes a lock, keeps it in its table and writes its handle to `lock`.
///
/// # Safety
/// `name` and `lock` are NULL or valid.
unsafe fn create<T: Send + Sync, H>(
    table: &'static Table<T>,
    client: *mut ClientHandle,
    name: *const c_char,
    lock: *mut *mut H,
    make: impl FnOnce(&Client, &[u8]) -> Result<T, HandleError>,
) -> Status {
    call(|| {
        let none = || Failure::new(Status::LW_BAD_ARGUMENT, "the name is NULL");
        // SAFETY: as the caller promises.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }).ok_or_else(none)?;
        let out = out(lock)?;
        let made = CLIENTS.with(client as u64, |client| make(client, name.to_bytes()))??;
        let handle = table.insert(made, &Cell::new(0)).map_err(|_| too_many())?;
        // SAFETY: as the caller promises.
        unsafe { out.write(handle as *mut H) };
        Ok(())
    })
}

/// Waits for what `begin` begins with the lock behind a handle, and writes the guard's handle to `guard`.
///
/// # Safety
/// `guard` is NULL or valid.
#[inline(always)]
unsafe fn acquire<T: Send + Sync, G: LockGuard>(
    table: &'static Table<T>,
    handle: u64,
    guard: *mut *mut GuardHandle,
    begin: impl FnOnce(&T) -> Attempt<G>,
) -> Status {
    call(|| {
        let out = out(guard)?;
        // Waited for outside: a thread that waits does not keep the handle in use.
        let attempt = table.with(handle, begin)?;
        // SAFETY: as the caller promises.
        unsafe { insert(attempt.wait()?, out) }
    })
}

/// Whether it is sound, the library says.
pub(crate) fn range(start: u64, end: u64) -> Range<u64> {
    Range { start, end }
}
