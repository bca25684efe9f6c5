//! `cargo xtask dist`: everything that is handed to users who do not compile, in `dist/`, each tried as they would.
//!
//! Ends with `N passed, N failed, N skipped`; this file only lists the steps.

use crate::bindings::{python, verdict};
use crate::setup::{cache, done};
use crate::steps::{Ended, count, step};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

mod image;
mod program;
mod sbom;

/// The crates that users get from a registry, in the order of their dependencies.
const PUBLISHED: [&str; 6] = [
    "lockwright-fabric",
    "lockwright-locks",
    "lockwright",
    "lockwright-server",
    "lockwright-term",
    "lockwright-cli",
];

/// Makes and tries everything. What is missing is installed if it `may`.
pub(crate) fn report(root: &Path, may: bool) -> ExitCode {
    let dist = root.join("dist");
    let _ = fs::remove_dir_all(&dist);
    if let Err(error) = fs::create_dir_all(&dist) {
        eprintln!("{}: {error}", dist.display());
        return ExitCode::FAILURE;
    }
    let mut ended = vec![step("static program", || verdict(program::build(root, &dist, may)))];
    if ended == [Ended::Passed] {
        ended.push(step("empty root", || verdict(program::runs_alone(&dist))));
        ended.push(step("manuals and completions", || verdict(program::manuals(&dist))));
        ended.push(step("deb", || verdict(program::deb(root, &dist, may))));
        ended.push(step("systemd unit", || program::unit(root)));
        ended.push(step("fresh Debian", || program::fresh_debian(&cache(root), &dist)));
        ended.push(step("container image", || verdict(image::build(&dist))));
    }
    ended.push(step("C library", || verdict(c_library(root, &dist))));
    ended.push(step("wheel", || {
        let built = python::wheel(root, &dist.join("wheel"), true, may);
        verdict(built.and_then(|wheel| {
            let name = wheel.file_name().ok_or("a wheel has a name")?.to_owned();
            fs::rename(&wheel, dist.join(name)).map_err(|error| error.to_string())
        }))
    }));
    ended.push(step("bill of materials", || verdict(sbom::write(root, &dist))));
    ended.push(step("checksums", || verdict(checksums(&dist))));
    ended.push(step("publish", || verdict(publish(root))));
    count(&ended)
}

/// The C library as an archive to be unpacked in `/usr/local`.
fn c_library(root: &Path, dist: &Path) -> Result<(), String> {
    let folder = dist.join("c");
    crate::bindings::c::install(root, &folder, Path::new("/usr/local"), true)?;
    for library in ["liblockwright.a", "liblockwright.so"] {
        done(Command::new("strip").arg("--strip-debug").arg(folder.join("lib").join(library)))?;
    }
    let packed = tar(&folder, &dist.join("liblockwright-x86_64-linux-gnu.tar.gz"), &["--gzip"]);
    let _ = fs::remove_dir_all(folder);
    packed
}

/// Packs a folder so that the same files give the same archive.
fn tar(folder: &Path, to: &Path, more: &[&str]) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    done(tar.args(more).arg("--file").arg(to).arg("--directory").arg(folder).arg("."))
}

/// What a registry would say of the crates, each compiled as it would be unpacked there.
fn publish(root: &Path) -> Result<(), String> {
    let mut cargo = crate::steps::command(root, &["publish", "--dry-run", "--quiet", "--allow-dirty"]);
    for package in PUBLISHED {
        cargo.args(["--package", package]);
    }
    done(&mut cargo)
}

/// `SHA256SUMS` of every file.
fn checksums(dist: &Path) -> Result<(), String> {
    let entries = fs::read_dir(dist).map_err(|error| error.to_string())?;
    let files = entries.filter_map(Result::ok).filter(|entry| entry.path().is_file());
    let mut names: Vec<_> = files.map(|entry| entry.file_name()).collect();
    names.sort();
    let output = Command::new("sha256sum").current_dir(dist).args(&names).output();
    let output = output.map_err(|error| format!("sha256sum: {error}"))?;
    fs::write(dist.join("SHA256SUMS"), &output.stdout).map_err(|error| error.to_string())?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    if output.status.success() { Ok(()) } else { Err("sha256sum failed".to_owned()) }
}

/// The checksum of one file, in hexadecimal digits.
fn sha256(path: &Path) -> Result<String, String> {
    let output =
        Command::new("sha256sum").arg(path).output().map_err(|error| format!("sha256sum: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let sum = said.split_whitespace().next().filter(|_| output.status.success());
    sum.map(str::to_owned).ok_or_else(|| format!("sha256sum of {} failed", path.display()))
}
