//! Cases and mutants of the asymmetric lock.

mod cases;
mod leased;
mod mutants;

use crate::{Case, Proof, Visitor};
use lockwright_locks::qplock::{AsPrinted, Extended, InOrder, QpLock, QpParams};

/// Shows the protocols and their mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<QpLock>();
    visitor.protocol::<QpLock<AsPrinted>>();
    visitor.protocol::<QpLock<Extended>>();
    visitor.protocol::<QpLock<InOrder>>();
    mutants::visit_mutants(visitor);
    leased::visit(visitor);
}

impl Proof for QpLock {
    fn cases() -> Vec<Case<QpParams>> {
        cases::mutex()
    }
}

impl Proof for QpLock<AsPrinted> {
    fn cases() -> Vec<Case<QpParams>> {
        cases::mutex()
    }
}

impl Proof for QpLock<Extended> {
    fn cases() -> Vec<Case<QpParams>> {
        cases::extended()
    }
}

impl Proof for QpLock<InOrder> {
    fn cases() -> Vec<Case<QpParams>> {
        cases::in_order()
    }
}
