//! `cargo xtask peers`: locks of this project beside those of the services that people use today, on this machine.
//!
//! `lockwright bench --against` measures; it starts the services on free ports of the loopback and stops them. This file gets them
//! by apt if it may, builds the program optimised, and keeps what it says: `target/peers/` has it as JSON, as a picture and as
//! one HTML page, and after a full run `docs/comparison.md` has it as tables. The test command runs a small version of it
//! whose figures say nothing, to see that every peer still works.

mod page;

use crate::etcd;
use crate::names::{COMMAND_PROGRAM, TESTED};
use crate::setup::Need;
use crate::steps::{self, Ended};
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// All that `bench --against` knows.
const PEERS: &str = "redis,redlock,etcd,postgres,zookeeper,flock,fcntl,pthread,parking_lot";

/// What a run said, and where.
pub(crate) struct Comparison {
    /// One object per figure, fault and goal.
    lines: Vec<Value>,
    /// Peers that are not installed, and why.
    left_out: Vec<String>,
    quick: bool,
    commit: String,
    date: String,
    machine: String,
}

impl Comparison {
    fn with<'a>(&'a self, field: &'static str) -> impl Iterator<Item = &'a Value> {
        self.lines.iter().filter(move |line| line.get(field).is_some())
    }

    /// The values of a field, each once, in the order in which they come.
    fn names(&self, field: &'static str) -> Vec<&str> {
        let mut names = Vec::new();
        for name in self.with("workload").filter_map(|line| line[field].as_str()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Where the figures come from, as the first line of the JSON.
    fn origin_line(&self) -> Value {
        let Self { commit, date, machine, quick, left_out, .. } = self;
        serde_json::json!({
            "origin": "cargo xtask peers", "commit": commit, "date": date, "machine": machine, "quick": quick,
            "left_out": left_out,
            "placement": "servers and clients share all cores, on the loopback, nothing pinned",
        })
    }

    fn figure(&self, workload: &str, peer: &str) -> Option<&Value> {
        self.with("workload").find(|line| line["workload"] == workload && line["peer"] == peer)
    }
}

/// Runs the comparison and prints where its pages are.
pub(crate) fn report(root: &Path, quick: bool, may: bool) -> ExitCode {
    match compare(root, quick, may) {
        Ok(met) => {
            if met {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(why) => {
            eprintln!("peers: {why}");
            ExitCode::from(2)
        }
    }
}

fn compare(root: &Path, quick: bool, may: bool) -> Result<bool, String> {
    if let Err(why) = Need::Peers.get(root, may) {
        println!("{why}; what is not there is left out");
    }
    // With what `bench --cluster` needs, so that one build does for both.
    let program = steps::optimised(root, &COMMAND_PROGRAM, &["cluster", "compare"])?;
    let comparison = run(root, &program, quick, None)?;
    let folder = root.join("target").join("peers");
    let written = |path: PathBuf, text: String| {
        let shown = path.display().to_string();
        std::fs::write(path, text).map(|()| println!("{shown}")).map_err(|error| format!("{shown}: {error}"))
    };
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let origin = comparison.origin_line();
    let json: Vec<_> = std::iter::once(&origin).chain(&comparison.lines).map(Value::to_string).collect();
    written(folder.join("comparison.json"), json.join("\n") + "\n")?;
    written(folder.join("comparison.svg"), page::svg(&comparison))?;
    written(folder.join("comparison.html"), page::html(&comparison))?;
    if !quick {
        written(root.join("docs").join("comparison.md"), page::markdown(&comparison))?;
    }
    print!("{}", page::text(&comparison));
    Ok(comparison.with("goal").all(|goal| goal["holds"] == true))
}

/// Runs the program, which exits with 1 if a goal is missed. It finds servers of others on `path`, or where programs are looked for
/// anyway.
fn run(root: &Path, program: &Path, quick: bool, path: Option<OsString>) -> Result<Comparison, String> {
    let mut bench = Command::new(program);
    bench.envs(path.map(|path| ("PATH", path)));
    bench.current_dir(root).args(["bench", "--json", "--against", PEERS]).args(quick.then_some("--quick"));
    let output =
        bench.stdin(Stdio::null()).output().map_err(|error| format!("cannot start the bench: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !matches!(output.status.code(), Some(0 | 1)) {
        return Err(format!("the bench failed: {}", said.lines().next_back().unwrap_or("no reason given")));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let lines: Result<Vec<_>, _> = lines.lines().map(serde_json::from_str).collect();
    let left_out = said.lines().filter_map(|line| line.split_once("left out: "));
    let first_line = |program: &str, args: &[&str]| {
        let output = Command::new(program).current_dir(root).args(args).output().ok();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
    };
    Ok(Comparison {
        lines: lines.map_err(|error| format!("the bench said something else than JSON: {error}"))?,
        left_out: left_out.map(|(_, why)| why.to_owned()).collect(),
        quick,
        commit: first_line("git", &["rev-parse", "--short=12", "HEAD"]),
        date: first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        machine: machine(),
    })
}

/// Cores, processor, and what else ran.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unknown processor", |(_, model)| model.trim());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown").to_owned();
    format!("{cores} cores of {model}; load average {load} at the end")
}

/// The step of the test command: the program that the tests have built, one short round of everything that is installed, and of etcd,
/// which the tests of clusters need anyway.
pub(crate) fn ended(root: &Path) -> Ended {
    let compared = steps::program(root, &COMMAND_PROGRAM, TESTED)
        .and_then(|program| run(root, &program, true, etcd::path(root).ok()));
    match compared {
        Ok(comparison) => {
            for why in &comparison.left_out {
                println!("left out: {why}");
            }
            println!(
                "{} figures of {} peers",
                comparison.with("workload").count(),
                comparison.names("peer").len()
            );
            Ended::Passed
        }
        Err(why) => {
            println!("{why}");
            Ended::Failed
        }
    }
}
