//! What users hold: handles by name, the attempt to lock, the guard and how it is changed, and sets of locks.

mod acquire;
mod change;
pub(crate) mod core;
mod guard;
mod handle;
mod set;

pub use acquire::Acquire;
pub use change::{Downgrade, Upgrade};
pub use guard::{Guard, GuardState, LostSignal, Unlock};
pub use handle::{Mutex, RangeLock, RwLock};
pub use set::{AcquireSet, LockSet, SetGuard};
