//! `lockwright mount` as people use it: told to stop, killed, and mounted again.

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

struct Place(PathBuf);

impl Place {
    /// `None`, and a line that says so, if nothing can be mounted here.
    fn new(name: &str) -> Option<Self> {
        let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
        if fuse.is_err() || !geteuid().is_root() {
            println!("skipped: only root mounts here, and with /dev/fuse");
            return None;
        }
        let path = std::env::temp_dir().join(format!("lockwright-cli-mount-{name}-{}", std::process::id()));
        for folder in ["source", "at"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        Some(Self(path))
    }

    fn at(&self) -> PathBuf {
        self.0.join("at")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
        command.args(["mount", "--space", &format!("shm:{}", self.0.join("space").display())]);
        command.arg(self.0.join("source")).arg(self.at());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn mount(&self) -> Child {
        let mut child = self.command().spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut complaint = String::new();
            child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
            panic!("{complaint}");
        }
        assert!(line.starts_with("mounted "), "{line:?}");
        child
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-lq").arg(self.at()).status();
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How it ended, and its last words.
fn ended(mut child: Child) -> (bool, String) {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().success(), said)
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

fn is_mounted(at: &Path) -> bool {
    fs::read_to_string("/proc/mounts").unwrap().contains(&format!(" {} fuse.lockwright ", at.display()))
}

#[test]
fn told_to_stop_it_unmounts_and_one_that_is_in_use_waits_for_its_last_file() {
    let Some(place) = Place::new("stop") else { return };
    for stop in [Signal::SIGTERM, Signal::SIGINT] {
        let child = place.mount();
        assert!(is_mounted(&place.at()));
        fs::write(place.at().join("file"), "x").unwrap();
        signal(&child, stop);
        assert_eq!(ended(child), (true, String::new()));
        assert!(!is_mounted(&place.at()));
    }
    let mut child = place.mount();
    let file = fs::File::options().write(true).open(place.at().join("file")).unwrap();
    file.lock().unwrap();
    signal(&child, Signal::SIGTERM);
    let begin = Instant::now();
    while is_mounted(&place.at()) {
        assert!(begin.elapsed() < PATIENCE, "it goes out of sight");
    }
    assert!(child.try_wait().unwrap().is_none(), "it is in use");
    file.unlock().unwrap();
    drop(file);
    let (clean, said) = ended(child);
    assert!(clean && said.contains("is in use"), "{said}");
    // By whomever it is unmounted.
    let child = place.mount();
    assert!(Command::new("umount").arg(place.at()).status().unwrap().success());
    assert_eq!(ended(child), (true, String::new()));
}

#[test]
fn killed_it_loses_no_data_fails_with_a_clear_error_and_is_mounted_again() {
    let Some(place) = Place::new("kill") else { return };
    let child = place.mount();
    fs::write(place.at().join("file"), "written before").unwrap();
    let held = fs::File::options().write(true).open(place.at().join("file")).unwrap();
    held.lock().unwrap();
    signal(&child, Signal::SIGKILL);
    assert!(!ended(child).0);
    const ENOTCONN: i32 = 107;
    assert_eq!(fs::read(place.at().join("file")).unwrap_err().raw_os_error(), Some(ENOTCONN));
    assert_eq!(held.unlock().unwrap_err().raw_os_error(), Some(ENOTCONN));
    assert_eq!(fs::read(place.0.join("source/file")).unwrap(), b"written before");
    drop(held);
    // Its locks are free, as after any holder's death.
    let child = place.mount();
    assert_eq!(fs::read(place.at().join("file")).unwrap(), b"written before");
    fs::File::open(place.at().join("file")).unwrap().try_lock().unwrap();
    signal(&child, Signal::SIGTERM);
    assert!(ended(child).0);
}

#[test]
fn what_cannot_be_mounted_is_one_line_and_an_exit_code() {
    let Some(place) = Place::new("refuse") else { return };
    let refused = |command: &mut Command| {
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        said
    };
    assert!(refused(place.command().args(["--name", "a b"])).contains("--name"));
    assert!(refused(place.command().env("LOCKWRIGHT_SECRET_FILE", "/nowhere")).contains("/nowhere"));
    // A process that may mount nothing.
    let mut bounded = Command::new("setpriv");
    bounded.args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", "--"]);
    let original = place.command();
    bounded.arg(original.get_program()).args(original.get_args());
    let output = bounded.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("FUSE is not available"), "{said}");
    assert!(!is_mounted(&place.at()));
}
