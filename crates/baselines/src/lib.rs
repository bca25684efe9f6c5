//! The locks that the papers compare with, one file each.

pub mod cas;
pub mod cas_backoff;
pub mod declock;
pub mod drtm;
pub mod dslr;
pub mod farlock;
pub mod filter;
pub mod lld;
pub mod mcs;
pub mod netlock;
pub mod parlock;
pub mod rma_rw;
pub mod rpc;
pub mod served;
pub mod srvlock;
pub mod ss;
