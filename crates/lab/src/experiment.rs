//! Experiments: one figure or table of a paper each, as a function from a [`Context`] to [`Findings`].
//!
//! This file conducts one and writes down what it found. What is found stands in `experiments/`.

use crate::claim::Claim;
use crate::context::{Context, LabError};
use crate::plot::Plot;
use crate::table::Table;
use crate::testbeds;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// One figure, table or paragraph of a paper, done again.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The name on the command line and of the files.
    pub id: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// Paper and place in it.
    pub source: &'static str,
    /// Does it.
    pub run: fn(&Context) -> Result<Findings, LabError>,
}

/// What an experiment found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The figures, as CSV.
    pub tables: Vec<Table>,
    /// The pictures, as SVG.
    pub plots: Vec<Plot>,
    /// The paper's figures beside ours.
    pub claims: Vec<Claim>,
}

/// The findings as one JSON document, with everything needed to read them later.
#[derive(Serialize)]
struct Record<'a> {
    experiment: &'a str,
    title: &'a str,
    source: &'a str,
    fabric: &'a str,
    testbed: &'a str,
    build: &'a str,
    quick: bool,
    claims: &'a [Claim],
}

/// Conducts `experiment` and writes `ID-TABLE.csv`, `ID-PLOT.svg` and `ID.json` into `out`. Returns what was
/// found and the files. `build` says which build of the program this is.
///
/// # Errors
/// A simulation failed, or a file could not be written.
pub fn run_experiment(
    experiment: &Experiment,
    context: &mut Context,
    out: &Path,
    build: &str,
) -> Result<(Findings, Vec<PathBuf>), LabError> {
    // A folder that cannot be made is better known before the work than after it.
    fs::create_dir_all(out).map_err(|error| LabError::Write { path: out.to_path_buf(), error })?;
    context.begin(experiment.id);
    let mut findings = (experiment.run)(context)?;
    for claim in &mut findings.claims {
        claim.part = testbeds::part_of(experiment.id, claim);
    }
    let Experiment { id, title, source, .. } = *experiment;
    let mut files = Vec::new();
    for table in &findings.tables {
        files.push((format!("{id}-{}.csv", table.name), table.csv()));
    }
    for plot in &findings.plots {
        files.push((format!("{id}-{}.svg", plot.name), plot.svg()));
    }
    let quick = context.quick();
    let testbed = testbeds::of(id).map_or("", |(testbed, _)| testbed.hardware);
    let fabric = "simulated";
    let claims = &findings.claims[..];
    let record = Record { experiment: id, title, source, fabric, testbed, build, quick, claims };
    let json = serde_json::to_string_pretty(&record).expect("claims are plain data");
    files.push((format!("{id}.json"), json + "\n"));
    let mut paths = Vec::new();
    for (name, text) in files {
        let path = out.join(name);
        fs::write(&path, text).map_err(|error| LabError::Write { path: path.clone(), error })?;
        paths.push(path);
    }
    Ok((findings, paths))
}
