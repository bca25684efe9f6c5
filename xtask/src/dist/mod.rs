//! `cargo xtask dist`: everything that is handed to users who do not compile, in `dist/`, each tried as they would.
//!
//! Ends with `N passed, N failed, N skipped`; this file only lists the steps.

use crate::bindings::{c, python, verdict};
use crate::setup::done;
use crate::steps::{Ended, count, step};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

mod image;
mod program;
mod sbom;

const C_LIBRARY: &str = "liblockwright-x86_64-linux-gnu.tar.gz";

/// Makes and tries everything. What is missing is installed if it `may`.
pub(crate) fn report(root: &Path, may: bool) -> ExitCode {
    let dist = root.join("dist");
    let _ = fs::remove_dir_all(&dist);
    if let Err(error) = fs::create_dir_all(&dist) {
        eprintln!("{}: {error}", dist.display());
        return ExitCode::FAILURE;
    }
    let mut ended = vec![step("static program", || verdict(program::build(root, &dist, may)))];
    let program = ended == [Ended::Passed];
    ended.push(step("preloaded library", || verdict(program::preload(root, &dist))));
    if program {
        ended.push(step("empty root", || verdict(program::runs_alone(&dist))));
        ended.push(step("root with busybox alone", || program::beside_busybox(root, &dist, may)));
        ended.push(step("manuals and completions", || verdict(program::manuals(&dist))));
        ended.push(step("deb", || verdict(program::deb(root, &dist, may))));
        ended.push(step("systemd unit", || program::unit(root)));
        ended.push(step("fresh Debian", || program::fresh_debian(root, &dist, may)));
        ended.push(step("container image", || verdict(image::build(&dist))));
        ended.push(step("container image, read by others", || image::read(root, &dist, may)));
    }
    ended.push(step("C library", || verdict(c_library(root, &dist))));
    ended.push(step("C library, unpacked and linked", || verdict(linked(root, &dist, may))));
    ended.push(step("wheel", || verdict(wheel(root, &dist, may))));
    ended.push(step("bills of materials", || verdict(sbom::write(root, &dist))));
    ended.push(step("checksums", || verdict(checksums(&dist))));
    ended.push(step("publish", || verdict(publish(root))));
    count(&ended)
}

/// The C library and the one to preload, as an archive to be unpacked in `/usr/local` or anywhere else.
fn c_library(root: &Path, dist: &Path) -> Result<(), String> {
    let folder = dist.join("c");
    let lib = folder.join("lib");
    c::install(root, &folder, true)?;
    for library in ["liblockwright.a", "liblockwright.so"] {
        done(Command::new("strip").arg("--strip-debug").arg(lib.join(library)))?;
    }
    let preload = dist.join(program::PRELOADED);
    fs::rename(&preload, lib.join(program::PRELOADED))
        .map_err(|error| format!("{}: {error}", preload.display()))?;
    let packed = tar(&folder, &dist.join(C_LIBRARY), &["--gzip"]);
    let _ = fs::remove_dir_all(folder);
    packed
}

/// The archive as a user has it: unpacked in some folder, found by pkg-config, linked both ways by gcc, and run.
fn linked(root: &Path, dist: &Path, may: bool) -> Result<(), String> {
    let folder = dist.join("unpacked");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let mut tar = Command::new("tar");
    let unpacked =
        done(tar.arg("--extract").arg("--file").arg(dist.join(C_LIBRARY)).arg("--directory").arg(&folder));
    let tried = unpacked.and_then(|()| c::example(root, &folder, &folder, may));
    let _ = fs::remove_dir_all(folder);
    tried
}

/// The wheel, and the README's lines with it in a fresh environment.
fn wheel(root: &Path, dist: &Path, may: bool) -> Result<(), String> {
    let (folder, fresh) = (dist.join("wheel"), dist.join("venv"));
    let built = python::wheel(root, &folder, true, may)?;
    let wheel = dist.join(built.file_name().ok_or("a wheel has a name")?);
    fs::rename(&built, &wheel).map_err(|error| error.to_string())?;
    let _ = fs::remove_dir_all(folder);
    let tried = python::fresh(root, &wheel, &fresh);
    let _ = fs::remove_dir_all(fresh);
    tried
}

/// Packs a folder so that the same files give the same archive.
fn tar(folder: &Path, to: &Path, more: &[&str]) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    done(tar.args(more).arg("--file").arg(to).arg("--directory").arg(folder).arg("."))
}

/// What a registry would say of the crates, each compiled as it would be unpacked there: all but those whose manifest says that
/// they are not published.
fn publish(root: &Path) -> Result<(), String> {
    done(&mut crate::steps::command(root, &["publish", "--workspace", "--dry-run", "--allow-dirty"]))
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
