//! Who explores what, with a thread for each processor.
//!
//! A case of a protocol is a job of its own, so that no processor is idle while another has all the long cases of one protocol.
//! A mutant is one job: its cases are explored until one is caught. What takes longest is begun first.

use super::Args;
use super::report::{CaseReport, SubjectReport};
use anyhow::{Result, bail};
use lockwright_proofs::subject::Subject;
use lockwright_sim::explore::Options;
use lockwright_term::spinner;
use std::io::Write;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::available_parallelism;

/// Bytes of stack of a thread that explores.
const STACK: usize = 8 << 20;

/// Cases of a subject, to be explored one after the other.
struct Job {
    /// Which of all subjects.
    subject: usize,
    cases: Range<usize>,
}

/// What came of a case.
struct Done {
    case: usize,
    /// None if no crash could be added to it.
    report: Option<CaseReport>,
    /// What is printed of it.
    said: Vec<u8>,
}

/// Explores the subjects, and prints what was found in their order.
pub(super) fn explore_all(
    subjects: &[Subject],
    args: &Args,
    out: &mut impl Write,
) -> Result<Vec<SubjectReport>> {
    let jobs = jobs(subjects, args);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..available_parallelism().map_or(1, NonZero::get).min(jobs.len()) {
            let (jobs, next, tell) = (&jobs, &next, tell.clone());
            let work = move || {
                while let Some(job) = jobs.get(next.fetch_add(1, Relaxed)) {
                    if tell.send((job.subject, explore(&subjects[job.subject], &job.cases, args))).is_err() {
                        return;
                    }
                }
            };
            // As much as the main thread has: searches of futures within futures go deep.
            std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
        }
        drop(tell);
        let of = |subject: usize| jobs.iter().filter(|job| job.subject == subject).count();
        let mut left: Vec<_> = (0..subjects.len()).map(of).collect();
        let mut found: Vec<Vec<Done>> = subjects.iter().map(|_| Vec::new()).collect();
        let mut reports = Vec::new();
        for (subject, done) in told {
            found[subject].extend(done?);
            left[subject] -= 1;
            while left.get(reports.len()) == Some(&0) {
                let cases = std::mem::take(&mut found[reports.len()]);
                reports.push(show(&subjects[reports.len()], cases, args, out)?);
            }
        }
        Ok(reports)
    })
}

/// All there is to do, what takes longest first: states with servers in them take most time, and the last cases of a subject
/// tend to be the largest.
fn jobs(subjects: &[Subject], args: &Args) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (at, subject) in subjects.iter().enumerate() {
        let is_wanted = |case: &usize| args.case.as_ref().is_none_or(|it| it == subject.cases[*case].name);
        let cases = 0..subject.cases.len();
        if subject.mutant.is_some() && args.case.is_none() {
            jobs.push(Job { subject: at, cases });
        } else {
            let single = |case| Job { subject: at, cases: case..case + 1 };
            jobs.extend(cases.rev().filter(is_wanted).map(single));
        }
    }
    jobs.sort_by_key(|job| (subjects[job.subject].mutant.is_some(), !subjects[job.subject].has_servers()));
    jobs
}

/// Prints what was found about a subject.
fn show(subject: &Subject, mut cases: Vec<Done>, args: &Args, out: &mut impl Write) -> Result<SubjectReport> {
    let mut report = SubjectReport::new(subject, args.crash && !is_as_recorded(subject, args));
    cases.sort_by_key(|done| done.case);
    for Done { report: case, said, .. } in cases {
        out.write_all(&said)?;
        match case {
            Some(case) => report.add(case),
            None => report.skip(),
        }
    }
    if !args.json {
        report.print(out)?;
    }
    out.flush()?;
    Ok(report)
}

/// With --all a mutant is there to test its checker: no trace, and its cases stay as they are.
const fn is_as_recorded(subject: &Subject, args: &Args) -> bool {
    args.all && subject.mutant.is_some()
}

/// Explores cases of `subject`; those of a mutant only until one is caught.
fn explore(subject: &Subject, cases: &Range<usize>, args: &Args) -> Result<Vec<Done>> {
    let mut explored = Vec::new();
    for case in cases.clone() {
        let done = explore_case(subject, case, args)?;
        let is_caught = done.report.as_ref().is_some_and(CaseReport::is_violated);
        explored.push(done);
        if subject.mutant.is_some() && is_caught {
            break;
        }
    }
    Ok(explored)
}

fn explore_case(subject: &Subject, index: usize, args: &Args) -> Result<Done> {
    let as_recorded = is_as_recorded(subject, args);
    let (name, case, mut said) = (subject.info.name, &subject.cases[index], Vec::new());
    let crash = args.crash && !as_recorded;
    if let Some(why) = subject.refuses_crash(index).filter(|_| crash) {
        if args.case.is_some() {
            bail!("no crash can be added to case {} of {name}: {why}", case.name);
        }
        if !args.json {
            writeln!(said, "  {:<24} NOT explored with a crash: {why}", case.name)?;
        }
        return Ok(Done { case: index, report: None, said });
    }
    let bar = spinner(format!("{name} {}", case.name));
    let drawn = bar.clone();
    let mut options = Options {
        clients: args.clients.filter(|_| !as_recorded).map(usize::from),
        crash,
        loss: args.loss && !as_recorded,
        dup: args.dup && !as_recorded,
        reorder: args.reorder && !as_recorded,
        max_states: args.max_states.filter(|_| !as_recorded),
        progress: Some(Box::new(move |progress| {
            drawn.set_message(format!("{} states, depth {}", progress.states, progress.depth));
        })),
    };
    let outcome = subject.explore(index, &mut options);
    bar.finish_and_clear();
    let report = CaseReport::new(&outcome);
    if !args.json && !as_recorded {
        report.print(name, outcome.violation.as_ref(), &mut said)?;
    }
    Ok(Done { case: index, report: Some(report), said })
}
