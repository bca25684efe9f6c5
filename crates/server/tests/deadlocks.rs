//! Deadlocks in listings: of threads that really wait for each other, and of none that only look like it, on shared memory and on a
//! server.
#![cfg(target_os = "linux")]

mod apart;

use apart::{address, eventually, server};
use lockwright::inspect::{Entry, EntryState, Inspector, Wait, waits};
use lockwright::{Client, MutexGuard};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

/// Runs `test` on shared memory, and on a server.
fn everywhere(name: &str, test: impl Fn(&str)) {
    let file = format!("/dev/shm/lockwright-deadlocks-{name}-{}", std::process::id());
    test(&format!("shm:{file}"));
    let _ = std::fs::remove_file(file);
    let server = server();
    test(&address(&server));
}

fn lock(client: &Client, name: &str) -> MutexGuard {
    client.mutex(name).unwrap().lock().wait().unwrap()
}

/// The listing, once so many wait.
fn with_waiters(address: &str, count: usize) -> (Inspector, Vec<Entry>) {
    let inspector = Inspector::open(address).unwrap();
    let waiting =
        |entries: &[Entry]| entries.iter().filter(|entry| entry.state == EntryState::Waiting).count();
    eventually("all of them wait", || waiting(&inspector.entries().unwrap()) == count);
    let entries = inspector.entries().unwrap();
    (inspector, entries)
}

fn marked(entries: &[Entry]) -> Vec<bool> {
    waits(entries).iter().map(|Wait { deadlocked, .. }| *deadlocked).collect()
}

#[test]
fn two_threads_of_a_process_that_wait_for_each_other_are_marked_whether_they_share_a_client_or_not() {
    everywhere("two-threads", |address| {
        for shares in [true, false] {
            let clients = [(); 2].map(|()| Client::open(address).wait().unwrap());
            let both_hold = &Barrier::new(2);
            thread::scope(|threads| {
                for (at, names) in [["a", "b"], ["b", "a"]].into_iter().enumerate() {
                    let client = &clients[if shares { 0 } else { at }];
                    threads.spawn(move || {
                        // Often enough that a server leaves it with its client: there, others of that client wait unseen.
                        let times = if shares { 0 } else { 200 };
                        (0..times).for_each(|_| drop(lock(client, names[0])));
                        let first = lock(client, names[0]);
                        both_hold.wait();
                        let second = client.mutex(names[1]).unwrap();
                        let second = second.lock_timeout(Duration::from_secs(90)).wait();
                        drop((first, second));
                    });
                }
                let (inspector, entries) = with_waiters(address, 2);
                let held = entries.iter().find(|entry| entry.state == EntryState::Held).unwrap();
                let broken = inspector.break_grant(held.name.as_bytes(), held.token.unwrap());
                assert_eq!(marked(&entries), [true, true], "shares a client: {shares}, {entries:#?}");
                broken.unwrap();
            });
        }
    });
}

#[test]
fn threads_that_wait_for_other_threads_of_the_same_processes_are_not_marked() {
    everywhere("four-threads", |address| {
        let client = &Client::open(address).wait().unwrap();
        let (a, b) = (lock(client, "a"), lock(client, "b"));
        thread::scope(|threads| {
            for name in ["a", "b"] {
                threads.spawn(move || drop(lock(client, name)));
            }
            let (_, entries) = with_waiters(address, 2);
            assert!(entries.iter().all(|entry| entry.thread.is_some()), "{entries:#?}");
            drop((a, b));
            assert_eq!(marked(&entries), [false, false], "{entries:#?}");
        });
    });
}

#[test]
fn tasks_that_any_thread_may_go_on_with_are_not_marked() {
    everywhere("tasks", |address| {
        let client = &Client::open(address).wait().unwrap();
        let (a, b) = (client.mutex("a").unwrap(), client.mutex("b").unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let held = lock(client, "b");
        thread::scope(|threads| {
            threads.spawn(move || {
                runtime.block_on(async {
                    let first = a.lock().await.unwrap();
                    // It waits, and what it waits for is unlocked by a task of this thread.
                    let (second, ()) = tokio::join!(async { b.lock().await.unwrap() }, async {});
                    drop((first, second));
                });
            });
            let (_, entries) = with_waiters(address, 1);
            let waiter = entries.iter().find(|entry| entry.state == EntryState::Waiting).unwrap();
            assert_eq!(waiter.thread, None, "{entries:#?}");
            assert_eq!(marked(&entries), [false], "{entries:#?}");
            drop(held);
        });
    });
}
