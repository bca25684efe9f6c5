//! `lockwright-lab check --list`: every protocol, case and mutant, with what it is.

use anyhow::Result;
use lockwright_proofs::subject::{self, Subject};
use lockwright_term::Outcome;
use serde::Serialize;
use std::io::Write;

/// A protocol or mutant, as `--list --json` shows it.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    offers: Vec<&'static str>,
    cases: Vec<ListedCase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mutant: Option<ListedMutant>,
}

#[derive(Serialize)]
struct ListedCase {
    name: &'static str,
    what: String,
}

#[derive(Serialize)]
struct ListedMutant {
    of: &'static str,
    why: &'static str,
    caught_by: &'static str,
}

pub(super) fn run(json: bool, out: &mut impl Write) -> Result<Outcome> {
    let listed: Vec<Listed> = subject::all().iter().map(Listed::new).collect();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&listed)?)?;
        return Ok(Outcome::Clean);
    }
    let (mutants, protocols): (Vec<_>, Vec<_>) = listed.iter().partition(|listed| listed.mutant.is_some());
    writeln!(out, "Protocols and their cases:")?;
    for Listed { name, summary, source, offers, cases, .. } in &protocols {
        let offers =
            if offers.is_empty() { String::new() } else { format!("; offers {}", offers.join(", ")) };
        writeln!(out, "  {name:<16} {summary} ({source}{offers})")?;
        for ListedCase { name, what } in cases {
            writeln!(out, "    {name:<24} {what}")?;
        }
    }
    writeln!(out, "\nMutants, each with the checker that must catch it:")?;
    for Listed { name, mutant, .. } in &mutants {
        if let Some(ListedMutant { of, why, caught_by }) = mutant {
            writeln!(out, "  {name:<24} {caught_by}; of {of}: {why}")?;
        }
    }
    let cases: usize = protocols.iter().map(|listed| listed.cases.len()).sum();
    writeln!(out, "\n{} protocols, {cases} cases, {} mutants", protocols.len(), mutants.len())?;
    Ok(Outcome::Clean)
}

impl Listed {
    fn new(subject: &Subject) -> Self {
        let info = &subject.info;
        let offers = &info.offers;
        let offers = [
            (offers.shared, "shared mode"),
            (offers.ranges, "ranges"),
            (offers.tokens, "fencing tokens"),
            (offers.tries, "try"),
            (offers.timeouts, "timeouts"),
            (offers.recovery, "recovery"),
        ];
        Self {
            name: info.name,
            summary: info.summary,
            source: info.source,
            offers: offers.iter().filter(|(offered, _)| *offered).map(|(_, name)| *name).collect(),
            cases: subject
                .cases
                .iter()
                .map(|case| ListedCase { name: case.name, what: case.what.clone() })
                .collect(),
            mutant: subject.mutant.map(|mutant| ListedMutant {
                of: mutant.of,
                why: mutant.why,
                caught_by: mutant.caught_by.name(),
            }),
        }
    }
}
