//! Sets: several locks in one call, in an order that cannot deadlock.

#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "what C has to promise stands once, at the head of the header")]

use crate::client::{out, too_many};
use crate::guard::{self, GuardHandle, lw_guard_unlock};
use crate::handles::Table;
use crate::lock::{
    LOCKS, LockHandle, RANGE_LOCKS, RangeLockHandle, SEMAPHORES, SemaphoreHandle, Timeout, range,
};
use crate::status::{Failure, Status, call};
use lockwright::{LockError, LockSet};
use std::cell::Cell;
use std::ptr;
use std::time::Duration;

/// Several locks to be taken together.
pub struct SetHandle {
    _opaque: [u8; 0],
}

struct Set {
    locks: LockSet,
    len: usize,
}

static SETS: Table<Set> = Table::new(13);

/// An empty set of locks. Add locks of any space, in any order: sets take them in one order that all processes share, so they
/// never wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_set_new(set: *mut *mut SetHandle) -> Status {
    call(|| {
        let out = out(set)?;
        let made = Set { locks: LockSet::new(), len: 0 };
        let handle = SETS.insert(made, &Cell::new(0)).map_err(|_| too_many())?;
        // SAFETY: as the caller promises.
        unsafe { out.write(handle as *mut SetHandle) };
        Ok(())
    })
}

/// Frees a set. Its guards stay valid.
#[unsafe(no_mangle)]
pub extern "C" fn lw_set_free(set: *mut SetHandle) -> Status {
    call(|| Ok(SETS.remove(set as u64)?))
}

/// Adds a lock, to be taken alone.
#[unsafe(no_mangle)]
pub extern "C" fn lw_set_add(set: *mut SetHandle, lock: *mut LockHandle) -> Status {
    add(set, |locks| Ok(LOCKS.with(lock as u64, |lock| locks.write(lock))?))
}

/// Adds a lock, to be shared with other readers.
#[unsafe(no_mangle)]
pub extern "C" fn lw_set_add_shared(set: *mut SetHandle, lock: *mut LockHandle) -> Status {
    add(set, |locks| Ok(LOCKS.with(lock as u64, |lock| locks.read(lock))?))
}

/// Adds the units from `start` up to, and without, `end`, to be taken alone.
#[unsafe(no_mangle)]
pub extern "C" fn lw_set_add_range(
    set: *mut SetHandle,
    lock: *mut RangeLockHandle,
    start: u64,
    end: u64,
) -> Status {
    add(set, |locks| Ok(RANGE_LOCKS.with(lock as u64, |lock| locks.write_range(lock, range(start, end)))?))
}

/// Adds the units from `start` up to, and without, `end`, to be shared with other readers.
#[unsafe(no_mangle)]
pub extern "C" fn lw_set_add_range_shared(
    set: *mut SetHandle,
    lock: *mut RangeLockHandle,
    start: u64,
    end: u64,
) -> Status {
    add(set, |locks| Ok(RANGE_LOCKS.with(lock as u64, |lock| locks.read_range(lock, range(start, end)))?))
}

/// Adds `count` permits of a semaphore.
#[unsafe(no_mangle)]
pub extern "C" fn lw_set_add_permits(
    set: *mut SetHandle,
    semaphore: *mut SemaphoreHandle,
    count: u64,
) -> Status {
    add(set, |locks| Ok(SEMAPHORES.with(semaphore as u64, |semaphore| locks.permits(semaphore, count))??))
}

/// Takes all locks of the set, or none, and writes their guards to the array `guards`, in the order in which they were added.
/// `count` is the array's length, and must be the set's. The set stays as it is and can be taken again later. LW_DUPLICATE if a
/// lock, or a unit of a range lock, is in it twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_set_acquire(
    set: *mut SetHandle,
    timeout_ms: i64,
    guards: *mut *mut GuardHandle,
    count: usize,
) -> Status {
    call(|| {
        let out = out(guards)?;
        let (locks, len) = SETS.with(set as u64, |set| (set.locks.clone(), set.len))?;
        if len != count {
            let why = format!("there is room for {count} guards, and the set has {len} locks");
            return Err(Failure::new(Status::LW_BAD_ARGUMENT, why));
        }
        let timeout = Timeout::from_ms(timeout_ms);
        let locks = match timeout {
            Timeout::Forever => locks,
            Timeout::After(patience) => locks.timeout(patience),
            Timeout::Try => locks.timeout(Duration::ZERO),
        };
        let taken = locks.acquire().wait().map_err(|error| match (error, timeout) {
            (LockError::TimedOut, Timeout::Try) => lockwright::TryLockError::Busy.into(),
            (error, _) => Failure::from(error),
        })?;
        let mut handles = Vec::with_capacity(count);
        for guard in taken.into_guards_as_added() {
            let mut handle = ptr::null_mut();
            // SAFETY: it is a variable of this function.
            if let Err(failure) = unsafe { guard::insert(guard, &mut handle) } {
                for handle in handles {
                    let _ = lw_guard_unlock(handle);
                }
                return Err(failure);
            }
            handles.push(handle);
        }
        // SAFETY: the caller promises an array of that length.
        unsafe { ptr::copy_nonoverlapping(handles.as_ptr(), out, count) };
        Ok(())
    })
}

/// Adds one more lock to a set, which stays as it was if that fails.
fn add(set: *mut SetHandle, more: impl FnOnce(LockSet) -> Result<LockSet, Failure>) -> Status {
    call(|| {
        SETS.with_mut(set as u64, |set| {
            set.locks = more(set.locks.clone())?;
            set.len += 1;
            Ok(())
        })?
    })
}
