//! The report: one HTML page with every experiment's pictures, tables and claims, to be opened from a disk or sent by mail.
//!
//! Everything is in the one file: no scripts, nothing loaded from elsewhere.

use crate::claim::{Claim, short};
use crate::experiment::{Experiment, Findings};
use crate::plot::escaped;
use crate::table::Table;
use crate::testbeds::Part;
use std::collections::BTreeMap;

/// The page of experiments that were run by this `build`.
///
/// ```
/// use lockwright_lab::{Claim, Experiment, Findings, page};
/// let experiment = Experiment { id: "x", title: "Waits", source: "Paper §1", run: |_| Ok(Findings::default()) };
/// let findings = Findings { claims: vec![Claim::new("p99 < p50", 2.0, 1.0)], ..Findings::default() };
/// let page = page(&[(experiment, findings)], "0.1", true);
/// assert!(page.contains("MISS: below the band by 50.0 %") && page.contains("p99 &lt; p50"));
/// ```
pub fn page(done: &[(Experiment, Findings)], build: &str, quick: bool) -> String {
    let all: Vec<_> = done.iter().flat_map(|(_, findings)| &findings.claims).collect();
    let runs = if quick { "Quick runs" } else { "Full runs" };
    let mut page = String::from(HEAD);
    page += &format!(
        "<h1>The papers' experiments, simulated</h1>\n<p>{} experiments. {runs} by {}.</p>\n{}",
        done.len(),
        escaped(build),
        parts(&all)
    );
    page += &summary(done);
    for (experiment, findings) in done {
        page += &section(experiment, findings);
    }
    page + "</main>\n</body>\n</html>\n"
}

/// What the columns of claims mean, and how many of each hold. They are told apart: a claim of a figure that the simulator was fitted on
/// says less than one of a figure that it was not.
fn parts(claims: &[&Claim]) -> String {
    let line = |part: Part, what: &str| {
        let count = cell(claims, part).unwrap_or_else(|| "none".to_owned());
        format!("<li><b>{}</b>, {what}: {count} hold\n", part.name())
    };
    let given = claims.iter().filter(|claim| claim.part == Part::Given).count();
    format!(
        "<ul>\n{}{}{}<li><b>{}</b>, what the testbed was fitted to, true by construction: {given}, not counted\n</ul>\n",
        line(Part::HeldOut, "of figures that the testbed was not fitted on"),
        line(Part::Fitted, "of figures that it was fitted on"),
        line(Part::Ours, "not the paper's, expected of our own additions"),
        Part::Given.name()
    )
}

/// The parts that are counted, in the order of columns.
const COUNTED: [Part; 3] = [Part::HeldOut, Part::Fitted, Part::Ours];

/// How many of these claims' part hold; `None`: there are none.
fn cell(claims: &[&Claim], part: Part) -> Option<String> {
    let of_part = || claims.iter().filter(|claim| claim.part == part);
    let count = of_part().count();
    (count > 0).then(|| format!("{} of {count}", of_part().filter(|claim| claim.holds()).count()))
}

fn cells(claims: &[&Claim]) -> String {
    COUNTED.map(|part| format!("<td>{}", cell(claims, part).unwrap_or_default())).concat()
}

/// A line for each experiment, paper by paper.
fn summary(done: &[(Experiment, Findings)]) -> String {
    let mut papers: BTreeMap<&str, Vec<&(Experiment, Findings)>> = BTreeMap::new();
    for one in done {
        papers.entry(paper(one.0.source)).or_default().push(one);
    }
    let mut text = String::from(
        "<table class=summary>\n<thead><tr><th scope=col>experiment<th scope=col>held-out<th scope=col>fitted<th scope=col>ours</tr></thead>\n",
    );
    for (paper, experiments) in papers {
        let all: Vec<_> = experiments.iter().flat_map(|(_, findings)| &findings.claims).collect();
        text +=
            &format!("<tbody><tr class=paper><th scope=rowgroup>{}{}</tr>\n", escaped(paper), cells(&all));
        for (experiment, findings) in experiments {
            let claims: Vec<_> = findings.claims.iter().collect();
            let misses = claims.iter().any(|claim| COUNTED.contains(&claim.part) && !claim.holds());
            let (id, title) = (escaped(experiment.id), escaped(experiment.title));
            text += &format!(
                "<tr{}><th scope=row><a href=\"#{id}\">{id}</a> {title}{}</tr>\n",
                if misses { " class=miss" } else { "" },
                cells(&claims)
            );
        }
        text += "</tbody>\n";
    }
    text + "</table>\n"
}

/// The paper's name in a source: what is before the section, figure or table.
pub fn paper(source: &str) -> &str {
    let source = source.strip_prefix("ours; ").unwrap_or(source);
    let ends = [" §", " Fig.", " Table"].iter().filter_map(|mark| source.find(mark));
    source[..ends.min().unwrap_or(source.len())].trim_end_matches(',')
}

fn section(experiment: &Experiment, findings: &Findings) -> String {
    let Experiment { id, title, source, .. } = experiment;
    let mut text =
        format!("<section id=\"{id}\">\n<h2>{}</h2>\n<p>{} · {id}</p>\n", escaped(title), escaped(source));
    for plot in &findings.plots {
        text +=
            &format!("<figure role=img aria-label=\"{}\">\n{}</figure>\n", escaped(&plot.title), plot.svg());
    }
    if !findings.claims.is_empty() {
        text += "<table>\n<thead><tr><th scope=col>claim<th scope=col>counts as<th scope=col>paper<th scope=col>here<th scope=col>band<th scope=col>verdict</tr></thead>\n<tbody>\n";
        findings.claims.iter().for_each(|claim| text += &row(claim));
        text += "</tbody>\n</table>\n";
    }
    for table in &findings.tables {
        text += &format!(
            "<details>\n<summary>{}</summary>\n{}</details>\n",
            escaped(&table.name),
            figures(table)
        );
    }
    text + "</section>\n"
}

fn row(claim: &Claim) -> String {
    let verdict = if claim.holds() {
        let note = if claim.note.is_empty() { String::new() } else { format!("; {}", claim.note) };
        format!("ok{note}")
    } else {
        format!("MISS: {}", claim.reason())
    };
    format!(
        "<tr{}><th scope=row>{}<td>{}<td>{}{}<td>{}<td>{} to {}<td>{}</tr>\n",
        if claim.holds() { "" } else { " class=miss" },
        escaped(&claim.id),
        claim.part.name(),
        short(claim.paper),
        if claim.expected { " (expected)" } else { "" },
        short(claim.ours),
        short(claim.band.0),
        short(claim.band.1),
        escaped(&verdict)
    )
}

fn figures(table: &Table) -> String {
    let cells = |tag: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(|row| cells("td", row)).collect();
    format!(
        "<table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n",
        cells("th scope=col", &table.header)
    )
}

const HEAD: &str = r#"<!DOCTYPE html>
<html lang=en>
<head>
<meta charset=utf-8>
<meta name=viewport content="width=device-width, initial-scale=1">
<meta http-equiv=Content-Security-Policy content="default-src 'none'; style-src 'unsafe-inline'">
<title>Lockwright: the papers' experiments</title>
<style>
:root { color-scheme: light dark; --line: #8884; --miss: #c60; }
body { font: 16px/1.45 system-ui, sans-serif; margin: 0; }
main { max-width: 62rem; margin: auto; padding: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
tbody th { font-weight: normal; }
.paper th, .paper td { font-weight: bold; padding-top: 1rem; }
.miss td:last-child { color: var(--miss); font-weight: bold; }
figure { margin: 1rem 0; background: white; border-radius: 6px; }
figure svg { width: 100%; height: auto; }
section { border-top: 2px solid var(--line); margin-top: 2rem; }
summary { cursor: pointer; }
</style>
</head>
<body>
<main>
"#;
