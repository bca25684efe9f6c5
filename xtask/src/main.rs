//! The project's own chores: `cargo xtask test` is what developers run before a commit and what CI runs; the others are parts
//! of it.
//!
//! This file only picks a chore. It must not know what one does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod bindings;
mod check;
mod cluster;
mod dist;
mod etcd;
mod mutants;
mod names;
mod page;
mod peers;
mod posix;
mod setup;
mod soft_roce;
mod steps;
mod tidy;
mod xdp;

const USAGE: &str = "\
usage: cargo xtask <CHORE>

  test [--install]   everything CI checks: format, lints, tests, proofs, documentation, tidiness, dependencies
  setup [--install]  what the test command needs of this machine, and what is missing
  check              every protocol in every interleaving of its cases, and every mutant caught
  mutants [--sample N] [--seed S] [--only TEXT] [--minutes M]
                     small changes to the code, one at a time: some test must notice each
  cluster [--test]   three etcds and three servers on this machine, to play with; or tested, while they are killed and cut off
  page               the page of `serve --http` in a real browser
  posix              programs that are not ours, unmodified, with locks of files that are
  bindings [--bless | --bench | --install]
                     the library as C and Python see it: built, installed, and used by their programs
  dist [--install]   what users get who do not compile, in dist/: static program, deb, image, C library, wheel
  install-c PREFIX   the C library, its header and pkg-config file into that folder
  peers [--quick | --install]
                     locks beside those of Redis, etcd, PostgreSQL, ZooKeeper and the system, as tables and pages
  soft-roce          the RDMA backend on real queue pairs, in a virtual machine with soft-RoCE
  xdp [--build]      the decider in the kernel, beside its model, and both deciders on a network that fails; or the
                     kernel's object made anew from its source
  tidy               only the checks that need no compiler: file headers, file sizes, layers, machine paths, walks

--install gets what is missing: cargo's tools into the user's cache folder, a C compiler by apt. Root gets it without.";

fn main() -> ExitCode {
    let Some(root) = root() else {
        eprintln!("this is no folder of the project: run `cargo xtask` inside of it");
        return ExitCode::from(2);
    };
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => steps::test(&root, setup::is_root()),
        ["test", "--install"] => steps::test(&root, true),
        ["setup"] => setup::report(&root, false),
        ["setup", "--install"] => setup::report(&root, true),
        ["check"] => check::report(&root),
        ["mutants", ref options @ ..] => match mutants::Options::parse(options) {
            Ok(options) => mutants::report(&root, &options, setup::is_root()),
            Err(why) => {
                eprintln!("{why}");
                ExitCode::from(2)
            }
        },
        ["cluster"] => cluster::play(&root),
        ["cluster", "--test"] => cluster::test(&root),
        ["posix"] => posix::report(&root, setup::is_root()),
        ["page"] => page::report(&root, setup::is_root()),
        ["bindings"] => bindings::report(&root, setup::is_root(), false),
        ["bindings", "--bless"] => bindings::report(&root, setup::is_root(), true),
        ["bindings", "--bench"] => bindings::speed::report(&root, setup::is_root()),
        ["bindings", "--install"] => bindings::report(&root, true, false),
        ["dist"] => dist::report(&root, setup::is_root()),
        ["dist", "--install"] => dist::report(&root, true),
        ["install-c", prefix] => match bindings::c::install(&root, Path::new(prefix), true) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        },
        ["peers"] => peers::report(&root, false, setup::is_root()),
        ["peers", "--quick"] => peers::report(&root, true, setup::is_root()),
        ["peers", "--install"] => peers::report(&root, false, true),
        ["soft-roce"] => soft_roce::report(&root),
        ["xdp"] => xdp::report(&root),
        ["xdp", "--build"] => xdp::build(&root),
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

/// The workspace's folder: cargo says at run time where this crate is, so that a copied target folder works. Without cargo,
/// the nearest folder above that holds this crate.
fn root() -> Option<PathBuf> {
    let is_root = |folder: &Path| folder.join("xtask/Cargo.toml").is_file();
    let said = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let said = said.as_deref().and_then(Path::parent).filter(|folder| is_root(folder)).map(Path::to_path_buf);
    let above =
        || Some(std::env::current_dir().ok()?.ancestors().find(|folder| is_root(folder))?.to_path_buf());
    said.or_else(above)
}
