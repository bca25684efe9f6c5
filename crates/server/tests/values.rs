//! Values of a server's locks, across clients, deaths and restarts; and holders that are told of waiters.
#![cfg(target_os = "linux")]

mod apart;

use apart::{Scratch, TASK, address, client, eventually, holder, lasting, options, restart, server};
use lockwright::inspect::Inspector;
use lockwright::{Client, GuardState, ValueError};
use lockwright_server::Server;
use std::time::{Duration, Instant};

#[test]
fn the_next_client_reads_what_the_last_one_left() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    let value = guard.value().wait().unwrap();
    assert!(value.bytes().is_empty() && value.is_clean() && !value.is_durable(), "it has no state");
    guard.set_value(b"left by one").wait().unwrap();
    drop(guard);
    let shared = two.rwlock("a").unwrap().read().wait().unwrap();
    assert_eq!(shared.value().wait().unwrap().bytes(), b"left by one");
    assert_eq!(shared.set_value(b"no").wait(), Err(ValueError::Shared));
    drop(shared);
    let elsewhere = Client::open(&format!("{}/other", address(&server))).wait().unwrap();
    let guard = elsewhere.mutex("a").unwrap().lock().wait().unwrap();
    assert!(guard.value().wait().unwrap().bytes().is_empty(), "names of other spaces are others");
    let range = one.range_lock("a").unwrap().write(0..1).wait().unwrap();
    assert_eq!(range.value().wait(), Err(ValueError::Unsupported("range locks")));
}

#[test]
fn a_value_whose_holder_was_killed_or_whose_lock_was_broken_is_not_clean() {
    if let Ok(address) = std::env::var(TASK) {
        let guard = Client::open(&address).wait().unwrap().mutex("a").unwrap().lock().wait().unwrap();
        guard.set_value(b"half done").wait().unwrap();
        println!("holds {}", guard.token());
        loop {
            std::thread::park();
        }
    }
    let server = server();
    let test = "a_value_whose_holder_was_killed_or_whose_lock_was_broken_is_not_clean";
    let (mut process, _) = holder(&address(&server), test);
    process.kill().unwrap();
    process.wait().unwrap();
    let client = client(&server);
    let lock = client.mutex("a").unwrap();
    let guard = lock.lock().wait().unwrap();
    let value = guard.value().wait().unwrap();
    assert_eq!((value.bytes(), value.is_clean()), (&b"half done"[..], false));
    guard.set_value(b"repaired").wait().unwrap();
    guard.unlock().wait().unwrap();
    let guard = lock.lock().wait().unwrap();
    assert!(guard.value().wait().unwrap().is_clean());
    Inspector::open(&address(&server)).unwrap().break_grant("a", guard.token()).unwrap();
    eventually("it is told", || guard.state() == GuardState::Lost);
    drop(guard);
    let leaves = Client::open(&address(&server)).wait().unwrap();
    let guard = leaves.mutex("a").unwrap().lock().wait().unwrap();
    assert!(!guard.value().wait().unwrap().is_clean(), "it was broken");
}

#[test]
fn values_outlive_a_server_that_keeps_state_and_its_holders_claim_theirs() {
    let state = Scratch::new("values-restart");
    let server = Server::start(lasting(&state)).unwrap();
    let one = client(&server);
    let closed = one.mutex("closed").unwrap().lock().wait().unwrap();
    assert!(closed.value().wait().unwrap().is_durable());
    closed.set_value(b"closed").wait().unwrap();
    closed.unlock().wait().unwrap();
    let open = one.mutex("open").unwrap().lock().wait().unwrap();
    open.set_value(b"open").wait().unwrap();
    let lost = one.mutex("lost").unwrap().lock().wait().unwrap();
    lost.set_value(b"lost").wait().unwrap();
    Inspector::open(&address(&server)).unwrap().break_grant("lost", lost.token()).unwrap();
    eventually("it is told", || lost.state() == GuardState::Lost);
    drop(lost);
    let server = restart(server, lasting(&state));
    eventually("it is claimed", || open.state() == GuardState::Held);
    let began = Instant::now();
    let again = client(&server);
    let value = |name: &str| {
        let guard = again.mutex(name).unwrap().lock().wait().unwrap();
        let value = guard.value().wait().unwrap();
        (value.bytes().to_vec(), value.is_clean(), value.age() <= began.elapsed() + Duration::from_secs(60))
    };
    assert_eq!(value("closed"), (b"closed".to_vec(), true, true));
    assert_eq!(open.value().wait().unwrap().bytes(), b"open");
    open.set_value(b"open still").wait().unwrap();
    open.unlock().wait().unwrap();
    assert_eq!(value("open"), (b"open still".to_vec(), true, true));
    assert_eq!(value("lost"), (b"lost".to_vec(), false, true));
    // Once more, from a file that was gone on with.
    let server = restart(server, lasting(&state));
    let again = client(&server);
    let guard = again.mutex("open").unwrap().lock().wait().unwrap();
    assert_eq!(guard.value().wait().unwrap().bytes(), b"open still");
}

#[test]
fn a_file_that_is_no_file_of_values_is_refused_and_left_alone() {
    let state = Scratch::new("values-foreign");
    let path = format!("{}.values", state.0.display());
    std::fs::write(&path, "my letters\n").unwrap();
    let error = Server::start(options().state(&state.0)).unwrap_err().to_string();
    assert!(error.contains("not the values"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "my letters\n");
}

#[test]
fn the_value_of_a_lock_that_stays_with_its_client_is_closed_by_every_use() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let lock = one.mutex("a").unwrap();
    let began = Instant::now();
    let mut uses = 0_u32;
    while uses < 20 || began.elapsed() < Duration::from_millis(60) {
        let guard = lock.lock().wait().unwrap();
        let value = guard.value().wait().unwrap();
        assert!(value.is_clean(), "use {uses}");
        uses += 1;
        guard.set_value(&uses.to_le_bytes()).wait().unwrap();
    }
    let guard = two.mutex("a").unwrap().lock().wait().unwrap();
    let value = guard.value().wait().unwrap();
    assert_eq!((value.bytes(), value.is_clean()), (&uses.to_le_bytes()[..], true));
}

#[test]
fn a_holder_is_told_that_another_client_waits_and_again_after_a_restart() {
    let state = Scratch::new("contended-restart");
    let server = Server::start(lasting(&state)).unwrap();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    let signal = guard.contended().unwrap();
    let server = restart(server, lasting(&state));
    eventually("it is claimed", || guard.state() == GuardState::Held);
    assert!(!signal.is_set());
    let waiter = std::thread::spawn(move || drop(two.mutex("a").unwrap().lock().wait().unwrap()));
    lockwright_fabric::backend::block_on(signal);
    guard.unlock().wait().unwrap();
    waiter.join().unwrap();
    drop(server);
}

#[test]
fn a_holder_of_a_lock_that_stays_with_its_client_is_told_of_waiters_here_and_elsewhere() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let lock = one.mutex("a").unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(60) {
        drop(lock.lock().wait().unwrap());
    }
    let guard = lock.lock().wait().unwrap();
    let signal = guard.contended().unwrap();
    let here = one.mutex("a").unwrap();
    let waiter = std::thread::spawn(move || drop(here.lock().wait().unwrap()));
    lockwright_fabric::backend::block_on(signal);
    drop(guard);
    waiter.join().unwrap();
    let guard = lock.lock().wait().unwrap();
    let signal = guard.contended().unwrap();
    let waiter = std::thread::spawn(move || drop(two.mutex("a").unwrap().lock().wait().unwrap()));
    lockwright_fabric::backend::block_on(signal);
    drop(guard);
    waiter.join().unwrap();
}
