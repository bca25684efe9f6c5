//! What users hold: handles by name, the attempt to lock, guards and how they are changed, and sets of locks.

mod acquire;
mod change;
pub(crate) mod contention;
pub(crate) mod core;
mod guard;
mod handle;
mod places;
mod semaphore;
mod set;
mod span;
mod typed;
mod value;
mod watch;

pub use acquire::{Acquire, TryAcquire};
pub use change::{DowngradeInPlace, UpgradeInPlace};
pub use contention::ContendedSignal;
pub use guard::{AnyGuard, GuardState, LostSignal, UncertainSignal, Unlock};
pub use handle::{Mutex, RangeLock, RwLock};
pub use semaphore::Semaphore;
pub use set::{AcquireSet, LockSet, SetGuard};
pub use typed::{
    Downgrade, LockGuard, MutexGuard, NotChanged, RangeReadGuard, RangeWriteGuard, ReadGuard,
    RwLockReadGuard, RwLockWriteGuard, SemaphorePermit, Upgrade, WriteGuard,
};
pub use value::{Value, ValueCall};
