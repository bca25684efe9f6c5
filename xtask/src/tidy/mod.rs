//! `cargo xtask tidy`: rules of the house that no compiler knows.
//!
//! A rule is a function from what it looks at to complaints; it must not write anything.

use std::path::Path;
use std::process::ExitCode;

mod files;
mod layers;
mod walks;

/// Checks everything, prints every complaint, and says how it went.
pub(crate) fn report(root: &Path) -> ExitCode {
    let mut complaints = Vec::new();
    let seen = files::check(root, &mut complaints);
    layers::check(root, &mut complaints);
    walks::check(root, &mut complaints);
    for complaint in &complaints {
        println!("{complaint}");
    }
    if complaints.is_empty() {
        println!("tidy: {seen} files, nothing to complain about");
        ExitCode::SUCCESS
    } else {
        println!("tidy: {seen} files, {} complaints", complaints.len());
        ExitCode::FAILURE
    }
}
