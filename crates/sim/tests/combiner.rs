//! The combiner's lesser siblings through every interleaving: the thesis's format, and the interval tree without one.

use lockwright_locks::Protocol;
use lockwright_locks::combiner::{Combiner, IntervalTree, Thesis};
use lockwright_sim::explore::{Options, explore};

fn is_clean<P: Protocol>() {
    for case in P::cases() {
        let outcome = explore::<P>(&case, &mut Options::default());
        let violation = outcome.violation.map(|found| found.violation.to_string());
        assert_eq!((violation, outcome.exhaustive), (None, true), "{}, case {}", P::INFO.name, case.name);
    }
}

#[test]
fn the_thesis_s_eight_bytes_are_clean() {
    is_clean::<Thesis>();
}

#[test]
fn the_interval_tree_is_clean() {
    is_clean::<Combiner<IntervalTree>>();
}
