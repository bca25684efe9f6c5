//! What is proved of every lock: the cases that the explorer runs, the mutants that it must catch, and the catalog.
//!
//! A protocol joins by implementing [`Proof`] in a file of its own here, and by one line in [`catalog::visit`]. The
//! program `lockwright-lab` finds it by its name ([`subject`]).

mod baselines;
pub mod catalog;
mod citron;
pub mod citron_member;
pub mod cluster;
mod combiner;
mod fisslock;
pub mod holders;
mod member_cases;
mod mutants;
mod qplock;
pub mod qplock_member;
#[cfg(target_os = "linux")]
pub mod retained;
#[cfg(target_os = "linux")]
pub mod served;
mod shiftlock;
#[cfg(target_os = "linux")]
mod slots;
pub mod subject;

pub use baselines::cas::{Flaw, Flawed, FlawedClient, Torn};
pub use catalog::{Mutant, Visitor};
use lockwright_locks::Protocol;
pub use lockwright_sim::case::Case;
pub use lockwright_sim::check::Checker;
pub(crate) use mutants::mutants;
pub use shiftlock::LiteralEpoch;

/// A protocol that the explorer can check.
pub trait Proof: Protocol {
    /// What the explorer runs. Each promise of the protocol has a case that fails if the promise is broken.
    fn cases() -> Vec<Case<Self::Params>>;

    /// What a case becomes when it is run with a crash that it does not have by itself. For protocols whose recovery is a
    /// tunable: turns it on. The caller adds the crash.
    fn with_recovery(case: Case<Self::Params>) -> Case<Self::Params> {
        case
    }

    /// Why a crash cannot be added to `case`, if it would ask for what the protocol does not promise.
    fn refuses_crash(case: &Case<Self::Params>) -> Option<&'static str> {
        let _ = case;
        None
    }
}
