//! DecLock (arXiv 2505.17641): its hardware is not in what is public beside the paper (the artifact's scripts name machines, not
//! NICs), so it stands on ShiftLock's testbed, beside ShiftLock. Nothing is fitted.

use super::{Figure, Testbed};

pub(crate) const TESTBED: Testbed = Testbed {
    paper: "declock",
    hardware: "not public; ShiftLock's testbed",
    fitted_to: "nothing",
    figures: &[Figure::held_out("declock")],
};
