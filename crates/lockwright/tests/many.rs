//! Many of everything in shared memory: locks, handles and clients of one process. There is an end to what one process may
//! have, before there is none left for others.
//!
//! The other process is this test's own binary, started again.

#![cfg(target_os = "linux")]

use lockwright::inspect::Inspector;
use lockwright::{Client, LockError, MutexGuard};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const SPACE: &str = "LOCKWRIGHT_TEST_SPACE";
/// Clients of one process.
const MOST_CLIENTS: usize = 512;
/// Events are waited for, for so long.
const LIMIT: Duration = Duration::from_secs(60);

struct Space(String);

impl Space {
    fn new(test: &str) -> Self {
        Self(format!("/dev/shm/lockwright-many-{test}-{}", std::process::id()))
    }

    fn address(&self) -> String {
        format!("shm:{}", self.0)
    }

    fn open(&self) -> Client {
        Client::options().lease(Duration::from_secs(2)).open(&self.address()).wait().unwrap()
    }

    /// Whether another process can open the space, take a lock and give it back.
    fn has_room_for_another_process(&self) -> bool {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child", "--exact"]).env(SPACE, self.address()).status().unwrap().success()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What the other process runs; a test only because that is how a test binary finds it.
#[test]
fn child() {
    let Ok(space) = std::env::var(SPACE) else { return };
    let client = Client::open(&space).wait().unwrap();
    client.mutex("of another process").unwrap().try_lock().wait().unwrap().unlock().wait().unwrap();
}

/// As many locks as can be had, and what is said then.
fn all_locks(client: &Client) -> (Vec<MutexGuard>, LockError) {
    let mut held = Vec::new();
    loop {
        match client.mutex(format!("lock {}", held.len())).unwrap().lock().wait() {
            Ok(guard) => held.push(guard),
            Err(error) => return (held, error),
        }
    }
}

#[test]
fn a_process_that_takes_every_lock_it_can_leaves_room_for_others() {
    let space = Space::new("locks");
    let client = space.open();
    let (held, error) = all_locks(&client);
    assert!(matches!(error, LockError::TooManyLocks(_)), "{error:?} after {}", held.len());
    assert!(held.len() >= 10_000, "{}", held.len());
    assert!(space.has_room_for_another_process());
    assert!(client.mutex("one more").unwrap().lock().wait().is_err());
    drop(held);
    drop(client.mutex("one more").unwrap().lock().wait().unwrap());
    drop(client);
    let client = space.open();
    let inspector = Inspector::open(&space.address()).unwrap();
    assert_eq!(inspector.info().unwrap().clients, 1);
    drop(client);
}

#[test]
fn memberships_that_a_client_needs_no_more_end() {
    let space = Space::new("members");
    let client = space.open();
    let inspector = Inspector::open(&space.address()).unwrap();
    let held: Vec<_> =
        (0..2000).map(|n| client.mutex(format!("lock {n}")).unwrap().lock().wait().unwrap()).collect();
    let many = inspector.info().unwrap().clients;
    assert!(many > 30, "{many}");
    let (last, others) = (held.len() - 1, held);
    let last = others.into_iter().nth(last).unwrap();
    let began = Instant::now();
    while inspector.info().unwrap().clients > 10 {
        assert!(began.elapsed() < LIMIT, "{} clients", inspector.info().unwrap().clients);
        std::thread::sleep(Duration::from_millis(10));
    }
    last.unlock().wait().unwrap();
    drop(client.mutex("lock 0").unwrap().lock().wait().unwrap());
}

#[test]
fn a_hundred_thousand_handles_are_dropped_while_thousands_of_locks_are_held() {
    let space = Space::new("handles");
    let client = space.open();
    let (held, _) = all_locks(&client);
    let handles: Vec<_> = (0..100_000).map(|n| client.mutex(format!("handle {n}")).unwrap()).collect();
    let (done, told) = mpsc::channel();
    std::thread::spawn(move || {
        drop(handles);
        done.send(()).unwrap();
    });
    told.recv_timeout(LIMIT).expect("a handle is dropped without a look at every lock");
    drop(held);
    drop(client);
    assert_eq!(Inspector::open(&space.address()).unwrap().info().unwrap().names, 0);
}

#[test]
fn a_process_that_opens_every_client_it_can_leaves_room_for_others() {
    let space = Space::new("clients");
    let mut clients: Vec<_> = (0..MOST_CLIENTS).map(|_| space.open()).collect();
    let refused = Client::open(&space.address()).wait().unwrap_err().to_string();
    assert!(refused.contains("of which one process may be 512"), "{refused}");
    assert!(space.has_room_for_another_process());
    for (n, client) in clients.iter().enumerate() {
        drop(client.mutex(format!("lock {n}")).unwrap().lock().wait().unwrap());
    }
    clients.pop();
    drop(Client::open(&space.address()).wait().unwrap());
}
