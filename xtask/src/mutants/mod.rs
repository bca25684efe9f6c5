//! `cargo xtask mutants`: small changes to the code, one at a time, each of which some test must notice.
//!
//! cargo-mutants lists the changes. Each is made in a copy of the project with a build folder of its own ([`tree`]), so that
//! nobody's work is touched and a change costs one incremental build; then the tests and the explorer judge it ([`judges`]).
//! A short run takes a sample, drawn by a seed so that it can be repeated; without `--sample` all are made, which takes days.
//!
//! Each change has a line when it is judged, and what survives is printed in the end. Changes that change nothing for a user
//! are excluded in `.cargo/mutants.toml`, each with a reason.

mod judges;
mod tree;

use crate::setup::Need;
use judges::{Fate, Judges};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tree::{Change, Tree};

/// None of these may survive: what takes, gives back and takes away.
const CRITICAL: [&str; 7] = ["acquire", "release", "recover", "claim", "restart", "evict", "durable"];

/// Of all others, at least so many of a hundred are noticed.
const GOAL: f64 = 95.0;

/// What is asked for on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// How many, of all subjects together.
    sample: Option<usize>,
    seed: u64,
    /// Only changes whose name contains this.
    only: Option<String>,
    /// After so long no further change is begun.
    minutes: Option<u64>,
}

impl Options {
    /// `--sample N --seed S --only TEXT --minutes M`.
    ///
    /// # Errors
    /// In one line.
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let (mut options, mut left) = (Self::default(), args.iter());
        while let Some(flag) = left.next() {
            let number = || format!("a number has to follow {flag}");
            let value = left.next().ok_or_else(|| format!("mutants: nothing follows {flag}"))?;
            match *flag {
                "--sample" => options.sample = Some(value.parse().map_err(|_| number())?),
                "--seed" => options.seed = value.parse().map_err(|_| number())?,
                "--only" => options.only = Some((*value).to_owned()),
                "--minutes" => options.minutes = Some(value.parse().map_err(|_| number())?),
                flag => {
                    return Err(format!("mutants takes --sample, --seed, --only and --minutes, not {flag}"));
                }
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
    /// Those that could not be judged, or not in time.
    unjudged: Vec<String>,
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

    fn add(&mut self, name: &str, fate: &Fate) {
        match fate {
            Fate::Caught(_) => self.caught += 1,
            Fate::Survived => self.survived.push(name.to_owned()),
            Fate::Unviable => self.unviable += 1,
            Fate::Unjudged(_) => self.unjudged.push(name.to_owned()),
        }
    }
}

/// Makes the changes and prints what survived.
pub(crate) fn report(root: &Path, options: &Options, may: bool) -> ExitCode {
    match run(root, options, may) {
        Ok(score) => {
            for (word, names) in [("not judged", &score.unjudged), ("survived", &score.survived)] {
                for name in names {
                    println!("{word}  {name}");
                }
            }
            let (critical, percent) = (score.critical(), score.percent());
            println!(
                "{} caught, {} survived ({critical} in what takes, gives back or takes away), {} do not compile, {} not judged: \
                 {percent:.1} %",
                score.caught,
                score.survived.len(),
                score.unviable,
                score.unjudged.len(),
            );
            let reached = critical == 0 && percent >= GOAL && score.unjudged.is_empty();
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

fn run(root: &Path, options: &Options, may: bool) -> Result<Score, String> {
    Need::Mutants.get(root, may)?;
    Need::Nextest.get(root, may)?;
    let tree = Tree::new(root)?;
    let mut all = tree.list()?;
    if let Some(only) = &options.only {
        all.retain(|change| change.name.contains(only));
    }
    let possible = all.len();
    let count = options.sample.unwrap_or(possible).min(possible);
    println!("{possible} changes are possible; {count} are made");
    let mut drawn = sample(all, count, options.seed);
    // Changes to one package follow each other: what depends on it is compiled back once.
    drawn.sort_by_key(|change| change.row);
    let start = Instant::now();
    let mut judges = Judges::new(&tree);
    let limit = options.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let mut score = Score::default();
    for (at, change) in drawn.iter().enumerate() {
        let is_late = limit.is_some_and(|limit| start.elapsed() > limit);
        if !is_late {
            judges.warm(change.row)?;
        }
        let began = Instant::now();
        let fate = if is_late {
            Fate::Unjudged("no time was left".to_owned())
        } else {
            judge(&tree, &judges, change)?
        };
        let took = began.elapsed().as_secs();
        println!("{:>3}/{count}  {:<9} {took:>4} s  {}{}", at + 1, fate.word(), change.name, fate.why());
        score.add(&change.name, &fate);
    }
    Ok(score)
}

/// Makes one change, has it judged, and takes it back.
fn judge(tree: &Tree, judges: &Judges<'_>, change: &Change) -> Result<Fate, String> {
    let before = tree.make(change)?;
    let fate = judges.judge(change.row);
    tree.restore(change, &before)?;
    fate
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
    fn the_command_line_is_read_or_refused_in_one_line() {
        assert_eq!(
            Options::parse(&["--sample", "60", "--seed", "1"]),
            Ok(Options { sample: Some(60), seed: 1, ..Options::default() })
        );
        assert_eq!(Options::parse(&[]), Ok(Options::default()));
        let only = Options::parse(&["--only", "acquire.rs", "--minutes", "5"]);
        assert_eq!(
            only,
            Ok(Options { only: Some("acquire.rs".to_owned()), minutes: Some(5), ..Options::default() })
        );
        assert!(Options::parse(&["--sample"]).is_err() && Options::parse(&["--all", "1"]).is_err());
        assert!(Options::parse(&["--minutes", "soon"]).is_err());
    }

    #[test]
    fn one_survivor_in_what_takes_locks_is_one_too_many() {
        let mut score = Score { caught: 99, unviable: 3, ..Score::default() };
        score.add("top.rs:1: width", &Fate::Survived);
        assert!(score.critical() == 0 && score.percent() >= GOAL);
        score.add("locks/src/shiftlock/acquire.rs:3: replace", &Fate::Survived);
        assert_eq!(score.critical(), 1);
    }
}
