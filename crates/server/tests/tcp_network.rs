//! A network between clients and their server that cuts connections, hangs without closing them, and comes back: nothing is
//! lost or done twice while a session lives, and a client that was evicted learns it.
#![cfg(target_os = "linux")]

mod apart;

use apart::eventually;
use lockwright::inspect::{EntryState, Inspector};
use lockwright::{ChangeError, Client, GuardState, LockGuard, TryLockError};
use lockwright_server::{Server, ServerOptions};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Carries bytes between clients and a server, as long as it is told to.
#[derive(Clone)]
struct Network {
    address: SocketAddr,
    inside: Arc<LinkEnd>,
}

#[derive(Default)]
struct LinkEnd {
    /// Nothing gets through, and nothing is closed.
    hangs: AtomicBool,
    lines: Mutex<Vec<TcpStream>>,
}

impl Network {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let network = Self { address: listener.local_addr().unwrap(), inside: Arc::default() };
        let inside = Arc::clone(&network.inside);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A network that hangs takes connections, and that is all.
                let Ok(far) = TcpStream::connect(server) else { continue };
                inside.lines.lock().unwrap().extend([client.try_clone().unwrap(), far.try_clone().unwrap()]);
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), far.try_clone().unwrap()), (far, client)]
                {
                    let inside = Arc::clone(&inside);
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(read) = from.read(&mut bytes) {
                            while inside.hangs.load(SeqCst) {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            if read == 0 || to.write_all(&bytes[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        network
    }

    fn client(&self) -> Client {
        Client::open(&format!("tcp://{}", self.address)).wait().unwrap()
    }

    /// Ends every connection, wherever its bytes are.
    fn cut(&self) {
        for line in self.inside.lines.lock().unwrap().drain(..) {
            let _ = line.shutdown(Shutdown::Both);
        }
    }

    fn hang(&self, hangs: bool) {
        self.inside.hangs.store(hangs, SeqCst);
    }
}

/// Silence is noticed soon. How long a session outlives it says how long a busy machine may keep a living client waiting.
fn options(grace: Duration) -> ServerOptions {
    apart::options().heartbeat(Duration::from_millis(50)).grace(grace)
}

fn server() -> Server {
    Server::start(options(Duration::from_secs(5))).unwrap()
}

#[test]
fn a_client_that_meets_a_server_that_does_not_answer_tries_again_until_its_deadline() {
    let server = server();
    let network = Network::to(server.address());
    let address = format!("tcp://{}", network.address);
    let options = Client::options().timeout(Duration::from_millis(200));
    network.hang(true);
    let late = options.clone().open_within(Duration::from_millis(900)).open(&address).wait();
    let late = late.expect_err("nobody answers").to_string();
    assert!(late.contains("did not answer") && late.contains("attempts in"), "{late}");
    std::thread::scope(|scope| {
        let patient = options.open_within(apart::LONG);
        let opening = scope.spawn(move || patient.open(&address).wait());
        std::thread::sleep(Duration::from_millis(700));
        network.hang(false);
        let client = opening.join().unwrap().expect("the server answers by then");
        drop(client.mutex("a").unwrap().lock().wait().unwrap());
    });
}

#[test]
fn connections_that_break_lose_nothing_and_do_nothing_twice() {
    let server = server();
    let network = Network::to(server.address());
    let (counter, newest, lost) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (stop, cuts) = (AtomicBool::new(false), 40);
    let stopped = || stop.load(SeqCst);
    std::thread::scope(|threads| {
        let workers: Vec<_> = (0..4)
            .map(|number| {
                let client = network.client();
                let (counter, newest, lost, stopped) = (&counter, &newest, &lost, &stopped);
                threads.spawn(move || {
                    let (mutex, range) = (client.mutex("a").unwrap(), client.range_lock("a").unwrap());
                    let mut round = 0;
                    while !stopped() {
                        round += 1;
                        // Names come and go, waiters give up, and ranges are held meanwhile.
                        drop(client.mutex(format!("{number} {round}")).unwrap());
                        let _apart = range.write(number * 10..number * 10 + 10).wait().unwrap();
                        let _ = mutex.lock_timeout(Duration::from_micros(300)).wait();
                        let guard = mutex.lock().wait().unwrap();
                        let before = counter.load(SeqCst);
                        counter.store(before + 1, SeqCst);
                        assert!(newest.swap(guard.token(), SeqCst) < guard.token(), "tokens rise");
                        assert_eq!(counter.load(SeqCst), before + 1, "two were in at once");
                        if guard.unlock().wait().is_err() {
                            lost.fetch_add(1, SeqCst);
                        }
                    }
                })
            })
            .collect();
        for _ in 0..cuts {
            std::thread::sleep(Duration::from_millis(40));
            network.cut();
        }
        stop.store(true, SeqCst);
        for worker in workers {
            worker.join().unwrap();
        }
    });
    println!("{} updates over {cuts} cuts, {} unlocks in doubt", counter.load(SeqCst), lost.load(SeqCst));
    assert_eq!(lost.load(SeqCst), 0, "sessions outlive their connections");
    // Nothing is left behind by requests that were on their way when a connection broke.
    let inspector = lockwright::inspect::Inspector::open(&format!("tcp://{}", server.address())).unwrap();
    eventually("everything is given back", || inspector.entries().unwrap().is_empty());
}

/// In a one-sided space an acquire fails if its connection breaks under it, and the client lives on: what the acquire has left in
/// the lock, or in the gate before a range, must not keep others out.
#[test]
fn an_acquire_that_fails_with_its_connection_leaves_nothing_in_the_way_of_others() {
    const FAILURES: u64 = 20;
    let options = options(Duration::from_secs(5)).lend("stock");
    let server = Server::start(options.secret("a long and random line of text").unwrap()).unwrap();
    let secret = Client::options().secret("a long and random line of text");
    let open =
        |address: SocketAddr| secret.clone().open(&format!("tcp://{address}/lent:stock")).wait().unwrap();
    let network = Network::to(server.address());
    let clients = [open(network.address), open(network.address)];
    let (failed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|threads| {
        for (index, client) in clients.iter().cycle().take(8).enumerate() {
            let (failed, stop) = (&failed, &stop);
            threads.spawn(move || {
                let (mutex, range) = (client.mutex("m").unwrap(), client.range_lock("m").unwrap());
                while !stop.load(SeqCst) {
                    let taken = if index % 4 < 2 {
                        mutex.lock_timeout(Duration::from_secs(2)).into_any().wait()
                    } else {
                        range.write_timeout(3..9, Duration::from_secs(2)).into_any().wait()
                    };
                    failed.fetch_add(u64::from(taken.is_err()), SeqCst);
                }
            });
        }
        // Longer than the server has patience with a connection, and much shorter than it keeps the session.
        for round in 0..100 {
            if failed.load(SeqCst) >= FAILURES {
                break;
            }
            network.hang(true);
            std::thread::sleep(Duration::from_millis(200 + round % 10 * 40));
            network.hang(false);
            std::thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, SeqCst);
    });
    let near = open(server.address());
    let (mutex, range) = (near.mutex("m").unwrap(), near.range_lock("m").unwrap());
    drop(mutex.lock_timeout(Duration::from_secs(20)).wait().expect("nobody has the mutex"));
    drop(range.write_timeout(0..99, Duration::from_secs(20)).wait().expect("nobody has the range"));
    println!("{} acquires failed", failed.load(SeqCst));
    assert!(failed.load(SeqCst) > 0, "connections broke");
}

/// What clears a record is not waited for, and may be lost with its connection: the record would keep others out for as long as
/// its client lives.
#[test]
fn a_lock_given_back_over_a_connection_that_breaks_is_free_though_its_client_lives() {
    let options = options(Duration::from_secs(20)).lend("exact").lend_tree("tree", 1, 64, 16).unwrap();
    let server = Server::start(options.secret("a long and random line of text").unwrap()).unwrap();
    let secret = Client::options().secret("a long and random line of text");
    let open =
        |address: SocketAddr, space| secret.clone().open(&format!("tcp://{address}/lent:{space}")).wait();
    for space in ["exact", "tree"] {
        let network = Network::to(server.address());
        let far = open(network.address, space).unwrap();
        let near = open(server.address(), space).unwrap();
        let range = far.range_lock("a").unwrap().write(0..9).wait().unwrap();
        let mutex = far.mutex("a").unwrap().lock().wait().unwrap();
        network.hang(true);
        std::thread::scope(|threads| {
            threads.spawn(|| (range.unlock().wait(), mutex.unlock().wait()));
            std::thread::sleep(Duration::from_millis(30));
            network.cut();
            network.hang(false);
        });
        let patience = Duration::from_secs(15);
        drop(near.mutex("a").unwrap().lock_timeout(patience).wait().expect(space));
        drop(near.range_lock("a").unwrap().write_timeout(0..9, patience).wait().expect(space));
        drop(far);
    }
}

/// Giving back a range on a tree waits for no answer: a client that was struck off meanwhile must not be told that it held it.
#[test]
fn a_client_that_was_struck_off_learns_it_when_it_gives_back_a_range() {
    let options = options(Duration::from_secs(2)).lend("exact").lend_tree("tree", 1, 64, 16).unwrap();
    let server = Server::start(options.secret("a long and random line of text").unwrap()).unwrap();
    let secret = Client::options().secret("a long and random line of text");
    let open =
        |address: SocketAddr, space| secret.clone().open(&format!("tcp://{address}/lent:{space}")).wait();
    for space in ["exact", "tree"] {
        let network = Network::to(server.address());
        let far = open(network.address, space).unwrap();
        let near = open(server.address(), space).unwrap();
        let guard = far.range_lock("a").unwrap().write(0..9).wait().unwrap();
        network.hang(true);
        let next = near.range_lock("a").unwrap().write(0..9).wait().unwrap();
        assert!(next.token() > guard.token(), "{space}");
        let given = std::thread::scope(|threads| {
            let giving = threads.spawn(|| guard.unlock().wait());
            std::thread::sleep(Duration::from_millis(100));
            network.hang(false);
            giving.join().unwrap()
        });
        assert!(given.is_err(), "{space}: another client has had it since");
    }
}

#[test]
fn a_client_that_may_break_locks_may_do_so_by_its_next_connection_too() {
    let server = server();
    let network = Network::to(server.address());
    let client = Client::open(&format!("tcp://{}", server.address())).wait().unwrap();
    let lock = client.mutex("a").unwrap();
    let inspector = Inspector::open(&format!("tcp://{}", network.address)).unwrap();
    for _ in 0..3 {
        let guard = lock.lock().wait().unwrap();
        network.cut();
        // Answered by a connection that was made since.
        assert_eq!(inspector.entries().unwrap().len(), 1);
        inspector.break_grant("a", guard.token()).unwrap();
        eventually("it is lost", || guard.state() == GuardState::Lost);
    }
}

#[test]
fn a_client_behind_a_network_that_hangs_is_uncertain_then_given_up_and_learns_it() {
    let server = server();
    let network = Network::to(server.address());
    let far = network.client();
    let near = Client::open(&format!("tcp://{}", server.address())).wait().unwrap();
    let guard = far.mutex("a").unwrap().lock().wait().unwrap();
    let short = far.mutex("b").unwrap().lock().wait().unwrap();
    // Shorter than the server waits: nothing happens but doubt.
    network.hang(true);
    eventually("doubt", || guard.state() == GuardState::Uncertain);
    network.hang(false);
    eventually("relief", || guard.state() == GuardState::Held);
    short.unlock().wait().unwrap();
    // Longer: the lock goes on, and the old holder learns it when it can be told.
    network.hang(true);
    assert_eq!(near.mutex("a").unwrap().try_lock().wait().unwrap_err(), TryLockError::Busy);
    let next = near.mutex("a").unwrap().lock().wait().unwrap();
    assert!(next.token() > guard.token());
    assert_ne!(guard.state(), GuardState::Held, "nobody believes to hold what another one has");
    let lost = guard.lost();
    network.hang(false);
    network.cut();
    eventually("the loss", || lost.is_lost());
    assert!(guard.unlock().wait().is_err());
    drop(next);
    assert!(far.mutex("a").unwrap().lock().wait().is_ok(), "the client goes on");
}

#[test]
fn an_upgrade_that_waits_outlives_its_connection_and_is_lost_with_its_session() {
    let server = server();
    let network = Network::to(server.address());
    let near = Client::open(&format!("tcp://{}", server.address())).wait().unwrap().rwlock("a").unwrap();
    let far = network.client().rwlock("a").unwrap();
    let inspector = Inspector::open(&format!("tcp://{}", server.address())).unwrap();
    let waits = || inspector.entries().unwrap().iter().any(|entry| entry.state == EntryState::Waiting);
    let (mut guard, other) = (far.read().wait().unwrap().into_any(), near.read().wait().unwrap());
    std::thread::scope(|threads| {
        let upgrade = threads.spawn(|| guard.upgrade().wait());
        eventually("it waits", waits);
        for _ in 0..3 {
            network.cut();
            std::thread::sleep(Duration::from_millis(30));
            assert!(waits(), "sessions outlive their connections");
        }
        drop(other);
        upgrade.join().unwrap().unwrap();
    });
    assert!(!guard.is_shared() && near.try_read().wait().is_err());
    // Cut in the middle of changes, nothing is lost or done twice.
    for round in 0..30 {
        if round % 3 == 0 {
            network.cut();
        }
        guard.downgrade().wait().unwrap();
        drop(near.read().wait().unwrap());
        assert!(near.try_write().wait().is_err());
        guard.upgrade().wait().unwrap();
        assert!(near.try_read().wait().is_err());
    }
    guard.downgrade().wait().unwrap();
    let other = near.read().wait().unwrap();
    std::thread::scope(|threads| {
        let upgrade = threads.spawn(|| guard.upgrade().wait());
        eventually("it waits", waits);
        network.hang(true);
        eventually("it is given up", || !waits());
        network.hang(false);
        network.cut();
        assert!(matches!(upgrade.join().unwrap(), Err(ChangeError::Lost { .. })));
    });
    assert_eq!(guard.state(), GuardState::Lost);
    drop(other);
    assert!(near.write().wait().is_ok());
}
