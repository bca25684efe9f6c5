//! `cargo xtask xdp`: the decider as a program in the kernel, beside the model that it must not differ from; both deciders on a
//! network that loses packets and machines; and the program made anew from its source.
//!
//! As a chore of its own it sends more than a million frames through the model, the decider in user space and the one in the
//! kernel; as a step of the test command 200,000.
//!
//! Tests load the object that is in the tree, so they need no compiler, but root. Its source is compiled by `--build` alone.

use crate::cluster::judge;
use crate::names::{COMMAND_PROGRAM, XDP};
use crate::setup::{self, Need};
use crate::steps::{self, Ended, step};
use std::path::Path;
use std::process::{Command, ExitCode};

/// The folder of the program, its source and its object.
const FOLDER: &str = "crates/server/src/switch/xdp";
const SOURCE: &str = "decider.bpf.c";
const OBJECT: &str = "decider.bpf.o";
const TOOLS: &str = "apt-get install clang llvm libbpf-dev linux-libc-dev";

/// How many sequences the test takes, and how many make a million frames and more.
const SEQUENCES: &str = "LOCKWRIGHT_XDP_SEQUENCES";
const MANY: u32 = 2_500;

/// The test program of the command, and its tests.
const NETWORK: &str = "decider_network";
const USER_SPACE: &str = "whatever_happens_on_the_network_of_a_decider_no_count_under_a_lock_is_lost";
const KERNEL: &str =
    "whatever_happens_on_the_network_of_a_decider_in_the_kernel_no_count_under_a_lock_is_lost";

/// Random packets through both, what else the program must do, and faults.
pub(crate) fn report(root: &Path) -> ExitCode {
    let may = setup::is_root();
    steps::count(&[
        step("xdp: its object", || object(root)),
        step("xdp: beside its model", || beside_model(root, Some(MANY))),
        step("faults, decider in user space", || faults(root, may, USER_SPACE, "20")),
        step("faults, decider in the kernel", || faults(root, may, KERNEL, "20")),
    ])
}

/// A shorter version, as a step of the test command.
pub(crate) fn ended(root: &Path, may: bool) -> Ended {
    if object(root) == Ended::Failed {
        return Ended::Failed;
    }
    match beside_model(root, None) {
        Ended::Passed => {}
        ended => return ended,
    }
    match faults(root, may, USER_SPACE, "5") {
        Ended::Passed => faults(root, may, KERNEL, "10"),
        ended => ended,
    }
}

/// Whether the object in the tree is of the source beside it: that takes neither root nor a compiler.
fn object(root: &Path) -> Ended {
    let test = "switch::xdp::tests::the_object_is_made_of_this_source";
    let args = ["test", "--package", XDP, "--lib", "--features", "xdp", test];
    steps::run(&mut steps::command(root, &args))
}

/// So many sequences of 500 frames go through the model, the decider in user space and the one in the kernel, unless the
/// environment says otherwise.
fn beside_model(root: &Path, sequences: Option<u32>) -> Ended {
    if !setup::is_root() {
        println!("skipped: only root loads programs into the kernel");
        return Ended::Skipped;
    }
    let args = ["test", "--package", XDP, "--lib", "--features", "xdp", "switch::xdp", "--", "--nocapture"];
    let mut command = steps::command(root, &args);
    if let Some(sequences) = sequences.filter(|_| std::env::var_os(SEQUENCES).is_none()) {
        command.env(SEQUENCES, sequences.to_string());
    }
    steps::run(&mut command)
}

/// Faults at random for so many seconds, unless the environment says otherwise; then the clients' records are judged.
fn faults(root: &Path, may: bool, test: &str, secs: &str) -> Ended {
    if !setup::is_root() {
        println!("skipped: only root makes network namespaces");
        return Ended::Skipped;
    }
    for need in [Need::Ip, Need::Nft] {
        if let Err(why) = need.get(root, may) {
            println!("skipped: {why}");
            return Ended::Skipped;
        }
    }
    let records = std::env::temp_dir().join(format!("lockwright-decider-records-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir_all(&records) {
        println!("{}: {error}", records.display());
        return Ended::Failed;
    }
    let secs = std::env::var("LOCKWRIGHT_CLUSTER_SECS").unwrap_or_else(|_| secs.to_owned());
    let args = ["test", "--package", COMMAND_PROGRAM.package, "--features", "xdp", "--test", NETWORK];
    let mut command = steps::command(root, &args);
    command.args(["--", "--exact", test, "--nocapture"]).env("LOCKWRIGHT_NETWORK", "1");
    command.env("LOCKWRIGHT_CLUSTER_SECS", secs).env("LOCKWRIGHT_CLUSTER_RECORDS", &records);
    let ended = match steps::run(&mut command) {
        Ended::Passed => judge(root, &records),
        ended => ended,
    };
    let _ = std::fs::remove_dir_all(&records);
    ended
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
