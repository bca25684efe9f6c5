//! The project's own chores: `cargo xtask test` is what everybody runs before a commit and what CI runs, and
//! `cargo xtask tidy` is the part of it that needs no compiler.
//!
//! This file only picks a chore. It must not know what one does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod soft_roce;
mod steps;
mod tidy;

const USAGE: &str = "\
usage: cargo xtask <CHORE>

  test   everything CI checks: format, lints, tests, doc tests, documentation, tidiness, dependencies
  soft-roce  the RDMA backend on real queue pairs, in a virtual machine with soft-RoCE
  tidy   only the checks that need no compiler: file headers, file sizes, layers, machine paths";

fn main() -> ExitCode {
    let root = root();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => steps::test(&root),
        ["soft-roce"] => soft_roce::report(&root),
        ["tidy"] => tidy::report(&root),
        ["help" | "-h" | "--help"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The workspace's folder: the parent of this crate's.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
