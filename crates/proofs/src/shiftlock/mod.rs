//! Cases and mutants of ShiftLock.

mod cases;
mod mutants;
pub(crate) mod narrow;

pub use mutants::LiteralEpoch;

use crate::{Case, Proof, Visitor};
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams, layout::Wide, portable::Portable};

/// Shows the protocols and their mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<ShiftLock<Wide>>();
    visitor.protocol::<ShiftLock<Portable>>();
    mutants::visit_mutants(visitor);
}

impl Proof for ShiftLock<Wide> {
    fn cases() -> Vec<Case<ShiftParams>> {
        cases::all()
    }
}

impl Proof for ShiftLock<Portable> {
    fn cases() -> Vec<Case<ShiftParams>> {
        cases::common()
    }
}
