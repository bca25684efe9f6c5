//! `lockwright-lab check`: drives protocols through every interleaving of their cases, and mutants into the
//! checkers that must catch them.
//!
//! This file picks what is explored and decides the verdict; [`jobs`] explores, [`list`] lists, [`report`] shows.

mod history;
mod jobs;
mod list;
mod report;

use crate::names;
use anyhow::{Result, bail};
use lockwright_proofs::subject::{self, Subject};
use lockwright_term::Outcome;
use report::{Report, SubjectReport};
use std::io::Write;

/// Explore every interleaving of a protocol's cases and report what the checkers find
///
/// Exits with 1 and a step-by-step trace if a checker objects to a protocol, or if a mutant (a deliberately broken
/// lock) is not caught by the checker that is there for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright-lab check --list                       what there is to explore
  lockwright-lab check mcs                          all cases of one protocol
  lockwright-lab check semaphore --mutants          the same, and then its mutants
  lockwright-lab check mcs --case four-clients --clients 3
  lockwright-lab check fisslock --loss --dup --reorder --max-states 2000000
  lockwright-lab check --mutant mcs-jumps-queue     watch a broken lock fail, step by step
  lockwright-lab check --history one.jsonl two.jsonl  judge what clients wrote down
  lockwright-lab check --all                        everything, as continuous integration does")]
pub(crate) struct Args {
    /// The protocol
    #[arg(conflicts_with_all = ["all", "mutant", "list"])]
    protocol: Option<String>,
    /// All protocols, then all mutants
    #[arg(long, conflicts_with_all = ["mutant", "list", "case"])]
    all: bool,
    /// Only this case
    #[arg(long, value_name = "NAME", conflicts_with = "list")]
    case: Option<String>,
    /// Name every protocol, case and mutant, and explore nothing
    #[arg(long)]
    list: bool,
    /// A broken lock: its cases, until one is caught
    #[arg(long, value_name = "NAME", conflicts_with = "list")]
    mutant: Option<String>,
    /// After the protocol, its mutants: each must be caught
    #[arg(long, requires = "protocol", conflicts_with_all = ["case", "clients", "crash", "loss", "dup", "reorder", "max_states"])]
    mutants: bool,
    /// With --mutant: exit with 1 if the lock is caught, as for a protocol
    #[arg(long, requires = "mutant")]
    expect_clean: bool,
    /// So many clients in every case, instead of the case's own number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    clients: Option<u8>,
    /// Add one crash to every case. Whether all clients finish after it is checked only if the lock has recovery
    #[arg(long)]
    crash: bool,
    /// Let one packet be lost in every case: of protocols over unreliable packets, anywhere
    #[arg(long)]
    loss: bool,
    /// Let one packet arrive twice in every case
    #[arg(long)]
    dup: bool,
    /// Let packets overtake each other in every case
    #[arg(long)]
    reorder: bool,
    /// Stop a case after so many states and say that it was not exhaustive
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_states: Option<u64>,
    /// Judge the records that real clients and servers wrote, together, and explore nothing
    ///
    /// Clients write one with `lockwright run --record FILE` or `ClientOptions::record`, servers with `lockwright serve --record
    /// FILE`
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["protocol", "all", "mutant", "list", "case"])]
    history: Vec<std::path::PathBuf>,
    /// Print one JSON document instead of lines
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    if args.list {
        return list::run(args.json, out);
    }
    if !args.history.is_empty() {
        return history::run(&args.history, args.json, out);
    }
    let (mut subjects, mutants) = choose(args)?;
    let protocols = subjects.len();
    subjects.extend(mutants);
    let mut explored = jobs::explore_all(&subjects, args, out)?;
    let mutants = explored.split_off(protocols);
    let mut report = Report { protocols: explored, mutants, ok: false };
    report.ok = report.protocols.iter().all(|subject| subject.violations == 0)
        && report.mutants.iter().all(SubjectReport::is_caught_as_expected);
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else if args.all || args.mutants {
        report.summary(args.protocol.as_deref().unwrap_or("all"), out)?;
    }
    let is_good = if args.expect_clean { report.violations() == 0 } else { report.ok };
    Ok(Outcome::clean_if(is_good))
}

/// The protocols and the mutants to explore.
fn choose(args: &Args) -> Result<(Vec<Subject>, Vec<Subject>)> {
    let (mutants, protocols): (Vec<_>, Vec<_>) =
        subject::all().into_iter().partition(|subject| subject.mutant.is_some());
    if args.all {
        return Ok((protocols, mutants));
    }
    if let Some(name) = &args.mutant {
        return Ok((Vec::new(), vec![pick("mutant", name, mutants, args)?]));
    }
    let Some(name) = &args.protocol else {
        bail!("name a protocol, or say --all, --mutant NAME or --list");
    };
    if mutants.iter().any(|mutant| mutant.info.name == name) {
        bail!("{name} is a mutant: lockwright-lab check --mutant {name}");
    }
    let is_own = |subject: &Subject| subject.mutant.is_some_and(|mutant| args.mutants && mutant.of == name);
    let own = mutants.into_iter().filter(is_own).collect();
    Ok((vec![pick("protocol", name, protocols, args)?], own))
}

/// The subject called `name`, if it has the case that is asked for.
fn pick(what: &str, name: &str, mut subjects: Vec<Subject>, args: &Args) -> Result<Subject> {
    let Some(index) = subjects.iter().position(|subject| subject.info.name == name) else {
        return Err(names::unknown(what, name, subjects.iter().map(|subject| subject.info.name)));
    };
    let subject = subjects.swap_remove(index);
    if let Some(case) = &args.case
        && subject.cases.iter().all(|known| known.name != case)
    {
        let what = format!("case of {name}");
        return Err(names::unknown(&what, case, subject.cases.iter().map(|case| case.name)));
    }
    Ok(subject)
}
