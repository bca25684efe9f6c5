//! What `lockwright-lab check` found: the lines for people and the document for programs.

use anyhow::Result;
use lockwright_proofs::subject::Subject;
use lockwright_sim::check::Checker;
use lockwright_sim::explore::{Found, Outcome};
use lockwright_term::units::scaled;
use serde::Serialize;
use serde_json::Value;
use std::io::Write;

/// Everything that was explored.
#[derive(Default, Serialize)]
pub(super) struct Report {
    pub(super) protocols: Vec<SubjectReport>,
    pub(super) mutants: Vec<SubjectReport>,
    /// Protocols clean, mutants caught by the right checker.
    pub(super) ok: bool,
}

/// What was found about one protocol or mutant.
#[derive(Serialize)]
pub(super) struct SubjectReport {
    name: &'static str,
    states: u64,
    transitions: u64,
    exhaustive: bool,
    /// Checkers that were not asked after the crash that was added, since the lock has no recovery.
    unchecked: Vec<&'static str>,
    pub(super) violations: usize,
    cases: Vec<CaseReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mutant: Option<MutantReport>,
}

/// What must be found about a mutant.
#[derive(Serialize)]
struct MutantReport {
    of: &'static str,
    why: &'static str,
    expected: &'static str,
}

/// What was found in one case.
#[derive(Serialize)]
pub(super) struct CaseReport {
    case: &'static str,
    states: u64,
    transitions: u64,
    depth: u32,
    exhaustive: bool,
    /// Checkers that did not look at it.
    unchecked: Vec<&'static str>,
    seconds: f64,
    violation: Option<ViolationReport>,
}

#[derive(Serialize)]
struct ViolationReport {
    checker: &'static str,
    what: String,
    trace: Value,
}

impl Report {
    pub(super) fn violations(&self) -> usize {
        self.protocols.iter().chain(&self.mutants).map(|subject| subject.violations).sum()
    }

    /// The closing line, of all or of one with its mutants.
    pub(super) fn summary(&self, of: &str, out: &mut impl Write) -> Result<()> {
        let clean = self.protocols.iter().filter(|subject| subject.violations == 0).count();
        let caught = self.mutants.iter().filter(|subject| subject.is_caught_as_expected()).count();
        let states: u64 = self.protocols.iter().chain(&self.mutants).map(|subject| subject.states).sum();
        writeln!(
            out,
            "{of}: protocols={} clean={clean} mutants={} caught={caught} states={states} {}",
            self.protocols.len(),
            self.mutants.len(),
            if self.ok { "ok" } else { "FAILED" },
        )?;
        Ok(())
    }
}

impl SubjectReport {
    /// About `subject`, if a crash `is_added` to its cases or not.
    pub(super) fn new(subject: &Subject, is_added: bool) -> Self {
        let mutant = subject.mutant.map(|mutant| MutantReport {
            of: mutant.of,
            why: mutant.why,
            expected: mutant.caught_by.name(),
        });
        let name = subject.info.name;
        Self {
            name,
            states: 0,
            transitions: 0,
            exhaustive: true,
            unchecked: unchecked(!is_added || subject.info.offers.recovery),
            violations: 0,
            cases: Vec::new(),
            mutant,
        }
    }

    /// A case was left out.
    pub(super) fn skip(&mut self) {
        self.exhaustive = false;
    }

    pub(super) fn add(&mut self, case: CaseReport) {
        self.states += case.states;
        self.transitions += case.transitions;
        self.exhaustive &= case.exhaustive;
        self.violations += usize::from(case.violation.is_some());
        self.cases.push(case);
    }

    /// The checker that objected first, and the case it did so in.
    fn caught(&self) -> Option<(&'static str, &'static str)> {
        self.cases.iter().find_map(|case| case.violation.as_ref().map(|found| (found.checker, case.case)))
    }

    pub(super) fn is_caught_as_expected(&self) -> bool {
        let expected = self.mutant.as_ref().map(|mutant| mutant.expected);
        expected.is_some() && expected == self.caught().map(|(checker, _)| checker)
    }

    /// The closing line of a protocol or mutant.
    pub(super) fn print(&self, out: &mut impl Write) -> Result<()> {
        let Self { name, states, violations, .. } = self;
        let Some(mutant) = &self.mutant else {
            let exhaustive = if self.exhaustive { "yes" } else { "no" };
            let mut unchecked = not_checked(&self.unchecked);
            if !unchecked.is_empty() {
                unchecked.push_str(": it has no recovery");
            }
            writeln!(
                out,
                "{name}: states={states} exhaustive={exhaustive} violations={violations}{unchecked}"
            )?;
            return Ok(());
        };
        let expected = mutant.expected;
        match self.caught() {
            None => writeln!(out, "mutant {name}: NOT CAUGHT, expected {expected}: {}", mutant.why)?,
            Some((checker, case)) => {
                let judgement = if checker == expected {
                    "as expected".to_owned()
                } else {
                    format!("NOT AS EXPECTED, which is {expected}")
                };
                writeln!(out, "mutant {name}: caught by {checker} in {case}, {judgement} (states={states})")?;
            }
        }
        Ok(())
    }
}

impl CaseReport {
    pub(super) fn new(outcome: &Outcome) -> Self {
        let violation = outcome.violation.as_ref().map(|found| ViolationReport {
            checker: found.violation.checker.name(),
            what: found.violation.what.clone(),
            trace: serde_json::to_value(&found.trace).unwrap_or_default(),
        });
        let Outcome { case, states, transitions, depth, exhaustive, seconds, .. } = *outcome;
        let unchecked = unchecked(outcome.checks.finish);
        Self { case, states, transitions, depth, exhaustive, unchecked, seconds, violation }
    }

    /// Whether a checker objected.
    pub(super) const fn is_violated(&self) -> bool {
        self.violation.is_some()
    }

    /// The line of a case, and the trace if something was `found`.
    pub(super) fn print(&self, name: &str, found: Option<&Found>, out: &mut impl Write) -> Result<()> {
        let Self { case, states, transitions, depth, .. } = self;
        let pace = scaled(*states as f64 / self.seconds.max(1e-9));
        let partial = if self.exhaustive || found.is_some() { "" } else { ", NOT exhaustive" };
        let unchecked = not_checked(&self.unchecked);
        writeln!(
            out,
            "  {case:<24} states={states} transitions={transitions} depth={depth} {pace} states/s{partial}{unchecked}"
        )?;
        if let Some(found) = found {
            let trace = found.trace.to_string();
            writeln!(
                out,
                "\n{name}, case {case}: VIOLATION of {}\n\n{}\n",
                found.violation,
                trace.trim_end()
            )?;
        }
        Ok(())
    }
}

/// The checkers that are asked only if all clients have to `finish`.
fn unchecked(finish: bool) -> Vec<&'static str> {
    if finish { Vec::new() } else { [Checker::Deadlock, Checker::Livelock].map(Checker::name).to_vec() }
}

/// The end of a line: which checkers were not asked, if there are any.
fn not_checked(checkers: &[&str]) -> String {
    if checkers.is_empty() { String::new() } else { format!(", {} NOT checked", checkers.join(" and ")) }
}
