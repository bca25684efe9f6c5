//! Cases and mutants of FissLock.

mod cases;
mod mutants;

use crate::{Case, Proof, Visitor};
use lockwright_locks::fisslock::{FissLock, Params};

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<FissLock>();
    mutants::visit_mutants(visitor);
}

impl Proof for FissLock {
    fn cases() -> Vec<Case<Params>> {
        cases::all()
    }
}
