//! The locks that the papers compare with, one file each.

pub mod cas;
pub mod cas_backoff;
pub mod dslr;
pub mod mcs;
pub mod rpc;
