//! The recoverable asymmetric lock between real processes: one is killed or stopped with the lock in hand, and the others
//! go on.

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmSpace, SpaceOptions};
use lockwright_locks::qplock::leased::{Leased, LeasedParams};
use lockwright_locks::{Grant, LockClient, Lost, Protocol, Space, Want};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SPACE: Space = Space::of(1);
const PATH: &str = "LOCKWRIGHT_TEST_SPACE";
const LEASE: &str = "LOCKWRIGHT_TEST_LEASE_NS";
const WANT: Want = Want::exclusive(0);

fn params(lease_ns: u64) -> LeasedParams {
    LeasedParams { lease_ns, ..LeasedParams::default() }
}

/// In a child: says what happens, and holds the lock until it is told to release it.
fn child(path: &Path) {
    let lease_ns = std::env::var(LEASE).expect("the parent says it").parse().expect("a number");
    let space = ShmSpace::open(path, &SpaceOptions::default().create(false)).expect("the parent made it");
    let client = <Leased>::client(space.endpoint().expect("there is room"), &SPACE, &params(lease_ns));
    let say = |what: &str| {
        println!("\nchild {what}");
        std::io::stdout().flush().expect("the parent listens");
    };
    say("asks");
    let grant = block_on(client.acquire(WANT)).expect("granted");
    say("holds");
    std::io::stdin().lock().read_line(&mut String::new()).expect("the parent speaks");
    match block_on(client.release(grant)) {
        Ok(()) => say("released"),
        Err(Lost::Recovered) => say("lost"),
        Err(other) => panic!("{other}"),
    }
}

struct Scene {
    path: PathBuf,
    space: ShmSpace,
    lease_ns: u64,
    test: &'static str,
}

impl Scene {
    fn new(test: &'static str, lease_ns: u64) -> Self {
        let path = Path::new("/dev/shm").join(format!("lockwright-test-{}-{test}.space", std::process::id()));
        let memory = <Leased>::bytes_per_node(&SPACE, &params(lease_ns));
        let options = SpaceOptions::default().memory(1, &[memory]);
        Self { space: ShmSpace::open(&path, &options).expect("a space can be made"), path, lease_ns, test }
    }

    fn start(&self) -> Player {
        let mut process = Command::new(std::env::current_exe().expect("this is a program"))
            .args([self.test, "--exact", "--nocapture"])
            .env(PATH, &self.path)
            .env(LEASE, self.lease_ns.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = BufReader::new(process.stdout.take().expect("piped"));
        Player { process, said }
    }

    /// Takes the lock in this process and gives it back.
    fn take_turn(&self) -> u64 {
        let ep = self.space.endpoint().expect("there is room");
        let client = <Leased>::client(ep, &SPACE, &params(self.lease_ns));
        let grant = block_on(client.acquire(WANT)).expect("granted");
        block_on(client.release(grant)).expect("released");
        grant.token().expect("it has tokens")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = ShmSpace::remove(&self.path);
    }
}

struct Player {
    process: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Player {
    /// Waits until the child says `what`.
    fn hears(&mut self, what: &str) {
        let mut line = String::new();
        while line.trim() != format!("child {what}") {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).expect("it can be heard"), 0, "the child never {what}");
        }
    }

    fn kill(&mut self) {
        self.process.kill().expect("it can be killed");
        self.process.wait().expect("it is gone");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill {signal} {}", self.process.id())]).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }
}

#[test]
fn the_lock_of_a_killed_process_is_taken_over_without_any_lease() {
    if let Some(path) = std::env::var_os(PATH) {
        return child(Path::new(&path));
    }
    // Without leases: only the process's death can be the reason.
    let scene = Scene::new("the_lock_of_a_killed_process_is_taken_over_without_any_lease", u64::MAX);
    let before = scene.take_turn();
    let mut holder = scene.start();
    holder.hears("holds");
    holder.kill();
    assert!(scene.take_turn() > before + 1, "its token lies in between");
}

#[test]
fn a_queue_whose_members_were_killed_goes_on_after_the_lease() {
    if let Some(path) = std::env::var_os(PATH) {
        return child(Path::new(&path));
    }
    let scene = Scene::new("a_queue_whose_members_were_killed_goes_on_after_the_lease", 50_000_000);
    let before = scene.take_turn();
    let mut holder = scene.start();
    holder.hears("holds");
    let mut queued = scene.start();
    queued.hears("asks");
    holder.kill();
    queued.kill();
    assert!(scene.take_turn() > before + 1);
}

#[test]
fn a_process_that_was_stopped_past_its_lease_learns_that_it_lost_the_lock() {
    if let Some(path) = std::env::var_os(PATH) {
        return child(Path::new(&path));
    }
    let scene =
        Scene::new("a_process_that_was_stopped_past_its_lease_learns_that_it_lost_the_lock", 50_000_000);
    let mut holder = scene.start();
    holder.hears("holds");
    holder.signal("-STOP");
    let first = scene.take_turn();
    holder.signal("-CONT");
    holder.process.stdin.take().expect("piped").write_all(b"release\n").expect("it listens");
    holder.hears("lost");
    assert!(holder.process.wait().expect("it ends").success());
    assert!(scene.take_turn() > first, "what it did late harmed nobody");
}
