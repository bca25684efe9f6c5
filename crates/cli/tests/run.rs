//! `lockwright run` and its companions, with real processes: what is serialised, what is passed through, and what happens
//! when a holder is killed or stopped, or its lock is broken.

mod scratch;
mod started;

use lockwright::fenced::FencedFile;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use scratch::Scratch;
use started::{Started, limited};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn a_counter_file_under_run_loses_no_update() {
    let scratch = Scratch::new("counter");
    let counter = scratch.file("counter");
    fs::write(&counter, "0\n").unwrap();
    let script = r#"read n < "$0"; sleep 0.01; echo $((n + 1)) > "$0""#;
    let add = ["run", "counter", "--", "sh", "-c", script, counter.to_str().unwrap()];
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| (0..5).for_each(|_| assert_eq!(scratch.code(&add), 0)));
        }
    });
    assert_eq!(fs::read_to_string(&counter).unwrap().trim(), "20");
}

#[test]
fn two_runs_at_once_come_one_after_the_other() {
    let scratch = Scratch::new("serial");
    let log = scratch.file("log");
    let script = r#"echo in >> "$0"; sleep 0.1; echo out >> "$0""#;
    let run = ["run", "backup", "--", "sh", "-c", script, log.to_str().unwrap()];
    let mut both: Vec<_> = (0..2).map(|_| scratch.lockwright(&run).spawn().unwrap()).collect();
    for one in &mut both {
        assert_eq!(one.wait().unwrap().code(), Some(0));
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "in\nout\nin\nout\n");
}

#[test]
fn who_waits_is_told_for_whom_and_top_counts_what_was_granted() {
    let scratch = Scratch::new("waits");
    let fifo = scratch.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = r#"echo in; read go < "$0""#;
    let holder = scratch.start(&["run", "backup", "--", "sh", "-c", script, fifo.to_str().unwrap()]);
    let mut waiter = scratch.lockwright(&["run", "--verbose", "backup", "--", "true"]).spawn().unwrap();
    let (mut said, mut rest) = (String::new(), String::new());
    let mut stderr = BufReader::new(waiter.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    let whom = format!("waiting for backup: process {} (sh) has had it for", holder.child.id());
    assert!(said.contains(&whom), "{said}");
    fs::write(&fifo, "go\n").unwrap();
    assert_eq!(holder.end().0, Some(0));
    stderr.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("got lock backup"), "{rest}");
    assert_eq!(waiter.wait().unwrap().code(), Some(0));
    let _third = scratch.start(&["run", "backup", "--", "sh", "-c", "echo in; exec sleep 2"]);
    let top = scratch.output(&["top", "--json", "--interval", "0.1"]);
    let top: serde_json::Value = serde_json::from_slice(&top.stdout).unwrap();
    assert_eq!(
        (&top["locks"][0]["lock"], &top["locks"][0]["grants_total"]),
        (&"backup".into(), &3.into()),
        "{top}"
    );
}

#[test]
fn exit_codes_are_the_commands_own_or_those_of_flock() {
    let scratch = Scratch::new("codes");
    let sh = |script: &str| scratch.code(&["run", "a", "--", "sh", "-c", script]);
    assert_eq!(sh("exit 0"), 0);
    assert_eq!(sh("exit 7"), 7);
    assert_eq!(sh("kill -KILL $$"), 128 + 9);
    assert_eq!(sh("kill -TERM $$"), 128 + 15);
    assert_eq!(scratch.code(&["run", "a", "--", "/no/such/command"]), 69);
    assert_eq!(scratch.code(&["run", "--no-such-option", "a", "--", "true"]), 64);
    assert_eq!(scratch.code(&["run", "a"]), 64);
    assert_eq!(scratch.code(&["run", "", "--", "true"]), 64);
    assert_eq!(scratch.code(&["run", "--range", "9..3", "a", "--", "true"]), 64);
    assert_eq!(scratch.code(&["run", "--space", "carrier-pigeon:", "a", "--", "true"]), 64);
    assert_eq!(scratch.code(&["run", &"x".repeat(256), "--", "true"]), 64);
    let foreign = format!("shm:{}", scratch.file("foreign").display());
    fs::write(scratch.file("foreign"), vec![7; 1 << 16]).unwrap();
    assert_eq!(scratch.code(&["run", "--space", &foreign, "a", "--", "true"]), 70);
}

#[test]
fn a_lock_that_is_not_to_be_had_in_time_is_exit_code_1_or_the_given_one() {
    let scratch = Scratch::new("busy");
    let holder = scratch.start(&["run", "a", "--", "sh", "-c", "echo in; exec sleep 60"]);
    assert_eq!(scratch.code(&["run", "-n", "a", "--", "true"]), 1);
    assert_eq!(scratch.code(&["run", "-w", "0.05", "-E", "75", "a", "--", "true"]), 75);
    assert_eq!(scratch.code(&["run", "-n", "-s", "a", "--", "true"]), 1);
    assert_eq!(scratch.code(&["run", "-n", "b", "--", "true"]), 0, "another lock");
    holder.send(Signal::SIGTERM);
    assert_eq!(holder.end().0, Some(128 + 15), "signals go on to the command");
    assert_eq!(scratch.code(&["run", "-n", "a", "--", "true"]), 0);
}

#[test]
fn shared_holders_run_together_and_ranges_that_do_not_overlap_too() {
    let scratch = Scratch::new("shared");
    let reader = scratch.start(&["run", "-s", "a", "--", "sh", "-c", "echo in; exec sleep 60"]);
    assert_eq!(scratch.code(&["run", "-n", "-s", "a", "--", "true"]), 0);
    assert_eq!(scratch.code(&["run", "-n", "-x", "a", "--", "true"]), 1);
    let range = scratch.start(&["run", "--range", "0..10", "f", "--", "sh", "-c", "echo in; exec sleep 60"]);
    assert_eq!(scratch.code(&["run", "-n", "--range", "10..20", "f", "--", "true"]), 0);
    assert_eq!(scratch.code(&["run", "-n", "--range", "9..20", "f", "--", "true"]), 1);
    for holder in [reader, range] {
        holder.send(Signal::SIGUSR1);
        assert_eq!(holder.end().0, Some(128 + 10));
    }
}

#[test]
fn standard_input_and_the_environment_reach_the_command() {
    let scratch = Scratch::new("streams");
    let script = r#"cat; echo "$LOCKWRIGHT_LOCK $LOCKWRIGHT_TOKEN""#;
    let mut command = scratch.lockwright(&["run", "a name", "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "hello\na name 1\n");
}

#[test]
fn a_killed_holder_takes_its_command_along_and_the_next_gets_the_lock() {
    let scratch = Scratch::new("killed");
    // A lease that nobody would live to see: only the death can free the lock.
    let script = "echo $$; exec sleep 600";
    let mut holder = scratch.start(&["run", "--lease", "100000", "a", "--", "sh", "-c", script]);
    let command: i32 = holder.line.parse().unwrap();
    let mut next = scratch.lockwright(&["run", "a", "--", "true"]).spawn().unwrap();
    scratch.await_waiter("a");
    let killed = Instant::now();
    holder.child.kill().unwrap();
    assert_eq!(next.wait().unwrap().code(), Some(0));
    println!("from kill to the next one's exit: {:?}", killed.elapsed());
    assert!(!is_running(command), "the command dies with the process that held the lock for it");
    holder.child.wait().unwrap();
}

/// With so few the program starts, and opens some of the files that it needs, or nearly all of them.
const FEW_DESCRIPTORS: std::ops::RangeInclusive<u32> = 4..=14;

#[test]
fn a_run_without_descriptors_takes_no_lock_from_a_living_holder() {
    let scratch = Scratch::new("descriptors");
    let holder = scratch.start(&["run", "h", "--", "sh", "-c", "echo in; exec sleep 60"]);
    for descriptors in FEW_DESCRIPTORS {
        let run = scratch.lockwright(&["run", "-n", "h", "--", "echo", "B"]);
        let output = limited(descriptors, &run).output().unwrap();
        let (code, err) = (output.status.code(), String::from_utf8(output.stderr).unwrap());
        assert!(output.stdout.is_empty(), "{descriptors}: it got the lock");
        // Busy, or one line about what could not be opened.
        assert!(matches!((code, err.lines().count()), (Some(1), 0) | (Some(70), 1)), "{descriptors}: {err}");
        assert!(code == Some(1) || descriptors < *FEW_DESCRIPTORS.end(), "{err}");
    }
    assert_eq!(scratch.listed("h").len(), 1);
    holder.send(Signal::SIGTERM);
    let (code, _, err) = holder.end();
    assert_eq!((code, err.as_str()), (Some(128 + 15), ""), "it held the lock until the end");
}

#[test]
fn a_run_without_descriptors_gets_a_lock_whose_holder_was_killed() {
    let scratch = Scratch::new("descriptors-killed");
    for descriptors in FEW_DESCRIPTORS {
        let mut holder = scratch.start(&["run", "h", "--", "sh", "-c", "echo in; exec sleep 60"]);
        holder.child.kill().unwrap();
        holder.child.wait().unwrap();
        let run = scratch.lockwright(&["run", "-w", "60", "h", "--", "echo", "B"]);
        let output = limited(descriptors, &run).output().unwrap();
        let (code, err) = (output.status.code(), String::from_utf8(output.stderr).unwrap());
        let said = String::from_utf8(output.stdout).unwrap();
        match code {
            Some(0) => assert_eq!((said.as_str(), err.as_str()), ("B\n", "")),
            _ => {
                assert!(code == Some(70) && err.lines().count() == 1, "{descriptors}: {code:?} {err}");
                assert_eq!(said, "", "{descriptors}: the command has not begun");
            }
        }
        assert!(code == Some(0) || descriptors < *FEW_DESCRIPTORS.end(), "{err}");
    }
}

#[test]
fn a_stopped_holder_loses_the_lock_after_its_lease_and_learns_it_and_its_token_is_fenced() {
    let scratch = Scratch::new("stopped");
    let script = "echo $LOCKWRIGHT_TOKEN; trap 'exit 33' TERM; while :; do sleep 0.05; done";
    let holder = scratch.start(&["run", "--lease", "0.3", "a", "--", "sh", "-c", script]);
    let old: u64 = holder.line.parse().unwrap();
    holder.send(Signal::SIGSTOP);
    let next = scratch.output(&["run", "a", "--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN"]);
    let new: u64 = String::from_utf8(next.stdout).unwrap().trim().parse().unwrap();
    assert!(new > old);
    let mut file = FencedFile::open(scratch.file("fenced")).unwrap();
    file.write(new, b"new").unwrap();
    file.write(old, b"old").unwrap_err();
    holder.send(Signal::SIGCONT);
    let (code, _, err) = holder.end();
    assert_eq!(code, Some(33), "the command got SIGTERM: {err}");
    assert!(err.contains("is lost"), "{err}");
}

#[test]
fn a_broken_holder_is_told_and_only_the_named_grant_is_broken() {
    let scratch = Scratch::new("broken");
    let script = "echo $LOCKWRIGHT_TOKEN; trap 'exit 34' TERM; while :; do sleep 0.05; done";
    for range in [&[][..], &["--range", "3..9"]] {
        let args = [&["run"], range, &["a", "--", "sh", "-c", script]].concat();
        let holder = scratch.start(&args);
        let token = holder.line.clone();
        let other = (token.parse::<u64>().unwrap() + 1).to_string();
        assert_eq!(scratch.code(&["break", "a", "--token", &other]), 1);
        assert_eq!(scratch.code(&["break", "no such lock", "--token", &token]), 1);
        assert_eq!(scratch.listed("a").len(), 1);
        assert_eq!(scratch.code(&["break", "a", "--token", &token]), 0);
        assert_eq!(scratch.code(&["run", "-w", "30", "a", "--", "true"]), 0);
        assert_eq!(holder.end().0, Some(34));
    }
}

#[test]
fn a_warned_holder_goes_on() {
    let scratch = Scratch::new("warned");
    let script = "echo $LOCKWRIGHT_TOKEN; read line < \"$0\"; exit 5";
    let fifo = scratch.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let path = fifo.to_str().unwrap();
    let holder = scratch.start(&["run", "--on-lost", "warn", "a", "--", "sh", "-c", script, path]);
    assert_eq!(scratch.code(&["break", "a", "--token", &holder.line.clone()]), 0);
    fs::write(&fifo, "go\n").unwrap();
    let (code, _, err) = holder.end();
    assert_eq!(code, Some(5));
    assert!(err.contains("taken away") || err.contains("unprotected"), "{err}");
}

#[test]
fn ls_shows_holders_and_waiters_and_forgets_those_who_left() {
    let scratch = Scratch::new("ls");
    assert_eq!(scratch.code(&["ls"]), 0, "no space yet");
    let holder = scratch.start(&["run", "a", "--", "sh", "-c", "echo in; exec sleep 60"]);
    let mut waiter = scratch.lockwright(&["run", "a", "--", "true"]).spawn().unwrap();
    scratch.await_waiter("a");
    let listed = scratch.listed("a");
    assert_eq!(listed[0]["state"], "held");
    assert_eq!(listed[0]["pid"], holder.child.id());
    assert_eq!(listed[0]["token"], 1);
    assert_eq!(listed[1]["pid"], waiter.id());
    let stuck = scratch.output(&["ls", "--stuck", "0", "--holder", &waiter.id().to_string(), "--json"]);
    assert_eq!(String::from_utf8(stuck.stdout).unwrap().lines().count(), 1);
    holder.send(Signal::SIGTERM);
    holder.end();
    assert_eq!(waiter.wait().unwrap().code(), Some(0));
    assert!(scratch.listed("a").is_empty());
}

#[test]
fn doctor_and_spaces_answer_in_json() {
    let scratch = Scratch::new("doctor");
    let mut doctor = scratch.lockwright(&["doctor", "--json"]);
    let output = doctor.env("LOCKWRIGHT_DIR", &scratch.folder).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8(output.stdout).unwrap().lines().count() >= 6);
    let mut run = scratch.lockwright(&["run", "a", "--", "true"]);
    run.env("LOCKWRIGHT_DIR", &scratch.folder).env("LOCKWRIGHT_SPACE", "shm:mine");
    assert_eq!(run.status().unwrap().code(), Some(0));
    let mut spaces = scratch.lockwright(&["spaces", "--json"]);
    let output = spaces.env("LOCKWRIGHT_DIR", &scratch.folder).output().unwrap();
    let space: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&space["space"], &space["keyed"]), (&"shm:mine".into(), &"holders".into()));
}

/// A command that gains rights is not killed with its run: the kernel lets go of the tie when it is executed.
#[test]
fn a_set_user_id_command_outlives_its_killed_run_and_keeps_the_lock_on_shared_memory_only() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can make a set-user-id command and start it as another user");
        return;
    }
    // Not where temporary files are: a file system may be mounted without set-user-id.
    let folder = PathBuf::from(format!("/var/tmp/lockwright-suid-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let copy = |from: &str, name: &str, mode: u32| {
        let to = folder.join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).unwrap();
        to
    };
    let program = copy(env!("CARGO_BIN_EXE_lockwright"), "lockwright", 0o755);
    let (id, sleep) = (copy("/usr/bin/id", "id", 0o4755), copy("/bin/sleep", "sleep", 0o4755));
    let user = |program: &Path, args: &[&str], space: &str| {
        let mut command = Command::new(program);
        command
            .args(args)
            .uid(12_345)
            .gid(12_345)
            .current_dir("/")
            .env_clear()
            .env("LOCKWRIGHT_SPACE", space);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    if user(&id, &["-u"], "").output().unwrap().stdout != b"0\n" {
        println!("skipped: no set-user-id programs on the file system of /var/tmp");
        fs::remove_dir_all(folder).unwrap();
        return;
    }
    let served =
        Started::new(user(&program, &["serve", "--json", "--listen", "127.0.0.1:0", "--state", "none"], ""));
    let said: serde_json::Value = serde_json::from_str(&served.line).unwrap();
    let near = format!("shm:{}/space", folder.display());
    let far = format!("tcp://{}/stock", said["listening"].as_str().unwrap());
    for (space, keeps) in [(near, true), (far, false)] {
        let script = format!("echo $$; exec {} 600", sleep.display());
        let run = Started::new(user(&program, &["run", "a", "--", "sh", "-c", &script], &space));
        let command = Pid::from_raw(run.line.parse().unwrap());
        let status = format!("/proc/{command}/status");
        let is_root = || fs::read_to_string(&status).unwrap_or_default().contains("Uid:\t12345\t0\t");
        let until = Instant::now() + Duration::from_secs(20);
        while !is_root() {
            assert!(Instant::now() < until, "the command has no rights of its own");
            std::thread::sleep(Duration::from_millis(10));
        }
        run.send(Signal::SIGKILL);
        drop(run);
        // Longer than a server takes to see that the run has ended.
        let wait = ["run", "-w", if keeps { "3" } else { "20" }, "a", "--", "true"];
        let next = user(&program, &wait, &space).output().unwrap();
        assert!(is_root(), "the command goes on");
        assert_eq!(next.status.code(), Some(i32::from(keeps)), "{space}: {next:?}");
        nix::sys::signal::kill(command, Signal::SIGKILL).unwrap();
        assert!(user(&program, &["run", "-w", "20", "a", "--", "true"], &space).status().unwrap().success());
    }
    drop(served);
    fs::remove_dir_all(folder).unwrap();
}
