//! `run --once-per`: at most one start in a period, however many hosts fire it, whatever dies meanwhile.

mod scratch;
mod started;

use scratch::Scratch;
use started::Started;
use std::fs;
use std::process::{Command, Output};

/// One space, and a home for records.
struct Home {
    scratch: Scratch,
    space: String,
}

impl Home {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let space = format!("shm:{}", scratch.space.display());
        Self { scratch, space }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.scratch.lockwright(args);
        command.env("LOCKWRIGHT_SPACE", &self.space).env("XDG_STATE_HOME", &self.scratch.folder);
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Fires a job that writes a line: what `run` exits with, and what it says.
    fn fire(&self, period: &str, name: &str) -> (Option<i32>, String) {
        let done = self.scratch.file(&format!("done-{name}"));
        let script = format!("echo x >> {}", done.display());
        let output = self.output(&["run", "--once-per", period, name, "-c", &script]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    fn runs(&self, name: &str) -> usize {
        fs::read_to_string(self.scratch.file(&format!("done-{name}"))).unwrap_or_default().lines().count()
    }

    /// A server with a state file, at `listen`, whose space this uses from now on.
    fn serve(&mut self, listen: &str, state: &str) -> Started {
        let state = if state == "none" { state.into() } else { self.scratch.file(state).into_os_string() };
        let mut command = self.scratch.lockwright(&["serve", "--json", "--listen", listen, "--grace", "5"]);
        command.args(["--heartbeat", "0.1", "--state"]).arg(state).env_remove("LOCKWRIGHT_SPACE");
        let server = Started::new(command);
        let said: serde_json::Value = serde_json::from_str(&server.line).unwrap();
        self.space = format!("tcp://{}/stock", said["listening"].as_str().unwrap());
        server
    }

    /// What holds of every space that offers it.
    fn runs_once(&self) {
        assert_eq!(self.fire("1d", "job"), (Some(0), String::new()));
        let (code, said) = self.fire("1d", "job");
        assert!(
            code == Some(0) && said.contains("job: nothing to do, it was run ") && said.contains(" ago by "),
            "{said}"
        );
        assert_eq!(self.runs("job"), 1);
        let quiet = self.output(&["run", "-q", "--once-per", "1d", "job", "--", "false"]);
        assert_eq!((quiet.status.code(), quiet.stderr), (Some(0), Vec::new()));
        assert_eq!(self.fire("1d", "other").0, Some(0));
        assert_eq!(self.runs("other"), 1, "another name has a period of its own");
        // Hosts that fire at the same time run it once.
        let fired: Vec<_> = (0..6)
            .map(|_| {
                let script = format!("echo x >> {}; sleep 0.1", self.scratch.file("done-many").display());
                self.command(&["run", "--once-per", "1h", "many", "-c", &script]).spawn().unwrap()
            })
            .collect();
        for mut child in fired {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(self.runs("many"), 1);
        // A run counts from its start: killed half-way, with its lock, it was one.
        let mut killed =
            Started::new(self.command(&["run", "--once-per", "1d", "dies", "-c", "echo in; exec sleep 600"]));
        killed.child.kill().unwrap();
        killed.child.wait().unwrap();
        let (code, said) = self.fire("1d", "dies");
        assert!(code == Some(0) && said.contains("nothing to do"), "{said}");
        assert_eq!(self.runs("dies"), 0);
        // One that cannot even be started was none.
        let none = self.output(&["run", "--once-per", "1d", "typo", "--", "no-such-program"]);
        assert_eq!(none.status.code(), Some(69));
        assert_eq!(self.fire("1d", "typo"), (Some(0), String::new()));
        assert_eq!(self.runs("typo"), 1);
        // A period that is over.
        assert_eq!(self.fire("1s", "soon").0, Some(0));
        let began = std::time::Instant::now();
        while self.runs("soon") < 2 {
            assert!(began.elapsed() < std::time::Duration::from_secs(60));
            assert_eq!(self.fire("1s", "soon").0, Some(0));
        }
    }
}

#[test]
fn once_on_shared_memory_and_after_the_space_is_gone_too() {
    let home = Home::new("once-shm");
    home.runs_once();
    // As after a reboot: shared memory is gone, the record is not.
    fs::remove_file(&home.scratch.space).unwrap();
    assert!(home.fire("1d", "job").1.contains("nothing to do"));
    assert_eq!(home.runs("job"), 1);
    let mut homeless = home.command(&["run", "--once-per", "1d", "job", "--", "true"]);
    let refused = homeless.env_remove("XDG_STATE_HOME").env_remove("HOME").output().unwrap();
    assert_eq!(refused.status.code(), Some(70), "{refused:?}");
}

#[test]
fn once_on_a_server_and_over_its_restarts() {
    let mut home = Home::new("once-tcp");
    let server = home.serve("127.0.0.1:0", "state");
    home.runs_once();
    let listen = home.space["tcp://".len()..].split('/').next().unwrap().to_owned();
    // Killed by SIGKILL when it is dropped.
    drop(server);
    let _server = home.serve(&listen, "state");
    assert!(home.fire("1d", "job").1.contains("nothing to do"));
    assert!(home.fire("1d", "dies").1.contains("nothing to do"));
    assert_eq!((home.runs("job"), home.runs("dies")), (1, 0));
}

#[test]
fn where_the_record_would_be_lost_nothing_is_run() {
    let mut home = Home::new("once-none");
    let _server = home.serve("127.0.0.1:0", "none");
    let (code, said) = home.fire("1d", "job");
    assert_eq!((code, home.runs("job")), (Some(70), 0), "{said}");
    assert!(said.contains("keeps no state"), "{said}");
    for args in [
        &["run", "--once-per", "1d", "a", "b", "--", "true"][..],
        &["run", "--once-per", "1d", "-s", "a", "--", "true"],
        &["run", "--once-per", "soon", "a", "--", "true"],
        &["run", "--once-per", "0s", "a", "--", "true"],
    ] {
        assert_eq!(home.output(args).status.code(), Some(64), "{args:?}");
    }
}

#[test]
fn the_value_of_another_program_is_not_overwritten() {
    let mut home = Home::new("once-value");
    let _server = home.serve("127.0.0.1:0", "state");
    let client = lockwright::Client::open(&home.space).wait().unwrap();
    let guard = client.mutex("job").unwrap().lock().wait().unwrap();
    guard.set_value(b"page 17").wait().unwrap();
    guard.unlock().wait().unwrap();
    let (code, said) = home.fire("1d", "job");
    assert_eq!((code, home.runs("job")), (Some(70), 0), "{said}");
    let guard = client.mutex("job").unwrap().lock().wait().unwrap();
    assert_eq!(guard.value().wait().unwrap().bytes(), b"page 17");
}
