//! What scripts ask of `lockwright run` every day, each option with real processes: several names, skipping, testing, holding
//! for the rest of a script, starting again.

mod scratch;
mod started;

use nix::sys::signal::Signal;
use scratch::Scratch;
use std::fs;
use std::io::BufRead;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[test]
fn several_names_are_held_together_and_their_tokens_come_in_the_order_given() {
    let scratch = Scratch::new("several");
    let script = r#"printf '%s|%s\n' "$LOCKWRIGHT_LOCK" "$LOCKWRIGHT_TOKEN"; exec sleep 60"#;
    let mut holder = scratch.start(&["run", "z", "a", "--", "sh", "-c", script]);
    let mut second = String::new();
    holder.stdout.read_line(&mut second).unwrap();
    let token = |name: &str| scratch.listed(name)[0]["token"].to_string();
    let told = format!("a|{} {}", token("z"), token("a"));
    assert_eq!((holder.line.as_str(), second.trim()), ("z", told.as_str()));
    for name in ["a", "z"] {
        assert_eq!(scratch.code(&["run", "-n", name, "--", "true"]), 1);
    }
    assert_eq!(scratch.code(&["run", "-n", "b", "a", "--", "true"]), 1, "all or none");
    assert!(scratch.listed("b").is_empty());
    holder.send(Signal::SIGTERM);
    assert_eq!(holder.end().0, Some(128 + 15));
    assert_eq!(scratch.code(&["run", "-n", "b", "a", "--", "true"]), 0);
    assert_eq!(scratch.code(&["run", "a", "a", "--", "true"]), 64, "one lock twice");
}

#[test]
fn a_set_whose_lock_is_broken_ends_its_command() {
    let scratch = Scratch::new("set-broken");
    let script = "echo $LOCKWRIGHT_TOKEN; trap 'exit 34' TERM; while :; do sleep 0.05; done";
    let holder = scratch.start(&["run", "a", "b", "--", "sh", "-c", script]);
    let token = holder.line.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(scratch.code(&["break", "b", "--token", &token]), 0);
    let (code, _, err) = holder.end();
    assert_eq!(code, Some(34), "{err}");
    assert!(err.contains("lock b is lost"), "{err}");
}

#[test]
fn skip_is_quiet_about_a_lock_that_is_taken() {
    let scratch = Scratch::new("skip");
    let holder = scratch.start(&["run", "a", "--", "sh", "-c", "echo in; exec sleep 60"]);
    for args in [
        &["run", "--skip", "a", "--", "echo", "x"][..],
        &["run", "--skip", "-w", "0.05", "a", "--", "echo", "x"],
    ] {
        let output = scratch.output(args);
        assert_eq!(
            (output.status.code(), text(&output.stdout), text(&output.stderr)),
            (Some(0), String::new(), String::new())
        );
    }
    drop(holder);
    assert_eq!(text(&scratch.output(&["run", "--skip", "a", "--", "echo", "x"]).stdout), "x");
}

#[test]
fn test_says_who_has_a_lock_and_takes_nothing() {
    let scratch = Scratch::new("test");
    assert_eq!(scratch.code(&["run", "--test", "a"]), 0, "no space yet");
    let holder = scratch.start(&["run", "-s", "a", "--", "sh", "-c", "echo in; exec sleep 60"]);
    let taken = scratch.output(&["run", "--test", "b", "a"]);
    assert_eq!(taken.status.code(), Some(1));
    assert!(text(&taken.stdout).starts_with(&format!("a: process {} (", holder.child.id())), "{taken:?}");
    assert_eq!(scratch.code(&["run", "--test", "-E", "9", "a"]), 9);
    assert_eq!(scratch.code(&["run", "--test", "-s", "a"]), 0, "it could be shared");
    assert_eq!(text(&scratch.output(&["run", "--test", "b"]).stdout), "b: free");
    assert_eq!(scratch.listed("a").len(), 1);
}

/// Where the process that keeps a lock finds its space.
const KEEPER: &str = "LOCKWRIGHT_TEST_KEEPER";

/// Uses the lock "a" until it stays here; keeps it, uses it from the first line of its input on, and says when.
fn keep(space: &str) -> ! {
    use lockwright::inspect::{EntryState, Inspector};
    let client = lockwright::Client::open(space).wait().unwrap();
    let (lock, inspector) = (client.mutex("a").unwrap(), Inspector::open(space).unwrap());
    let line = || std::io::stdin().lock().lines().next();
    loop {
        while inspector.entries().unwrap().iter().all(|entry| entry.state != EntryState::Retained) {
            for _ in 0..20 {
                drop(lock.lock().wait().unwrap());
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        println!("\nkeeps");
        line();
        let guard = lock.lock().wait().unwrap();
        println!("\nuses");
        line();
        drop(guard);
    }
}

#[test]
fn test_finds_out_whether_a_retained_lock_is_in_use() {
    if let Ok(space) = std::env::var(KEEPER) {
        keep(&space);
    }
    let scratch = Scratch::new("test-retained");
    let server =
        scratch.start(&["serve", "--json", "--listen", "127.0.0.1:0", "--state", "none", "--grace", "600"]);
    let said: serde_json::Value = serde_json::from_str(&server.line).unwrap();
    let space = format!("tcp://{}/stock", said["listening"].as_str().unwrap());
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["test_finds_out_whether_a_retained_lock_is_in_use", "--exact", "--nocapture"]);
    command.env(KEEPER, &space).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut keeper = started::Started::new(command);
    let mut input = keeper.child.stdin.take().unwrap();
    let until = |keeper: &mut started::Started, word: &str| {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            assert_ne!(keeper.stdout.read_line(&mut line).unwrap(), 0, "it has ended");
        }
    };
    let mut go = || std::io::Write::write_all(&mut input, b"go\n").unwrap();
    let test = || {
        let output = scratch.output(&["run", "--test", "--space", &space, "a"]);
        (output.status.code(), text(&output.stdout))
    };
    until(&mut keeper, "keeps");
    assert_eq!(test(), (Some(0), "a: free".to_owned()), "nobody uses it");
    go();
    until(&mut keeper, "uses");
    let (code, said) = test();
    let pid = keeper.child.id();
    assert!(code == Some(1) && said.starts_with(&format!("a: process {pid} (")), "{said}");
    go();
    until(&mut keeper, "keeps");
    go();
    until(&mut keeper, "uses");
    // It cannot say any more that it uses it.
    keeper.send(Signal::SIGSTOP);
    let (code, said) = test();
    assert!(code == Some(1) && said.contains(&format!("process {pid} (")), "{said}");
}

#[test]
fn the_graph_says_who_waits_for_whom_and_marks_a_deadlock() {
    let scratch = Scratch::new("graph");
    // Each holds one lock for its script, and asks for the other's.
    let start = |first: &str, second: &str| {
        let script =
            r#""$0" run --for $$ "$1" >/dev/null && echo in && read go && exec "$0" run "$2" -- true"#;
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_lockwright"), first, second]);
        shell.env("LOCKWRIGHT_SPACE", format!("shm:{}", scratch.space.display()));
        shell.stdin(std::process::Stdio::piped());
        shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        started::Started::new(shell)
    };
    let (mut one, mut two) = (start("a", "b"), start("b", "a"));
    for script in [&mut one, &mut two] {
        use std::io::Write;
        script.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    scratch.await_waiter("a");
    scratch.await_waiter("b");
    let graph = text(&scratch.output(&["ls", "--graph"]).stdout);
    assert_eq!((graph.lines().count(), graph.matches("DEADLOCK").count()), (4, 4), "{graph}");
    for (waiter, holder) in [(&one, &two), (&two, &one)] {
        let waits = format!("true {}@", waiter.child.id());
        let edge = graph.lines().find(|line| line.starts_with(&waits)).unwrap();
        assert!(edge.contains(&format!("waits for run --for {} ", holder.child.id())), "{graph}");
    }
    assert!(text(&scratch.output(&["ls", "--graph=dot"]).stdout).starts_with("digraph"));
}

#[test]
fn a_line_for_the_shell_is_run_by_it() {
    let scratch = Scratch::new("line");
    let output = scratch.output(&["run", "a", "-c", "echo $((6 * 7)); exit 3"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "42".to_owned()));
    assert_eq!(scratch.code(&["run", "-o", "a", "-c", "true"]), 0, "as in flock(1)");
    assert_eq!(scratch.code(&["run", "-c", "true", "a", "--", "true"]), 64);
}

#[test]
fn a_lock_is_held_for_a_while_at_least() {
    let scratch = Scratch::new("at-least");
    let holder = scratch.start(&["run", "--hold-at-least", "600", "a", "--", "echo", "done"]);
    assert_eq!(holder.line, "done");
    assert_eq!(scratch.code(&["run", "-n", "a", "--", "true"]), 1, "the command has ended, the lock is held");
    holder.send(Signal::SIGTERM);
    assert_eq!(holder.end().0, Some(0), "a signal ends it");
    assert_eq!(scratch.code(&["run", "-n", "a", "--", "true"]), 0);
}

#[test]
fn the_signal_for_a_lost_lock_can_be_chosen() {
    let scratch = Scratch::new("signal");
    let script = "echo $LOCKWRIGHT_TOKEN; trap 'exit 35' USR1; while :; do sleep 0.05; done";
    let holder = scratch.start(&["run", "--signal", "USR1", "a", "--", "sh", "-c", script]);
    assert_eq!(scratch.code(&["break", "a", "--token", &holder.line.clone()]), 0);
    assert_eq!(holder.end().0, Some(35));
    assert_eq!(scratch.code(&["run", "--signal", "NOSUCH", "a", "--", "true"]), 64);
}

#[test]
fn a_command_that_is_kept_running_starts_again_and_waits_again_when_its_lock_is_lost() {
    let scratch = Scratch::new("keep");
    let script = "echo $LOCKWRIGHT_TOKEN; [ -e \"$0\" ] || { touch \"$0\"; exit 1; }; exec sleep 600";
    let first = scratch.file("first");
    let args = ["run", "--keep-running=0.01", "a", "--", "sh", "-c", script, first.to_str().unwrap()];
    let mut holder = scratch.start(&args);
    let mut line = || {
        let mut line = String::new();
        holder.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let token = line();
    assert_eq!(token, holder.line, "started again, under the same grant");
    assert_eq!(scratch.code(&["break", "a", "--token", &token]), 0);
    let mut line = String::new();
    holder.stdout.read_line(&mut line).unwrap();
    assert!(line.trim().parse::<u64>().unwrap() > token.parse().unwrap(), "and under a new one");
    holder.send(Signal::SIGTERM);
    assert_eq!(holder.end().0, Some(128 + 15), "a signal ends both");
    assert_eq!(scratch.code(&["run", "-n", "a", "--", "true"]), 0);
}

#[test]
fn a_script_holds_a_lock_for_its_rest() {
    let scratch = Scratch::new("rest");
    let fifo = scratch.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // What follows `||` makes the shell start a process of its own for the command: `$$` is still the script.
    let script =
        r#"token=$("$0" run --for $$ a 2>&1 || exit 9) || exit; echo "token $token"; read go < "$1"; exit 5"#;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lockwright"), fifo.to_str().unwrap()]);
    shell.env("LOCKWRIGHT_SPACE", format!("shm:{}", scratch.space.display()));
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let script = started::Started::new(shell);
    assert_eq!(script.line, "token 1");
    assert_eq!(scratch.code(&["run", "-n", "a", "--", "true"]), 1);
    let pid = script.child.id().to_string();
    assert_eq!(scratch.code(&["run", "-n", "--for", &pid, "a"]), 1, "not to be had in time");
    fs::write(&fifo, "go\n").unwrap();
    assert_eq!(script.end().0, Some(5));
    assert_eq!(scratch.code(&["run", "-w", "60", "a", "--", "true"]), 0, "free when the script has ended");
    assert_eq!(scratch.code(&["run", "--for", &pid, "a"]), 64, "there is no such process any more");
}

#[test]
fn a_script_whose_lock_is_lost_gets_a_signal() {
    let scratch = Scratch::new("rest-lost");
    let script = r#"trap 'exit 36' TERM; "$0" run --for $$ a || exit; while :; do sleep 0.05; done"#;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lockwright")]);
    shell.env("LOCKWRIGHT_SPACE", format!("shm:{}", scratch.space.display()));
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let script = started::Started::new(shell);
    assert_eq!(scratch.code(&["break", "a", "--token", &script.line.clone()]), 0);
    assert_eq!(script.end().0, Some(36));
}
