//! `cargo xtask xdp`: the decider as a program in the kernel, beside the model that it must not differ from; and the program
//! made anew from its source.
//!
//! Tests load the object that is in the tree, so they need no compiler, but root. Its source is compiled by `--build` alone.

use crate::names::XDP;
use crate::setup;
use crate::steps::{self, Ended, step};
use std::path::Path;
use std::process::{Command, ExitCode};

/// The folder of the program, its source and its object.
const FOLDER: &str = "crates/server/src/switch/xdp";
const SOURCE: &str = "decider.bpf.c";
const OBJECT: &str = "decider.bpf.o";
const TOOLS: &str = "apt-get install clang llvm libbpf-dev linux-libc-dev";

/// Random packets through both, and what else the program must do.
pub(crate) fn report(root: &Path) -> ExitCode {
    steps::count(&[step("xdp", || ended(root))])
}

/// The same, as a step of the test command.
pub(crate) fn ended(root: &Path) -> Ended {
    if !setup::is_root() {
        println!("skipped: only root loads programs into the kernel");
        return Ended::Skipped;
    }
    let args = ["test", "--package", XDP, "--lib", "--features", "xdp", "switch::xdp"];
    steps::run(&mut steps::command(root, &args))
}

/// Compiles the program and leaves the object in the tree, with the hash of its source in it.
pub(crate) fn build(root: &Path) -> ExitCode {
    match made(&root.join(FOLDER)) {
        Ok(()) => {
            println!("{FOLDER}/{OBJECT}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("xdp: {why}; it takes clang, llvm-strip and the headers of libbpf: `{TOOLS}`");
            ExitCode::FAILURE
        }
    }
}

fn made(folder: &Path) -> Result<(), String> {
    let hash = Command::new("sha256sum").current_dir(folder).arg(SOURCE).output();
    let hash = hash.map_err(|error| format!("sha256sum: {error}"))?;
    let hash: String =
        String::from_utf8_lossy(&hash.stdout).chars().take_while(char::is_ascii_hexdigit).collect();
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut clang = Command::new("clang");
    // No word of where it was compiled: the object is the same on every machine.
    clang.current_dir(folder).args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-fdebug-compilation-dir=."]);
    clang.args(["-Wall", "-Wextra", "-Wno-missing-field-initializers", &headers]);
    setup::done(clang.arg(format!("-DSOURCE=\"{hash}\"")).args(["-c", SOURCE, "-o", OBJECT]))?;
    setup::done(Command::new("llvm-strip").current_dir(folder).args(["-g", OBJECT]))
}
