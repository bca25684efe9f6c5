//! One-sided spaces, whose locks clients take by verbs of their own: here over tcp, where the server's CPU executes the verbs. The
//! same clients run over queue pairs in `tests/rdma.rs` and in `crates/cli/tests/rdma.rs`.
#![cfg(target_os = "linux")]

mod apart;

use apart::{LONG, Scratch, TASK, eventually, holder, own_address};
use lockwright::inspect::{EntryState, Inspector};
use lockwright::{ChangeError, Client, GuardState, LockError, LockSet, OpenError};
use lockwright_server::{Server, ServerOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

fn options() -> ServerOptions {
    apart::options().lend("stock").lend("other")
}

fn server() -> Server {
    Server::start(options()).unwrap()
}

fn address(server: &Server) -> String {
    format!("tcp://{}/lent:stock", server.address())
}

fn client(server: &Server) -> Client {
    Client::open(&address(server)).wait().unwrap()
}

fn waiting(server: &Server) -> usize {
    let entries = Inspector::open(&address(server)).unwrap().entries().unwrap();
    entries.iter().filter(|entry| entry.state == EntryState::Waiting).count()
}

#[test]
fn locks_go_from_client_to_client_and_readers_share() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    assert_eq!(guard.state(), GuardState::Held);
    assert!(two.mutex("a").unwrap().try_lock().wait().is_err());
    assert!(two.rwlock("a").unwrap().try_read().wait().is_err());
    let (token, then) = (guard.token(), two.clone());
    let next = std::thread::spawn(move || then.mutex("a").unwrap().lock().wait().unwrap().token());
    eventually("a client waits", || waiting(&server) == 1);
    guard.unlock().wait().unwrap();
    assert!(next.join().unwrap() > token);
    let (mine, theirs) = (one.rwlock("b").unwrap(), two.rwlock("b").unwrap());
    let both = (mine.read().wait().unwrap(), theirs.try_read().wait().unwrap());
    assert!(one.mutex("b").unwrap().try_lock().wait().is_err());
    drop(both);
    eventually("the readers leave", || one.mutex("b").unwrap().try_lock().wait().is_ok());
    // Another space of the same server has locks of its own.
    let elsewhere = Client::open(&format!("tcp://{}/lent:other", server.address())).wait().unwrap();
    let _held = two.mutex("c").unwrap().lock().wait().unwrap();
    drop(elsewhere.mutex("c").unwrap().try_lock().wait().unwrap());
    let (d, e) = (one.mutex("d").unwrap(), one.mutex("e").unwrap());
    let set = LockSet::new().lock(&e).lock(&d).acquire().wait().unwrap();
    assert!(
        two.mutex("d").unwrap().try_lock().wait().is_err()
            && two.mutex("e").unwrap().try_lock().wait().is_err()
    );
    drop(set);
}

#[test]
fn ranges_that_do_not_meet_are_held_together_and_others_wait() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let (mine, theirs) = (one.range_lock("r").unwrap(), two.range_lock("r").unwrap());
    let low = mine.write(0..64).wait().unwrap();
    let high = theirs.try_write(64..u64::MAX).wait().unwrap();
    assert!(theirs.try_read(63..64).wait().is_err());
    assert_eq!((low.state(), high.state()), (GuardState::Held, GuardState::Held));
    let (token, then) = (low.token(), two.clone());
    let next = std::thread::spawn(move || then.range_lock("r").unwrap().read(10..20).wait().unwrap().token());
    eventually("a client waits", || waiting(&server) == 1);
    low.unlock().wait().unwrap();
    assert!(next.join().unwrap() > token);
    // The mutex of that name is another lock.
    drop(one.mutex("r").unwrap().try_lock().wait().unwrap());
    assert!(mine.write(5..5).wait().is_err());
    drop(high);
}

/// More threads than an entry has room for acquisitions of one client.
#[test]
fn many_threads_of_several_clients_lose_no_update() {
    let server = server();
    let clients = [client(&server), client(&server), client(&server)];
    let (keyed, ranged) = (AtomicU64::new(0), AtomicU64::new(0));
    const ROUNDS: u64 = 25;
    std::thread::scope(|threads| {
        for (index, client) in clients.iter().cycle().take(18).enumerate() {
            let counter = if index % 2 == 0 { &keyed } else { &ranged };
            threads.spawn(move || {
                let (mutex, range) = (client.mutex("m").unwrap(), client.range_lock("m").unwrap());
                let mut last = 0;
                for _ in 0..ROUNDS {
                    let guard = if index % 2 == 0 {
                        mutex.lock().into_any().wait()
                    } else {
                        range.write(3..9).into_any().wait()
                    };
                    let guard = guard.unwrap();
                    assert!(guard.token() > last);
                    last = guard.token();
                    let seen = counter.load(Relaxed);
                    std::thread::yield_now();
                    counter.store(seen + 1, Relaxed);
                }
            });
        }
    });
    assert_eq!((keyed.into_inner(), ranged.into_inner()), (9 * ROUNDS, 9 * ROUNDS));
}

#[test]
fn a_waiter_that_gives_up_does_not_keep_the_lock_from_others() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let held = one.mutex("a").unwrap().lock().wait().unwrap();
    let gave_up = two.mutex("a").unwrap().lock_timeout(Duration::from_millis(50)).wait();
    assert!(matches!(gave_up, Err(LockError::TimedOut)));
    let range = one.range_lock("a").unwrap().write(0..9).wait().unwrap();
    let gave_up = two.range_lock("a").unwrap().write_timeout(8..10, Duration::from_millis(50)).wait();
    assert!(matches!(gave_up, Err(LockError::TimedOut)));
    drop((held, range));
    for client in [&one, &two, &one] {
        drop(client.mutex("a").unwrap().lock().wait().unwrap());
        drop(client.range_lock("a").unwrap().write(8..10).wait().unwrap());
    }
}

#[test]
fn holders_are_listed_as_themselves_and_cannot_be_broken() {
    let server = server();
    let client = client(&server);
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    let _range = client.range_lock("b").unwrap().read(5..7).wait().unwrap();
    let inspector = Inspector::open(&address(&server)).unwrap();
    let entries = inspector.entries().unwrap();
    let [a, b] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((a.name.as_bytes(), a.token, a.shared), (&b"a"[..], Some(guard.token()), false));
    assert_eq!((b.name.as_bytes(), b.range.clone(), b.shared), (&b"b"[..], Some(5..7), true));
    assert_eq!((a.pid, b.pid), (std::process::id(), std::process::id()));
    assert!(a.age < LONG && b.age < LONG);
    let broken = inspector.break_grant("a", guard.token()).unwrap_err();
    assert!(broken.to_string().contains("cannot be broken"), "{broken}");
    assert_eq!(guard.state(), GuardState::Held);
}

#[test]
fn what_cannot_be_had_is_refused_in_words() {
    let server = server();
    let why = |space: &str| match Client::open(&format!("tcp://{}/{space}", server.address())).wait() {
        Err(OpenError::Failed { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why("lent:nothing").contains("lends no space called nothing"));
    assert!(why("lent:").contains("lends no space called default"));
    let exposed = Server::start(ServerOptions::default().listen("0.0.0.0:0".parse().unwrap()).lend("x"));
    assert!(exposed.is_err(), "words that clients change are not for strangers");
}

/// The process that is killed: holds a mutex and a range, and says so.
fn hold(address: &str) {
    let client = Client::open(address).wait().unwrap();
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    let _range = client.range_lock("a").unwrap().write(0..100).wait().unwrap();
    let _reader = client.rwlock("b").unwrap().read().wait().unwrap();
    println!("holds {}", guard.token());
    std::io::stdout().flush().unwrap();
    std::thread::sleep(LONG * 10);
}

#[test]
fn what_a_killed_client_held_goes_to_who_waits() {
    if let Ok(address) = std::env::var(TASK) {
        return hold(&address);
    }
    let server = server();
    let next = client(&server);
    for _ in 0..3 {
        let (mut child, token) = holder(&address(&server), "what_a_killed_client_held_goes_to_who_waits");
        assert!(next.mutex("a").unwrap().try_lock().wait().is_err());
        assert!(next.range_lock("a").unwrap().try_read(99..101).wait().is_err());
        assert!(next.rwlock("b").unwrap().try_write().wait().is_err());
        child.kill().unwrap();
        child.wait().unwrap();
        let guard = next.mutex("a").unwrap().lock().wait().unwrap();
        assert!(guard.token() > token);
        drop(next.range_lock("a").unwrap().write(99..101).wait().unwrap());
        drop(next.rwlock("b").unwrap().write().wait().unwrap());
        guard.unlock().wait().unwrap();
    }
}

/// A one-sided space has 127 numbers.
#[test]
fn numbers_of_those_who_left_are_used_again() {
    let server = server();
    for _ in 0..140 {
        let client = client(&server);
        // Given back when the guard goes, or when the session is over.
        drop(client.mutex("a").unwrap().lock().wait().unwrap());
    }
}

#[test]
fn a_client_whose_server_goes_has_lost_its_locks_and_comes_back_as_another() {
    let listen = own_address();
    let first = Server::start(options().listen(listen)).unwrap();
    let client = client(&first);
    let held = client.mutex("a").unwrap().lock().wait().unwrap();
    drop(first);
    let _second = Server::start(options().listen(listen)).unwrap();
    eventually("the loss", || held.state() == GuardState::Lost);
    let again = Instant::now() + LONG;
    let guard = loop {
        match client.mutex("a").unwrap().lock().wait() {
            Ok(guard) => break guard,
            Err(error) => assert!(Instant::now() < again, "{error}"),
        }
    };
    assert!(guard.token() > held.token(), "tokens rise across restarts");
    assert!(held.unlock().wait().is_err());
    lockwright::internal::secret::forget(listen.port()).unwrap();
}

#[test]
fn after_a_restart_a_lock_is_nobody_elses_before_its_holder_has_noticed() {
    let state = Scratch::new("lent");
    let lease = || apart::options().grace(Duration::from_secs(3)).state(&state.0).lend("stock");
    let first = Server::start(lease()).unwrap();
    let held = client(&first).mutex("a").unwrap().lock().wait().unwrap();
    drop(first);
    // Where the holder does not find it: it is cut off, and believes that it holds the lock until its lease is over.
    let second = Server::start(lease()).unwrap();
    let patient = Client::options().timeout(LONG);
    let next = patient.open(&address(&second)).wait().unwrap();
    let guard = next.mutex("a").unwrap().lock().wait().unwrap();
    assert_eq!(held.state(), GuardState::Lost, "two hold it");
    assert!(guard.token() > held.token());
}

/// Ranges on trees: units of 16 numbers.
fn tree_server() -> Server {
    Server::start(apart::options().lend_tree("stock", 16, 256, 8).unwrap()).unwrap()
}

#[test]
fn ranges_on_a_tree_exclude_each_other_by_whole_units() {
    let server = tree_server();
    let (one, two) = (client(&server), client(&server));
    let runs = one.protocols().unwrap();
    assert_eq!((runs.keyed, runs.ranges), ("holders", "citron-member"));
    assert_eq!(runs.parameters, [("names", 8), ("units", 256), ("unit", 16)]);
    let (mine, theirs) = (one.range_lock("r").unwrap(), two.range_lock("r").unwrap());
    let low = mine.write(0..60).wait().unwrap();
    assert!(theirs.try_write(60..64).wait().is_err(), "the same unit");
    // Sixteen units that one node covers; their neighbours to the left would be covered with it.
    let high = theirs.try_write(256..512).wait().unwrap();
    assert!(theirs.try_write(64..u64::MAX).wait().is_err(), "its cover has the first units, too");
    assert!(theirs.try_read(59..60).wait().is_err());
    assert_eq!((low.state(), high.state()), (GuardState::Held, GuardState::Held));
    let (token, then) = (low.token(), two.clone());
    let next = std::thread::spawn(move || then.range_lock("r").unwrap().read(10..20).wait().unwrap().token());
    eventually("a client waits", || waiting(&server) == 1);
    low.unlock().wait().unwrap();
    assert!(next.join().unwrap() > token);
    drop(one.mutex("r").unwrap().try_lock().wait().unwrap());
    assert!(mine.write(5..5).wait().is_err());
    let past = mine.write(0..16 * 256 + 1).wait().unwrap_err();
    assert!(past.to_string().contains("bound"), "{past}");
    drop(high);
    eventually("all of it is free", || mine.try_write(0..u64::MAX).wait().is_ok());
}

#[test]
fn many_threads_on_a_tree_lose_no_update() {
    let server = tree_server();
    let clients = [client(&server), client(&server), client(&server)];
    let counter = AtomicU64::new(0);
    const ROUNDS: u64 = 25;
    std::thread::scope(|threads| {
        for (index, client) in (0..).zip(clients.iter().cycle().take(12)) {
            let counter = &counter;
            threads.spawn(move || {
                let lock = client.range_lock("m").unwrap();
                let mut last = 0;
                for round in 0..ROUNDS {
                    // All of these have unit 3 in common: a leaf, inner nodes, and the whole tree.
                    let (start, end) =
                        [(48, 64), (0, 64), (40, 100), (0, 4096)][(index + round) as usize % 4];
                    let guard = lock.write(start..end).wait().unwrap();
                    assert!(guard.token() > last);
                    last = guard.token();
                    let seen = counter.load(Relaxed);
                    std::thread::yield_now();
                    counter.store(seen + 1, Relaxed);
                }
            });
        }
    });
    assert_eq!(counter.load(Relaxed), 12 * ROUNDS);
}

#[test]
fn who_gives_up_waiting_for_a_large_range_on_a_tree_is_in_nobodys_way() {
    let server = tree_server();
    let (one, two) = (client(&server), client(&server));
    let (mine, theirs) = (one.range_lock("r").unwrap(), two.range_lock("r").unwrap());
    let held = mine.write(0..16).wait().unwrap();
    // It waits at an inner node, with those below held off, and gives up.
    assert!(theirs.write_timeout(0..64, Duration::from_millis(50)).wait().is_err());
    eventually("a range beside it is free", || mine.try_write(32..48).wait().is_ok());
    drop(held);
}

#[test]
fn a_range_on_a_tree_is_downgraded_and_lets_readers_in() {
    let server = tree_server();
    let (one, two) = (client(&server), client(&server));
    let (mine, theirs) = (one.range_lock("r").unwrap(), two.range_lock("r").unwrap());
    for range in [0..16, 0..64, 40..100] {
        let guard = mine.write(range.clone()).wait().unwrap();
        let token = guard.token();
        let guard = guard.downgrade().wait().unwrap();
        assert!(guard.token() > token);
        assert_eq!(guard.state(), GuardState::Held);
        let shared = theirs.try_read(range.clone()).wait().unwrap();
        let entries = Inspector::open(&address(&server)).unwrap().entries().unwrap();
        assert_eq!((entries.len(), entries.iter().all(|entry| entry.shared)), (2, true), "{entries:?}");
        drop(shared);
        assert!(theirs.try_write(range.clone()).wait().is_err());
        guard.unlock().wait().unwrap();
        eventually("all of it is free", || theirs.try_write(0..u64::MAX).wait().is_ok());
    }
    // It happens once it was polled, also if nobody waits for it.
    let mut guard = mine.write(0..64).into_any().wait().unwrap();
    let mut downgrade = Box::pin(guard.downgrade());
    let _ = downgrade.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    drop(downgrade);
    assert!(guard.is_shared());
    drop(theirs.read(0..64).wait().unwrap());
    drop(guard);
    eventually("all of it is free", || theirs.try_write(0..u64::MAX).wait().is_ok());
    // It is given back as a whole.
    let mut guard = mine.write(0..64).wait().unwrap();
    let refused = guard.unlock_part(0..16).unwrap_err();
    assert!(refused.to_string().contains("given back as a whole"), "{refused}");
    assert_eq!((guard.state(), guard.range()), (GuardState::Held, 0..64));
    drop(guard);
    // Names of such a space are ShiftLock's.
    let refused = one.rwlock("a").unwrap().write().wait().unwrap().downgrade().wait().unwrap_err();
    assert!(matches!(refused.error, ChangeError::Unsupported(_)), "{refused:?}");
}

#[test]
fn a_client_that_is_killed_frees_its_ranges_on_a_tree_and_nobody_elses() {
    if let Ok(address) = std::env::var(TASK) {
        return hold(&address);
    }
    let server = tree_server();
    let one = client(&server);
    let lock = one.range_lock("a").unwrap();
    let beside = lock.write(2048..2064).wait().unwrap();
    for _ in 0..3 {
        let test = "a_client_that_is_killed_frees_its_ranges_on_a_tree_and_nobody_elses";
        let (mut child, _) = holder(&address(&server), test);
        assert!(lock.try_write(99..101).wait().is_err());
        child.kill().unwrap();
        child.wait().unwrap();
        let freed = lock.write(99..101).wait().unwrap();
        assert_eq!((beside.state(), freed.state()), (GuardState::Held, GuardState::Held));
        assert!(client(&server).range_lock("a").unwrap().try_write(2048..2049).wait().is_err());
    }
    drop(beside);
    eventually("all of it is free", || lock.try_write(0..u64::MAX).wait().is_ok());
}

/// From the end of a process that holds a mutex and a range to the moment when another client has the one, and the other.
fn freed_after(server: &Server, kind: &str) -> Duration {
    let next = client(server);
    let (mutex, ranges) = (next.mutex("a").unwrap(), next.range_lock("a").unwrap());
    let test = "a_death_frees_a_range_on_a_tree_as_soon_as_a_mutex";
    let times = (0..5).map(|_| {
        let (mut child, _) = holder(&address(server), test);
        let began = Instant::now();
        child.kill().unwrap();
        child.wait().unwrap();
        match kind {
            "mutex" => drop(mutex.lock().wait().unwrap()),
            _ => drop(ranges.write(99..101).wait().unwrap()),
        }
        let freed = began.elapsed();
        // What else it held must not stand in the next one's way.
        drop((mutex.lock().wait().unwrap(), ranges.write(0..100).wait().unwrap()));
        freed
    });
    times.min().unwrap()
}

/// Both are free when the session of a process that has ended is over, a second after its connection was closed, and the server has
/// looked after what it left; or when its waiter has waited for a second, and looks. Its lease is over 20 s later.
#[test]
fn a_death_frees_a_range_on_a_tree_as_soon_as_a_mutex() {
    if let Ok(address) = std::env::var(TASK) {
        return hold(&address);
    }
    let server = tree_server();
    let bound = Duration::from_secs(2);
    for kind in ["mutex", "range on a tree"] {
        let freed = freed_after(&server, kind);
        println!("{kind}: free after {freed:?}");
        assert!(freed < bound, "{kind}: free after {freed:?}, which is not {bound:?}");
    }
}
