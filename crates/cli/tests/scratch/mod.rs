//! A folder and a space of one test's own, and the commands that use them.

use crate::started::Started;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Gone with the test.
#[allow(dead_code, reason = "not every test program needs all of it")]
pub(crate) struct Scratch {
    pub(crate) folder: PathBuf,
    pub(crate) space: PathBuf,
}

#[allow(dead_code, reason = "as above")]
impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("lockwright-run-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let space = PathBuf::from(format!("/dev/shm/lockwright-test-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&space);
        Self { folder, space }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn lockwright(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
        command.args(args).env("LOCKWRIGHT_SPACE", format!("shm:{}", self.space.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn output(&self, args: &[&str]) -> Output {
        self.lockwright(args).output().unwrap()
    }

    pub(crate) fn code(&self, args: &[&str]) -> i32 {
        self.output(args).status.code().expect("it was not killed")
    }

    /// Starts a command that says a line when it runs, and waits for that line.
    pub(crate) fn start(&self, args: &[&str]) -> Started {
        Started::new(self.lockwright(args))
    }

    /// The listing's lines for `lock`.
    pub(crate) fn listed(&self, lock: &str) -> Vec<serde_json::Value> {
        let output = self.output(&["ls", "--json", lock]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until `lock` has a waiter.
    pub(crate) fn await_waiter(&self, lock: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.listed(lock).iter().any(|entry| entry["state"] == "waiting") {
            assert!(Instant::now() < until, "nobody waits for {lock}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        let _ = fs::remove_file(&self.space);
    }
}
