//! Whole systems under the explorer: servers, clients, disks and the connections between them, as one state machine.
//!
//! Protocols are explored as futures over a fabric ([`explore`](crate::explore)). The layers around them (sessions, the lock
//! table, what is on disk, leases) are state machines without I/O already, so a [`Model`] holds the shipped ones in its
//! state, and its steps are what the world can do to them: deliver a message, break a connection, kill a process, let time
//! pass. [`explore`](fn@explore) takes every step in every state; [`soak()`] takes steps at random for as long as one
//! likes, and [shrinks](shrink) a failure to the few steps that matter.
//!
//! A state is remembered by a fingerprint of 128 bits, not as a whole: two of 10^9 states have the same with a probability
//! below 10^-20.

mod fingerprint;
mod part;
mod search;
mod soak;

pub use part::Part;
pub use search::{Explored, explore, explore_case};
pub use soak::{Soaked, shrink, soak};

use crate::check::Violation;
use std::fmt::Display;
use std::hash::Hash;

/// A system: where it begins, what can happen next, and what must not.
pub trait Model {
    /// Everything that what happens next depends on, and nothing else: states with equal hashes count as one.
    type State: Clone + Hash;
    /// One thing that can happen.
    type Step: Clone + PartialEq + Display;

    /// The state in which it begins.
    fn initial(&self) -> Self::State;

    /// Appends what can happen in `state`, in an order that depends on nothing else.
    fn steps(&self, state: &Self::State, steps: &mut Vec<Self::Step>);

    /// Takes a step that is possible in `state`.
    ///
    /// # Errors
    /// What must not happen.
    fn take(&self, state: &mut Self::State, step: &Self::Step) -> Result<(), Violation>;

    /// Whether every client has done what it wanted.
    fn is_final(&self, state: &Self::State) -> bool;

    /// Whether a step helps a client to finish: faults do not. From every state a final one must be reachable by such steps.
    fn is_progress(&self, step: &Self::Step) -> bool;

    /// How long a step takes, in nanoseconds of a world with a clock: what a [`soak()`] counts as virtual time.
    fn takes_ns(&self, step: &Self::Step) -> u64 {
        let _ = step;
        0
    }

    /// By client: a number that changes whenever it is answered. A [`soak()`] watches these, if there are any.
    fn answered(&self, state: &Self::State) -> Vec<u64> {
        let _ = state;
        Vec::new()
    }

    /// How likely a step is in a [`soak()`], against the others that are possible.
    fn weight(&self, step: &Self::Step) -> u64 {
        if self.is_progress(step) { 16 } else { 1 }
    }
}

/// What was found, and the steps that lead there from the initial state.
#[derive(Clone, Debug)]
pub struct Found<T> {
    /// What must not happen.
    pub violation: Violation,
    /// Each step, the first first.
    pub trace: Vec<T>,
}

#[cfg(test)]
mod tests;
