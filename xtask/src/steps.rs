//! `cargo xtask test`: the steps, in the order in which they are likely to fail, and a closing count.
//!
//! A step that fails does not stop the others: one run shows everything that is wrong. A step whose tool is
//! not installed is skipped loudly, with the command that installs it, and counted as skipped. The virtual machine emulates
//! one processor: it runs beside the steps that keep another one busy, and what it says is shown when it has ended.

use crate::soft_roce::{Tools, with_rdma};
use crate::tidy;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    Failed,
    Skipped,
}

/// Runs every step and prints `N passed, N failed, N skipped` as the last line.
pub(crate) fn test(root: &Path) -> ExitCode {
    let all = ["--workspace", "--all-targets"];
    // The targets that Cargo tests by itself: naming them would add the lab's library, which opts out.
    let tests = ["--workspace"];
    let files = Scratch::new();
    let mut ended = vec![
        step("tidy", || if tidy::report(root) == ExitCode::SUCCESS { Ended::Passed } else { Ended::Failed }),
        step("format", || cargo(root, &["fmt", "--all", "--check"], "rustup component add rustfmt")),
        step("lints", || {
            let args = [&["clippy"][..], &all, &["--", "-D", "warnings"]].concat();
            cargo(root, &args, "rustup component add clippy")
        }),
        step("lints of the locks alone", || {
            let alone = ["clippy", "--package", "lockwright-cli", "--all-targets", "--no-default-features"];
            cargo(root, &[&alone[..], &["--", "-D", "warnings"]].concat(), "")
        }),
        step("lints with rdma", || match Tools::get(root) {
            Ok(tools) => {
                let mut clippy = tools.command(root, &["clippy"]);
                run(clippy.args(with_rdma()).args(["--all-targets", "--", "-D", "warnings"]))
            }
            Err(why) => {
                println!("skipped: {why}");
                Ended::Skipped
            }
        }),
        step("tests", || {
            // nextest runs the binaries side by side; plain `cargo test` gives the same answers more slowly.
            let runner: &[&str] = if has(root, "nextest") {
                &["nextest", "run", "--no-tests=pass", "--no-fail-fast"]
            } else {
                &["test", "--no-fail-fast"]
            };
            run(in_memory(&mut command(root, &[runner, &tests].concat()), &files))
        }),
    ];
    // Not beside the tests: theirs is a machine to themselves, for what waits and what is killed in them.
    let machine = Beside::start(root, "soft-roce");
    ended.extend([
        // First, since it has a build folder of its own and need not wait for the machine's programs to be compiled.
        step("miri", || miri(root)),
        step("doc tests", || run(in_memory(&mut command(root, &["test", "--workspace", "--doc"]), &files))),
        step("documentation", || {
            let mut doc = command(root, &["doc", "--workspace", "--no-deps", "--document-private-items"]);
            run(doc.env("RUSTDOCFLAGS", "-D warnings"))
        }),
        step("dependencies", || deny(root, &["bans", "licenses", "sources"])),
        step("advisories", || deny(root, &["advisories"])),
        step("soft-roce", || machine.map_or(Ended::Failed, Beside::ended)),
    ]);
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

fn step(name: &str, work: impl FnOnce() -> Ended) -> Ended {
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

/// A cargo subcommand as a step. `install` says how to get it if it can be missing.
fn cargo(root: &Path, args: &[&str], install: &str) -> Ended {
    if !install.is_empty() && !has(root, args[0]) {
        println!("cargo {} is missing; `{install}` gets it", args[0]);
        return Ended::Failed;
    }
    run(&mut command(root, args))
}

/// The asymmetric lock's kernel, local threads against a NIC without atomics, under Miri: it runs the very code and backend,
/// and objects to data races and to what the memory model does not allow. Skipped where there is no Miri.
fn miri(root: &Path) -> Ended {
    // Miri comes with nightly toolchains only, and `+nightly` is understood by rustup's cargo, not by a toolchain's own.
    let cargo = |args: &[&str]| {
        let mut command = Command::new("cargo");
        command.current_dir(root).env_remove("CARGO").env("MIRIFLAGS", "-Zmiri-disable-isolation");
        command.arg("+nightly").args(args);
        command
    };
    let mut version = cargo(&["miri", "--version"]);
    if !version.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("skipped: there is no Miri; `rustup toolchain install nightly -c miri,rust-src` gets it");
        return Ended::Skipped;
    }
    run(&mut cargo(&["miri", "test", "-p", "lockwright-locks", "--test", "qplock_threads"]))
}

/// `cargo deny check`. Skipped if it is not installed, or if it cannot get the list of advisories.
fn deny(root: &Path, checks: &[&str]) -> Ended {
    if !has(root, "deny") {
        println!("skipped: cargo-deny is not installed; `cargo install --locked cargo-deny` gets it");
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

fn run(command: &mut Command) -> Ended {
    match command.status() {
        Ok(status) if status.success() => Ended::Passed,
        Ok(_) => Ended::Failed,
        Err(error) => {
            println!("cannot start {:?}: {error}", command.get_program());
            Ended::Failed
        }
    }
}

/// Whether cargo has the subcommand `name`.
fn has(root: &Path, name: &str) -> bool {
    command(root, &[name, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
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
    command.current_dir(root).args(args);
    command
}
