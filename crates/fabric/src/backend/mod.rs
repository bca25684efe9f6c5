//! The backends that execute verbs for real.
//!
//! Each is a folder that offers an [`Endpoint`](crate::Endpoint) and instantiates the
//! [`conformance`](crate::conformance) suite. None may give a verb a meaning of its own: that is
//! [`Op::apply`](crate::Op::apply)'s.

pub mod inproc;
mod prefetch;
#[cfg(feature = "tcp")]
pub mod tcp;

pub use prefetch::prefetch;
