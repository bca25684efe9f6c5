//! The lab's tests, in one program: it links every protocol on every fabric, and once is enough.

mod catalog;
mod experiments;
mod reports;
mod testbeds;
/// Workloads know nothing of the lab around them, so that their own tests can run here.
#[allow(dead_code, reason = "the experiments use what the tests do not")]
#[path = "../../src/workload/mod.rs"]
mod workload;
