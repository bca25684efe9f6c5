//! A decider and its clients as processes: commands under its locks, processes that are killed, a decider that is killed and
//! started again.

#[path = "../../server/tests/loopback/mod.rs"]
mod loopback;
mod started;

use loopback::own_address;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use started::Started;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn lockwright(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
    command.args(args).env_remove("LOCKWRIGHT_SPACE").env_remove("LOCKWRIGHT_SECRET_FILE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-switch-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A decider, and the space `s` of it.
fn switch(listen: &str, state: &str) -> (Started, String) {
    let switch = Started::new(lockwright(&["switch", "--listen", listen, "--state", state, "--json"]));
    let said: Value = serde_json::from_str(&switch.line).unwrap();
    let space = format!("fiss://{}/s", said["listening"].as_str().unwrap());
    (switch, space)
}

fn run(space: &str, options: &[&str], script: &str) -> Command {
    let mut args = vec!["run", "--space", space];
    args.extend_from_slice(options);
    args.extend_from_slice(&["job", "--", "sh", "-c", script]);
    lockwright(&args)
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

/// Looks until `seen`, and says what is there instead if that takes too long.
fn eventually<T>(mut seen: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + LONG;
    loop {
        match seen() {
            Ok(seen) => return seen,
            Err(instead) => assert!(Instant::now() < until, "{instead}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn appears(path: &Path) {
    eventually(|| path.exists().then_some(()).ok_or_else(|| format!("{} was not made", path.display())));
}

/// Says that it runs, and runs until it is told to end.
fn script(scratch: &Scratch) -> String {
    let (runs, ends) = (scratch.file("runs"), scratch.file("ends"));
    format!("touch {}; while [ ! -e {} ]; do sleep 0.02; done; echo done", runs.display(), ends.display())
}

#[test]
fn commands_run_under_locks_of_a_decider_and_people_can_look() {
    let scratch = Scratch::new("run");
    let (switch, space) = switch("127.0.0.1:0", "none");
    let quick = output(run(&space, &[], "echo hi"));
    assert_eq!((quick.status.code(), &quick.stdout[..]), (Some(0), &b"hi\n"[..]), "{quick:?}");
    let holder = run(&space, &[], &script(&scratch)).spawn().unwrap();
    appears(&scratch.file("runs"));
    let refused = output(run(&space, &["--timeout", "0"], "echo never"));
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    let listed = output(lockwright(&["ls", "--space", &space, "--json"]));
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("\"job\""), "{listed}");
    let address = space.trim_start_matches("fiss://").trim_end_matches("/s");
    // The departure of the one that was refused may still be on its way, and the recovery that follows.
    eventually(|| {
        let said = output(lockwright(&["switch", &format!("--status={address}"), "--json"]));
        let status: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
        let is_so = (&status["state"], &status["clients"]) == (&"open".into(), &1.into());
        is_so.then_some(()).ok_or_else(|| status.to_string())
    });
    fs::write(scratch.file("ends"), "").unwrap();
    let ended = holder.wait_with_output().unwrap();
    assert_eq!(ended.stdout, b"done\n");
    drop(switch);
}

#[test]
fn a_killed_holder_leaves_its_lock_to_others() {
    let scratch = Scratch::new("kill");
    let (_switch, space) = switch("127.0.0.1:0", "none");
    let mut holder = run(&space, &[], &script(&scratch)).spawn().unwrap();
    appears(&scratch.file("runs"));
    kill(Pid::from_raw(holder.id() as i32), Signal::SIGKILL).unwrap();
    holder.wait().unwrap();
    let next = output(run(&space, &["--timeout", "60"], "echo next"));
    assert_eq!(next.stdout, b"next\n", "{next:?}");
    fs::write(scratch.file("ends"), "").unwrap();
}

#[test]
fn a_killed_decider_is_started_again_and_its_clients_keep_what_they_hold() {
    let scratch = Scratch::new("restart");
    let listen = own_address().to_string();
    let state = scratch.file("state");
    let state = state.to_str().unwrap();
    let (mut first, space) = switch(&listen, state);
    let holder = run(&space, &[], &script(&scratch)).spawn().unwrap();
    appears(&scratch.file("runs"));
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let (second, _) = switch(&listen, state);
    assert!(second.line.contains("\"recovering\":true"), "{}", second.line);
    // It is let in when the holder is back, and finds the lock taken.
    let refused = output(run(&space, &["--timeout", "0.5"], "echo never"));
    assert!(refused.stdout.is_empty() && !refused.status.success(), "{refused:?}");
    let waiting = run(&space, &["--timeout", "60"], "echo next").spawn().unwrap();
    fs::write(scratch.file("ends"), "").unwrap();
    let ended = holder.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), &ended.stdout[..]), (Some(0), &b"done\n"[..]), "{ended:?}");
    assert_eq!(waiting.wait_with_output().unwrap().stdout, b"next\n");
    drop(second);
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let open = output(lockwright(&["switch", "--listen", "0.0.0.0:0", "--state", "none"]));
    let said = String::from_utf8_lossy(&open.stderr).into_owned();
    assert_eq!((open.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    let nobody = own_address();
    let asked = output(lockwright(&["switch", &format!("--status={nobody}")]));
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert_eq!((asked.status.code(), said.lines().count()), (Some(2), 1), "{said}");
}

#[test]
fn what_the_protocol_cannot_give_is_refused_in_one_line() {
    let (_switch, space) = switch("127.0.0.1:0", "none");
    let asked: [&[&str]; 3] = [
        &["run", "--range", "0..5", "--space", &space, "job", "--", "echo", "never"],
        &["run", "--jobs", "2", "--space", &space, "job", "--", "echo", "never"],
        &["break", "job", "--token", "1", "--space", &space],
    ];
    for args in asked {
        let refused = output(lockwright(args));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{args:?}: {refused:?}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn what_a_decider_counts_is_there_for_prometheus() {
    let options = ["switch", "--listen", "127.0.0.1:0", "--state", "none", "--json"];
    let switch = Started::new(lockwright(&[&options[..], &["--metrics", "127.0.0.1:0"]].concat()));
    let said: Value = serde_json::from_str(&switch.line).unwrap();
    let space = format!("fiss://{}/s", said["listening"].as_str().unwrap());
    assert!(output(run(&space, &[], "true")).status.success());
    let mut stream = TcpStream::connect(said["metrics"].as_str().unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("lockwright_decider_{name} ")));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse::<u64>().unwrap()
    };
    // It is open again when the client's departure has been dealt with. A GRANT that is late is sent again, and counts again.
    assert!(value("open") <= 1);
    assert!(value("grants_total") >= 1, "{text}");
    assert_eq!(value("locks"), 262_144);
}

#[test]
fn doctor_says_whether_the_kernel_takes_a_decider() {
    let said = output(lockwright(&["doctor", "--json"]));
    let said = String::from_utf8(said.stdout).unwrap();
    let line = said.lines().find(|line| line.contains("\"XDP\"")).unwrap();
    let is_there = line.contains("takes the decider's program");
    assert!(is_there || line.contains("only `switch --xdp` would need it"), "{line}");
    assert!(!is_there || cfg!(feature = "xdp"), "{line}");
}
