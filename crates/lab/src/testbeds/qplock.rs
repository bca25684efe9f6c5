//! The asymmetric lock: its paper prints counts of verbs and no measurements, so there is no hardware to describe and nothing
//! to fit. Its experiments count on ShiftLock's network, with the weak scope of atomics that the paper is about.

use super::{Figure, Testbed};
use lockwright_sim::NicModel;

pub(crate) const TESTBED: Testbed = Testbed {
    paper: "asymmetric",
    hardware: "none: the paper prints no measurements; ShiftLock's network",
    fitted_to: "nothing",
    figures: &[
        Figure::held_out("qplock-verbs"),
        Figure::held_out("qplock-mix"),
        Figure::held_out("qplock-fairness"),
        Figure::ours("qplock-member"),
    ],
};

/// The network.
pub(crate) fn nic() -> NicModel {
    super::shiftlock::nic()
}
