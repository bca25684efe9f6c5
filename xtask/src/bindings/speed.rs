//! `cargo xtask bindings --bench`: what a lock costs from C and Python, beside Rust and beside what people use today.

use super::{c, python};
use crate::names::LIBRARIES;
use crate::setup::done;
use crate::steps;
use std::path::Path;
use std::process::{Command, ExitCode};

/// A pair from C may cost so much more than from Rust.
const C_AGAINST_RUST: f64 = 1.2;
/// How often the two are measured, in turn.
const TURNS: usize = 5;

/// Measures, and says whether the claims hold.
pub(crate) fn report(root: &Path, may: bool) -> ExitCode {
    match c_against_rust(root).and_then(|held| Ok(of_python(root, may)? && held)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn c_against_rust(root: &Path) -> Result<bool, String> {
    let prefix = c::scratch(root)?.join("release");
    c::install(root, &prefix, true)?;
    let source = root.join("crates/c/benches/pair.c");
    let program = c::scratch(root)?.join("pair");
    c::compile("gcc", &["-O2"], &source, &program, &prefix)?;
    // With the same features, so that both are of one build.
    let how = ["run", "--quiet", "--release", "--features", LIBRARIES];
    let args = [&how[..], &["--package", "lockwright-c", "--example", "pair"]].concat();
    let (mut from_c, mut from_rust) = (f64::MAX, f64::MAX);
    for _ in 0..TURNS {
        from_rust = from_rust.min(nanoseconds(&mut steps::command(root, &args))?);
        from_c = from_c.min(nanoseconds(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")))?);
    }
    let ratio = from_c / from_rust;
    let verdict = if ratio <= C_AGAINST_RUST { "ok" } else { "MISS" };
    println!("{:24}{from_rust:12.1} ns", "Rust, shm:");
    println!("{:24}{from_c:12.1} ns  {ratio:6.2}x, at most {C_AGAINST_RUST}x claimed: {verdict}", "C, shm:");
    Ok(ratio <= C_AGAINST_RUST)
}

fn of_python(root: &Path, may: bool) -> Result<bool, String> {
    let folder = c::scratch(root)?;
    let wheel = python::wheel(root, &folder.join("wheel-release"), true, may)?;
    let environment = python::environment(root, "python3", "bench")?;
    let mut pip = Command::new(environment.join("bin/pip"));
    done(pip.args(["install", "--quiet", "--force-reinstall", "filelock", "redis"]).arg(wheel))?;
    let mut python = Command::new(environment.join("bin/python"));
    let status = python.current_dir(folder).arg(root.join("python/benches/pair.py")).status();
    Ok(status.map_err(|error| error.to_string())?.success())
}

/// The number that a program prints.
fn nanoseconds(command: &mut Command) -> Result<f64, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().map_err(|_| format!("{:?} said {said:?}", command.get_program()))
}
