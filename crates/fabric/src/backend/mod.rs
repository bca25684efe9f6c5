//! The backends: each implements [`Endpoint`](crate::Endpoint) and passes the [`conformance`](crate::conformance) suite.
//! [`Op::apply`](crate::Op::apply) defines what a verb means, for all of them.

mod cell;
mod clock;
pub mod fork;
pub mod inproc;
mod now;
mod pages;
mod prefetch;
#[cfg(all(feature = "rdma", target_os = "linux"))]
pub mod rdma;
mod run;
#[cfg(all(feature = "shm", target_os = "linux"))]
pub mod shm;
#[cfg(all(feature = "shm", target_os = "linux"))]
pub mod signals;
#[cfg(feature = "tcp")]
pub mod tcp;
mod wakers;

#[cfg(feature = "tcp")]
pub use clock::since_boot;
pub use pages::large_pages;
pub use prefetch::{prefetch, prefetch_far};
pub use run::block_on;

/// Whether this CPU has lock-free 16-byte atomics, which lock memory needs.
pub fn has_wide_atomics() -> bool {
    portable_atomic::AtomicU128::is_lock_free()
}
