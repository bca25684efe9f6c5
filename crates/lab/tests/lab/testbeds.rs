//! Testbeds: every experiment has one, and none is fitted on more than half of its paper.

use lockwright_lab::experiments;
use lockwright_lab::testbeds::{self, Part};

#[test]
fn every_experiment_is_a_figure_of_one_testbed() {
    for experiment in experiments::ALL {
        let homes = testbeds::ALL.iter().flat_map(|testbed| testbed.figures);
        let homes = homes.filter(|figure| figure.experiment == experiment.id).count();
        assert_eq!(homes, 1, "{} is on {homes} testbeds", experiment.id);
    }
}

#[test]
fn every_figure_of_a_testbed_is_an_experiment() {
    for figure in testbeds::ALL.iter().flat_map(|testbed| testbed.figures) {
        assert!(experiments::find(figure.experiment).is_some(), "{}", figure.experiment);
    }
}

#[test]
fn a_testbed_is_fitted_on_no_more_than_half_of_the_figures() {
    for testbed in testbeds::ALL {
        let count = |part| testbed.figures.iter().filter(|figure| figure.part == part).count();
        assert!(count(Part::Fitted) <= count(Part::HeldOut), "{}", testbed.paper);
    }
}
