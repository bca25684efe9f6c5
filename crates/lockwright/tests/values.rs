//! Values of locks, and holders that are told of waiters: in one process, and on shared memory.
#![cfg(target_os = "linux")]

use lockwright::{Client, MutexGuard, ValueError};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn mem() -> Client {
    Client::open("mem:").wait().unwrap()
}

/// A space of shared memory of this test's own.
struct Space(PathBuf);

impl Space {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("lockwright-values-{name}-{}", std::process::id())))
    }

    fn client(&self) -> Client {
        Client::open(&format!("shm:{}", self.0.display())).wait().unwrap()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Ends its thread while it holds the lock.
#[expect(clippy::needless_pass_by_value, reason = "the guard is dropped by the panic")]
fn end_in_a_panic(held: MutexGuard) {
    assert!(held.is_shared(), "it is not");
}

#[test]
fn the_next_holder_reads_what_the_last_one_left_also_when_nobody_used_the_name_meanwhile() {
    let client = mem();
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    assert!(guard.value().wait().unwrap().bytes().is_empty());
    guard.set_value(b"one").wait().unwrap();
    guard.set_value(&[7; 64]).wait().unwrap();
    assert!(guard.value().wait().unwrap().is_clean(), "its own");
    drop(guard);
    let value = client.rwlock("a").unwrap().read().wait().unwrap().value().wait().unwrap();
    assert_eq!((value.bytes(), value.is_clean(), value.is_durable()), (&[7; 64][..], true, false));
    assert!(client.mutex("b").unwrap().lock().wait().unwrap().value().wait().unwrap().bytes().is_empty());
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    guard.set_value(b"").wait().unwrap();
    guard.unlock().wait().unwrap();
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    let value = guard.value().wait().unwrap();
    assert!(value.bytes().is_empty() && value.is_clean() && value.age() == Duration::ZERO);
}

#[test]
fn a_value_whose_holder_panicked_is_not_clean_until_it_is_set_anew() {
    let client = mem();
    let lock = client.mutex("a").unwrap();
    let guard = lock.lock().wait().unwrap();
    guard.set_value(b"good").wait().unwrap();
    drop(guard);
    let held = lock.lock().wait().unwrap();
    assert_eq!(held.value().wait().unwrap().bytes(), b"good");
    assert!(std::thread::spawn(move || end_in_a_panic(held)).join().is_err());
    for _ in 0..2 {
        let guard = lock.lock().wait().unwrap();
        let value = guard.value().wait().unwrap();
        assert_eq!(
            (value.bytes(), value.is_clean()),
            (&b"good"[..], false),
            "reading does not make it clean"
        );
    }
    let guard = lock.lock().wait().unwrap();
    guard.set_value(b"better").wait().unwrap();
    drop(guard);
    assert!(lock.lock().wait().unwrap().value().wait().unwrap().is_clean());
}

#[test]
fn a_holder_that_never_looked_at_the_value_leaves_it_as_it_was() {
    let client = mem();
    let lock = client.mutex("a").unwrap();
    lock.lock().wait().unwrap().set_value(b"good").wait().unwrap();
    let held = lock.lock().wait().unwrap();
    assert!(std::thread::spawn(move || end_in_a_panic(held)).join().is_err());
    assert!(lock.lock().wait().unwrap().value().wait().unwrap().is_clean());
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let client = mem();
    let guard = client.rwlock("a").unwrap().write().wait().unwrap();
    assert_eq!(guard.set_value(&[0; 65]).wait(), Err(ValueError::TooLong { len: 65 }));
    guard.set_value(b"x").wait().unwrap();
    let late = guard.set_value(b"late");
    let guard = guard.downgrade().wait().unwrap();
    assert_eq!(guard.set_value(b"y").wait(), Err(ValueError::Shared));
    assert!(matches!(late.wait(), Err(ValueError::Refused(_))), "it is not that grant any more");
    let value = guard.value().wait().unwrap();
    assert_eq!((value.bytes(), value.is_clean()), (&b"x"[..], true));
    let range = client.range_lock("a").unwrap().write(0..1).wait().unwrap();
    assert_eq!(range.value().wait(), Err(ValueError::Unsupported("range locks")));
    let permit = client.semaphore("a", 1).unwrap().acquire().wait().unwrap();
    assert_eq!(permit.set_value(b"z").wait(), Err(ValueError::Unsupported("semaphores")));
    let space = Space::new("refused");
    let guard = space.client().mutex("a").unwrap().lock().wait().unwrap();
    assert_eq!(guard.value().wait(), Err(ValueError::Unsupported("shared memory")));
    guard.unlock().wait().unwrap();
}

/// A holder is told of a waiter, and of none that is not in its way.
fn tells(client: &Client, other: &Client) {
    let lock = client.rwlock("a").unwrap();
    let guard = lock.read().wait().unwrap();
    let (told, hears) = mpsc::channel();
    guard.on_contended(move || told.send(()).unwrap()).unwrap();
    let signal = guard.contended().unwrap();
    drop(other.rwlock("a").unwrap().read().wait().unwrap());
    drop(other.rwlock("b").unwrap().write().wait().unwrap());
    drop(other.range_lock("a").unwrap().write(0..9).wait().unwrap());
    assert!(!signal.is_set() && hears.try_recv().is_err(), "nobody has waited");
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| other.rwlock("a").unwrap().write().wait().unwrap().token());
        hears.recv_timeout(PATIENCE).unwrap();
        assert!(signal.is_set());
        assert!(guard.contended().unwrap().is_set(), "a second one is told at once");
        drop(guard);
        waiter.join().unwrap();
    });
    // Of ranges, only those in the way.
    let ranges = client.range_lock("r").unwrap();
    let (left, right) = (ranges.write(0..10).wait().unwrap(), ranges.write(10..20).wait().unwrap());
    let (wanted, unwanted) = (left.contended().unwrap(), right.contended().unwrap());
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| drop(other.range_lock("r").unwrap().write(5..6).wait().unwrap()));
        let began = Instant::now();
        while !wanted.is_set() {
            assert!(began.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        assert!(!unwanted.is_set());
        drop(left);
        waiter.join().unwrap();
    });
    // And of permits.
    let permit = client.semaphore("s", 1).unwrap().acquire().wait().unwrap();
    let signal = permit.contended().unwrap();
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| drop(other.semaphore("s", 1).unwrap().acquire().wait().unwrap()));
        lockwright_fabric::backend::block_on(signal);
        drop(permit);
        waiter.join().unwrap();
    });
}

#[test]
fn a_holder_of_this_process_is_told_that_a_client_waits() {
    let client = mem();
    tells(&client, &client.clone());
}

#[test]
fn a_holder_on_shared_memory_is_told_that_a_client_waits() {
    let space = Space::new("told");
    tells(&space.client(), &space.client());
}

#[test]
fn a_reader_that_waits_to_be_alone_is_in_the_way_of_other_readers() {
    let client = mem();
    let lock = client.rwlock("a").unwrap();
    let (one, two) = (lock.read().wait().unwrap(), lock.read().wait().unwrap());
    let (mine, theirs) = (one.contended().unwrap(), two.contended().unwrap());
    let upgraded = std::thread::spawn(move || one.upgrade().wait().unwrap().token());
    lockwright_fabric::backend::block_on(theirs);
    assert!(!mine.is_set(), "nobody waits for itself");
    drop(two);
    upgraded.join().unwrap();
}

#[test]
fn a_holder_that_unlocks_first_is_never_told() {
    let client = mem();
    let lock = client.mutex("a").unwrap();
    let guard = lock.lock().wait().unwrap();
    let told = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&told);
    guard.on_contended(move || hears.store(true, SeqCst)).unwrap();
    let signal = guard.contended().unwrap();
    drop(guard);
    let guard = lock.lock().wait().unwrap();
    let waiter = std::thread::spawn(move || drop(lock.lock().wait().unwrap()));
    lockwright_fabric::backend::block_on(guard.contended().unwrap());
    drop(guard);
    waiter.join().unwrap();
    assert!(!signal.is_set() && !told.load(SeqCst));
}
