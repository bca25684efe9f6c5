//! `cargo xtask test`: the steps, in the order in which they are likely to fail, and a closing count.
//!
//! A step that fails does not stop the others: one run shows everything that is wrong. A step whose tool is missing and
//! may not or cannot be installed is skipped loudly, with the reason, and counted as skipped. The virtual machine emulates
//! one processor: it runs beside the steps that keep another one busy, and what it says is shown when it has ended.

use crate::names::{COMMAND_PROGRAM, MIRI, Program, SLIM, WITH_ALL};
use crate::setup::{self, Need};
use crate::soft_roce::with_rdma;
use crate::{bindings, check, cluster, etcd, page, peers, posix, tidy, xdp};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Passed,
    Failed,
    Skipped,
}

/// Runs every step and prints `N passed, N failed, N skipped` as the last line. What is missing is installed if it `may`.
pub(crate) fn test(root: &Path, may: bool) -> ExitCode {
    // The targets that Cargo tests by itself: naming them would add the lab's library, which opts out.
    let tests = ["--workspace", "--features", WITH_ALL];
    let all = [&tests[..], &["--all-targets"]].concat();
    let files = Scratch::new();
    let mut ended = vec![
        step("tidy", || if tidy::report(root) == ExitCode::SUCCESS { Ended::Passed } else { Ended::Failed }),
        step("format", || cargo(root, &["fmt", "--all", "--check"], "rustup component add rustfmt")),
        step("lints", || {
            let args = [&["clippy"][..], &all, &["--", "-D", "warnings"]].concat();
            cargo(root, &args, "rustup component add clippy")
        }),
        step("lints of the fabric without backends", || {
            let alone = ["clippy", "--package", SLIM, "--lib", "--no-default-features"];
            run(&mut command(root, &[&alone[..], &["--", "-D", "warnings"]].concat()))
        }),
        step("lints of the program that users get", || {
            run(&mut command(root, &["clippy", "--package", COMMAND_PROGRAM.package, "--", "-D", "warnings"]))
        }),
        step("lints with rdma", || {
            run(command(root, &["clippy"]).args(with_rdma()).args(["--all-targets", "--", "-D", "warnings"]))
        }),
        step("tests", || {
            // nextest runs the binaries side by side; plain `cargo test` gives the same answers more slowly.
            let runner: &[&str] = match Need::Nextest.get(root, may) {
                Ok(()) => &["nextest", "run", "--no-tests=pass", "--no-fail-fast"],
                Err(why) => {
                    println!("by `cargo test`: {why}");
                    &["test", "--no-fail-fast"]
                }
            };
            run(in_memory(&mut command(root, &[runner, &tests].concat()), &files))
        }),
    ];
    ended.push(step("spans", || {
        run(&mut command(
            root,
            &["test", "--quiet", "--package", "lockwright", "--features", "tracing", "--test", "spans"],
        ))
    }));
    // Built by the tests. Here, before something else holds the build folder.
    let explorer = check::build(root);
    // Not beside the tests: theirs is a machine to themselves, for what waits and what is killed in them.
    let machine = Beside::start(root, "soft-roce");
    ended.extend([
        // First, since they need not wait for the machine's programs to be compiled.
        step("check", || match explorer.and_then(|explorer| check::run(root, &explorer)) {
            Ok(()) => Ended::Passed,
            Err(why) => {
                println!("{why}");
                Ended::Failed
            }
        }),
        step("miri", || miri(root, may)),
        step("doc tests", || {
            run(in_memory(
                &mut command(root, &["test", "--workspace", "--features", WITH_ALL, "--doc"]),
                &files,
            ))
        }),
        step("python", || bindings::python::smoke(root)),
        step("documentation", || {
            let all = ["doc", "--workspace", "--features", WITH_ALL, "--no-deps", "--document-private-items"];
            let mut doc = command(root, &all);
            run(doc.env("RUSTDOCFLAGS", "-D warnings"))
        }),
        step("page", || match Need::Chromium.get(root, may) {
            Ok(()) if page::report(root, may) == ExitCode::SUCCESS => Ended::Passed,
            Ok(()) => Ended::Failed,
            Err(why) => {
                println!("skipped: {why}");
                Ended::Skipped
            }
        }),
        step("posix", || posix::ended(root, may)),
        step("peers", || peers::ended(root)),
        step("etcd", || etcd::ended(root, |test| run(in_memory(test, &files)))),
        step("cluster", || cluster::ended(root, may)),
        step("xdp", || xdp::ended(root, may)),
        step("dependencies", || deny(root, may, &["bans", "licenses", "sources"])),
        step("advisories", || deny(root, may, &["advisories"])),
        step("soft-roce", || machine.map_or(Ended::Failed, Beside::ended)),
    ]);
    count(&ended)
}

/// Prints how many steps ended how, as the last line.
pub(crate) fn count(ended: &[Ended]) -> ExitCode {
    let count = |what| ended.iter().filter(|ended| **ended == what).count();
    let failed = count(Ended::Failed);
    println!("\n{} passed, {failed} failed, {} skipped", count(Ended::Passed), count(Ended::Skipped));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A folder in memory for what tests write, gone when they have ended. They keep counters and servers' states in files, under
/// locks with leases: a disk that has a build to write lets them wait for longer than some of them have patience.
struct Scratch(PathBuf);

impl Scratch {
    /// `None` where there is no such folder, or hardly room in it.
    fn new() -> Option<Self> {
        const ENOUGH_KB: u64 = 1 << 20;
        let free = Command::new("df").args(["-k", "--output=avail", "/dev/shm"]).output().ok()?;
        let free = String::from_utf8_lossy(&free.stdout).lines().nth(1)?.trim().parse::<u64>().ok()?;
        let folder = Path::new("/dev/shm").join(format!("lockwright-tests-{}", std::process::id()));
        (free >= ENOUGH_KB && std::fs::create_dir(&folder).is_ok()).then_some(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Lets the command's temporary files be in memory, if possible.
fn in_memory<'a>(command: &'a mut Command, files: &Option<Scratch>) -> &'a mut Command {
    match files {
        Some(Scratch(folder)) => command.env("TMPDIR", folder),
        None => command,
    }
}

pub(crate) fn step(name: &str, work: impl FnOnce() -> Ended) -> Ended {
    println!("\n== {name}");
    let start = Instant::now();
    let ended = work();
    let word = match ended {
        Ended::Passed => "ok",
        Ended::Failed => "FAILED",
        Ended::Skipped => "skipped",
    };
    println!("== {name}: {word} ({:.1} s)", start.elapsed().as_secs_f64());
    ended
}

/// A chore of this program that runs beside others; what it says goes to a file until it is asked for.
struct Beside {
    chore: Child,
    said: PathBuf,
}

impl Beside {
    fn start(root: &Path, name: &str) -> Option<Self> {
        let said = root.join("target").join(format!("{name}.log"));
        let start = || {
            let out = File::create(&said)?;
            let mut chore = Command::new(std::env::current_exe()?);
            chore.current_dir(root).arg(name).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
            chore.spawn()
        };
        match start() {
            Ok(chore) => Some(Self { chore, said }),
            Err(error) => {
                println!("cannot start {name} beside the other steps: {error}");
                None
            }
        }
    }

    /// Waits for the end. A chore that skipped says so in its last line.
    fn ended(mut self) -> Ended {
        let status = self.chore.wait();
        let said = std::fs::read(&self.said).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        println!("{}", said.trim_end());
        match status {
            Ok(status) if !status.success() => Ended::Failed,
            Err(_) => Ended::Failed,
            Ok(_) if said.lines().next_back().is_some_and(|line| line.starts_with("skipped: ")) => {
                Ended::Skipped
            }
            Ok(_) => Ended::Passed,
        }
    }
}

/// A cargo subcommand as a step. `install` says how to get it.
fn cargo(root: &Path, args: &[&str], install: &str) -> Ended {
    let mut version = command(root, &[args[0], "--version"]);
    if !version.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("cargo {} is missing; `{install}` gets it", args[0]);
        return Ended::Failed;
    }
    run(&mut command(root, args))
}

/// The asymmetric lock's kernel, local threads against a NIC without atomics, under Miri: it runs the very code and backend,
/// and objects to data races and to what the memory model does not allow. Skipped where there is no Miri: it comes with
/// nightly toolchains only.
fn miri(root: &Path, may: bool) -> Ended {
    if let Err(why) = Need::Miri.get(root, may) {
        println!("skipped: {why}");
        return Ended::Skipped;
    }
    let (package, test) = MIRI;
    let mut miri = setup::nightly(root, &["miri", "test", "--package", package, "--test", test]);
    run(miri.env("MIRIFLAGS", "-Zmiri-disable-isolation"))
}

/// `cargo deny check`. Skipped if it is not to be had, or if it cannot get the list of advisories.
fn deny(root: &Path, may: bool, checks: &[&str]) -> Ended {
    if let Err(why) = Need::Deny.get(root, may) {
        println!("skipped: {why}");
        return Ended::Skipped;
    }
    let args = [&["deny", "--all-features", "check"], checks].concat();
    let output = match command(root, &args).output() {
        Ok(output) => output,
        Err(error) => {
            println!("cannot start cargo deny: {error}");
            return Ended::Failed;
        }
    };
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    if said.contains("failed to fetch advisory database") {
        println!("skipped: the list of advisories cannot be fetched; it needs the network");
        return Ended::Skipped;
    }
    println!("{}", said.trim());
    if output.status.success() { Ended::Passed } else { Ended::Failed }
}

pub(crate) fn run(command: &mut Command) -> Ended {
    match command.status() {
        Ok(status) if status.success() => Ended::Passed,
        Ok(_) => Ended::Failed,
        Err(error) => {
            println!("cannot start {:?}: {error}", command.get_program());
            Ended::Failed
        }
    }
}

/// A command of cargo's, as if it had been given in a shell.
pub(crate) fn command(root: &Path, args: &[&str]) -> Command {
    // The cargo that runs this: the toolchain that rust-toolchain.toml names.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo has told this program of itself: build scripts that look at it (ring's does) would run again, and all that
    // depends on them be compiled again, whenever a chore follows a command given by hand.
    let own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(own)) {
        command.env_remove(name);
    }
    // Subcommands are looked for among the user's own first.
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(setup::tools(root).join("bin"));
    command.current_dir(root).env("PATH", path).args(args);
    command
}

/// Builds a program of the workspace and returns where it is.
///
/// # Errors
/// In one line.
pub(crate) fn program(root: &Path, program: &Program, features: &[&str]) -> Result<PathBuf, String> {
    build(root, program, &["--features", &features.join(",")])
}

/// As [`program`], optimised.
///
/// # Errors
/// In one line.
pub(crate) fn optimised(root: &Path, program: &Program, features: &[&str]) -> Result<PathBuf, String> {
    build(root, program, &["--release", "--features", &features.join(",")])
}

fn build(root: &Path, program: &Program, how: &[&str]) -> Result<PathBuf, String> {
    let mut cargo = command(root, &["build", "--message-format", "json-render-diagnostics"]);
    let output =
        cargo.args(how).args(["--package", program.package, "--bin", program.name]).stderr(Stdio::inherit());
    let output = output.output().map_err(|error| format!("cannot start cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let path = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let ours = message["target"]["name"] == program.name;
        message["executable"].as_str().filter(|_| ours).map(PathBuf::from)
    });
    path.filter(|_| output.status.success()).ok_or_else(|| format!("{} does not compile", program.name))
}
