//! Held locks: token, state, changes, and the way back.

#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "what C has to promise stands once, at the head of the header")]

use crate::client::{out, too_many};
use crate::handles::Table;
use crate::lock::{Timeout, range};
use crate::status::{Failure, Lost, State, Status, call};
use lockwright::AnyGuard;
use std::cell::Cell;
use std::ffi::c_void;

/// A held lock.
pub struct GuardHandle {
    _opaque: [u8; 0],
}

static GUARDS: Table<AnyGuard> = Table::new(11);

/// Called when a lock is found to be lost.
pub type LostCallback = Option<extern "C" fn(context: *mut c_void, reason: Lost)>;

/// A slot of the guards' table that this thread used last, plus one: the next lock takes it without asking others.
struct Spare(Cell<u32>);

impl Drop for Spare {
    fn drop(&mut self) {
        GUARDS.give_back(&self.0);
    }
}

thread_local! {
    static SPARE: Spare = const { Spare(Cell::new(0)) };
}

/// Keeps the guard and writes its handle to `out`.
///
/// # Safety
/// `out` is valid.
#[inline(always)]
pub(crate) unsafe fn insert(guard: AnyGuard, out: *mut *mut GuardHandle) -> Result<(), Failure> {
    let mut guard = Some(guard);
    let kept = SPARE.try_with(|spare| GUARDS.insert(guard.take().expect("just put there"), &spare.0));
    // A thread that is ending has no spare slot.
    let kept = kept.unwrap_or_else(|_| GUARDS.insert(guard.take().expect("not used"), &Cell::new(0)));
    let handle = kept.map_err(|_| too_many())?;
    // SAFETY: as the caller promises.
    unsafe { out.write(handle as *mut GuardHandle) };
    Ok(())
}

/// Unlocks. LW_LOST if the lock had been taken away before. Whatever is returned, the guard is gone, but after LW_IN_USE.
#[unsafe(no_mangle)]
pub extern "C" fn lw_guard_unlock(guard: *mut GuardHandle) -> Status {
    call(|| {
        let taken = SPARE.try_with(|spare| GUARDS.take(guard as u64, &spare.0));
        let guard = taken.unwrap_or_else(|_| GUARDS.take(guard as u64, &Cell::new(0)))?;
        Ok(guard.unlock().wait()?)
    })
}

/// The fencing token: larger than that of every earlier conflicting grant of this lock. Give it to whatever the lock
/// protects, so that it can refuse writes from the past.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_guard_token(guard: *mut GuardHandle, token: *mut u64) -> Status {
    // SAFETY: as the caller promises.
    unsafe { look(guard, token, |guard| Ok(guard.token())) }
}

/// Looks whether the lock is still held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_guard_state(guard: *mut GuardHandle, state: *mut State) -> Status {
    // SAFETY: as the caller promises.
    unsafe { look(guard, state, |guard| Ok(guard.state().into())) }
}

/// Whether others can share the lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_guard_is_shared(guard: *mut GuardHandle, shared: *mut bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { look(guard, shared, |guard| Ok(guard.is_shared())) }
}

/// The locked units of a range lock; LW_UNSUPPORTED for any other. `start` or `end` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_guard_range(guard: *mut GuardHandle, start: *mut u64, end: *mut u64) -> Status {
    call(|| {
        let none = || Failure::new(Status::LW_UNSUPPORTED, "this is no guard of a range lock");
        let range = GUARDS.with(guard as u64, AnyGuard::range)?.ok_or_else(none)?;
        for (to, bound) in [(start, range.start), (end, range.end)] {
            if !to.is_null() {
                // SAFETY: as the caller promises.
                unsafe { to.write(bound) };
            }
        }
        Ok(())
    })
}

/// Calls `lost(context, reason)` once, from a thread of the library, if the lock is found to be lost before it is unlocked.
/// It should be short, and must not close the client: set a flag, write to a pipe. It can be on its way while the guard
/// is unlocked, so `context` must stay valid a little longer: as long as the client.
#[unsafe(no_mangle)]
pub extern "C" fn lw_guard_on_lost(
    guard: *mut GuardHandle,
    lost: LostCallback,
    context: *mut c_void,
) -> Status {
    struct Context(*mut c_void);
    // SAFETY: the caller gives it to be used by another thread: that is what the function is for.
    unsafe impl Send for Context {}

    call(|| {
        let none = || Failure::new(Status::LW_BAD_ARGUMENT, "the function to be called is NULL");
        let (lost, context) = (lost.ok_or_else(none)?, Context(context));
        let act = move |reason: lockwright::LostReason| {
            let Context(context) = { context };
            lost(context, reason.into());
        };
        Ok(GUARDS.with(guard as u64, |guard| guard.on_lost(act))?)
    })
}

/// Makes a shared lock exclusive without releasing it in between. LW_WOULD_DEADLOCK if another reader already waits for
/// the same. The guard has a new token, or is as it was.
#[unsafe(no_mangle)]
pub extern "C" fn lw_guard_upgrade(guard: *mut GuardHandle, timeout_ms: i64) -> Status {
    call(|| {
        let upgrade = |guard: &mut AnyGuard| match Timeout::from_ms(timeout_ms) {
            Timeout::Forever => guard.upgrade().wait(),
            Timeout::After(patience) => guard.upgrade_timeout(patience).wait(),
            Timeout::Try => guard.try_upgrade().wait(),
        };
        Ok(GUARDS.with_mut(guard as u64, upgrade)??)
    })
}

/// Makes an exclusive lock shared without releasing it in between. The guard has a new token.
#[unsafe(no_mangle)]
pub extern "C" fn lw_guard_downgrade(guard: *mut GuardHandle) -> Status {
    call(|| Ok(GUARDS.with_mut(guard as u64, |guard| guard.downgrade().wait())??))
}

/// Gives back the units from `start` up to, and without, `end` of a range lock, and keeps the rest. If that leaves two pieces,
/// the guard is the first one, and `*rest` the second; otherwise `*rest` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_guard_unlock_part(
    guard: *mut GuardHandle,
    start: u64,
    end: u64,
    rest: *mut *mut GuardHandle,
) -> Status {
    call(|| {
        let out = out(rest)?;
        match GUARDS.with_mut(guard as u64, |guard| guard.unlock_part(range(start, end)))?? {
            // SAFETY: as the caller promises.
            Some(second) => unsafe { insert(second, out) },
            None => {
                // SAFETY: as the caller promises.
                unsafe { out.write(std::ptr::null_mut()) };
                Ok(())
            }
        }
    })
}

/// # Safety
/// `to` is NULL or valid.
unsafe fn look<T>(
    guard: *mut GuardHandle,
    to: *mut T,
    ask: impl FnOnce(&AnyGuard) -> Result<T, Failure>,
) -> Status {
    call(|| {
        let to = out(to)?;
        let answer = GUARDS.with(guard as u64, ask)??;
        // SAFETY: as the caller promises.
        unsafe { to.write(answer) };
        Ok(())
    })
}
