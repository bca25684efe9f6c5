//! How many claims hold, paper by paper, and apart for figures that its testbed was fitted on and figures that it was not.

use crate::claim::Claim;
use crate::testbeds::{self, Part};
use serde::Serialize;
use std::fmt;

/// Claims, and how many of them hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// How many there are.
    pub claims: usize,
    /// How many hold.
    pub ok: usize,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.claims == 0 { f.pad("-") } else { f.pad(&format!("{} of {}", self.ok, self.claims)) }
    }
}

/// One paper's claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PaperCounts {
    /// The paper's short name.
    pub paper: &'static str,
    /// Of figures that its testbed was not fitted on.
    pub held_out: Count,
    /// Of figures that it was fitted on.
    pub fitted: Count,
    /// What it was fitted to: not counted.
    pub given: Count,
    /// What we expected of our own additions: not the paper's.
    pub ours: Count,
}

impl PaperCounts {
    fn part(&mut self, part: Part) -> &mut Count {
        match part {
            Part::HeldOut => &mut self.held_out,
            Part::Fitted => &mut self.fitted,
            Part::Given => &mut self.given,
            Part::Ours => &mut self.ours,
        }
    }

    /// What counts: both halves.
    pub fn counted(&self) -> Count {
        let Self { held_out, fitted, .. } = self;
        Count { claims: held_out.claims + fitted.claims, ok: held_out.ok + fitted.ok }
    }
}

/// Counts the claims of `done`: experiments by their ids, and what they found.
///
/// ```
/// use lockwright_lab::{Claim, Count, count};
/// let found = [
///     Claim::new("a", 1.0, 1.0),
///     Claim::new("b", 1.0, 2.0),
///     Claim::new("ours-c", 1.0, 1.0),
///     Claim::new("d", 1.0, 1.0).expected(),
/// ];
/// let counts = count([("citron-fig7", &found[..])]);
/// assert_eq!((counts[0].paper, counts[0].held_out), ("citron", Count { claims: 2, ok: 1 }));
/// assert_eq!(counts[0].ours, Count { claims: 2, ok: 2 });
/// ```
pub fn count<'a>(done: impl IntoIterator<Item = (&'a str, &'a [Claim])>) -> Vec<PaperCounts> {
    let none = Count::default();
    let mut papers: Vec<_> = testbeds::ALL
        .iter()
        .map(|testbed| PaperCounts {
            paper: testbed.paper,
            held_out: none,
            fitted: none,
            given: none,
            ours: none,
        })
        .collect();
    for (experiment, claims) in done {
        let testbed = testbeds::of(experiment).map(|(testbed, _)| testbed.paper);
        let Some(counts) = papers.iter_mut().find(|counts| Some(counts.paper) == testbed) else { continue };
        for claim in claims {
            let count = counts.part(testbeds::part_of(experiment, claim));
            count.claims += 1;
            count.ok += usize::from(claim.holds());
        }
    }
    papers.retain(|counts| Part::ALL.into_iter().any(|part| counts.clone().part(part).claims > 0));
    papers
}
