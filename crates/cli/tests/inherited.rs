//! What `lockwright run` inherits from its parent, and what it passes on to its command: ignored and blocked signals, and the
//! lock that it already runs under.

mod scratch;
mod started;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use scratch::Scratch;
use started::Started;
use std::process::{Command, Stdio};

/// `command` as a program that inherits signals as env(1) with `option` sets them. One that hangs is killed, and exits
/// with 124.
fn inheriting(option: &str, command: &Command) -> Command {
    let mut env = Command::new("timeout");
    env.args(["--foreground", "60", "env", option]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => env.env(name, value),
            None => env.env_remove(name),
        };
    }
    env.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    env
}

/// The process that `timeout` started.
fn inner(timeout: u32) -> u32 {
    let children = format!("/proc/{timeout}/task/{timeout}/children");
    std::fs::read_to_string(children).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

/// A line of /proc/self/status that is a set of signals, as a number.
fn set(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

const fn bit(signal: Signal) -> u64 {
    1 << (signal as i32 - 1)
}

#[test]
fn a_run_that_inherits_sigchld_ignored_ends_with_its_command_and_gives_the_lock_back() {
    let scratch = Scratch::new("sigchld");
    let run = scratch.lockwright(&["run", "a", "--", "sh", "-c", "exit 7"]);
    assert_eq!(inheriting("--ignore-signal=CHLD", &run).status().unwrap().code(), Some(7));
    assert_eq!(scratch.code(&["run", "-n", "a", "--", "true"]), 0, "the lock is free");
}

#[test]
fn a_run_that_inherits_sigchld_ignored_ends_with_its_command_through_a_server_too() {
    let scratch = Scratch::new("sigchld-tcp");
    let served = scratch.start(&["serve", "--json", "--listen", "127.0.0.1:0", "--state", "none"]);
    let said: serde_json::Value = serde_json::from_str(&served.line).unwrap();
    let run = |args: &[&str]| {
        let mut run = scratch.lockwright(&[&["run"], args].concat());
        run.env("LOCKWRIGHT_SPACE", format!("tcp://{}/stock", said["listening"].as_str().unwrap()));
        run
    };
    let ignoring = inheriting("--ignore-signal=CHLD", &run(&["a", "--", "sh", "-c", "exit 7"])).status();
    assert_eq!(ignoring.unwrap().code(), Some(7));
    assert!(run(&["-n", "a", "--", "true"]).status().unwrap().success(), "the lock is free");
}

#[test]
fn the_command_inherits_ignored_and_blocked_signals_as_its_run_did() {
    let scratch = Scratch::new("inherits");
    let read = ["run", "a", "--", "cat", "/proc/self/status"];
    let plain = String::from_utf8(scratch.output(&read).stdout).unwrap();
    let run = scratch.lockwright(&read);
    let status = |option| String::from_utf8(inheriting(option, &run).output().unwrap().stdout).unwrap();
    let ignoring = status("--ignore-signal=CHLD,INT,HUP");
    let expected = bit(Signal::SIGCHLD) | bit(Signal::SIGINT) | bit(Signal::SIGHUP);
    assert_eq!(set(&plain, "SigIgn") & expected, 0);
    assert_eq!(set(&ignoring, "SigIgn") & expected, expected);
    assert_eq!(set(&plain, "SigBlk"), 0);
    let blocking = status("--block-signal=USR1,CHLD");
    assert_eq!(set(&blocking, "SigBlk"), bit(Signal::SIGUSR1) | bit(Signal::SIGCHLD));
}

#[test]
fn a_run_that_inherits_hangup_and_interrupt_ignored_waits_on_for_its_lock() {
    let scratch = Scratch::new("nohup");
    let holder = scratch.start(&["run", "a", "--", "sh", "-c", "echo in; exec sleep 600"]);
    let run = scratch.lockwright(&["run", "a", "--", "true"]);
    let mut waiter = inheriting("--ignore-signal=HUP,INT", &run).spawn().unwrap();
    scratch.await_waiter("a");
    send(inner(waiter.id()), Signal::SIGHUP);
    send(inner(waiter.id()), Signal::SIGINT);
    holder.send(Signal::SIGTERM);
    holder.end();
    assert_eq!(waiter.wait().unwrap().code(), Some(0));
}

#[test]
fn a_run_that_inherits_hangup_ignored_does_not_pass_it_on_to_a_command_that_listens() {
    let scratch = Scratch::new("nohup-command");
    // The command handles the signal, whatever was inherited: what its run ignores must not reach it from there.
    let script = "echo in; exec env --default-signal=HUP sleep 600";
    let run = scratch.lockwright(&["run", "a", "--", "sh", "-c", script]);
    let holder = Started::new(inheriting("--ignore-signal=HUP", &run));
    let pid = inner(holder.child.id());
    send(pid, Signal::SIGHUP);
    send(pid, Signal::SIGTERM);
    assert_eq!(holder.end().0, Some(128 + Signal::SIGTERM as i32));
}

#[test]
fn a_run_inside_the_command_of_another_is_refused_the_same_lock_and_gets_any_other() {
    let scratch = Scratch::new("nested");
    let inner = |outer: &[&str], inner: &str| {
        let binary = env!("CARGO_BIN_EXE_lockwright");
        // One that waits for itself would hang.
        let script = format!("timeout --foreground 20 {binary} run {inner} -- true");
        scratch.output(&[&["run"], outer, &["--", "sh", "-c", &script]].concat())
    };
    let refused = inner(&["a"], "a");
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    let line = String::from_utf8(refused.stderr).unwrap();
    assert!(line.lines().count() == 1 && line.contains("already runs under the lock a"), "{line}");
    let deeper = inner(&["a", "--", env!("CARGO_BIN_EXE_lockwright"), "run", "b"], "-s a");
    assert_eq!(deeper.status.code(), Some(64), "{deeper:?}");
    let by_path = inner(&["a"], &format!("--space shm:{} a", scratch.space.display()));
    assert_eq!(by_path.status.code(), Some(64), "{by_path:?}");
    for (outer, wanted, code) in [
        (&["a"][..], "b", 0),
        (&["-s", "a"], "-s a", 0),
        (&["-s", "a"], "a", 64),
        (&["a"], "-n a", 1),
        (&["a"], "-w 0.05 -E 75 a", 75),
        (&["a"], "--range 0..9 a", 0),
        (&["--range", "0..9", "a"], "--range 9..20 a", 0),
        (&["--range", "0..9", "a"], "--range 8..20 a", 64),
    ] {
        let output = inner(outer, wanted);
        assert_eq!(output.status.code(), Some(code), "{outer:?} {wanted}: {output:?}");
    }
    let other = inner(&["a"], &format!("--space shm:{} a", scratch.file("other").display()));
    assert_eq!(other.status.code(), Some(0), "another space: {other:?}");
}

#[test]
fn what_a_command_left_behind_may_ask_for_the_lock_when_its_run_has_ended() {
    let scratch = Scratch::new("left-behind");
    let output = scratch.output(&["run", "a", "--", "sh", "-c", "echo $LOCKWRIGHT_HELD"]);
    let held = String::from_utf8(output.stdout).unwrap();
    assert!(!held.trim().is_empty());
    let mut later = scratch.lockwright(&["run", "a", "--", "true"]);
    assert_eq!(later.env("LOCKWRIGHT_HELD", held.trim()).status().unwrap().code(), Some(0));
}

#[test]
fn a_lock_in_the_memory_of_run_itself_is_refused_since_it_excludes_nobody() {
    let scratch = Scratch::new("mem");
    let output = scratch.output(&["run", "--space", "mem:", "a", "--", "echo", "ran"]);
    let by_variable =
        scratch.lockwright(&["run", "a", "--", "echo", "ran"]).env("LOCKWRIGHT_SPACE", "mem:").output();
    for output in [output, by_variable.unwrap()] {
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(64), &b""[..]));
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.lines().count() == 1 && line.contains("mem:"), "{line}");
    }
}

#[test]
fn a_name_in_json_is_the_name_once_the_json_is_read() {
    let scratch = Scratch::new("json");
    let name = "tab\there \"quoted\" back\\slash \u{1b}[2J é";
    let holder = scratch.start(&["run", name, "--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN; exec sleep 600"]);
    assert_eq!(scratch.listed(name)[0]["lock"], name);
    let top = scratch.output(&["top", "--json", "--interval", "0.05"]);
    let top: serde_json::Value = serde_json::from_slice(&top.stdout).unwrap();
    assert_eq!(top["locks"][0]["lock"], name);
    let broken = scratch.output(&["break", "--json", name, "--token", &holder.line.clone()]);
    let broken: serde_json::Value = serde_json::from_slice(&broken.stdout).unwrap();
    assert_eq!(broken["lock"], name);
}

#[test]
fn a_run_that_cannot_reach_its_server_yet_ends_by_a_signal() {
    let scratch = Scratch::new("starting");
    // It accepts and never says a word.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let space = format!("tcp://{}", mute.local_addr().unwrap());
    let run = scratch.lockwright(&["run", "--space", &space, "a", "--", "true"]);
    let mut run = inheriting("--ignore-signal=HUP", &run).spawn().unwrap();
    let _connection = mute.accept().unwrap();
    send(inner(run.id()), Signal::SIGTERM);
    assert_eq!(run.wait().unwrap().code(), Some(128 + Signal::SIGTERM as i32));
}
