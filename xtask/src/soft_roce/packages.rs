//! Debian's packages, fetched and unpacked into a folder of the project's own: apt keeps its lists and archives there
//! too, so that the host's stay as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the machine is made of, and the header that the bindings to libibverbs are held against. The cloud kernel has no
/// soft-RoCE, so it is the plain one.
const PACKAGES: [&str; 10] = [
    "qemu-system-x86",
    "linux-image-amd64",
    "rdma-core",
    "ibverbs-providers",
    "libibverbs1",
    "libibverbs-dev",
    "iproute2",
    "busybox-static",
    "kmod",
    "cpio",
];

/// The folder with everything unpacked, made on first use.
///
/// # Errors
/// In one line, if the packages cannot be had here.
pub(super) fn unpack(cache: &Path) -> Result<PathBuf, String> {
    unpack_these(cache, &PACKAGES, "130 MB")
}

/// The same of other packages, into a folder of their own.
///
/// # Errors
/// As [`unpack`].
pub(crate) fn unpack_these(cache: &Path, packages: &[&str], size: &str) -> Result<PathBuf, String> {
    let tree = cache.join("tree");
    let complete = cache.join("complete");
    if fs::read_to_string(&complete).is_ok_and(|made| made == packages.join(" ")) {
        return Ok(tree);
    }
    println!("fetching Debian's packages (about {size}, once)");
    let (lists, archives) = (cache.join("lists"), cache.join("archives"));
    for folder in [lists.join("partial"), archives.join("partial"), tree.clone()] {
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    apt(&lists, &archives, &["update"])?;
    let wanted =
        [&["--yes", "--no-install-recommends", "--download-only", "--reinstall", "install"][..], packages]
            .concat();
    apt(&lists, &archives, &wanted)?;
    let entries = fs::read_dir(&archives).map_err(|error| error.to_string())?;
    let mut found = 0;
    for path in entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "deb"))
    {
        let unpacked = Command::new("dpkg-deb").arg("--extract").arg(&path).arg(&tree).status();
        if !unpacked.is_ok_and(|status| status.success()) {
            return Err(format!("{} cannot be unpacked", path.display()));
        }
        found += 1;
    }
    if found == 0 {
        return Err("apt fetched nothing".to_owned());
    }
    fs::write(&complete, packages.join(" ")).map_err(|error| error.to_string())?;
    Ok(tree)
}

fn apt(lists: &Path, archives: &Path, args: &[&str]) -> Result<(), String> {
    let mut apt = Command::new("apt-get");
    for option in [
        format!("Dir::State::lists={}", lists.display()),
        format!("Dir::Cache::archives={}", archives.display()),
        "Dir::Cache::pkgcache=".to_owned(),
        "Dir::Cache::srcpkgcache=".to_owned(),
        "Debug::NoLocking=1".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
    ] {
        apt.arg("-o").arg(option);
    }
    let output =
        apt.arg("--quiet=2").args(args).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or("no reason given");
    Err(format!("Debian's packages cannot be fetched: {last}"))
}
