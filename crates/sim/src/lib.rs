//! Virtual time and exhaustive search: the two fabrics on which protocols are studied, and the checkers that
//! watch them there.

pub mod case;
pub mod check;
pub mod explore;
mod failure;
pub mod fault;
mod memory;
pub mod model;
mod nic;
mod plan;
mod play;
mod ranges;
mod report;
mod rng;
mod run;
mod server;
mod simulation;
mod tally;
mod world;
mod zipf;

pub use failure::{Cause, Failure, replay_line};
pub use memory::Memory;
pub use nic::NicModel;
pub use plan::Plan;
pub use play::play;
pub use ranges::{Oltp, Pattern, Ranges};
pub use report::{Kind, Latency, PerCycle, Report};
pub use rng::Rng;
pub use run::{run, run_with};
pub use server::{ServerThreads, Spread};
pub use simulation::Simulation;
pub use world::{Counters, Ended, Progress, Setup, SimEndpoint, World};
pub use zipf::Zipf;
