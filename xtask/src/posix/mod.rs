//! `cargo xtask posix`: programs that are not ours, unmodified, with locks that are. They come to them in two ways: with
//! `liblockwright_posix.so` loaded, or through `lockwright mount`; over shared memory, over tcp, and with two mounts that see
//! the server, or a cluster, from two network namespaces, as from two hosts, which the programs take turns to use.
//!
//! | step | passes if |
//! |---|---|
//! | ping_pong | ctdb's: with `-rw`, every process sees as many increments as there are processes |
//! | stress-ng | its lockers of record locks and flocks find nothing wrong, `--verify` |
//! | sqlite3 | eight processes insert into one database, and no row is lost or the file damaged |
//! | flock | util-linux's: a counter in a file, under it, as a command and by a script's descriptor |
//! | git | its lock files: four processes make tags of one repository |
//! | dpkg | four processes install packages into one database, which is whole in the end |
//! | python | the standard library's own tests of `fcntl` and mailboxes |
//! | answers | a program of ours says with the library, and on a mount, what it says with the kernel's locks |
//! | kernel | the state machine against the kernel, in more random operations than the tests have |
//!
//! What is left out under the library, which cannot give it: locks of open file descriptions that a child shares with its parent
//! (stress-ng's `--lockofd`, `--lockmix`).

mod hosts;
mod programs;
pub(crate) mod ways;

use crate::etcd;
use crate::names::{COMMAND_PROGRAM, TESTED};
use crate::setup::Need;
use crate::steps::{self, Ended, step};
use hosts::Hosts;
use programs::{Programs, STEPS, Step};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use ways::{Mount, NotMounted, Server, Way};

/// The package of the library, and what cargo calls its file.
const PACKAGE: &str = "lockwright-preload";
const LIBRARY: &str = "liblockwright_posix_preload.so";
/// Random operations against the kernel.
const OPERATIONS: &str = "200000";
/// What the short version runs on mounts, and the whole one on those of a cluster.
const SHORT: &[&str] = &["stress-ng", "sqlite3", "flock"];

/// All steps in every way.
pub(crate) fn report(root: &Path, may: bool) -> ExitCode {
    steps::count(&all(root, may, true))
}

/// The short version, as one step of the test command.
pub(crate) fn ended(root: &Path, may: bool) -> Ended {
    let ended = all(root, may, false);
    let has = |what| ended.contains(&what);
    if has(Ended::Failed) {
        Ended::Failed
    } else if has(Ended::Skipped) {
        Ended::Skipped
    } else {
        Ended::Passed
    }
}

fn all(root: &Path, may: bool, whole: bool) -> Vec<Ended> {
    if let Err(why) = Need::Lockers.get(root, may) {
        println!("skipped: {why}");
        return vec![Ended::Skipped];
    }
    let mut ended = if whole { own(root) } else { Vec::new() };
    let tried = build(root).and_then(|built| built.all(root, &mut ended, whole));
    if let Err(why) = tried {
        println!("{why}");
        ended.push(Ended::Failed);
    }
    ended
}

/// Our own tests against the kernel. The test command runs them with all others.
fn own(root: &Path) -> Vec<Ended> {
    let test = |name, package: &[&str]| {
        step(name, || {
            let mut cargo = steps::command(root, &[&["test", "--quiet"][..], package].concat());
            let status = cargo.env("LOCKWRIGHT_KERNEL_OPS", OPERATIONS).status();
            if status.is_ok_and(|status| status.success()) { Ended::Passed } else { Ended::Failed }
        })
    };
    vec![
        test("answers", &["--package", PACKAGE, "--package", "lockwright-mount", "--test", "answers"]),
        test("kernel", &["--package", "lockwright-posix", "--test", "kernel", "--", "--nocapture"]),
    ]
}

/// What was built for this, and where programs work.
struct Built {
    library: PathBuf,
    program: PathBuf,
    folder: PathBuf,
}

fn build(root: &Path) -> Result<Built, String> {
    let built = steps::command(root, &["build", "--package", PACKAGE]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the library was not built".to_owned());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let program = steps::program(root, &COMMAND_PROGRAM, TESTED)?;
    let folder = Path::new("/dev/shm").join(format!("lockwright-posix-{}", std::process::id()));
    std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(Built { library: target.join("debug").join(LIBRARY), program, folder })
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Built {
    fn all(&self, root: &Path, ended: &mut Vec<Ended>, whole: bool) -> Result<(), String> {
        let secs = if whole { 5 } else { 2 };
        let (every, few) = (&STEPS.map(|(name, _)| name)[..], if whole { None } else { Some(SHORT) });
        let few = few.unwrap_or(every);
        let memory = format!("shm:{}", self.folder.join("space").display());
        let preload = |space: &str| Way::Preload {
            library: self.library.clone(),
            space: space.to_owned(),
            folder: self.folder.join("source"),
        };
        ended.extend(self.steps("preload, shm", &preload(&memory), secs, every)?);
        let at = |name: &str| (self.folder.join("source"), self.folder.join(name));
        self.mounted("mount, shm", ended, (secs, few), || {
            Ok(vec![Mount::start(&self.program, at("one"), &memory, &[])?])
        })?;
        if whole {
            let server = Server::start(&self.program, &self.folder)?;
            ended.extend(self.steps("preload, tcp", &preload(&server.address), secs, every)?);
            self.mounted("mount, tcp", ended, (secs, few), || {
                Ok(vec![Mount::start(&self.program, at("one"), &server.address, &["--name", "files"])?])
            })?;
        }
        let Some(hosts) = Hosts::start(&self.program, &self.folder)? else {
            ended.push(Ended::Skipped);
            return Ok(());
        };
        let both = |space: &str| {
            let start = |name| hosts.mount(&self.program, name, at(name), space);
            Ok(vec![start("one")?, start("two")?])
        };
        self.mounted("two hosts' mounts, tcp", ended, (secs, few), || both(&hosts.space()))?;
        if !whole {
            return Ok(());
        }
        match etcd::path(root) {
            Ok(path) => {
                let cluster = hosts.cluster(&self.program, &self.folder, &path)?;
                self.mounted("two hosts' mounts, cluster", ended, (secs, SHORT), || both(&cluster.space))
            }
            Err(why) => {
                println!("\n== two hosts' mounts, cluster: skipped: there is no etcd, and {why}");
                ended.push(Ended::Skipped);
                Ok(())
            }
        }
    }

    /// The steps on mounts, or one line that says why there are none.
    fn mounted(
        &self,
        name: &str,
        ended: &mut Vec<Ended>,
        (secs, which): (u32, &[&str]),
        start: impl FnOnce() -> Result<Vec<Mount>, NotMounted>,
    ) -> Result<(), String> {
        std::fs::create_dir_all(self.folder.join("source")).map_err(|error| error.to_string())?;
        match start() {
            Ok(mounts) => ended.extend(self.steps(name, &Way::mounts(mounts), secs, which)?),
            Err(NotMounted::NoFuse(why)) => {
                println!("\n== {name}: skipped: {why}");
                ended.push(Ended::Skipped);
            }
            Err(NotMounted::Failed(why)) => return Err(format!("{name}: {why}")),
        }
        Ok(())
    }

    /// The steps of these names, in a folder that is empty.
    fn steps(&self, kind: &str, way: &Way, secs: u32, which: &[&str]) -> Result<Vec<Ended>, String> {
        let source = self.folder.join("source");
        std::fs::create_dir_all(&source).map_err(|error| error.to_string())?;
        for left in std::fs::read_dir(&source).map_err(|error| error.to_string())?.flatten() {
            let _ = std::fs::remove_dir_all(left.path()).or_else(|_| std::fs::remove_file(left.path()));
        }
        let programs = Programs { way, source, secs };
        let chosen = STEPS.into_iter().filter(|(name, _)| which.contains(name));
        let run = |(name, work): Step| {
            step(&format!("{name} ({kind})"), || match work(&programs) {
                Ok(said) => {
                    println!("{said}");
                    Ended::Passed
                }
                Err(why) => {
                    println!("{why}");
                    Ended::Failed
                }
            })
        };
        Ok(chosen.map(run).collect())
    }
}
