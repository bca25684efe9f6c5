//! The list of all protocols and mutants: one line per folder.

use crate::Proof;
use lockwright_sim::check::Checker;

/// Called with every protocol and mutant, each as its own type.
pub trait Visitor {
    /// A protocol.
    fn protocol<P: Proof>(&mut self);
    /// A variant of a shipped protocol whose words are small enough to run over: for the explorer alone.
    fn model<P: Proof>(&mut self) {}
    /// A broken protocol, and what the checkers must say of it.
    fn mutant<P: Proof>(&mut self, mutant: Mutant);
    /// A mutant so coarse that it shows in a plain run. What is wrong with the others shows only after faults, with clocks that
    /// differ, with tunables of their own or against a stated bound: they are the explorer's alone to catch.
    fn coarse_mutant<P: Proof>(&mut self, mutant: Mutant) {
        self.mutant::<P>(mutant);
    }
}

/// A deliberately broken lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The protocol it is a mutant of.
    pub of: &'static str,
    /// The checker that must catch it.
    pub caught_by: Checker,
    /// What is broken.
    pub why: &'static str,
}

/// Shows every protocol, each followed by its mutants, to `visitor`.
pub fn visit(visitor: &mut impl Visitor) {
    crate::baselines::visit(visitor);
    crate::citron::visit(visitor);
    crate::citron_member::visit(visitor);
    crate::qplock_member::visit(visitor);
    crate::shiftlock::visit(visitor);
    crate::holders::visit(visitor);
    #[cfg(target_os = "linux")]
    crate::slots::visit(visitor);
    crate::combiner::visit(visitor);
    crate::qplock::visit(visitor);
    crate::fisslock::visit(visitor);
}
