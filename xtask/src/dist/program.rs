//! The static program, the package around it, and roots in which both must work.

use crate::bindings::readme;
use crate::names::{COMMAND_PROGRAM, PACKAGED, PRELOAD};
use crate::setup::{BUSYBOX, Need, done};
use crate::steps::{self, Ended};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) const TARGET: &str = "x86_64-unknown-linux-musl";
/// `systemd-analyze security` says from 0 to 10, or here to 100, how much a unit is exposed.
const EXPOSED_AT_MOST: &str = "--threshold=30";
/// The library that programs preload, as users have it, and as cargo calls it: `lockwright_posix` is another crate's name.
pub(super) const PRELOADED: &str = "liblockwright_posix.so";
const PRELOADED_BUILT: &str = "liblockwright_posix_preload.so";
/// The release of Debian that the package is tried on.
const DEBIAN: &str = "bookworm";

/// Builds the program with everything in it.
///
/// # Errors
/// In a line.
pub(super) fn build(root: &Path, dist: &Path, may: bool) -> Result<(), String> {
    Need::Musl.get(root, may)?;
    let package = ["--package", COMMAND_PROGRAM.package, "--features", PACKAGED];
    let args = [&["build", "--release", "--target", TARGET][..], &package].concat();
    let status = steps::command(root, &args).status().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("{} does not compile for {TARGET}", COMMAND_PROGRAM.name));
    }
    let built = target(root).join(TARGET).join("release").join(COMMAND_PROGRAM.name);
    let to = dist.join(COMMAND_PROGRAM.name);
    done(Command::new("strip").arg("-o").arg(&to).arg(built))
}

/// Builds the library that programs preload: for the host's libc, since it hides some of that one's functions.
///
/// # Errors
/// In a line.
pub(super) fn preload(root: &Path, dist: &Path) -> Result<(), String> {
    done(&mut steps::command(root, &["build", "--quiet", "--release", "--package", PRELOAD]))?;
    let built = target(root).join("release").join(PRELOADED_BUILT);
    done(Command::new("strip").arg("-o").arg(dist.join(PRELOADED)).arg(built))
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Runs the program in a root that has nothing else: no libc, no loader, no shell.
///
/// # Errors
/// What it said.
pub(super) fn runs_alone(dist: &Path) -> Result<(), String> {
    let folder = dist.join("empty-root");
    let made = ["proc", "dev/shm", "tmp"].iter().try_for_each(|name| fs::create_dir_all(folder.join(name)));
    made.map_err(|error| error.to_string())?;
    fs::copy(dist.join("lockwright"), folder.join("lockwright")).map_err(|error| error.to_string())?;
    let said = inside(&folder, &["/lockwright", "run", "alone", "--", "/lockwright", "--version"]);
    let _ = fs::remove_dir_all(folder);
    let said = said?;
    if said.starts_with("lockwright ") { Ok(()) } else { Err(format!("it said {said:?}")) }
}

/// Runs the README's first line in a root that has a shell without glibc, and nothing else. Skipped where there is no such shell.
pub(super) fn beside_busybox(root: &Path, dist: &Path, may: bool) -> Ended {
    if let Err(why) = Need::Busybox.get(root, may) {
        println!("skipped: {why}");
        return Ended::Skipped;
    }
    let folder = dist.join("busybox-root");
    let tried = readme::shell_line(root).and_then(|line| {
        let made = ["bin", "proc", "dev/shm", "tmp"]
            .iter()
            .try_for_each(|name| fs::create_dir_all(folder.join(name)));
        let copied = made
            .and_then(|()| fs::copy(BUSYBOX, folder.join("bin/busybox")))
            .and_then(|_| fs::copy(dist.join("lockwright"), folder.join("bin/lockwright")));
        copied.map_err(|error| error.to_string())?;
        inside(&folder, &["/bin/busybox", "--install", "-s", "/bin"])?;
        twice(&folder, &line)
    });
    let _ = fs::remove_dir_all(folder);
    crate::bindings::verdict(tried)
}

/// The README's first line in two terminals, so to speak.
fn twice(root: &Path, line: &str) -> Result<(), String> {
    let said = inside(root, &["/bin/sh", "-c", &format!("{{ {line}; }} & {{ {line}; }}; wait")])?;
    let mut grants: Vec<_> = said.lines().collect();
    grants.sort_unstable();
    if grants == ["alone, with token 1", "alone, with token 2"] {
        return Ok(());
    }
    Err(format!("the README's first line, twice, said {said:?}"))
}

/// Man pages and completions, made by the program.
///
/// # Errors
/// What it said.
pub(super) fn manuals(dist: &Path) -> Result<(), String> {
    done(Command::new(dist.join("lockwright")).arg("__manuals").arg(dist.join("manuals")))
}

/// The Debian package.
///
/// # Errors
/// In a line.
pub(super) fn deb(root: &Path, dist: &Path, may: bool) -> Result<(), String> {
    Need::CargoDeb.get(root, may)?;
    let args = ["deb", "--quiet", "--no-build", "--strip", "--target", TARGET];
    let mut deb = steps::command(root, &args);
    done(deb.args(["--package", COMMAND_PROGRAM.package, "--output"]).arg(dist.join("lockwright.deb")))?;
    fs::remove_dir_all(dist.join("manuals")).map_err(|error| error.to_string())
}

/// What systemd thinks of the unit. Skipped where there is no systemd.
pub(super) fn unit(root: &Path) -> Ended {
    let unit = root.join("packaging/lockwright.service");
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--no-pager", EXPOSED_AT_MOST]).arg(unit);
    let Ok(output) = analyze.output() else {
        println!("skipped: there is no systemd-analyze; `apt-get install systemd` gets it");
        return Ended::Skipped;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{}", said.trim().lines().next_back().unwrap_or_default());
    if output.status.success() { Ended::Passed } else { Ended::Failed }
}

/// Installs the package into a Debian that has nothing but what every Debian has, and runs the README's first lines there.
/// Skipped where no such Debian can be made.
pub(super) fn fresh_debian(root: &Path, dist: &Path, may: bool) -> Ended {
    match debian(root, dist, may) {
        Ok(debian) => {
            let tried = readme::shell_line(root).and_then(|line| try_package(&debian, dist, &line));
            let _ = fs::remove_dir_all(debian);
            crate::bindings::verdict(tried)
        }
        Err(why) => {
            println!("skipped: {why}");
            Ended::Skipped
        }
    }
}

/// A copy of a fresh Debian, which is made once.
fn debian(root: &Path, dist: &Path, may: bool) -> Result<PathBuf, String> {
    if !crate::setup::is_root() {
        return Err("only root can make a root for Debian".to_owned());
    }
    let cache = crate::setup::cache(root);
    let (kept, copy) = (cache.join(format!("debian-{DEBIAN}")), dist.join("debian"));
    if !kept.join("etc/debian_version").exists() {
        Need::Debootstrap.get(root, may)?;
        let _ = fs::remove_dir_all(&kept);
        let making = cache.join("debian-making");
        let _ = fs::remove_dir_all(&making);
        let mut debootstrap = Command::new("debootstrap");
        done(debootstrap.arg("--variant=minbase").arg(DEBIAN).arg(&making).args(mirror()))
            .map_err(|why| format!("debootstrap cannot make a Debian here: {why}"))?;
        fs::rename(making, &kept).map_err(|error| error.to_string())?;
    }
    done(Command::new("cp").arg("--archive").arg(kept).arg(&copy))?;
    Ok(copy)
}

/// Where this host gets the packages of that release, if it is one: it may reach no other place.
fn mirror() -> Option<String> {
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(REPO_URI)"]).arg(format!("Codename: {DEBIAN}"));
    let said = apt.output().ok()?.stdout;
    String::from_utf8_lossy(&said).lines().next().map(str::to_owned)
}

/// Installs the package in `root` and runs what users run; `line` is the README's first one.
fn try_package(root: &Path, dist: &Path, line: &str) -> Result<(), String> {
    fs::copy(dist.join("lockwright.deb"), root.join("tmp/lockwright.deb"))
        .map_err(|error| error.to_string())?;
    inside(root, &["dpkg", "--install", "/tmp/lockwright.deb"])?;
    twice(root, line)?;
    for file in [
        "usr/share/man/man1/lockwright.1.gz",
        "usr/lib/systemd/system/lockwright.service",
        "usr/lib/systemd/system/lockwright.socket",
    ] {
        if !root.join(file).exists() {
            return Err(format!("{file} is not in the package"));
        }
    }
    // A program that is not ours, whose lock comes from a space and which says so.
    let locked = format!(
        "LD_PRELOAD=/usr/lib/lockwright/{PRELOADED} LOCKWRIGHT_POSIX=/tmp/queue flock /tmp/queue lockwright ls --json"
    );
    let said = inside(root, &["sh", "-c", &locked])?;
    if !said.contains("flock:") {
        return Err(format!(
            "a lock of flock(1) under the preloaded library is not in the listing: {said:?}"
        ));
    }
    inside(root, &["lockwright", "mount", "--help"])?;
    inside(root, &["dpkg", "--purge", "lockwright"]).map(|_| ())
}

/// Runs a command with `root` as its root, in namespaces of its own, and returns what it said.
///
/// # Errors
/// What it said, if it failed.
pub(super) fn inside(root: &Path, command: &[&str]) -> Result<String, String> {
    const PREPARE: &str = "mount -t proc proc \"$0/proc\" && mkdir -p \"$0/dev/shm\" \
         && mount -t tmpfs tmpfs \"$0/dev/shm\" && touch \"$0/dev/null\" && mount --bind /dev/null \"$0/dev/null\" \
         && exec chroot \"$0\" \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--kill-child"]);
    if !crate::setup::is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    unshare.env("HOME", "/tmp").args(["sh", "-c", PREPARE]).arg(root).args(command);
    let output = unshare.stdin(Stdio::null()).output().map_err(|error| format!("unshare: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{}: {}", command.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
