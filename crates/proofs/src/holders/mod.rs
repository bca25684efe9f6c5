//! Locks with holder records, as the explorer runs them: the shipped client, table and writer on records in plain memory,
//! killed and stopped between any two steps.
//!
//! | file | |
//! |---|---|
//! | `evictable` | a fabric whose clients can be evicted |
//! | `memory` | the holder table in the explorer's memory |
//! | `explored`, `cases` | keyed locks |
//! | `change_cases` | keyed locks that are upgraded and downgraded |
//! | `direct` | keyed locks that are taken and given back without a future |
//! | `explored_ranges` | ranges |
//! | `indexed` | ranges that are found by an index |
//! | `joined` | clients that come and go |
//! | `observed` | records that are read while they are written |
//! | `mutants` | what must be caught |

mod cases;
mod change_cases;
mod direct;
mod evictable;
mod explored;
mod explored_ranges;
mod indexed;
mod joined;
pub(crate) mod memory;
mod mutants;
mod observed;

pub use explored::{Ending, Fenced, HolderParams, Holders, KeyedGrant};
pub use explored_ranges::{
    HolderRanges, JudgedOutside, LooksFirst, Outside, PermitsOutside, RangeGrant, SplitOutside,
    StaysInTheWay, Unconfirmed,
};

use crate::Visitor;
use crate::shiftlock::narrow::Narrow;
use lockwright_locks::shiftlock::versioned_portable::VersionedPortable;

/// Shows the protocols and their mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Holders>();
    visitor.protocol::<Holders<Fenced, VersionedPortable>>();
    visitor.model::<Holders<Ending, Narrow>>();
    visitor.protocol::<HolderRanges>();
    direct::visit(visitor);
    indexed::visit(visitor);
    joined::visit(visitor);
    mutants::visit(visitor);
}
