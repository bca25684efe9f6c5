//! The C interface: `liblockwright` and `lockwright.h`.
//!
//! Thin: every function checks what C gave it, does one thing of the library `lockwright`, and turns the outcome into an
//! `lw_status`. Values stay on this side, behind handles that cannot dangle (`handles.rs`). The header is made of these files
//! by cbindgen; their comments are its documentation, so they are written for people who read C.

mod client;
mod guard;
mod handles;
mod lock;
mod set;
mod status;

pub use client::{ClientHandle, Options, lw_client_close, lw_client_settle, lw_open};
pub use guard::{
    GuardHandle, LostCallback, lw_guard_downgrade, lw_guard_is_shared, lw_guard_on_lost, lw_guard_range,
    lw_guard_state, lw_guard_token, lw_guard_unlock, lw_guard_unlock_part, lw_guard_upgrade,
};
pub use lock::{
    LW_FOREVER, LockHandle, RangeLockHandle, SemaphoreHandle, lw_lock_acquire, lw_lock_acquire_shared,
    lw_lock_free, lw_lock_new, lw_range_lock_acquire, lw_range_lock_acquire_shared, lw_range_lock_free,
    lw_range_lock_new, lw_semaphore_acquire, lw_semaphore_free, lw_semaphore_new,
};
pub use set::{
    SetHandle, lw_set_acquire, lw_set_add, lw_set_add_permits, lw_set_add_range, lw_set_add_range_shared,
    lw_set_add_shared, lw_set_free, lw_set_new,
};
pub use status::{Lost, State, Status, lw_last_error, lw_version};
