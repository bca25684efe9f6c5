//! One program, with the library and without: the kernel says what every answer must be. What the library cannot give is told
//! apart, and must be what `docs/posix.md` says of it.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// For a program that waits for what never comes, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder of the test's own in memory, gone with it, and the program in it.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("lockwright-preload-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let place = Self(Path::new("/dev/shm").join(name));
        for folder in ["kernel", "ours"] {
            fs::create_dir_all(place.0.join(folder)).unwrap();
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../posix/tests/locks.c");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(source).arg("-o");
        let compiled = cc.arg(place.program()).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        place
    }

    fn program(&self) -> PathBuf {
        self.0.join("locks")
    }

    /// What the program says, with the kernel's locks.
    fn kernels(&self, what: &str) -> String {
        output(Command::new(self.program()).arg(what).arg(self.0.join("kernel")))
    }

    /// The same with ours.
    fn ours(&self, what: &str) -> String {
        let library = std::env::current_exe().unwrap().with_file_name("liblockwright_posix_preload.so");
        assert!(library.exists(), "cargo builds {} before its tests", library.display());
        let folder = self.0.join("ours");
        let mut command = Command::new(self.program());
        command.env("LD_PRELOAD", library).env("LOCKWRIGHT_POSIX", &folder);
        command.env("LOCKWRIGHT_SPACE", format!("shm:{}", self.0.join("space").display()));
        // Longer than a lease, if it comes to that.
        command.env("TENTHS_AFTER_EXEC", "600");
        output(command.arg(what).arg(folder))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn output(command: &mut Command) -> String {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let ended = ends(&mut child);
    if !ended {
        let _ = child.kill();
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(ended && output.status.success(), "{}, after it said:\n{said}", output.status);
    said
}

fn ends(child: &mut Child) -> bool {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn every_answer_is_the_kernels() {
    let place = Place::new();
    // The space knows processes: the one that took a description's lock is named.
    let kernels = place.kernels("same").replace(", a description's,", ", ours,");
    let ours = place.ours("same");
    let mut story = "";
    for (line, (kernels, ours)) in kernels.lines().zip(ours.lines()).enumerate() {
        story = kernels.strip_prefix("== ").unwrap_or(story);
        assert_eq!(ours, kernels, "line {line}, of {story}: ours, and the kernel's");
    }
    assert_eq!(ours.lines().count(), kernels.lines().count());
    assert!(ours.lines().count() > 60, "the program tells all its stories: {ours}");
}

#[test]
fn what_differs_is_what_is_said_to_differ() {
    let place = Place::new();
    let kernels = [
        "inherited, flock: 0",
        "inherited, of its description: 0",
        "inherited, of the process: 0",
        "closed past libc: free, and then 0",
        "some time after exec: write 0 1, another's, and then EAGAIN",
    ];
    let ours = [
        "inherited, flock: ENOLCK",
        "inherited, of its description: ENOLCK",
        "inherited, of the process: 0",
        "closed past libc: write 0 1, ours, and then EAGAIN",
        "some time after exec: free, and then 0",
    ];
    assert_eq!(place.kernels("differs").lines().collect::<Vec<_>>(), kernels);
    assert_eq!(place.ours("differs").lines().collect::<Vec<_>>(), ours);
}
