//! Semaphores of a server: permits across clients, deaths and restarts.

mod apart;

use apart::{Scratch, TASK, address, client, eventually, holder, lasting, restart, server};
use lockwright::inspect::Inspector;
use lockwright::{Client, GuardState, LockError, TryLockError};
use lockwright_server::Server;
use std::time::Duration;

#[test]
fn permits_are_counted_across_clients_and_another_limit_is_refused() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let (mine, theirs) = (one.semaphore("gpu", 3).unwrap(), two.semaphore("gpu", 3).unwrap());
    let held = mine.acquire_many(2).wait().unwrap();
    let last = theirs.acquire().wait().unwrap();
    assert!(last.token() > held.token());
    assert_eq!(theirs.try_acquire().wait().unwrap_err(), TryLockError::Busy);
    let refused = two.semaphore("gpu", 4).unwrap().acquire().wait().unwrap_err();
    assert_eq!(refused, LockError::Refused("others use this semaphore with another limit".to_owned()));
    let inspector = Inspector::open(&address(&server)).unwrap();
    let permits: Vec<_> = inspector.entries().unwrap().iter().filter_map(|entry| entry.permits).collect();
    assert_eq!(permits.iter().map(|permits| permits.held).sum::<u64>(), 3);
    let waits = std::thread::spawn(move || theirs.acquire_many(3).wait().unwrap().permits());
    eventually("it waits", || inspector.entries().unwrap().len() == 3);
    // Nobody overtakes it, though a permit is free.
    drop(last);
    assert_eq!(mine.try_acquire().wait().unwrap_err(), TryLockError::Busy);
    inspector.break_grant("gpu", held.token()).unwrap();
    assert_eq!(waits.join().unwrap(), 3);
    eventually("it is told", || held.state() == GuardState::Lost);
    // Locks of that name are others.
    assert!(one.mutex("gpu").unwrap().try_lock().wait().is_ok());
}

#[test]
fn after_a_restart_permits_are_claimed_and_no_more_are_given_out_than_there_are() {
    let state = Scratch::new("semaphore-restart");
    let server = Server::start(lasting(&state)).unwrap();
    let (one, two) = (client(&server), client(&server));
    let held = one.semaphore("gpu", 3).unwrap().acquire_many(2).wait().unwrap();
    let last = two.semaphore("gpu", 3).unwrap().acquire().wait().unwrap();
    let server = restart(server, lasting(&state));
    eventually("both are claimed", || held.state() == GuardState::Held && last.state() == GuardState::Held);
    let three = client(&server).semaphore("gpu", 3).unwrap();
    assert_eq!(three.try_acquire().wait().unwrap_err(), TryLockError::Busy);
    drop(last);
    let next = three.acquire().wait().unwrap();
    assert!(next.token() > held.token(), "tokens rise across restarts");
    assert_eq!(three.try_acquire().wait().unwrap_err(), TryLockError::Busy);
}

#[test]
fn permits_of_a_killed_client_come_back() {
    if let Ok(task) = std::env::var(TASK) {
        let permits = Client::open(&task).wait().unwrap().semaphore("gpu", 2).unwrap().acquire_many(2).wait();
        println!("\nholds {}", permits.as_ref().unwrap().token());
        std::thread::sleep(Duration::from_secs(600));
    }
    let server = server();
    let (mut process, token) = holder(&address(&server), "permits_of_a_killed_client_come_back");
    let gpus = client(&server).semaphore("gpu", 2).unwrap();
    assert_eq!(gpus.try_acquire().wait().unwrap_err(), TryLockError::Busy);
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(gpus.acquire_many(2).wait().unwrap().token() > token);
}
