//! Acquires on shared memory that are given up while they wait, thousands of them: they take no room from other processes,
//! and cost nobody a lock.
//!
//! Where a story has two processes, the second is this test's own binary, started again.

#![cfg(target_os = "linux")]

use lockwright::inspect::{EntryState, Inspector};
use lockwright::{Client, GuardState, LockError, Mutex};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

const SPACE: &str = "LOCKWRIGHT_TEST_SPACE";
const ANSWER: &str = "answer: ";
const SOON: Duration = Duration::from_millis(1);
/// Events are waited for, for so long.
const LIMIT: Duration = Duration::from_secs(60);
/// Memberships that a client which waits for one lock may have.
const FEW_CLIENTS: usize = 8;
/// Places in the queue of one lock that one client may have, in each mode.
const FEW_PLACES: usize = 16;

/// Places that one client may have abandoned, of all locks.
const MOST_ABANDONED: usize = 64;

/// A space that is gone with the test.
struct Space(PathBuf);

impl Space {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lockwright-test-{}-a{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        Self(PathBuf::from("/dev/shm").join(name))
    }

    fn address(&self) -> String {
        format!("shm:{}", self.0.display())
    }

    fn open(&self) -> Client {
        Client::open(&self.address()).wait().unwrap()
    }

    /// A client whose heartbeats are half a second apart: what it needs no more, it gives back soon.
    fn open_busy(&self) -> Client {
        Client::options().lease(Duration::from_secs(2)).open(&self.address()).wait().unwrap()
    }

    fn clients(&self) -> usize {
        Inspector::open(&self.address()).unwrap().info().unwrap().clients
    }

    fn waiters(&self) -> usize {
        let entries = Inspector::open(&self.address()).unwrap().entries().unwrap();
        entries.iter().filter(|entry| entry.state == EntryState::Waiting).count()
    }

    fn waits_for(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < LIMIT, "{what}: {} clients, {} wait", self.clients(), self.waiters());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `tasks` tasks on two threads, each of which asks for a lock `times` times, for a millisecond.
fn give_up(lock: &Mutex, tasks: usize, times: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..tasks)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move {
                    for _ in 0..times {
                        let late = lock.lock_timeout(SOON).await.map(drop);
                        if late != Err(LockError::TimedOut) {
                            return Some(late);
                        }
                    }
                    None
                })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), None);
        }
    });
}

/// What the second process runs; a test only because that is how a test binary finds it.
#[test]
fn child() {
    let Ok(space) = std::env::var(SPACE) else { return };
    let answer = match Client::open(&space).wait() {
        Ok(client) => format!("{:?}", client.mutex("another").unwrap().try_lock().wait().map(drop)),
        Err(error) => error.to_string(),
    };
    println!("{ANSWER}{answer}");
}

/// What another process says that opens the space and takes a lock of its own.
fn another_process(space: &Space) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]).env(SPACE, space.address());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let answers: Vec<_> = said.filter_map(|line| Some(line.split_once(ANSWER)?.1.to_owned())).collect();
    assert!(child.wait().unwrap().success());
    answers.concat()
}

#[test]
fn tasks_that_give_up_all_the_time_leave_room_for_other_processes() {
    let space = Space::new();
    let (holder, client) = (space.open(), space.open_busy());
    let held = holder.mutex("a").unwrap().lock().wait().unwrap();
    let before = space.clients();
    let lock = client.mutex("a").unwrap();
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| give_up(&lock, 64, 700));
        while !busy.is_finished() {
            assert_eq!(another_process(&space), "Ok(())", "while they give up");
        }
    });
    let (clients, waiters) = (space.clients(), space.waiters());
    assert_eq!(another_process(&space), "Ok(())");
    assert!(clients <= before + FEW_CLIENTS, "{clients} clients");
    assert!(waiters <= FEW_PLACES, "{waiters} wait");
    drop(held);
    assert!(client.settle(LIMIT));
    assert_eq!(space.waiters(), 0);
    drop(client.mutex("a").unwrap().try_lock().wait().unwrap());
}

#[test]
fn a_thread_that_polls_a_held_lock_waits_in_one_place() {
    let space = Space::new();
    let (holder, client) = (space.open(), space.open());
    let held = holder.rwlock("a").unwrap().write().wait().unwrap();
    let lock = client.rwlock("a").unwrap();
    for _ in 0..1000 {
        assert_eq!(lock.write_timeout(SOON).wait().map(drop), Err(LockError::TimedOut));
        assert_eq!(lock.read_timeout(SOON).wait().map(drop), Err(LockError::TimedOut));
    }
    assert_eq!(space.waiters(), 2, "one in each mode");
    assert_eq!(space.clients(), 2);
    drop(held);
    assert!(client.settle(LIMIT));
    assert_eq!(space.waiters(), 0);
}

#[test]
fn a_place_in_the_queue_that_was_given_up_is_the_next_ones() {
    let space = Space::new();
    let (holder, first, second) = (space.open(), space.open(), space.open());
    let held = holder.mutex("a").unwrap().lock().wait().unwrap();
    let [first, second] = [&first, &second].map(|client| client.mutex("a").unwrap());
    assert_eq!(first.lock_timeout(SOON).wait().map(drop), Err(LockError::TimedOut));
    std::thread::scope(|threads| {
        let (granted, order) = std::sync::mpsc::channel();
        let theirs = granted.clone();
        threads.spawn(move || {
            let _guard = second.lock().wait().unwrap();
            theirs.send("second").unwrap();
        });
        space.waits_for("both are in the queue", |space| space.waiters() == 2);
        let mut again = first.lock();
        assert!(Pin::new(&mut again).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        threads.spawn(move || {
            let guard = lockwright_fabric::backend::block_on(again).unwrap();
            granted.send("first").unwrap();
            drop(guard);
        });
        assert_eq!(space.waiters(), 2, "the place that was given up is used again");
        drop(held);
        assert_eq!([order.recv().unwrap(), order.recv().unwrap()], ["first", "second"]);
    });
}

/// Whether a client that gives up all the time beside that has kept a lock which another one wants.
fn keeps_its_other_lock() -> bool {
    let space = Space::new();
    let holder = space.open();
    let held = holder.mutex("a").unwrap().lock().wait().unwrap();
    let client = Client::options().lease(Duration::from_secs(1)).open(&space.address()).wait().unwrap();
    let other = client.mutex("other").unwrap().lock().wait().unwrap();
    let kept = std::thread::scope(|threads| {
        let wanted = holder.mutex("other").unwrap();
        let waits = threads.spawn(move || wanted.lock().wait().unwrap().token());
        give_up(&client.mutex("a").unwrap(), 64, 2000);
        let kept = other.state() == GuardState::Held;
        let token = other.token();
        let given_back = other.unlock().wait().is_ok();
        assert!(waits.join().unwrap() > token);
        kept && given_back
    });
    drop(held);
    kept
}

#[test]
fn a_process_that_gives_up_all_the_time_keeps_its_other_lock() {
    // On a busy machine a process may be stopped for longer than the lease, and rightly lose it; not three times in a row.
    assert!((0..3).any(|_| keeps_its_other_lock()));
}

#[test]
fn more_waiters_than_places_all_get_the_lock() {
    let space = Space::new();
    let client = space.open();
    for shared in [false, true] {
        let lock = client.rwlock("a").unwrap();
        let held = lock.write().wait().unwrap();
        let counter = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for _ in 0..3 * FEW_PLACES {
                threads.spawn(|| {
                    let wait = if shared { lock.read().into_any() } else { lock.write().into_any() };
                    let _guard = wait.wait().unwrap();
                    counter.fetch_add(1, Relaxed);
                });
            }
            space.waits_for("as many as may are in the queue", |space| space.waiters() == FEW_PLACES);
            drop(held);
        });
        assert_eq!(counter.into_inner(), 3 * FEW_PLACES as u64);
    }
    assert_eq!(space.waiters(), 0);
}

#[test]
fn a_range_that_nobody_waits_for_any_more_is_in_nobodys_way() {
    let space = Space::new();
    let (holder, client) = (space.open(), space.open());
    let held = holder.range_lock("a").unwrap().write(0..10).wait().unwrap();
    let lock = client.range_lock("a").unwrap();
    for end in 10..500 {
        assert_eq!(lock.write_timeout(5..end, SOON).wait().map(drop), Err(LockError::TimedOut));
    }
    assert!(client.settle(LIMIT));
    assert_eq!(space.waiters(), 0);
    drop(lock.try_write(10..500).wait().unwrap());
    assert_eq!(space.clients(), 2);
    drop(held);
}

#[test]
fn locks_that_were_given_up_everywhere_leave_room_for_one_more() {
    const LOCKS: usize = 600;
    let space = Space::new();
    let (holder, client) = (space.open(), space.open_busy());
    let before = space.clients();
    let names: Vec<_> = (0..LOCKS).map(|n| format!("lock {n}")).collect();
    let held: Vec<_> = names.iter().map(|name| holder.mutex(name).unwrap().lock().wait().unwrap()).collect();
    let held_by = space.clients();
    for name in &names {
        let late = client.mutex(name).unwrap().lock_timeout(SOON).wait();
        assert_eq!(late.map(drop), Err(LockError::TimedOut));
    }
    let (clients, waiters) = (space.clients(), space.waiters());
    assert!(
        waiters <= MOST_ABANDONED && clients <= held_by + FEW_CLIENTS,
        "{waiters} wait, {clients} clients"
    );
    let (last, patient) = (&names[LOCKS - 1], client.clone());
    std::thread::scope(|threads| {
        let waits = threads.spawn(move || patient.mutex(last).unwrap().lock().wait().unwrap().token());
        drop(held);
        waits.join().unwrap();
    });
    assert!(client.settle(LIMIT));
    drop((holder, client));
    let client = space.open();
    space.waits_for("memberships that are not needed end", |space| space.clients() <= before);
    drop(client);
}
