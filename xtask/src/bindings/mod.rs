//! `cargo xtask bindings`: the library as other languages see it, built, installed and used by programs in those languages.
//!
//! Ends with `N passed, N failed, N skipped`, as the test command does; this file only lists the steps.

use crate::names::{COMMAND_PROGRAM, TESTED};
use crate::posix::ways::Server;
use crate::steps::{Ended, count, step};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) mod c;
pub(crate) mod python;
pub(crate) mod readme;
pub(crate) mod speed;

/// Runs every step. What is missing is installed if it `may`; the header is rewritten if it is to be `bless`ed.
pub(crate) fn report(root: &Path, may: bool, bless: bool) -> ExitCode {
    let mut ended = vec![step("header", || verdict(c::header(root, may, bless)))];
    let installed = c::install_for_tests(root);
    ended.push(step("C library", || verdict(installed.as_ref().map(|_| ()).map_err(Clone::clone))));
    if let Ok(prefix) = &installed {
        // The same tests run on its locks, too.
        let server = program(root).and_then(|program| Server::start(&program, &c::scratch(root)?));
        ended.push(step("server", || verdict(server.as_ref().map(|_| ()).map_err(Clone::clone))));
        let served = server.as_ref().map(|server| server.address.as_str()).unwrap_or_default();
        for compiler in c::COMPILERS {
            ended.push(step(compiler.c, || verdict(c::programs(root, prefix, (compiler, served), may))));
        }
        ended.push(step("lost callback", || {
            verdict(program(root).and_then(|program| c::lost(root, prefix, &program)))
        }));
        ended.push(step("valgrind", || verdict(c::valgrind(root, prefix, served, may))));
    }
    let mut wheel = None;
    ended.push(step("Python wheel", || {
        verdict(c::scratch(root).and_then(|folder| {
            wheel = Some(python::wheel(root, &folder.join("wheel"), false, may)?);
            Ok(())
        }))
    }));
    if let Some(wheel) = wheel {
        let tests = || program(root).and_then(|program| python::tests(root, &wheel, &program));
        ended.push(step("Python tests", || verdict(tests())));
        ended.push(step("Python stubs", || verdict(python::stubs(root, &wheel))));
        ended.push(step("filelock's tests", || verdict(python::filelock(root, &wheel))));
    }
    count(&ended)
}

/// The `lockwright` command, built.
fn program(root: &Path) -> Result<PathBuf, String> {
    crate::steps::program(root, &COMMAND_PROGRAM, TESTED)
}

/// A step's outcome: an error is shown.
pub(crate) fn verdict(outcome: Result<(), String>) -> Ended {
    match outcome {
        Ok(()) => Ended::Passed,
        Err(why) => {
            println!("{why}");
            Ended::Failed
        }
    }
}
