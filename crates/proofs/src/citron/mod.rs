//! Cases and mutants of Citron: handshake mode, wait mode, and readers and writers.

mod cases;
mod left_behind;
mod mutants;
mod rw_cases;
mod wait_cases;

use crate::{Case, Proof, Visitor};
use lockwright_locks::citron::{Citron, CitronRw, Params};

/// Shows the protocols and their mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Citron>();
    visitor.protocol::<CitronRw>();
    mutants::visit_mutants(visitor);
    left_behind::visit(visitor);
}

impl Proof for Citron {
    fn cases() -> Vec<Case<Params>> {
        cases::cases()
    }

    fn with_recovery(case: Case<Params>) -> Case<Params> {
        cases::with_recovery(case)
    }
}

impl Proof for CitronRw {
    fn cases() -> Vec<Case<Params>> {
        rw_cases::cases()
    }

    fn with_recovery(case: Case<Params>) -> Case<Params> {
        cases::with_recovery(case)
    }
}
