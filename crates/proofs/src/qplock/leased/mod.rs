//! Cases and mutants of the asymmetric lock with leases.

mod cases;
mod mutants;

use crate::{Case, Proof, Visitor};
use lockwright_locks::qplock::leased::{Leased, LeasedParams};

/// Shows the protocol and its mutants to `visitor`.
pub(super) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Leased>();
    mutants::visit_mutants(visitor);
}

impl Proof for Leased {
    fn cases() -> Vec<Case<LeasedParams>> {
        cases::all()
    }
}
