//! Who has to notice a change: the tests of its package, then of the packages that use it, then the explorer.
//!
//! They are asked in the order of [`ROWS`], the quickest first, and the first that notices is the last that is asked.
//! Every judge has to be content with the code as it is before it judges a change.

use super::tree::{Tree, limited};
use crate::names::EXPLORER;
use std::process::Output;
use std::time::{Duration, Instant};

/// Files, and who has to notice that one of them was changed.
pub(super) struct Row {
    pub(super) files: &'static str,
    judges: &'static [Judge],
}

/// One of those who have to notice.
enum Judge {
    /// The tests of a package.
    Tests(&'static str),
    /// Cases of the explorer, each up to so many states.
    Explorer(&'static [&'static str], u64),
}

use Judge::{Explorer, Tests};

const LOCKS: &str = "lockwright-locks";
const PROOFS: &str = "lockwright-proofs";
const FABRIC: &str = "lockwright-fabric";
const SERVER: &str = "lockwright-server";
const CLIENT: &str = "lockwright";
const CLUSTER: &str = "lockwright-cluster";

/// States of a case of a protocol: all of most of them, in a second each.
const STATES: u64 = 400_000;
/// States of a case with a server in it, which are slower.
const SERVED: u64 = 40_000;
/// States of a case of a cluster, in between.
const CLUSTERED: u64 = 150_000;

const fn row(files: &'static str, judges: &'static [Judge]) -> Row {
    Row { files, judges }
}

/// All that is changed.
pub(super) const ROWS: [Row; 17] = [
    row("crates/fabric/src/backend/tcp/**", &[Tests(FABRIC), Tests(SERVER)]),
    row(
        "crates/fabric/src/backend/shm/**",
        &[Tests(FABRIC), Explorer(&["shm-slots"], STATES), Tests(CLIENT)],
    ),
    row("crates/server/src/**", &[Tests(SERVER), Explorer(&["served", "retained"], SERVED)]),
    row("crates/lockwright/src/lock/**", &[Tests(CLIENT), Tests(SERVER)]),
    row("crates/lockwright/src/backend/**", &[Tests(CLIENT), Tests(SERVER)]),
    row(
        "crates/lockwright/src/remote/**",
        &[Tests(CLIENT), Tests(SERVER), Explorer(&["served", "retained"], SERVED)],
    ),
    row("crates/lockwright/src/client/**", &[Tests(CLIENT), Tests(SERVER)]),
    row("crates/lockwright/src/client.rs", &[Tests(CLIENT), Tests(SERVER)]),
    row("crates/lockwright/src/one_sided/**", &[Tests(CLIENT), Tests(SERVER)]),
    row(
        "crates/lockwright/src/wire/**",
        &[Tests(CLIENT), Tests(SERVER), Explorer(&["served", "retained"], SERVED)],
    ),
    row("crates/cluster/src/**", &[Tests(CLUSTER), Explorer(&["cluster"], CLUSTERED), Tests(SERVER)]),
    row(
        "crates/locks/src/combiner/**",
        &[
            Tests(LOCKS),
            Tests(SERVER),
            Explorer(&["combiner", "combiner-poll-rpc", "combiner-poll-flag"], STATES),
            Tests(PROOFS),
        ],
    ),
    row(
        "crates/locks/src/holders/**",
        &[
            Tests(LOCKS),
            Tests(CLIENT),
            Explorer(
                &[
                    "holders",
                    "holders-direct",
                    "holders-portable",
                    "holders-narrow",
                    "holders-ranges",
                    "holders-joined",
                ],
                STATES,
            ),
        ],
    ),
    row(
        "crates/locks/src/shiftlock/**",
        &[
            Tests(LOCKS),
            Explorer(&["shiftlock", "shiftlock-portable", "holders", "holders-direct"], STATES),
            Tests(PROOFS),
        ],
    ),
    row(
        "crates/locks/src/citron/**",
        &[Tests(LOCKS), Explorer(&["citron", "citron-rw", "citron-member"], STATES), Tests(PROOFS)],
    ),
    row(
        "crates/locks/src/qplock/**",
        &[
            Tests(LOCKS),
            Explorer(&["qplock", "qplock-rw", "qplock-fifo", "qplock-leased", "qplock-printed"], STATES),
            Tests(PROOFS),
        ],
    ),
    row("crates/locks/src/fisslock/**", &[Tests(LOCKS), Explorer(&["fisslock"], STATES), Tests(PROOFS)]),
];

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// By whom.
    Caught(String),
    Survived,
    /// It does not compile.
    Unviable,
    /// Why.
    Unjudged(String),
}

impl Fate {
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Caught(_) => "caught",
            Self::Survived => "SURVIVED",
            Self::Unviable => "unviable",
            Self::Unjudged(_) => "unjudged",
        }
    }

    pub(super) fn why(&self) -> String {
        match self {
            Self::Caught(why) | Self::Unjudged(why) => format!("  [{why}]"),
            Self::Survived | Self::Unviable => String::new(),
        }
    }
}

/// Seconds for a build and the tests after it, and for a build alone. Each test has a limit of its own (`.config/nextest.toml`):
/// this one is for a busy machine, and a run that meets it has judged nothing.
const TESTS_SECONDS: u64 = 3_000;
const BUILD_SECONDS: u64 = 2_400;
/// The explorer may take so many times as long as for the code as it is, and some seconds.
const EXPLORER_FACTOR: u32 = 8;
const EXPLORER_SECONDS: u64 = 120;

/// The judges, and how long each case of the explorer has taken when nothing was changed.
pub(super) struct Judges<'a> {
    tree: &'a Tree,
    explored: Vec<(&'static str, Duration)>,
    /// Packages whose tests have passed when nothing was changed.
    passed: Vec<&'static str>,
}

impl<'a> Judges<'a> {
    pub(super) const fn new(tree: &'a Tree) -> Self {
        Self { tree, explored: Vec::new(), passed: Vec::new() }
    }

    /// Asks the judges of a row about the code as it is. A test that fails is given a second chance: machines are busy.
    pub(super) fn warm(&mut self, row: usize) -> Result<(), String> {
        for judge in ROWS[row].judges {
            match judge {
                Tests(package) if !self.passed.contains(package) => {
                    let start = Instant::now();
                    let fate = match self.tests(package)? {
                        Some(Fate::Caught(_)) => self.tests(package)?,
                        other => other,
                    };
                    if let Some(fate) = fate {
                        return Err(format!("{package} without a change: {}{}", fate.word(), fate.why()));
                    }
                    println!("without a change: {package} passes, {} s", start.elapsed().as_secs());
                    self.passed.push(package);
                }
                Tests(_) => {}
                Explorer(subjects, states) => self.warm_explorer(subjects, *states)?,
            }
        }
        Ok(())
    }

    fn warm_explorer(&mut self, subjects: &'static [&'static str], states: u64) -> Result<(), String> {
        for subject in subjects {
            if self.explored.iter().any(|(known, _)| known == subject) {
                continue;
            }
            if let Some(fate) = self.build_explorer()? {
                return Err(format!("the explorer without a change: {}{}", fate.word(), fate.why()));
            }
            let start = Instant::now();
            if let Some(fate) = self.explore(subject, states, 3_600)? {
                return Err(format!("{subject} without a change: {}{}", fate.word(), fate.why()));
            }
            println!("without a change: {subject} is clean, {} s", start.elapsed().as_secs());
            self.explored.push((subject, start.elapsed()));
        }
        Ok(())
    }

    /// Asks the judges of a row, one after the other, about the code as it is now.
    pub(super) fn judge(&self, row: usize) -> Result<Fate, String> {
        for judge in ROWS[row].judges {
            let fate = match judge {
                Tests(package) => self.tests(package)?,
                Explorer(subjects, states) => self.ask_explorer(subjects, *states)?,
            };
            if let Some(fate) = fate {
                return Ok(fate);
            }
        }
        Ok(Fate::Survived)
    }

    /// `None` if the tests pass.
    fn tests(&self, package: &str) -> Result<Option<Fate>, String> {
        let args = ["nextest", "run", "--profile", "mutants", "--no-tests=pass", "--color", "never"];
        let mut tests = self.tree.cargo(TESTS_SECONDS, &args);
        tests.args(["--package", package, "--target-dir"]).arg(self.tree.build_folder());
        let output = tests.output().map_err(|error| error.to_string())?;
        Ok(match output.status.code() {
            Some(0) => None,
            Some(100) => Some(Fate::Caught(failed_test(&output))),
            Some(101) => Some(Fate::Unviable),
            Some(124 | 137) => Some(Fate::Unjudged("building or testing took too long".to_owned())),
            _ => {
                return Err(format!(
                    "the tests of {package} ended with {}: {}",
                    output.status,
                    last_line(&output)
                ));
            }
        })
    }

    fn ask_explorer(&self, subjects: &[&'static str], states: u64) -> Result<Option<Fate>, String> {
        if let Some(fate) = self.build_explorer()? {
            return Ok(Some(fate));
        }
        for subject in subjects {
            let usual = self.explored.iter().find(|(known, _)| known == subject);
            let usual = usual.map_or(Duration::from_secs(300), |(_, took)| *took);
            let seconds = EXPLORER_SECONDS + (usual * EXPLORER_FACTOR).as_secs();
            if let Some(fate) = self.explore(subject, states, seconds)? {
                return Ok(Some(fate));
            }
        }
        Ok(None)
    }

    fn build_explorer(&self) -> Result<Option<Fate>, String> {
        let mut build = self.tree.cargo(BUILD_SECONDS, &["build", "--quiet", "--target-dir"]);
        build.arg(self.tree.build_folder()).args(["--package", EXPLORER.package, "--bin", EXPLORER.name]);
        let output = build.output().map_err(|error| error.to_string())?;
        Ok(match output.status.code() {
            Some(0) => None,
            Some(124 | 137) => Some(Fate::Unjudged("building took too long".to_owned())),
            _ => Some(Fate::Unviable),
        })
    }

    /// `None` if the explorer finds nothing wrong.
    fn explore(&self, subject: &str, states: u64, seconds: u64) -> Result<Option<Fate>, String> {
        let program = self.tree.build_folder().join("debug").join(EXPLORER.name);
        let mut explorer = limited(seconds, program.as_os_str());
        explorer.current_dir(self.tree.code()).args(["check", subject, "--max-states", &states.to_string()]);
        let output = explorer.output().map_err(|error| error.to_string())?;
        Ok(explored(subject, output.status.code(), &String::from_utf8_lossy(&output.stderr)))
    }
}

/// What the explorer says of a change by its exit code, and by what it prints as an error.
fn explored(subject: &str, code: Option<i32>, stderr: &str) -> Option<Fate> {
    /// Where what is explored asserts something. A panic elsewhere is one of the explorer.
    const SHIPPED: [&str; 5] = ["locks", "fabric", "server", "lockwright", "cluster"];
    let panics = |name: &str| stderr.contains(&format!("panicked at crates/{name}/"));
    match code {
        Some(0) => None,
        Some(1) => Some(Fate::Caught(format!("check {subject}"))),
        Some(124 | 137) => Some(Fate::Caught(format!("check {subject} does not end"))),
        Some(101) if SHIPPED.into_iter().any(panics) => {
            Some(Fate::Caught(format!("check {subject}: an assertion fails")))
        }
        _ => {
            let last = stderr.lines().last().unwrap_or_default();
            Some(Fate::Unjudged(format!("check {subject} came to no end: {last}")))
        }
    }
}

/// The first test that nextest says has failed.
fn failed_test(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let fails = |line: &&str| {
        ["FAIL [", "TIMEOUT [", "SIGABRT [", "SIGSEGV ["].iter().any(|word| line.contains(word))
    };
    let name = said.lines().find(fails).and_then(|line| line.rsplit(") ").next());
    name.unwrap_or("a test").trim().to_owned()
}

fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn the_test_that_failed_is_named() {
        let stderr = "   PASS [ 0.1s] (1/3) locks a\n   FAIL [   0.012s] (2/3) lockwright-locks holders::x\nerror: test run failed\n";
        let status = std::process::ExitStatus::from_raw(100 << 8);
        let output = Output { status, stdout: Vec::new(), stderr: stderr.into() };
        assert_eq!(failed_test(&output), "lockwright-locks holders::x");
    }

    #[test]
    fn an_explorer_that_fails_itself_has_caught_nothing() {
        let explored = |code, stderr| explored("served", Some(code), stderr);
        assert_eq!(explored(0, ""), None);
        assert!(matches!(explored(1, ""), Some(Fate::Caught(_))));
        let asserted = "thread 'a' panicked at crates/locks/src/holders/table.rs:9:5:\nno holder";
        assert!(matches!(explored(101, asserted), Some(Fate::Caught(_))));
        for (code, said) in [(2, "error: no such protocol"), (101, "panicked at crates/sim/src/a.rs:1:1:")] {
            assert!(matches!(explored(code, said), Some(Fate::Unjudged(_))), "{code}");
        }
    }

    #[test]
    fn every_row_has_judges_and_files_that_are_there() {
        let root = crate::root().expect("tests run in the workspace");
        for Row { files, judges, .. } in &ROWS {
            assert!(root.join(files.trim_end_matches("/**")).exists(), "{files}");
            assert!(!judges.is_empty(), "{files}");
        }
    }
}
