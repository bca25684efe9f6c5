//! The lab: every protocol under one roof, and the experiments that hold them against what the papers say.
//!
//! [`Experiment`]s are plans for the simulator plus [`Claim`]s about what comes out. Tables go to CSV,
//! pictures to SVG, all of it to one HTML page if wanted, and everything says whether it is simulated or measured.
//!
//! What this crate must not do: know what a protocol does. Most experiments name one as the catalog does; those that bring
//! clients of their own name its type.

mod claim;
mod context;
mod counts;
mod experiment;
pub mod experiments;
mod page;
mod plot;
mod rack;
mod table;
pub mod testbeds;
mod two_sides;
mod workload;

pub use claim::Claim;
pub use context::{Context, LabError, Run};
pub use counts::{Count, PaperCounts, count};
pub use experiment::{Experiment, Findings, run_experiment};
pub use page::{page, paper};
pub use plot::{Axis, Plot, Series, Style};
pub use table::Table;
