//! Claims: a figure a paper prints, ours beside it, and how far apart they may be. Where a paper promises something without a
//! figure, one that was expected beforehand takes its place, and is called so.

use crate::testbeds::Part;
use serde::Serialize;
use std::fmt;

/// One figure of a paper and what became of it here.
///
/// ```
/// use lockwright_lab::Claim;
/// let claim = Claim::new("fig1-ideal", 278.3, 280.0).within_percent(15.0);
/// assert_eq!(claim.to_string(), "claim fig1-ideal paper=278.3 ours=280 band=[236.6,320] ok");
/// let miss = Claim::new("fig1-ideal", 278.3, 100.0).within_percent(15.0).note("the model lacks DC");
/// assert!(!miss.holds());
/// assert!(miss.to_string().ends_with("MISS: below the band by 57.7 %; the model lacks DC"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// Its name, unique within the experiment.
    pub id: String,
    /// What the paper says, or what was expected.
    pub paper: f64,
    /// The paper does not print the figure: it was derived, explored, or is an order that the paper argues for.
    pub expected: bool,
    /// What came out here.
    pub ours: f64,
    /// Lowest and highest value that count as the same.
    pub band: (f64, f64),
    /// What is known about the difference, if anything.
    pub note: String,
    /// Where it counts.
    pub part: Part,
}

impl Claim {
    /// The paper says `paper`, we found `ours`; they must be equal until a band is set.
    pub fn new(id: &str, paper: f64, ours: f64) -> Self {
        Self {
            id: id.to_owned(),
            paper,
            expected: false,
            ours,
            band: (paper, paper),
            note: String::new(),
            part: Part::default(),
        }
    }

    /// The figure is not the paper's.
    ///
    /// ```
    /// let claim = lockwright_lab::Claim::new("share", 50.0, 50.0).expected();
    /// assert_eq!(claim.to_string(), "claim share expected=50 ours=50 band=[50,50] ok");
    /// ```
    #[must_use]
    pub fn expected(mut self) -> Self {
        self.expected = true;
        self
    }

    /// They may differ by `percent` of the paper's figure.
    #[must_use]
    pub fn within_percent(mut self, percent: f64) -> Self {
        let slack = self.paper.abs() * percent / 100.0;
        self.band = (self.paper - slack, self.paper + slack);
        self
    }

    /// One may be `factor` times the other.
    #[must_use]
    pub fn within_factor(mut self, factor: f64) -> Self {
        self.band = (self.paper / factor, self.paper * factor);
        self
    }

    /// They may differ by `points`, in the figure's own unit.
    #[must_use]
    pub fn within_points(mut self, points: f64) -> Self {
        self.band = (self.paper - points, self.paper + points);
        self
    }

    /// What is known about the difference.
    #[must_use]
    pub fn note(mut self, note: &str) -> Self {
        note.clone_into(&mut self.note);
        self
    }

    /// Whether ours lies in the band. Not a number never does.
    pub fn holds(&self) -> bool {
        self.band.0 <= self.ours && self.ours <= self.band.1
    }

    /// Why it does not hold, in a few words.
    pub(crate) fn reason(&self) -> String {
        let (edge, side) =
            if self.ours < self.band.0 { (self.band.0, "below") } else { (self.band.1, "above") };
        let mut reason = if self.ours.is_nan() {
            "no figure came out".to_owned()
        } else {
            format!("{side} the band by {:.1} %", (self.ours - edge).abs() / edge.abs() * 100.0)
        };
        if !self.note.is_empty() {
            reason = format!("{reason}; {}", self.note);
        }
        reason
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, paper, ours, band, .. } = self;
        let (paper, ours) = (short(*paper), short(*ours));
        let whose = if self.expected { "expected" } else { "paper" };
        write!(f, "claim {id} {whose}={paper} ours={ours} band=[{},{}] ", short(band.0), short(band.1))?;
        if self.part == Part::Given {
            write!(f, "given ")?;
        }
        if self.holds() { write!(f, "ok") } else { write!(f, "MISS: {}", self.reason()) }
    }
}

/// Four significant digits or so, without trailing zeros.
pub(crate) fn short(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    let digits = if value == 0.0 { 0 } else { (3 - value.abs().log10().floor() as i32).clamp(0, 6) };
    let text = format!("{value:.*}", digits as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
