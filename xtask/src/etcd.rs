//! The step `etcd`: the client of etcd and the transactions of a cluster, on three real etcds. Where there is no etcd, Debian's is
//! unpacked into the project's folder among the user's caches; nothing is installed, so no service is started either.

use crate::names::CLUSTER;
use crate::setup;
use crate::soft_roce::packages;
use crate::steps::{self, Ended};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PACKAGES: [&str; 2] = ["etcd-server", "etcd-client"];

/// How the step ended, `run` by the caller.
pub(crate) fn ended(root: &Path, run: impl FnOnce(&mut Command) -> Ended) -> Ended {
    let folder = match folder(root) {
        Ok(folder) => folder,
        Err(why) => {
            println!("skipped: there is no etcd, and {why}");
            return Ended::Skipped;
        }
    };
    let args = ["test", "--package", CLUSTER, "--features", "etcd", "--test", "etcd"];
    let mut test = steps::command(root, &args);
    if let Some(folder) = folder {
        let mut path = folder.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        test.env("PATH", path);
    }
    run(&mut test)
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
