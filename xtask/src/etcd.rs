//! The step `etcd`: the client of etcd and the transactions of a cluster, on three real etcds. Where there is no etcd, Debian's is
//! unpacked into the project's folder among the user's caches; nothing is installed, so no service is started either.

use crate::names::CLUSTER;
use crate::setup;
use crate::soft_roce::packages;
use crate::steps::{self, Ended};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Says that tests on real etcds are to run.
pub(crate) const WANTED: &str = "LOCKWRIGHT_ETCD";
const PACKAGES: [&str; 2] = ["etcd-server", "etcd-client"];

/// How the step ended, `run` by the caller.
pub(crate) fn ended(root: &Path, run: impl FnOnce(&mut Command) -> Ended) -> Ended {
    let path = match path(root) {
        Ok(path) => path,
        Err(why) => {
            println!("skipped: there is no etcd, and {why}");
            return Ended::Skipped;
        }
    };
    let args = ["test", "--package", CLUSTER, "--features", "etcd", "--test", "etcd"];
    run(steps::command(root, &args).env("PATH", path).env(WANTED, "1"))
}

/// Where programs are looked for, with etcd's among them.
///
/// # Errors
/// Why there is no etcd.
pub(crate) fn path(root: &Path) -> Result<OsString, String> {
    let usual = std::env::var_os("PATH").unwrap_or_default();
    Ok(match folder(root)? {
        None => usual,
        Some(folder) => {
            let mut path = folder.into_os_string();
            path.push(":");
            path.push(usual);
            path
        }
    })
}

/// Where the programs are; `None`: where programs are looked for anyway.
fn folder(root: &Path) -> Result<Option<PathBuf>, String> {
    let is_there = |program: &str, arg: &str| {
        let mut program = Command::new(program);
        program.arg(arg).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        program.status().is_ok_and(|status| status.success())
    };
    if is_there("etcd", "--version") && is_there("etcdctl", "version") {
        return Ok(None);
    }
    let tree = packages::unpack_these(&setup::cache(root).join("etcd"), &PACKAGES, "15 MB")?;
    Ok(Some(tree.join("usr/bin")))
}
