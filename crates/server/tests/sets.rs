//! Sets of locks of a server: one message for all of them, in an order in which none waits for another for ever.
#![cfg(target_os = "linux")]

mod apart;

use apart::{LONG, Scratch, address, client, eventually, lasting, options, restart, server};
use lockwright::inspect::{EntryState, Inspector};
use lockwright::{Client, GuardState, LockError, LockSet, Mutex};
use lockwright_server::Server;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::time::Duration;

fn counting_server() -> Server {
    Server::start(options().grace(LONG).metrics("127.0.0.1:0".parse().unwrap())).unwrap()
}

/// Messages of clients that the server has served.
fn messages(server: &Server) -> u64 {
    let mut stream = TcpStream::connect(server.metrics().unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("lockwright_messages_total ")?.parse().ok());
    count.expect("it is counted")
}

fn mutexes(client: &Client, count: usize) -> Vec<Mutex> {
    (0..count).map(|at| client.mutex(format!("{at:03}")).unwrap()).collect()
}

fn set<'a>(locks: impl IntoIterator<Item = &'a Mutex>) -> LockSet {
    locks.into_iter().fold(LockSet::new(), |set, lock| set.lock(lock))
}

/// Names of locks in this state, in order.
fn listed(server: &Server, state: EntryState) -> Vec<String> {
    let entries = Inspector::open(&address(server)).unwrap().entries().unwrap();
    entries.iter().filter(|entry| entry.state == state).map(|entry| entry.name.to_string()).collect()
}

#[test]
fn a_set_of_free_locks_costs_one_message_and_its_guards_are_as_good_as_others() {
    let server = counting_server();
    let client = Client::options().retain(false).open(&address(&server)).wait().unwrap();
    let locks = mutexes(&client, 10);
    let last = set(&locks).acquire().wait().unwrap();
    // Whatever was said before was served before it.
    let (before, tokens) = (messages(&server), last.iter().map(|guard| guard.token()).collect::<Vec<_>>());
    drop(last);
    let guards = set(locks.iter().rev()).acquire().wait().unwrap();
    assert_eq!(messages(&server) - before, 10 + 1, "ten unlocks and one set");
    assert!(guards.iter().all(|guard| guard.state() == GuardState::Held));
    assert!(guards.iter().zip(&tokens).all(|(guard, before)| guard.token() > *before));
    assert_eq!(listed(&server, EntryState::Held).len(), 10);
    for guard in guards.into_guards() {
        guard.unlock().wait().unwrap();
    }
    assert!(listed(&server, EntryState::Held).is_empty());
}

#[test]
fn a_set_may_be_larger_than_a_message_and_of_all_kinds() {
    let server = server();
    let client = client(&server);
    let locks = mutexes(&client, 150);
    let (rw, ranges) = (client.rwlock("rw").unwrap(), client.range_lock("ranges").unwrap());
    let semaphore = client.semaphore("permits", 3).unwrap();
    let wanted = || {
        let set = set(&locks).read(&rw).write_range(&ranges, 0..8).read_range(&ranges, 8..9);
        set.permits(&semaphore, 2).unwrap()
    };
    let guards = wanted().acquire().wait().unwrap();
    assert_eq!(guards.len(), 154);
    let late = wanted().timeout(Duration::from_millis(50)).acquire().wait();
    assert!(matches!(late, Err(LockError::TimedOut)), "{late:?}");
    let none = wanted().timeout(Duration::ZERO).acquire().wait();
    assert!(matches!(none, Err(LockError::TimedOut)), "{none:?}");
    drop(guards);
    assert_eq!(wanted().acquire().wait().unwrap().len(), 154, "what was given up has left nothing");
}

#[test]
fn a_set_that_is_given_up_gives_everything_back_and_keeps_nobody_from_what_it_did_not_get() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let (locks, theirs) = (mutexes(&one, 4), mutexes(&two, 4));
    let held = theirs[2].lock().wait().unwrap();
    let mut waits = Box::pin(set(&locks).acquire());
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    eventually("it waits for the third", || listed(&server, EntryState::Waiting) == ["002"]);
    assert_eq!(listed(&server, EntryState::Held), ["000", "001", "002"]);
    drop(theirs[3].try_lock().wait().expect("its turn has not come"));
    drop(waits);
    eventually("all is back", || listed(&server, EntryState::Held) == ["002"]);
    drop(held);
    assert_eq!(set(&theirs).acquire().wait().unwrap().len(), 4);
    // Given up before it was asked for.
    drop(set(&locks).acquire());
    assert_eq!(set(&locks).acquire().wait().unwrap().len(), 4);
}

#[test]
fn sets_in_crossing_order_of_clients_and_of_tasks_of_one_client_all_come_to_their_locks() {
    const ROUNDS: u64 = 200;
    let server = server();
    let clients = [client(&server), client(&server)];
    let cells: Vec<_> = (0..3).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            for thread in 0..2 {
                let cells = &cells;
                scope.spawn(move || {
                    let locks = mutexes(client, 3);
                    for round in 0..ROUNDS {
                        let first = (number + thread + round as usize) % 3;
                        let wanted = [first, (first + 2) % 3];
                        let guards = set(wanted.map(|at| &locks[at])).acquire().wait().unwrap();
                        for at in wanted {
                            // Not atomic: the lock is.
                            cells[at].store(cells[at].load(SeqCst) + 1, SeqCst);
                        }
                        drop(guards);
                    }
                });
            }
        }
    });
    assert_eq!(cells.iter().map(|cell| cell.load(SeqCst)).sum::<u64>(), 4 * ROUNDS * 2);
}

#[test]
fn a_set_waits_on_over_a_restart_of_the_server_and_then_has_all_its_locks() {
    let state = Scratch::new("sets-restart");
    let server = Server::start(lasting(&state)).unwrap();
    let (one, two) = (client(&server), client(&server));
    let (locks, theirs) = (mutexes(&one, 3), mutexes(&two, 3));
    let held = theirs[1].lock().wait().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| set(&locks).acquire().wait().unwrap());
        eventually("it waits for the second", || listed(&server, EntryState::Waiting) == ["001"]);
        let server = restart(server, lasting(&state));
        eventually("it waits again", || {
            listed(&server, EntryState::Waiting) == ["001"]
                && listed(&server, EntryState::Held) == ["000", "001"]
        });
        assert_eq!(held.state(), GuardState::Held);
        drop(held);
        let guards = waiter.join().unwrap();
        assert!(guards.iter().all(|guard| guard.state() == GuardState::Held));
        drop(guards);
        assert_eq!(set(&theirs).acquire().wait().unwrap().len(), 3);
    });
}

#[test]
fn a_set_of_locks_that_stay_with_its_client_asks_nobody_and_another_clients_set_gets_them() {
    let server = counting_server();
    let (one, two) = (client(&server), client(&server));
    let (locks, theirs) = (mutexes(&one, 3), mutexes(&two, 3));
    let mut tokens = Vec::new();
    let mut take = || {
        let guards = set(&locks).acquire().wait().unwrap();
        tokens = guards.iter().map(|guard| guard.token()).collect();
    };
    eventually("ten sets of which the server hears nothing", || {
        for _ in 0..20 {
            take();
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = messages(&server);
        (0..10).for_each(|_| take());
        messages(&server) == before
    });
    let guards = set(&theirs).acquire().wait().unwrap();
    assert!(guards.iter().zip(&tokens).all(|(guard, before)| guard.token() > *before));
    drop(guards);
    // Some of them stay, and some are in use here.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..100).for_each(|_| drop(set(&locks).acquire().wait().unwrap())));
        }
        scope.spawn(|| (0..100).for_each(|_| drop(set(&theirs[1..]).acquire().wait().unwrap())));
        scope.spawn(|| (0..300).for_each(|at| drop(locks[at % 3].lock().wait().unwrap())));
    });
}
