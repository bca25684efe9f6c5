//! `cargo xtask soft-roce`: the RDMA backend on real queue pairs, in a small virtual machine with soft-RoCE.
//!
//! Nothing of the host is touched: Debian's packages are unpacked into the user's cache folder, a kernel and an initial RAM
//! disk are made from them, and qemu boots the two without KVM. What runs inside is listed in [`RDMA_TESTS`]; the last line
//! is `N passed, N failed`. Where something is missing (not Linux on x86-64, no apt) the chore says so and skips.

mod boot;
mod image;
pub(crate) mod packages;

use crate::names::{COMMAND, COMMAND_PROGRAM, RDMA_BACKEND, RDMA_TESTS, SIMULATOR};
use crate::{setup, steps};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// A program for the machine, and what it is called there.
pub(crate) struct Program {
    path: PathBuf,
    name: String,
    is_test: bool,
}

/// How the chore ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// Everything ran.
    Ran {
        /// Tests that passed.
        passed: usize,
        /// Tests that failed, and programs that did not come to their end.
        failed: usize,
    },
    /// Something outside the project is missing.
    Skipped(String),
    /// The chore itself broke down.
    Broken(String),
}

/// Runs the chore and reports.
pub(crate) fn report(root: &Path) -> ExitCode {
    match run(root) {
        Outcome::Ran { passed, failed } => {
            println!("soft-roce: {passed} passed, {failed} failed");
            if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Outcome::Skipped(why) => {
            println!("skipped: soft-roce: {why}");
            ExitCode::SUCCESS
        }
        Outcome::Broken(why) => {
            println!("soft-roce: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the machine and what runs in it, boots it, and counts.
fn run(root: &Path) -> Outcome {
    let start = Instant::now();
    let tree = prerequisites().and_then(|()| packages::unpack(&setup::cache(root).join("soft-roce")));
    let tree = match tree {
        Ok(tree) => tree,
        Err(why) => return Outcome::Skipped(why),
    };
    took("packages", start);
    let cache = root.join("target").join("soft-roce");
    if let Err(error) = std::fs::create_dir_all(&cache) {
        return Outcome::Broken(format!("{}: {error}", cache.display()));
    }
    let run = || -> Result<Outcome, String> {
        let start = Instant::now();
        let programs = build(root)?;
        took("building", start);
        let start = Instant::now();
        let units = units(root, &tree)?;
        took("what needs no device", start);
        let start = Instant::now();
        let initrd = image::make(&cache, &tree, &programs)?;
        took("the disk", start);
        let start = Instant::now();
        let log = boot::boot(&cache, &tree, &initrd)?;
        took("the machine", start);
        Ok(count(&(units + &log), 1 + RDMA_TESTS.len()))
    };
    run().unwrap_or_else(Outcome::Broken)
}

/// What the chore does not fetch by itself.
///
/// # Errors
/// In one line, if something is missing.
pub(crate) fn prerequisites() -> Result<(), String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the machine is made for Linux on x86-64".to_owned());
    }
    for (tool, package) in [("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("ldd", "libc-bin"), ("cc", "gcc")] {
        if !has(tool) {
            return Err(format!("{tool} is missing; `apt-get install {package}` gets it"));
        }
    }
    Ok(())
}

/// The packages that have something over RDMA, as cargo wants them: with it, and without the lab, which compiles every protocol for
/// two fabrics.
pub(crate) fn with_rdma() -> Vec<String> {
    let mut features: Vec<_> = RDMA_TESTS.iter().map(|package| format!("{package}/rdma")).collect();
    features.push(format!("{}/cluster", COMMAND_PROGRAM.package));
    let mut args = vec!["--no-default-features".to_owned(), "--features".to_owned(), features.join(",")];
    args.extend(RDMA_TESTS.iter().flat_map(|package| ["--package".to_owned(), (*package).to_owned()]));
    args
}

fn has(tool: &str) -> bool {
    let found = Command::new("which").arg(tool).stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

fn took(what: &str, start: Instant) {
    println!("soft-roce: {what} took {:.1} s", start.elapsed().as_secs_f64());
}

/// As quickly as can be: what explores is not used to explore here, and nobody debugs in the machine. The fabric stays as it is,
/// since the machine is slow enough; and what the tests outside have compiled of other projects is used as it is.
fn soon() -> Vec<String> {
    let own = RDMA_TESTS.iter().chain(&[SIMULATOR]);
    let profile = |package: &str, what: &str| format!("--config=profile.dev.package.{package}.{what}");
    let mut args: Vec<_> = own.map(|package| profile(package, "debug=false")).collect();
    args.push(profile(SIMULATOR, "opt-level=0"));
    args
}

/// The unit tests of the backend, which need no device. Its bindings are held against the header among the packages.
fn units(root: &Path, tree: &Path) -> Result<String, String> {
    let args = ["--package", RDMA_BACKEND, "--features", "rdma", "--lib", "backend::rdma::"];
    let mut cargo = steps::command(root, &["test"]);
    cargo.env("LOCKWRIGHT_VERBS_INCLUDE", tree.join("usr/include"));
    let output = cargo.args(soon()).args(args).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot start cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{said}");
    Ok(said)
}

/// Compiles the programs, in one go so that nothing is compiled twice, and returns where they are.
fn build(root: &Path) -> Result<Vec<Program>, String> {
    let mut cargo =
        steps::command(root, &["test", "--no-run", "--message-format", "json-render-diagnostics"]);
    cargo.args(soon()).args(with_rdma()).args(["--test", "rdma"]);
    let output =
        cargo.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err("what runs in the machine does not compile".to_owned());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let mut programs = Vec::new();
    for package in RDMA_TESTS {
        let name = format!("{}-rdma", package.trim_start_matches("lockwright-"));
        let path = executable(&said, &format!("{package}#"), "rdma").or_else(|| {
            // Older cargos write a package's folder, and not its name.
            executable(&said, &format!("/{}#", package.trim_start_matches("lockwright-")), "rdma")
        });
        let path = path.ok_or_else(|| format!("there is no test `rdma` in {package}"))?;
        programs.push(Program { path, name, is_test: true });
    }
    let path = executable(&said, "\"test\":false", COMMAND).ok_or("there is no command")?;
    programs.push(Program { path, name: COMMAND.to_owned(), is_test: false });
    Ok(programs)
}

/// Where cargo says that it has put the program `name`, in the line that has `mark` in it.
fn executable(said: &str, mark: &str, name: &str) -> Option<PathBuf> {
    let mut lines = said.lines().filter(|line| {
        line.contains(mark)
            && line.contains(&format!("\"name\":\"{name}\""))
            && !line.contains("\"executable\":null")
    });
    let marker = "\"executable\":\"";
    lines.find_map(|line| Some(PathBuf::from(line.split_once(marker)?.1.split_once('"')?.0)))
}

/// What the machine's console says came of the tests.
fn count(log: &str, programs: usize) -> Outcome {
    let (mut passed, mut failed, mut ended) = (0, 0, 0);
    for line in log.lines() {
        let line = line.trim();
        if let Some(result) = line.strip_prefix("test result: ") {
            let number = |word: &str| -> usize {
                let before = result.split(word).next().unwrap_or_default();
                before.split_whitespace().next_back().and_then(|n| n.parse().ok()).unwrap_or(0)
            };
            passed += number(" passed");
            failed += number(" failed");
            ended += 1;
        }
    }
    // A program that crashed or hung says nothing: it counts as a failure of its own.
    Outcome::Ran { passed, failed: failed + programs.saturating_sub(ended) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up_and_a_silent_program_is_a_failure() {
        let log = "x\r\ntest result: ok. 29 passed; 0 failed; 1 ignored;\r\ntest result: FAILED. 1 passed; 2 failed;\n";
        assert_eq!(count(log, 3), Outcome::Ran { passed: 30, failed: 3 });
        assert_eq!(count("", 1), Outcome::Ran { passed: 0, failed: 1 });
    }
}
