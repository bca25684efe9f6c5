//! The backends that execute verbs for real.
//!
//! Each is a folder that offers an [`Endpoint`](crate::Endpoint) and instantiates the
//! [`conformance`](crate::conformance) suite. None may give a verb a meaning of its own: that is
//! [`Op::apply`](crate::Op::apply)'s.

mod cell;
mod clock;
pub mod inproc;
mod now;
mod prefetch;
mod run;
#[cfg(all(feature = "shm", target_os = "linux"))]
pub mod shm;
#[cfg(feature = "tcp")]
pub mod tcp;
mod wakers;

pub use prefetch::prefetch;
pub use run::block_on;
