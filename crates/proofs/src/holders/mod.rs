//! Locks with holder records, as the explorer runs them: the shipped client on records in plain memory, killed and stopped
//! between any two steps.

mod cases;
mod explored;
mod explored_ranges;
mod ledger;
mod mortal;
mod mutants;

pub use explored::{Ending, Fenced, Kept, KeptGrant, KeptParams};
pub use explored_ranges::{Believing, KeptRanges, Outside, RangeGrant};

use crate::Visitor;
use crate::shiftlock::narrow::Narrow;
use lockwright_locks::shiftlock::stirred_portable::StirredPortable;

/// Shows the protocols and their mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Kept>();
    visitor.protocol::<Kept<Fenced, StirredPortable>>();
    visitor.protocol::<Kept<Ending, Narrow>>();
    visitor.protocol::<KeptRanges>();
    mutants::visit(visitor);
}
