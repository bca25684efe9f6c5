//! `lockwright-lab lab`: the experiments.

use crate::expect;
use crate::names;
use crate::version;
use anyhow::{Context as _, Result, bail};
use lockwright_lab::{
    Claim, Context, Experiment, LabError, PaperCounts, count, experiments, page, run_experiment,
};
use lockwright_term::{Outcome, say};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

/// Run the papers' experiments on the simulator and hold the figures against theirs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright-lab lab list
  lockwright-lab lab run shift-sec2-3
  lockwright-lab lab run --all --quick --out figures")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the experiments
    #[command(after_help = "Examples:\n  lockwright-lab lab list\n  lockwright-lab lab list --json")]
    List {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    Run(RunArgs),
}

/// Run experiments; exits with 1 if a claim does not hold, or with --expect, if one that held does no more
///
/// Writes tables (CSV), pictures (SVG) and claims (JSON) into the folder given with --out.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright-lab lab run shift-sec2-3
  lockwright-lab lab run --all --quick --json
  lockwright-lab lab run --all --html report     one page to look at: report/index.html
  lockwright-lab lab run --all --quick --expect crates/lab/expect/quick.txt")]
struct RunArgs {
    /// Which experiments
    #[arg(value_name = "EXPERIMENT", required_unless_present = "all", conflicts_with = "all")]
    experiments: Vec<String>,
    /// All of them
    #[arg(long)]
    all: bool,
    /// Fewer points, shorter runs
    #[arg(long)]
    quick: bool,
    /// Where tables and pictures go
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// Write one page with all pictures, tables and claims: DIR/index.html
    #[arg(long, value_name = "DIR")]
    html: Option<PathBuf>,
    /// Simulations that run side by side [default: one per core]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Print the claims as JSON
    #[arg(long)]
    json: bool,
    /// Mind only claims that the file lists, as having held: a line 'EXPERIMENT CLAIM' each
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Write into that file what holds now
    #[arg(long, requires = "expect")]
    bless: bool,
}

/// An experiment as `list --json` shows it.
#[derive(Serialize)]
struct Listed {
    id: &'static str,
    title: &'static str,
    source: &'static str,
}

/// What came of all, as `run --json` shows it.
#[derive(Serialize)]
struct All<'a> {
    experiments: &'a [Done],
    papers: Vec<PaperCounts>,
}

/// What came of one experiment, as `run --json` shows it.
#[derive(Serialize)]
struct Done {
    id: &'static str,
    fabric: &'static str,
    build: &'static str,
    quick: bool,
    ok: bool,
    claims: Vec<Claim>,
    files: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    match &args.command {
        Command::List { json } => list(*json, out),
        Command::Run(args) => run_experiments(args, out),
    }
}

fn list(json: bool, out: &mut impl Write) -> Result<Outcome> {
    let all = experiments::ALL.iter();
    if json {
        let list: Vec<_> =
            all.map(|Experiment { id, title, source, .. }| Listed { id, title, source }).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
    } else {
        for Experiment { id, title, source, .. } in all {
            writeln!(out, "{id:<16} {title} ({source})")?;
        }
    }
    Ok(Outcome::Clean)
}

fn run_experiments(args: &RunArgs, out: &mut impl Write) -> Result<Outcome> {
    let chosen = choose(args)?;
    let threads = match args.jobs {
        Some(0) => bail!("--jobs is at least 1"),
        Some(jobs) => jobs,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    // What cannot be read or made is better known before the work than after it.
    let expected = match &args.expect {
        Some(path) if path.exists() || !args.bless => Some(expect::read(path)?),
        other => other.as_ref().map(|_| BTreeSet::new()),
    };
    if let Some(folder) = &args.html {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut context = Context::new(args.quick, threads);
    let (mut done, mut shown) = (Vec::new(), Vec::new());
    for experiment in chosen {
        let (findings, files) = match run_experiment(experiment, &mut context, &args.out, version()) {
            Ok(done) => done,
            // A checker's objection is a finding, not a failure to look.
            Err(error @ LabError::Failed { .. }) => {
                out.flush()?;
                say!("{}: {}", experiment.id, error.to_string().trim_end());
                return Ok(Outcome::Found);
            }
            Err(error) => return Err(error.into()),
        };
        let ok = findings.claims.iter().all(Claim::holds);
        if !args.json {
            writeln!(
                out,
                "{}: {} (simulated)\nsource: {}\n",
                experiment.id, experiment.title, experiment.source
            )?;
            for table in &findings.tables {
                writeln!(out, "{}:\n{table}", table.name)?;
            }
            for claim in &findings.claims {
                writeln!(out, "{claim}")?;
                // A miss says it already.
                if claim.holds() && !claim.note.is_empty() {
                    writeln!(out, "  note: {}", claim.note)?;
                }
            }
            for file in &files {
                writeln!(out, "wrote {}", file.display())?;
            }
            out.flush()?;
        }
        let (claims, build) = (findings.claims.clone(), version());
        if args.html.is_some() {
            shown.push((*experiment, findings));
        }
        done.push(Done {
            id: experiment.id,
            fabric: "simulated",
            build,
            quick: args.quick,
            ok,
            claims,
            files,
        });
    }
    if let Some(folder) = &args.html {
        let path = folder.join("index.html");
        std::fs::write(&path, page(&shown, version(), args.quick))
            .with_context(|| format!("cannot write {}", path.display()))?;
        if !args.json {
            writeln!(out, "wrote {}", path.display())?;
        }
    }
    let mut ok = done.iter().all(|done| done.ok);
    let papers = count(done_claims(&done));
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&All { experiments: &done, papers })?)?;
    } else {
        write_counts(&papers, out)?;
        let claims = || done.iter().flat_map(|done| &done.claims);
        let misses = claims().filter(|claim| !claim.holds()).count();
        writeln!(out, "lab: experiments={} claims={} misses={misses}", done.len(), claims().count())?;
    }
    if let Some((expected, path)) = expected.zip(args.expect.as_ref()) {
        let compared = expect::compare(&expected, done_claims(&done));
        for (experiment, claim) in &compared.lost {
            say!("{experiment} {claim}: held once, and is a MISS");
        }
        if args.bless {
            expect::bless(path, expected, &compared)?;
        } else if !compared.gained.is_empty() {
            say!("{} claims hold that {} does not list: --bless", compared.gained.len(), path.display());
        }
        ok = args.bless || compared.lost.is_empty();
    }
    Ok(Outcome::clean_if(ok))
}

fn done_claims(done: &[Done]) -> impl Iterator<Item = (&str, &[Claim])> {
    done.iter().map(|done| (done.id, &done.claims[..]))
}

/// The closing table: a line for each paper.
fn write_counts(papers: &[PaperCounts], out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "\n{:<12} {:>12} {:>12} {:>12} {:>12}",
        "claims ok", "held out", "fitted half", "given", "ours"
    )?;
    for counts in papers {
        let PaperCounts { paper, held_out, fitted, given, ours } = counts;
        writeln!(out, "{paper:<12} {held_out:>12} {fitted:>12} {given:>12} {ours:>12}")?;
    }
    writeln!(out, "given: what the testbed was fitted to, not counted; ours: not the paper's\n")?;
    Ok(())
}

fn choose(args: &RunArgs) -> Result<Vec<&'static Experiment>> {
    if args.all {
        return Ok(experiments::ALL.iter().collect());
    }
    let pick = |id: &String| {
        experiments::find(id).ok_or_else(|| {
            names::unknown("experiment", id, experiments::ALL.iter().map(|experiment| experiment.id))
        })
    };
    args.experiments.iter().map(pick).collect()
}
