//! Broken locks, one for each checker. A checker that does not catch its mutant is not a checker.
//!
//! Mutants of a protocol that differ in one rule stand with that protocol (see [`mcs::Rules`]); those here are
//! small locks of their own.

use crate::baseline::mcs::{self, Mcs};
use crate::catalog::{Checker, Mutant, Visitor};

/// MCS whose release, when somebody queued behind it, does not wait to learn who.
#[derive(Debug)]
pub struct ForgetsSuccessor;

impl mcs::Rules for ForgetsSuccessor {
    const NAME: &'static str = "mcs-forgets-successor";
    const WAITS_FOR_SUCCESSOR: bool = false;
}

/// MCS whose queued client does not wait for the handover.
#[derive(Debug)]
pub struct JumpsQueue;

impl mcs::Rules for JumpsQueue {
    const NAME: &'static str = "mcs-jumps-queue";
    const WAITS_FOR_HANDOVER: bool = false;
}

/// Shows every mutant to `visitor`.
pub fn visit(visitor: &mut impl Visitor) {
    visitor.mutant::<Mcs<ForgetsSuccessor>>(Mutant {
        of: "mcs",
        caught_by: Checker::Deadlock,
        why: "release does not wait for the Successor message (Alg. 1 line 10)",
    });
    visitor.mutant::<Mcs<JumpsQueue>>(Mutant {
        of: "mcs",
        caught_by: Checker::Exclusion,
        why: "a queued client does not wait for the handover (Alg. 1 line 5)",
    });
}
