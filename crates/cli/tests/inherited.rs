//! What `lockwright run` inherits from whoever started it, and what its command inherits from there: ignored and blocked
//! signals, and the lock that it already runs under.

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
