//! One-sided spaces that processes of the server's host are in, too, by CPU instructions: here beside clients over tcp, whose
//! verbs the server's CPU executes. Over queue pairs there is the stress of `tests/rdma.rs`.
#![cfg(target_os = "linux")]

mod apart;

use apart::{TASK, eventually, holder};
use lockwright::inspect::{EntryState, Inspector};
use lockwright::{Client, GuardState, HandleError, LockError, LockSet};
use lockwright_fabric::backend::shm::space_path;
use lockwright_server::{ServeError, Server};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A server, and the space that goes with it.
struct Local {
    server: Option<Server>,
    name: String,
}

impl Local {
    fn new(test: &str) -> Self {
        let name = format!("test-{test}-{}", std::process::id());
        Self { server: Some(serve(&name).unwrap()), name }
    }

    fn here(&self) -> String {
        format!("shm:lent:{}", self.name)
    }

    fn there(&self) -> String {
        format!("tcp://{}/lent:{}", self.server.as_ref().unwrap().address(), self.name)
    }

    fn both(&self) -> [Client; 2] {
        [self.here(), self.there()].map(|address| Client::open(&address).wait().unwrap())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(space_path(&format!("lent.{}", self.name)).unwrap());
    }
}

fn serve(name: &str) -> Result<Server, ServeError> {
    Server::start(apart::options().lend_local(name, 4).unwrap())
}

fn states(address: &str) -> Vec<EntryState> {
    let entries = Inspector::open(address).unwrap().entries().unwrap();
    entries.iter().map(|entry| entry.state).collect()
}

#[test]
fn a_set_knows_a_lock_by_either_way_to_it() {
    let space = Local::new("either");
    let [here, there] = space.both().map(|client| client.mutex("a").unwrap());
    let both = LockSet::new().lock(&here).lock(&there).timeout(Duration::from_secs(1)).acquire().wait();
    assert!(matches!(both, Err(LockError::Duplicate { .. })), "{both:?}");
}

#[test]
fn processes_of_the_host_and_clients_by_verbs_take_the_same_locks() {
    let space = Local::new("same");
    let [here, there] = space.both();
    for (one, other) in [(&here, &there), (&there, &here)] {
        let guard = one.mutex("a").unwrap().lock().wait().unwrap();
        assert_eq!(guard.state(), GuardState::Held);
        assert!(other.mutex("a").unwrap().try_lock().wait().is_err());
        assert!(other.rwlock("a").unwrap().try_read().wait().is_err());
        let (token, then) = (guard.token(), other.clone());
        let next = std::thread::spawn(move || then.mutex("a").unwrap().lock().wait().unwrap().token());
        for address in [space.here(), space.there()] {
            eventually("one holds and one waits", || {
                states(&address) == [EntryState::Held, EntryState::Waiting]
            });
        }
        guard.unlock().wait().unwrap();
        assert!(next.join().unwrap() > token);
    }
    let (mine, theirs) = (here.rwlock("b").unwrap(), there.rwlock("b").unwrap());
    let both = (mine.read().wait().unwrap(), theirs.try_read().wait().unwrap());
    assert!(here.mutex("b").unwrap().try_lock().wait().is_err());
    assert!(there.mutex("b").unwrap().try_lock().wait().is_err());
    drop(both);
    eventually("the readers leave", || there.mutex("b").unwrap().try_lock().wait().is_ok());
    eventually("nobody holds or waits", || states(&space.here()).is_empty());
}

#[test]
fn a_writer_becomes_a_reader_on_both_sides() {
    let space = Local::new("downgrade");
    let [here, there] = space.both();
    for (one, other) in [(&here, &there), (&there, &here)] {
        let guard = one.rwlock("a").unwrap().write().wait().unwrap();
        let token = guard.token();
        let guard = guard.downgrade().wait().unwrap();
        assert!(guard.token() > token);
        drop(other.rwlock("a").unwrap().read().wait().unwrap());
        assert!(other.rwlock("a").unwrap().try_write().wait().is_err());
        guard.unlock().wait().unwrap();
        drop(other.rwlock("a").unwrap().write().wait().unwrap());
    }
}

#[test]
fn what_such_a_space_cannot_do_is_said() {
    let space = Local::new("cannot");
    let [here, there] = space.both();
    let said = here.range_lock("r").unwrap_err();
    assert!(matches!(said, HandleError::Unsupported(_)) && said.to_string().contains("asymmetric"), "{said}");
    let said = there.range_lock("r").unwrap().write(0..5).wait().unwrap_err().to_string();
    assert!(said.contains("asymmetric"), "{said}");
    let guard = here.mutex("a").unwrap().lock().wait().unwrap();
    let said =
        Inspector::open(&space.here()).unwrap().break_grant("a", guard.token()).unwrap_err().to_string();
    assert!(said.contains("cannot be broken"), "{said}");
    let said = Client::open("shm:lent:test-nobody-serves-this").wait().unwrap_err().to_string();
    assert!(said.contains("--local"), "{said}");
    let said = serve(&space.name).unwrap_err().to_string();
    assert!(said.contains("another server"), "{said}");
    for client in [&here, &there] {
        let runs = client.protocols().unwrap();
        assert_eq!((runs.keyed, runs.ranges, runs.parameters), ("qplock-member", "-", vec![("budget", 4)]));
    }
    let info = Inspector::open(&space.here()).unwrap().info().unwrap();
    assert_eq!((info.keyed, info.ranges, info.address), ("qplock-member", "-", space.here()));
}

#[test]
fn local_locks_outlive_the_server_and_its_clients_do_not() {
    let mut space = Local::new("outlives");
    let [here, there] = space.both();
    let held = here.mutex("mine").unwrap().lock().wait().unwrap();
    let lost = there.mutex("theirs").unwrap().lock().wait().unwrap();
    let token = lost.token();
    space.server = None;
    assert_eq!(held.state(), GuardState::Held);
    assert!(here.mutex("theirs").unwrap().lock().wait().unwrap().token() > token);
    space.server = Some(serve(&space.name).unwrap());
    let there = Client::open(&space.there()).wait().unwrap();
    assert!(there.mutex("mine").unwrap().try_lock().wait().is_err());
    let token = held.token();
    held.unlock().wait().unwrap();
    assert!(there.mutex("mine").unwrap().lock().wait().unwrap().token() > token);
}

/// The child holds a lock until it is killed.
#[test]
fn a_process_that_is_killed_frees_what_it_held_and_one_that_is_stopped_keeps_it() {
    let test = "a_process_that_is_killed_frees_what_it_held_and_one_that_is_stopped_keeps_it";
    if let Ok(address) = std::env::var(TASK) {
        let client = Client::open(&address).wait().unwrap();
        let guard = client.mutex("a").unwrap().lock().wait().unwrap();
        println!("holds {}", guard.token());
        std::io::stdout().flush().unwrap();
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let space = Local::new("killed");
    let [here, there] = space.both();
    for address in [space.here(), space.there()] {
        let (mut child, token) = holder(&address, test);
        assert_eq!(Inspector::open(&space.here()).unwrap().entries().unwrap()[0].pid, child.id());
        if address == space.here() {
            // Nobody can keep it from writing when it goes on: so nobody takes the lock, however long that is.
            kill(Pid::from_raw(child.id() as i32), Signal::SIGSTOP).unwrap();
            let waited = there.mutex("a").unwrap().lock_timeout(Duration::from_millis(1500)).wait();
            assert!(waited.is_err());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for client in [&there, &here] {
            assert!(client.mutex("a").unwrap().lock().wait().unwrap().token() > token);
        }
        eventually("nothing is left of it", || states(&space.here()).is_empty());
    }
}

#[test]
fn threads_of_both_sides_lose_no_update() {
    const ROUNDS: u64 = 300;
    let space = Local::new("counts");
    let [here, there] = space.both();
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (client, rounds) in
            [(&here, ROUNDS), (&here, ROUNDS), (&there, ROUNDS / 10), (&there, ROUNDS / 10)]
        {
            let count = &count;
            scope.spawn(move || {
                let lock = client.mutex("a").unwrap();
                for _ in 0..rounds {
                    let _guard = lock.lock().wait().unwrap();
                    let seen = count.load(Relaxed);
                    std::thread::yield_now();
                    count.store(seen + 1, Relaxed);
                }
            });
        }
    });
    assert_eq!(count.load(Relaxed), 2 * ROUNDS + 2 * (ROUNDS / 10));
}
