//! Clients of an exported space, for whom the server takes the locks, beside processes of the host.
#![cfg(target_os = "linux")]

mod apart;

use apart::{LONG, TASK, eventually, holder, own_address};
use lockwright::inspect::{EntryState, Inspector};
use lockwright::{Client, GuardState, LockError, LockSet};
use lockwright_server::{Server, ServerOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

/// A space of this host, and a server that exports it.
struct Host {
    file: String,
    server: Option<Server>,
}

impl Host {
    fn new(name: &str) -> Self {
        Self::at(name, "127.0.0.1:0".parse().unwrap())
    }

    fn at(name: &str, listen: SocketAddr) -> Self {
        let file = format!("/dev/shm/lockwright-test-exported-{name}-{}", std::process::id());
        let _ = std::fs::remove_file(&file);
        let mut host = Self { file, server: None };
        host.server = Some(Server::start(host.options(listen)).unwrap());
        host
    }

    fn options(&self, listen: SocketAddr) -> ServerOptions {
        apart::options().listen(listen).threads(2).export(self.space())
    }

    fn space(&self) -> String {
        format!("shm:{}", self.file)
    }

    fn address(&self) -> String {
        format!("tcp://{}/{}", self.server.as_ref().unwrap().address(), self.space())
    }

    fn local(&self) -> Client {
        Client::open(&self.space()).wait().unwrap()
    }

    fn remote(&self) -> Client {
        Client::open(&self.address()).wait().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_file(&self.file);
    }
}

fn waits(host: &Host) -> bool {
    let inspector = Inspector::open(&host.space()).unwrap();
    inspector.entries().unwrap().iter().any(|entry| entry.state == EntryState::Waiting)
}

/// A lock that goes from `first` to `then`, who waits for it.
fn hands_over(host: &Host, first: &Client, then: &Client) {
    let guard = first.mutex("a").unwrap().lock().wait().unwrap();
    assert_eq!(guard.state(), GuardState::Held);
    assert!(then.mutex("a").unwrap().try_lock().wait().is_err());
    assert!(then.rwlock("a").unwrap().try_read().wait().is_err());
    let token = guard.token();
    let then = then.clone();
    let waiting = std::thread::spawn(move || then.mutex("a").unwrap().lock().wait().unwrap().token());
    eventually("a client waits", || waits(host));
    guard.unlock().wait().unwrap();
    assert!(waiting.join().unwrap() > token);
}

#[test]
fn remote_clients_and_local_processes_are_in_one_queue() {
    let host = Host::new("queue");
    let (local, remote, other) = (host.local(), host.remote(), host.remote());
    hands_over(&host, &remote, &local);
    hands_over(&host, &local, &remote);
    hands_over(&host, &remote, &other);
    // Readers share.
    let mine = remote.rwlock("b").unwrap().read().wait().unwrap();
    let theirs = local.rwlock("b").unwrap().try_read().wait().unwrap();
    assert!(other.mutex("b").unwrap().try_lock().wait().is_err());
    drop((mine, theirs));
    let both = other.mutex("b").unwrap().lock().wait().unwrap();
    assert_eq!(both.state(), GuardState::Held);
    drop(both);
    let held = local.range_lock("r").unwrap().write(0..5).wait().unwrap();
    assert!(remote.range_lock("r").unwrap().try_read(4..6).wait().is_err());
    drop(held);
    drop(remote.range_lock("r").unwrap().read(4..6).wait().unwrap());
    let (c, d) = (remote.mutex("c").unwrap(), remote.mutex("d").unwrap());
    let set = LockSet::new().lock(&d).lock(&c).acquire().wait().unwrap();
    assert!(
        local.mutex("c").unwrap().try_lock().wait().is_err()
            && local.mutex("d").unwrap().try_lock().wait().is_err()
    );
    drop(set);
}

#[test]
fn a_set_knows_a_lock_by_either_way_to_it() {
    let host = Host::new("either");
    let (local, remote) = (host.local(), host.remote());
    let both = LockSet::new().lock(&local.mutex("a").unwrap()).lock(&remote.mutex("a").unwrap());
    let both = both.timeout(Duration::from_secs(1)).acquire().wait();
    assert!(matches!(both, Err(LockError::Duplicate { .. })), "{both:?}");
    // Beside another space of the server, whose name sorts before that of the memory: who waits for the other one's lock has
    // none that the other one waits for, whichever way each of them takes.
    let own =
        Client::open(&format!("tcp://{}/alpha", host.server.as_ref().unwrap().address())).wait().unwrap();
    let [near, far] = [&local, &remote].map(|client| client.mutex("b").unwrap());
    let own = own.mutex("b").unwrap();
    for (first, second) in [(&near, &far), (&far, &near)] {
        let held = own.lock().wait().unwrap();
        let mut waits = LockSet::new().lock(first).lock(&own).acquire();
        assert!(Pin::new(&mut waits).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        eventually("it has what comes first", || second.try_lock().wait().is_err());
        drop((held, waits));
        eventually("it has given up", || second.try_lock().wait().is_ok());
    }
}

#[test]
fn threads_of_remote_and_local_clients_lose_no_update() {
    let host = Host::new("threads");
    let clients = [host.local(), host.remote(), host.remote(), host.local()];
    let counter = std::sync::atomic::AtomicU64::new(0);
    let (mine, rounds) = (&counter, 150);
    std::thread::scope(|threads| {
        for client in &clients {
            threads.spawn(move || {
                let lock = client.mutex("counter").unwrap();
                let mut last = 0;
                for _ in 0..rounds {
                    let guard = lock.lock().wait().unwrap();
                    assert!(guard.token() > last);
                    last = guard.token();
                    let seen = mine.load(std::sync::atomic::Ordering::Relaxed);
                    std::thread::yield_now();
                    mine.store(seen + 1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 4 * rounds);
}

#[test]
fn a_waiter_that_is_dropped_does_not_keep_the_lock_from_others() {
    let host = Host::new("dropped");
    let (local, remote) = (host.local(), host.remote());
    let held = local.mutex("a").unwrap().lock().wait().unwrap();
    let given_up = remote.mutex("a").unwrap().lock_timeout(Duration::from_millis(50)).wait();
    assert!(given_up.is_err());
    drop(held);
    drop(local.mutex("a").unwrap().lock().wait().unwrap());
    drop(remote.mutex("a").unwrap().lock().wait().unwrap());
}

#[test]
fn a_remote_client_is_listed_as_itself_and_can_lose_its_lock() {
    let host = Host::new("listed");
    let remote = host.remote();
    let guard = remote.mutex("a").unwrap().lock().wait().unwrap();
    let inspector = Inspector::open(&host.address()).unwrap();
    let entries = inspector.entries().unwrap();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((entry.name.as_bytes(), entry.token), (&b"a"[..], Some(guard.token())));
    assert_eq!(
        entry.pid,
        std::process::id(),
        "this process is both, but the session's label says which program"
    );
    assert!(!entry.program.is_empty());
    let lost = guard.lost();
    inspector.break_grant("a", guard.token()).unwrap();
    eventually("the loss", || lost.is_lost());
    assert!(guard.unlock().wait().is_err());
    drop(host.local().mutex("a").unwrap().try_lock().wait().unwrap());
}

/// The process that is killed: holds a lock and says so.
fn hold(address: &str) {
    let client = Client::open(address).wait().unwrap();
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    println!("holds {}", guard.token());
    std::io::stdout().flush().unwrap();
    std::thread::sleep(LONG * 10);
}

#[test]
fn the_locks_of_a_killed_client_go_to_the_next_waiter() {
    if let Ok(address) = std::env::var(TASK) {
        return hold(&address);
    }
    let host = Host::new("killed");
    let test = "the_locks_of_a_killed_client_go_to_the_next_waiter";
    let (local, other) = (host.local(), host.remote());
    for next in [&local, &other] {
        let (mut child, token) = holder(&host.address(), test);
        assert!(next.mutex("a").unwrap().try_lock().wait().is_err());
        child.kill().unwrap();
        child.wait().unwrap();
        let guard = next.mutex("a").unwrap().lock().wait().unwrap();
        assert!(guard.token() > token);
        guard.unlock().wait().unwrap();
    }
    // And the other way round: a process of the host, by its pid.
    let (mut child, token) = holder(&host.space(), test);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(other.mutex("a").unwrap().lock().wait().unwrap().token() > token);
}

#[test]
fn a_client_whose_server_goes_has_lost_its_locks_and_comes_back() {
    // Clients come back to a port that was named, not to one that was any.
    let listen = own_address();
    let mut host = Host::at("restarted", listen);
    let (local, remote) = (host.local(), host.remote());
    let held = remote.mutex("a").unwrap().lock().wait().unwrap();
    host.server = None;
    let token = local.mutex("a").unwrap().lock().wait().unwrap().token();
    assert!(token > held.token());
    host.server = Some(Server::start(host.options(listen)).unwrap());
    eventually("the loss", || held.state() == GuardState::Lost);
    eventually("another lock", || remote.mutex("a").unwrap().lock().wait().is_ok());
    assert!(held.unlock().wait().is_err());
    assert!(remote.mutex("a").unwrap().lock().wait().unwrap().token() > token);
    // Such a server leaves its secret for its successor.
    lockwright::internal::secret::forget(listen.port()).unwrap();
}
