//! `cargo xtask mutants`: small changes to the code, one at a time, each of which some test must notice.
//!
//! cargo-mutants makes them and runs the tests, in a copy of the project with a build folder of its own, so that nobody's work
//! is touched and a change costs one incremental build. Which code, and which tests have to notice, is in [`SUBJECTS`]. A short
//! run takes a sample, drawn by a seed so that it can be repeated; without `--sample` all are made, which takes days.
//!
//! What survives is printed. Changes that change nothing for a user are excluded in `.cargo/mutants.toml`, each with a reason.

use crate::setup::Need;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// A package, which of its files are changed, and whose tests must notice.
const SUBJECTS: [(&str, &[&str], &[&str]); 4] = [
    (
        "lockwright-locks",
        &[
            "crates/locks/src/shiftlock/**",
            "crates/locks/src/citron/**",
            "crates/locks/src/combiner/**",
            "crates/locks/src/qplock/**",
            "crates/locks/src/fisslock/**",
            "crates/locks/src/holders/**",
        ],
        &["lockwright-locks", "lockwright-proofs"],
    ),
    ("lockwright-server", &["crates/server/src/**"], &["lockwright-server", "lockwright-proofs"]),
    (
        "lockwright",
        &[
            "crates/lockwright/src/remote/**",
            "crates/lockwright/src/home/**",
            "crates/lockwright/src/lock/**",
        ],
        &["lockwright", "lockwright-server"],
    ),
    (
        "lockwright-fabric",
        &["crates/fabric/src/backend/tcp/**", "crates/fabric/src/backend/shm/**"],
        &["lockwright-fabric"],
    ),
];

/// None of these may survive: what takes, gives back and takes away.
const CRITICAL: [&str; 7] = ["acquire", "release", "recover", "claim", "restart", "evict", "durable"];

/// Of all others, at least so many of a hundred are noticed.
const GOAL: f64 = 95.0;

/// What is asked for on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// How many, of all subjects together.
    sample: Option<usize>,
    seed: u64,
}

impl Options {
    /// `--sample N --seed S`, each at most once.
    ///
    /// # Errors
    /// In one line.
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let (mut options, mut left) = (Self::default(), args.iter());
        while let Some(flag) = left.next() {
            let number = || "a number has to follow".to_owned();
            let value = left.next().ok_or_else(number)?;
            match *flag {
                "--sample" => options.sample = Some(value.parse().map_err(|_| number())?),
                "--seed" => options.seed = value.parse().map_err(|_| number())?,
                flag => return Err(format!("mutants takes --sample N and --seed S, not {flag}")),
            }
        }
        Ok(options)
    }
}

/// How the changes fared.
#[derive(Debug, Default)]
struct Score {
    caught: usize,
    survived: Vec<String>,
    /// Those that do not compile.
    unviable: usize,
}

impl Score {
    fn percent(&self) -> f64 {
        let judged = self.caught + self.survived.len();
        if judged == 0 { 100.0 } else { 100.0 * self.caught as f64 / judged as f64 }
    }

    fn critical(&self) -> usize {
        let is_critical = |name: &&String| CRITICAL.iter().any(|word| name.contains(word));
        self.survived.iter().filter(is_critical).count()
    }
}

/// Makes the changes and prints what survived.
pub(crate) fn report(root: &Path, options: Options, may: bool) -> ExitCode {
    match run(root, options, may) {
        Ok(score) => {
            for name in &score.survived {
                println!("survived  {name}");
            }
            let (critical, percent) = (score.critical(), score.percent());
            println!(
                "{} caught, {} survived ({critical} in what takes, gives back or takes away), {} do not compile: {percent:.1} %",
                score.caught,
                score.survived.len(),
                score.unviable,
            );
            let reached = critical == 0 && percent >= GOAL;
            println!(
                "{}: none of those that take, give back or take away, and {GOAL} % of all",
                if reached { "ok" } else { "MISS" }
            );
            if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            println!("mutants: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, options: Options, may: bool) -> Result<Score, String> {
    Need::Mutants.get(root, may)?;
    Need::Nextest.get(root, may)?;
    let place = Place::new(root)?;
    let all = place.list()?;
    let count = options.sample.unwrap_or(all.len()).min(all.len());
    println!("{} changes are possible; {count} are made", all.len());
    let mut by_package: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (subject, name) in sample(all, count, options.seed) {
        by_package.entry(subject).or_default().push(name);
    }
    let mut score = Score::default();
    for (subject, names) in by_package {
        place.make(subject, &names, &mut score)?;
    }
    Ok(score)
}

/// Draws `count` of `all`, by a seed: the first so many of a shuffle (splitmix64, Fisher and Yates).
fn sample<T>(mut all: Vec<T>, count: usize, seed: u64) -> Vec<T> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for at in 0..count {
        let other = at + (next() % (all.len() - at) as u64) as usize;
        all.swap(at, other);
    }
    all.truncate(count);
    all
}

/// A copy of the project that changes are made to.
struct Place {
    tree: PathBuf,
    build: PathBuf,
}

impl Place {
    /// Copies what git knows of, as it is now. The build of the last time stays.
    fn new(root: &Path) -> Result<Self, String> {
        let place = root.join("target").join("mutants");
        let (tree, build) = (place.join("tree"), place.join("build"));
        let said = |error: std::io::Error| format!("{}: {error}", tree.display());
        let files = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output().map_err(said)?;
        let mut known = std::collections::HashSet::new();
        for file in String::from_utf8_lossy(&files.stdout).split('\0').filter(|file| !file.is_empty()) {
            let (from, to) = (root.join(file), tree.join(file));
            let Ok(bytes) = std::fs::read(&from) else { continue };
            known.insert(to.clone());
            // What has not changed keeps its time, and is not compiled again.
            if std::fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            std::fs::create_dir_all(to.parent().unwrap_or(&tree)).map_err(said)?;
            std::fs::write(&to, bytes).map_err(said)?;
        }
        remove_others(&tree, &known).map_err(said)?;
        Ok(Self { tree, build })
    }

    fn cargo(&self, args: &[&str]) -> Command {
        let mut cargo = crate::steps::command(&self.tree, args);
        cargo.env("CARGO_TARGET_DIR", &self.build).env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo
    }

    /// Every change that could be made: of which subject, and its name.
    fn list(&self) -> Result<Vec<(usize, String)>, String> {
        let mut all = Vec::new();
        for (subject, (package, files, _)) in SUBJECTS.iter().enumerate() {
            let mut list = self.cargo(&["mutants", "--list", "--json", "--package", package]);
            for file in *files {
                list.args(["--file", file]);
            }
            let output = list.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
            let parsed: Value = serde_json::from_slice(&output.stdout)
                .map_err(|error| format!("cargo-mutants lists nothing of {package}: {error}"))?;
            let names = parsed.as_array().into_iter().flatten();
            all.extend(names.filter_map(|change| Some((subject, change["name"].as_str()?.to_owned()))));
        }
        Ok(all)
    }

    /// Makes these changes of a subject, one after the other.
    fn make(&self, subject: usize, names: &[String], score: &mut Score) -> Result<(), String> {
        let (package, files, tests) = SUBJECTS[subject];
        println!("{package}: {} changes", names.len());
        let start = Instant::now();
        let out = self.build.with_file_name("out");
        let mut mutants = self.cargo(&["mutants", "--in-place", "--no-shuffle", "--colors", "never"]);
        mutants.args(["--package", package, "--test-tool", "nextest", "--minimum-test-timeout", "300"]);
        mutants.arg("--output").arg(&out);
        for file in files {
            mutants.args(["--file", file]);
        }
        for tests in tests {
            mutants.args(["--test-package", tests]);
        }
        for name in names {
            mutants.arg("--re").arg(format!("^{}$", escaped(name)));
        }
        // The first test that fails is enough.
        mutants.args(["--", "--no-tests=pass", "--fail-fast"]);
        let status = mutants.stdin(Stdio::null()).status().map_err(|error| error.to_string())?;
        // 0: all were caught. 2: some survived. 3: some ran out of time. Others: nothing was tried.
        if !matches!(status.code(), Some(0 | 2 | 3)) {
            return Err(format!("cargo-mutants failed on {package}: {status}"));
        }
        println!("{package}: {:.0} s", start.elapsed().as_secs_f64());
        let text = std::fs::read(out.join("mutants.out").join("outcomes.json"))
            .map_err(|error| error.to_string())?;
        let outcomes: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        for outcome in outcomes["outcomes"].as_array().into_iter().flatten() {
            let Some(name) = outcome["scenario"]["Mutant"]["name"].as_str() else { continue };
            match outcome["summary"].as_str() {
                // One that hangs is noticed, too.
                Some("CaughtMutant" | "Timeout") => score.caught += 1,
                Some("MissedMutant") => score.survived.push(name.to_owned()),
                _ => score.unviable += 1,
            }
        }
        Ok(())
    }
}

/// Removes what is below `folder` and not `known`.
fn remove_others(folder: &Path, known: &std::collections::HashSet<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_others(&entry.path(), known)?;
        } else if !known.contains(&entry.path()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The name as a regular expression that nothing else matches.
fn escaped(name: &str) -> String {
    let special = |c: char| !(c.is_alphanumeric() || matches!(c, ' ' | '_' | '/' | ':' | '<' | '>' | '-'));
    name.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_repeated_by_its_seed_and_has_nothing_twice() {
        let all: Vec<u32> = (0..100).collect();
        let drawn = sample(all.clone(), 10, 1);
        assert_eq!(drawn, sample(all.clone(), 10, 1));
        assert_ne!(drawn, sample(all.clone(), 10, 2));
        let mut every = sample(all.clone(), 100, 3);
        every.sort_unstable();
        assert_eq!(every, all);
    }

    #[test]
    fn names_are_taken_literally() {
        assert_eq!(escaped("a.rs:1: replace + with * in f"), r"a\.rs:1: replace \+ with \* in f");
    }

    #[test]
    fn the_command_line_is_read_or_refused_in_one_line() {
        assert_eq!(
            Options::parse(&["--sample", "60", "--seed", "1"]),
            Ok(Options { sample: Some(60), seed: 1 })
        );
        assert_eq!(Options::parse(&[]), Ok(Options::default()));
        assert!(Options::parse(&["--sample"]).is_err() && Options::parse(&["--all", "1"]).is_err());
    }

    #[test]
    fn one_survivor_in_what_takes_locks_is_one_too_many() {
        let mut score = Score { caught: 99, survived: vec!["top.rs:1: width".to_owned()], unviable: 3 };
        assert!(score.critical() == 0 && score.percent() >= GOAL);
        score.survived = vec!["locks/src/shiftlock/acquire.rs:3: replace".to_owned()];
        assert_eq!(score.critical(), 1);
    }
}
