//! Clients of a space in shared memory that have run out of file descriptors: they take no lock away from a living process,
//! nor from one whose dependent process lives, and still get what the dead held.
//!
//! The clients are this test's own binary, started again; they do what lines from their standard input say.

#![cfg(target_os = "linux")]

use lockwright::{Client, GuardState, MutexGuard, TryLockError};
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const SPACE: &str = "LOCKWRIGHT_TEST_SPACE";
/// What an answer begins with; the test harness says things, too.
const ANSWER: &str = "answer: ";
/// Of clients that show many signs of life in a short time, and look at the others each time.
const SHORT_LEASE: Duration = Duration::from_millis(40);

/// What child processes run; a test only because that is how a test binary finds it.
#[test]
fn child() {
    let Ok(space) = std::env::var(SPACE) else { return };
    let (mut client, mut files, mut held) = (None, Vec::new(), None::<MutexGuard>);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (verb, object) = line.split_once(' ').unwrap_or((&line, ""));
        let lock = || Option::<&Client>::unwrap(client.as_ref()).mutex("h").unwrap();
        let answer = match verb {
            "open" => {
                let lease = Duration::from_millis(object.parse().unwrap());
                client = Some(Client::options().lease(lease).open(&space).wait().unwrap());
                "open".to_owned()
            }
            "exhaust" => {
                files.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
                format!("{}", !files.is_empty())
            }
            "try" => match lock().try_lock().wait() {
                Ok(guard) => format!("token {}", held.insert(guard).token()),
                Err(TryLockError::Busy) => "busy".to_owned(),
                Err(error) => error.to_string(),
            },
            "lock" => format!("token {}", held.insert(lock().lock().wait().unwrap()).token()),
            "depend" => {
                if !files.is_empty() {
                    // A thread of the client may have closed one since.
                    files.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
                }
                let pid = object.parse().unwrap();
                match client.as_ref().unwrap().hold_while_process_lives(pid) {
                    Ok(set) => set.to_string(),
                    Err(error) => error.to_string(),
                }
            }
            "idle" => {
                std::thread::sleep(10 * SHORT_LEASE);
                "idle".to_owned()
            }
            other => panic!("{other}"),
        };
        println!("{ANSWER}{answer}");
    }
}

/// A client in a process of its own. Killed when dropped.
struct Process {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn ask(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answers = self.said.by_ref().map(Result::unwrap);
        answers.find_map(|line| Some(line.split_once(ANSWER)?.1.to_owned())).expect("it answers")
    }

    /// Nothing is left of it, not even a zombie.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that works under this process's lock, killed when dropped.
struct Dependent(Child);

impl Dependent {
    fn new() -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Dependent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A space that is gone with the test.
struct Space(PathBuf);

impl Space {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lockwright-test-{}-d{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        Self(PathBuf::from("/dev/shm").join(name))
    }

    fn address(&self) -> String {
        format!("shm:{}", self.0.display())
    }

    /// A client with this lease.
    fn client(&self, lease: Duration) -> Process {
        let mut child = Command::new("sh")
            .args(["-c", r#"ulimit -n 32; exec "$0" "$@""#])
            .arg(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(SPACE, self.address())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Process { child, said };
        assert_eq!(process.ask(&format!("open {}", lease.as_millis())), "open");
        process
    }

    /// The same, with no file descriptor left.
    fn poor_client(&self, lease: Duration) -> Process {
        let mut process = self.client(lease);
        assert_eq!(process.ask("exhaust"), "true");
        process
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A lease that does not end while a test runs.
const LONG_LEASE: Duration = Duration::from_secs(100_000);

#[test]
fn a_client_without_descriptors_does_not_get_a_lock_that_is_held() {
    let space = Space::new();
    let holder = Client::options().lease(LONG_LEASE).open(&space.address()).wait().unwrap();
    let guard = holder.mutex("h").unwrap().lock().wait().unwrap();
    let mut poor = space.poor_client(LONG_LEASE);
    assert_eq!(poor.ask("try"), "busy");
    assert_eq!(guard.state(), GuardState::Held);
    guard.unlock().wait().unwrap();
    let answer = poor.ask("try");
    assert!(answer.starts_with("token "), "what is free it gets: {answer}");
}

#[test]
fn an_idle_client_without_descriptors_takes_nobodys_lock() {
    let space = Space::new();
    let holder = Client::options().lease(LONG_LEASE).open(&space.address()).wait().unwrap();
    let guard = holder.mutex("h").unwrap().lock().wait().unwrap();
    let mut poor = space.client(SHORT_LEASE);
    // It runs out of them while it is there; its heartbeat looks for clients that have died.
    assert_eq!(poor.ask("exhaust"), "true");
    assert_eq!(poor.ask("idle"), "idle");
    assert_eq!(guard.state(), GuardState::Held);
    guard.unlock().wait().unwrap();
}

#[test]
fn a_client_without_descriptors_gets_the_lock_of_a_process_that_was_killed() {
    let space = Space::new();
    let mut holder = space.client(LONG_LEASE);
    assert_eq!(holder.ask("try"), "token 1");
    let mut poor = space.poor_client(LONG_LEASE);
    assert_eq!(poor.ask("try"), "busy");
    holder.kill();
    let answer = poor.ask("lock");
    assert!(answer.starts_with("token "), "{answer}");
}

#[test]
fn a_dependent_process_keeps_the_lock_from_clients_that_cannot_look_at_it() {
    let space = Space::new();
    let dependent = Dependent::new();
    let (mut holder, mut poor) = (space.client(LONG_LEASE), space.poor_client(SHORT_LEASE));
    assert_eq!(holder.ask("try"), "token 1");
    assert_eq!(holder.ask(&format!("depend {}", dependent.0.id())), "true");
    holder.kill();
    assert_eq!(poor.ask("idle"), "idle");
    assert_eq!(poor.ask("try"), "busy", "the holder has ended, and its dependent process has not");
    drop(dependent);
    let answer = poor.ask("lock");
    assert!(answer.starts_with("token "), "{answer}");
}

#[test]
fn a_dependent_process_is_known_by_its_start_too_and_keeps_the_lock_until_it_ends() {
    let space = Space::new();
    let dependent = Dependent::new();
    let (mut holder, mut other) = (space.client(LONG_LEASE), space.client(LONG_LEASE));
    assert_eq!(holder.ask("try"), "token 1");
    assert_eq!(holder.ask(&format!("depend {}", dependent.0.id())), "true");
    holder.kill();
    assert_eq!(other.ask("try"), "busy", "one that can look compares when the process was started");
    drop(dependent);
    let answer = other.ask("lock");
    assert!(answer.starts_with("token "), "{answer}");
}

#[test]
fn a_dependent_process_that_cannot_be_looked_up_is_an_error() {
    let space = Space::new();
    let dependent = Dependent::new();
    let mut poor = space.poor_client(LONG_LEASE);
    assert_eq!(poor.ask("try"), "token 1");
    let depend = format!("depend {}", dependent.0.id());
    let answer = poor.ask(&depend);
    assert!(answer.contains("Too many open files"), "{answer}");
    drop(dependent);
    assert_eq!(poor.ask(&depend), "false", "there is no such process");
}
