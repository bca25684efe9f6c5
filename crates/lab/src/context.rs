//! What an experiment runs in: how thorough it is to be, how many simulations run side by side, and the
//! progress bar. Each simulation is single-threaded and repeats from its seed, so running several at once
//! changes no figure.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockwright_proofs::subject::{self, Tunable};
use lockwright_sim::{Cause, Failure, Plan, Report};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Why an experiment came to no result. A claim that does not hold is a result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// No protocol has that name.
    #[error("there is no protocol called {0}")]
    UnknownProtocol(String),
    /// A simulation failed.
    #[error("{run}: {failure}")]
    Failed {
        /// Which one.
        run: String,
        /// What it said.
        failure: Box<Failure>,
    },
    /// A result could not be written.
    #[error("cannot write {path}: {error}")]
    Write {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

impl LabError {
    /// A simulation with clients of an experiment's own failed. It repeats when the experiment does.
    pub(crate) fn failed(run: String, protocol: &'static str, cause: Cause, seed: u64) -> Self {
        let (replay, timeline) = ("lockwright-lab lab run".into(), "".into());
        Self::Failed { run, failure: Box::new(Failure { protocol, cause, seed, replay, timeline }) }
    }
}

/// One simulation of an experiment.
#[derive(Clone, Debug)]
pub struct Run {
    /// The protocol's name in the catalog.
    pub protocol: &'static str,
    /// What is simulated.
    pub plan: Plan,
    /// Tunables that are not at their defaults.
    pub tunables: Vec<Tunable>,
}

impl Run {
    /// `plan` with the protocol called so, as it comes.
    pub fn new(protocol: &'static str, plan: Plan) -> Self {
        Self { protocol, plan, tunables: Vec::new() }
    }
}

/// How an experiment is conducted.
#[derive(Debug)]
pub struct Context {
    quick: bool,
    threads: usize,
    id: &'static str,
}

impl Context {
    /// On `threads` threads; `quick` asks for fewer points and shorter runs.
    pub fn new(quick: bool, threads: usize) -> Self {
        Self { quick, threads: threads.max(1), id: "" }
    }

    /// Names the experiment that the progress bar speaks of.
    pub(crate) fn begin(&mut self, id: &'static str) {
        self.id = id;
    }

    /// `full`, or `quick` when that is asked for.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Whether fewer points and shorter runs are asked for.
    pub fn quick(&self) -> bool {
        self.quick
    }

    /// How many simulations run side by side.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Simulates all `runs` and returns their reports in the same order.
    ///
    /// # Errors
    /// The first run, in order, that failed.
    pub fn simulate(&self, runs: &[Run]) -> Result<Vec<Report>, LabError> {
        let subjects = runs
            .iter()
            .map(|run| {
                subject::find(run.protocol).ok_or_else(|| LabError::UnknownProtocol(run.protocol.to_owned()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let bar = progress_bar(self.id, runs.len() as u64);
        let results = side_by_side(self.threads, runs.len(), |index| {
            let result = subjects[index].simulate_tuned(&runs[index].plan, &runs[index].tunables);
            bar.inc(1);
            result
        });
        bar.finish_and_clear();
        runs.iter()
            .zip(results)
            .map(|(run, result)| {
                result.map_err(|failure| LabError::Failed {
                    run: format!("{} with {} clients", run.protocol, run.plan.clients),
                    failure: Box::new(failure),
                })
            })
            .collect()
    }
}

/// Does `work` for every number below `count`, on `threads` threads, and returns what came of it in order.
pub(crate) fn side_by_side<T: Send>(
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<_>> = Mutex::new((0..count).map(|_| None).collect());
    let one_after_the_other = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = work(index);
            results.lock().expect("no run panicked")[index] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(one_after_the_other);
        }
        one_after_the_other();
    });
    let results = results.into_inner().expect("no run panicked");
    results.into_iter().map(|result| result.expect("every run has ended")).collect()
}

/// A bar on stderr, drawn only if that is a terminal.
fn progress_bar(id: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} runs, {elapsed}")
        .expect("the template is well formed")
        .progress_chars("=> ");
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    bar.set_style(style);
    bar.set_prefix(id);
    bar.tick();
    bar
}
