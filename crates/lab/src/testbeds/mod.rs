//! Testbeds: for each paper the hardware that it was measured on, one description for all of its experiments.
//!
//! A description is fixed from what the paper says of its hardware, from data sheets, and from *one* baseline. Each file names
//! beforehand which half of the paper's figures it was fitted on; the other half is held out, and counted apart. A claim about
//! what was fitted is [`Part::Given`] and not counted. Nothing may differ from figure to figure.

use crate::claim::Claim;
use serde::Serialize;

pub(crate) mod citron;
pub(crate) mod combiner;
pub(crate) mod declock;
pub(crate) mod farlock;
pub(crate) mod fisslock;
pub(crate) mod qplock;
pub(crate) mod shiftlock;

/// Where a claim counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Of a figure that the testbed was not fitted on.
    #[default]
    HeldOut,
    /// Of a figure that the testbed was fitted on.
    Fitted,
    /// What the testbed was fitted to: true by construction.
    Given,
    /// Not the paper's: what we expected of our own additions.
    Ours,
}

impl Part {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 4] = [Self::HeldOut, Self::Fitted, Self::Given, Self::Ours];

    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HeldOut => "held-out",
            Self::Fitted => "fitted",
            Self::Given => "given",
            Self::Ours => "ours",
        }
    }
}

/// The experiments of one figure or table.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The experiment's id.
    pub experiment: &'static str,
    /// Whether the testbed was fitted on it.
    pub part: Part,
    /// Its claims that the testbed was fitted to.
    pub given: &'static [&'static str],
}

impl Figure {
    const fn held_out(experiment: &'static str) -> Self {
        Self { experiment, part: Part::HeldOut, given: &[] }
    }

    /// Held out, but for claims whose figures the testbed was fitted to.
    const fn held_out_but(experiment: &'static str, given: &'static [&'static str]) -> Self {
        Self { experiment, part: Part::HeldOut, given }
    }

    const fn fitted(experiment: &'static str, given: &'static [&'static str]) -> Self {
        Self { experiment, part: Part::Fitted, given }
    }

    const fn ours(experiment: &'static str) -> Self {
        Self { experiment, part: Part::Ours, given: &[] }
    }
}

/// The hardware of one paper.
#[derive(Clone, Copy, Debug)]
pub struct Testbed {
    /// The paper's short name.
    pub paper: &'static str,
    /// What it was measured on, as printed.
    pub hardware: &'static str,
    /// The baseline whose figures fixed what the paper does not say of its hardware.
    pub fitted_to: &'static str,
    /// Every experiment of the paper.
    pub figures: &'static [Figure],
}

/// Every testbed.
pub const ALL: [&Testbed; 7] = [
    &shiftlock::TESTBED,
    &citron::TESTBED,
    &combiner::TESTBED,
    &fisslock::TESTBED,
    &qplock::TESTBED,
    &declock::TESTBED,
    &farlock::TESTBED,
];

/// The testbed that `experiment` runs on, and the figure it is.
///
/// ```
/// let (testbed, figure) = lockwright_lab::testbeds::of("citron-fig7").unwrap();
/// assert_eq!((testbed.paper, figure.part.name()), ("citron", "held-out"));
/// ```
pub fn of(experiment: &str) -> Option<(&'static Testbed, &'static Figure)> {
    ALL.iter().find_map(|testbed| {
        let figure = testbed.figures.iter().find(|figure| figure.experiment == experiment)?;
        Some((*testbed, figure))
    })
}

/// Where `claim` of `experiment` counts. A figure that we expected is not the paper's, whatever figure it stands beside.
pub(crate) fn part_of(experiment: &str, claim: &Claim) -> Part {
    let figure = of(experiment).map(|(_, figure)| figure);
    match figure {
        Some(figure) if figure.given.contains(&&claim.id[..]) => Part::Given,
        _ if claim.expected || claim.id.starts_with("ours-") => Part::Ours,
        figure => figure.map_or(Part::HeldOut, |figure| figure.part),
    }
}
