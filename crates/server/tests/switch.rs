//! Spaces behind a decider, in one process: the same handles and guards, over real sockets.
#![cfg(target_os = "linux")]

mod apart;
mod lossy;

use apart::{LONG, eventually, own_address};
use lockwright::inspect::{EntryState, Inspector};
use lockwright::{
    ChangeError, Client, GuardState, HandleError, LockError, LockSet, LostReason, TryLockError,
};
use lockwright_fabric::random::SplitMix;
use lockwright_server::{ServeError, Switch, SwitchOptions};
use lossy::Lossy;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::Duration;

fn options() -> SwitchOptions {
    SwitchOptions { listen: "127.0.0.1:0".parse().unwrap(), locks: 1 << 10, ..SwitchOptions::default() }
}

fn switch() -> Switch {
    Switch::start(options()).unwrap()
}

fn client(address: SocketAddr) -> Client {
    Client::options().timeout(LONG).open(&format!("fiss://{address}/stock")).wait().unwrap()
}

#[test]
fn mutexes_and_reader_writer_locks_are_those_of_any_space() {
    let switch = switch();
    let (one, two) = (client(switch.address()), client(switch.address()));
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    assert_eq!(guard.state(), GuardState::Held);
    let other = two.mutex("a").unwrap();
    assert_eq!(other.try_lock().wait().unwrap_err(), TryLockError::Busy);
    assert_eq!(other.lock_timeout(Duration::from_millis(20)).wait().unwrap_err(), LockError::TimedOut);
    let token = guard.token();
    guard.unlock().wait().unwrap();
    let second = other.lock().wait().unwrap();
    assert!(second.token() > token);
    drop(second);
    let (readers, writer) = (one.rwlock("config").unwrap(), two.rwlock("config").unwrap());
    let held = [readers.read().wait().unwrap(), writer.read().wait().unwrap()];
    assert_eq!(writer.try_write().wait().unwrap_err(), TryLockError::Busy);
    drop(held);
    eventually("readers are gone", || writer.try_write().wait().is_ok());
    let both = LockSet::new()
        .lock(&one.mutex("x").unwrap())
        .lock(&one.mutex("y").unwrap())
        .acquire()
        .wait()
        .unwrap();
    assert_eq!(both.len(), 2);
}

#[test]
fn what_the_protocol_cannot_give_is_refused() {
    let switch = switch();
    let client = client(switch.address());
    assert!(matches!(client.range_lock("data"), Err(HandleError::Unsupported(_))));
    assert!(matches!(client.semaphore("gpu", 4), Err(HandleError::Unsupported(_))));
    let shared = client.rwlock("config").unwrap().read().wait().unwrap();
    let refused = shared.upgrade().wait().unwrap_err();
    assert!(matches!(refused.error, ChangeError::Unsupported(_)), "{refused:?}");
    let exposed = Switch::start(SwitchOptions { listen: "0.0.0.0:0".parse().unwrap(), ..options() });
    assert!(matches!(exposed.unwrap_err(), ServeError::Exposed(_)));
}

/// Threads of several clients add one to a number that is not atomic, each under the lock.
fn lose_no_update(address: SocketAddr, rounds: u64) {
    let (counter, newest) = (AtomicU64::new(0), AtomicU64::new(0));
    let clients: Vec<Client> = (0..3).map(|_| client(address)).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            for thread in 0..2 {
                let (counter, newest) = (&counter, &newest);
                scope.spawn(move || {
                    let lock = client.rwlock("counter").unwrap();
                    for round in 0..rounds {
                        let guard = lock.write().wait().unwrap();
                        let seen = counter.load(Relaxed);
                        std::thread::yield_now();
                        counter.store(seen + 1, Relaxed);
                        assert!(newest.swap(guard.token(), Relaxed) < guard.token());
                        drop(guard);
                        if round % 3 == thread {
                            let before = counter.load(Relaxed);
                            let guard = lock.read().wait().unwrap();
                            let seen = counter.load(Relaxed);
                            std::thread::yield_now();
                            assert!(before <= seen && seen == counter.load(Relaxed));
                            drop(guard);
                        }
                    }
                });
            }
        }
    });
    assert_eq!(counter.load(Relaxed), 6 * rounds);
}

#[test]
fn threads_and_clients_lose_no_update_and_tokens_only_rise() {
    lose_no_update(switch().address(), 100);
}

#[test]
fn a_decider_that_never_sleeps_decides_the_same() {
    lose_no_update(Switch::start(SwitchOptions { busy_poll: true, ..options() }).unwrap().address(), 20);
}

#[test]
fn a_waiter_that_is_dropped_is_passed_over() {
    let switch = switch();
    let clients = [(); 3].map(|()| client(switch.address()));
    let [one, two, three] = clients.each_ref().map(|client| client.mutex("a").unwrap());
    let guard = one.lock().wait().unwrap();
    let token = guard.token();
    let entries = || {
        let inspector = Inspector::open(&format!("fiss://{}/stock", switch.address())).unwrap();
        inspector.entries().unwrap().iter().filter(|entry| entry.state == EntryState::Waiting).count()
    };
    let mut dropped = Box::pin(two.lock());
    let mut cx = Context::from_waker(Waker::noop());
    eventually("it waits", || {
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        entries() == 1
    });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| three.lock().wait().unwrap().token());
        eventually("both wait", || entries() == 2);
        drop(dropped);
        eventually("one waits", || entries() == 1);
        drop(guard);
        assert!(waiting.join().unwrap() > token);
    });
}

#[test]
fn a_guard_hears_that_its_lock_is_lost() {
    let options = SwitchOptions { listen: own_address(), ..options() };
    let first = Switch::start(options.clone()).unwrap();
    let client = client(options.listen);
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    drop(first);
    // It has no memory of anybody.
    let _second = Switch::start(options).unwrap();
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(LostReason::ServerRestarted));
    assert_eq!(guard.state(), GuardState::Lost);
    assert!(client.mutex("a").unwrap().lock().wait().unwrap().token() > guard.token());
}

#[test]
fn a_network_that_loses_doubles_delays_and_reorders_packets_only_takes_longer() {
    let switch = switch();
    let network = Lossy::to(switch.address(), 5, 20_261_118);
    lose_no_update(network.address, 40);
    assert!(network.lost.load(Relaxed) > 0);
}

#[test]
fn a_client_that_leaves_leaves_its_locks_to_others_and_its_number_too() {
    let switch = switch();
    let (one, two, three) = (client(switch.address()), client(switch.address()), client(switch.address()));
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    let token = guard.token();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| two.mutex("a").unwrap().lock().wait().unwrap().token());
        let entries = || Inspector::open(&format!("fiss://{}/stock", switch.address())).unwrap().entries();
        eventually("it waits", || entries().unwrap().iter().any(|entry| entry.state == EntryState::Waiting));
        let listed = entries().unwrap();
        assert_eq!((listed.len(), listed[0].token, listed[0].pid), (2, Some(token), std::process::id()));
        // The guard first, but what it sends may find the decider after the client's departure.
        drop((guard, one));
        assert!(waiting.join().unwrap() > token);
    });
    // Its number goes to another client, which has no part in what was before.
    let four = client(switch.address());
    for client in [&four, &three, &two] {
        assert!(client.mutex("a").unwrap().lock().wait().unwrap().token() > token);
    }
}

#[test]
fn a_restarted_decider_goes_on_with_what_its_clients_hold() {
    let folder = std::env::temp_dir().join(format!("lockwright-switch-restart-{}", std::process::id()));
    let listen = own_address();
    let options = SwitchOptions { listen, state: Some(folder.join("state")), ..options() };
    let switch = Switch::start(options.clone()).unwrap();
    let (one, two) = (client(listen), client(listen));
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    let config = two.rwlock("config").unwrap().read().wait().unwrap();
    let token = guard.token();
    drop(switch);
    let switch = Switch::start(options).unwrap();
    assert!(switch.began_waiting());
    eventually("the guard is certain again", || guard.state() == GuardState::Held);
    assert_eq!(two.mutex("a").unwrap().try_lock().wait().unwrap_err(), TryLockError::Busy);
    assert_eq!(one.rwlock("config").unwrap().try_write().wait().unwrap_err(), TryLockError::Busy);
    assert!(one.rwlock("config").unwrap().read().wait().is_ok());
    let three = client(listen);
    assert_eq!(three.mutex("a").unwrap().try_lock().wait().unwrap_err(), TryLockError::Busy);
    guard.unlock().wait().unwrap();
    assert!(three.mutex("a").unwrap().lock().wait().unwrap().token() > token);
    drop(config);
    assert!(one.rwlock("config").unwrap().write().wait().is_ok());
    drop((switch, one, two, three));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_no_packet_of_a_client_is_dropped_and_counted() {
    let switch = switch();
    let client = client(switch.address());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut dice = SplitMix::new(7);
    for len in 0..200 {
        let mut bytes: Vec<u8> = (0..len).map(|_| dice.next() as u8).collect();
        // Every other one begins as a packet of the first machine does.
        for (byte, of_packet) in bytes.iter_mut().zip([b'F', b'L', 1, 4, 1, 0, 0, 0]).filter(|_| len % 2 == 0)
        {
            *byte = of_packet;
        }
        stranger.send_to(&bytes, switch.address()).unwrap();
    }
    let inspector = Inspector::open(&format!("fiss://{}", switch.address())).unwrap();
    let count = |name: &str| {
        let status = inspector.decider().unwrap().unwrap();
        let after = status.split(&format!("\"{name}\":")).nth(1).unwrap();
        after.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap()
    };
    eventually("they are counted", || count("malformed") + count("forged") >= 190);
    assert!(count("forged") > 0 && count("malformed") > 0);
    assert!(client.mutex("a").unwrap().lock().wait().is_ok());
}

/// Once its packets counted as forged from then on, and acquires hung without a word.
#[test]
fn a_client_whose_packets_come_from_another_address_is_found_again() {
    let switch = switch();
    let network = Lossy::to(switch.address(), 1, 11);
    let (moved, other) = (client(network.address), client(switch.address()));
    let held = moved.mutex("a").unwrap().lock().wait().unwrap();
    network.move_clients();
    // What it asks for from there is granted.
    let late = moved.mutex("b").unwrap().lock_timeout(LONG).wait();
    assert!(late.is_ok(), "{late:?}");
    // And who asks for what it holds finds it, though it says nothing by itself.
    network.move_clients();
    let waiter = std::thread::spawn(move || other.mutex("a").unwrap().lock_timeout(LONG).wait().map(drop));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(held.state(), GuardState::Held);
    held.unlock().wait().unwrap();
    waiter.join().unwrap().unwrap();
}

#[test]
fn a_client_from_where_none_may_be_is_not_heard() {
    let only = |allow: &str| SwitchOptions { allow: vec![allow.parse().unwrap()], ..options() };
    let switch = Switch::start(only("127.0.0.0/8")).unwrap();
    drop(client(switch.address()).mutex("a").unwrap().lock().wait().unwrap());
    let switch = Switch::start(only("10.7.0.0/16")).unwrap();
    let space = format!("fiss://{}/stock", switch.address());
    let refused = Client::options().timeout(Duration::from_millis(300)).open(&space).wait();
    assert!(refused.is_err(), "{refused:?}");
    let packets = UdpSocket::bind("127.0.0.1:0").unwrap();
    packets.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    packets.send_to(&[0; 56], switch.address()).unwrap();
    assert!(packets.recv_from(&mut [0; 64]).is_err());
}
