//! Virtual time and exhaustive search: the two fabrics on which protocols are studied, and the checkers that
//! watch them there.

pub mod check;
pub mod explore;
mod nic;
mod plan;
mod report;

pub use nic::NicModel;
pub use plan::Plan;
pub use report::{Latency, PerCycle, Report};
