//! Lockwright: a distributed lock manager for networks where a round trip costs microseconds.
//!
//! Open a space, name a lock, take it:
//!
//! ```
//! use lockwright::Client;
//!
//! let client = Client::open("mem:")?;
//! let orders = client.mutex("orders/42")?;
//! let guard = orders.lock().wait()?; // in async code: .lock().await?
//! println!("alone here; writes carry token {}", guard.token());
//! guard.unlock().wait()?; // or just drop it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Client`]: an opened space. [`Mutex`], [`RwLock`], [`RangeLock`]: handles by name. [`LockSet`]: several at once.
//! - [`Acquire`]: await it on any executor, or `.wait()` without one; drop it to give up.
//! - [`Guard`]: the held lock, its [token](Guard::token) and its [state](Guard::state). It can be
//!   [upgraded](Guard::upgrade), [downgraded](Guard::downgrade), and [given back in part](Guard::unlock_part).
//! - Locks for other machines are served by the crate `lockwright-server`.
//! - [`inspect`]: who holds what, who waits, and how to break a lock.
//! - [`fenced`]: how a resource refuses writes from the past.
//!
//! What this crate must not do: see the simulator. Whoever links it compiles none of that.

mod client;
mod error;
pub mod fenced;
mod home;
#[cfg(target_os = "linux")]
pub mod inspect;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod internal;
#[cfg(target_os = "linux")]
#[allow(missing_docs, reason = "what the server sees of it is no API")]
mod lent;
mod lock;
mod name;
mod progress;
#[cfg(target_os = "linux")]
#[allow(missing_docs, reason = "what the server sees of it is no API")]
mod remote;
#[cfg(target_os = "linux")]
#[doc(hidden)]
#[allow(missing_docs, reason = "for the project's own server; its files say what is what")]
pub mod wire;

pub use client::{Client, ClientOptions};
pub use error::{ChangeError, HandleError, LockError, LostReason, OpenError, TryLockError, UnlockError};
pub use lock::{
    Acquire, AcquireSet, Downgrade, Guard, GuardState, LockSet, LostSignal, Mutex, RangeLock, RwLock,
    SetGuard, Unlock, Upgrade,
};
pub use name::{LockName, MAX_NAME_BYTES, NameError};

/// The README's code, compiled and run like any other example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The guide's code, likewise.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide.md")]
struct Guide;
