//! `run -j N`: so many commands at a time.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LOCKWRIGHT: &str = env!("CARGO_BIN_EXE_lockwright");
const PATIENCE: Duration = Duration::from_secs(60);

struct Space(std::path::PathBuf);

impl Space {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("lockwright-jobs-{name}-{}", std::process::id())))
    }

    fn run(&self, args: &[&str]) -> Command {
        let mut run = Command::new(LOCKWRIGHT);
        run.arg("run").arg("--space").arg(format!("shm:{}", self.0.display())).args(args);
        run
    }

    /// A process that holds a permit until it is killed.
    fn holder(&self) -> Child {
        let mut holder = self.run(&["-j", "2", "gpu", "--", "sh", "-c", "echo in; exec sleep 600"]);
        let mut holder = holder.stdout(Stdio::piped()).spawn().unwrap();
        let mut word = [0; 3];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut word).unwrap();
        holder
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn two_run_at_a_time_and_a_killed_ones_permit_comes_back() {
    let space = Space::new("two");
    let (mut one, mut two) = (space.holder(), space.holder());
    let refused = space.run(&["-j", "2", "-n", "gpu", "--", "true"]).status().unwrap();
    assert_eq!(refused.code(), Some(1));
    let test = space.run(&["-j", "2", "--test", "gpu"]).output().unwrap();
    assert_eq!(test.status.code(), Some(1), "{test:?}");
    let other = space.run(&["-j", "3", "gpu", "--", "true"]).output().unwrap();
    let words = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(words.contains("another limit") && !other.status.success(), "{words}");
    let listed = Command::new(LOCKWRIGHT)
        .args(["ls", "--json", "--space"])
        .arg(format!("shm:{}", space.0.display()))
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("\"limit\":2") || listed.contains("\"limit\": 2"), "{listed}");
    one.kill().unwrap();
    one.wait().unwrap();
    let waited = space.run(&["-j", "2", "-w", "60", "gpu", "--", "true"]).status().unwrap();
    assert!(waited.success());
    let began = Instant::now();
    while space.run(&["-j", "2", "--test", "gpu"]).status().unwrap().code() != Some(0) {
        assert!(began.elapsed() < PATIENCE, "a permit is free again");
    }
    two.kill().unwrap();
    two.wait().unwrap();
}
