//! Commands under a lock of a server, and a network between them that stops forwarding: the old command has ended before
//! the new one begins.

mod started;

use lockwright::{ChangeError, Client, LockError, LockGuard, TryLockError};
use nix::sys::signal::Signal;
use started::Started;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

fn lockwright(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
    command.args(args).env_remove("LOCKWRIGHT_SPACE").env_remove("LOCKWRIGHT_SECRET_FILE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A way to a server.
struct Network {
    address: SocketAddr,
    /// Nothing is forwarded any more, and nothing is closed.
    hangs: Arc<AtomicBool>,
    /// The ends of its connections that the server has.
    far_ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Network {
    fn hang(&self) {
        self.hangs.store(true, SeqCst);
    }

    /// Hangs, and closes its connections to the server; those to clients stay open.
    fn close_at_server(&self) {
        self.hang();
        for far in self.far_ends.lock().unwrap().drain(..) {
            let _ = far.shutdown(Shutdown::Both);
        }
    }
}

/// A way to the server at `server`.
fn network(server: SocketAddr) -> Network {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (hangs, far_ends) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
    let network = Network { address: listener.local_addr().unwrap(), hangs, far_ends };
    let (hung, far_ends) = (Arc::clone(&network.hangs), Arc::clone(&network.far_ends));
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(server) else { continue };
            far_ends.lock().unwrap().push(far.try_clone().unwrap());
            let ways = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
            for (mut from, mut to) in ways {
                let hung = Arc::clone(&hung);
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(read @ 1..) = from.read(&mut bytes) {
                        while hung.load(SeqCst) {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        if to.write_all(&bytes[..read]).is_err() {
                            return;
                        }
                    }
                    // What has ended on one side is not closed on the other: a network does not do that.
                    std::mem::forget((from, to));
                });
            }
        }
    });
    network
}

/// An executor that knows nothing of the client.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return outcome;
        }
        std::thread::park();
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-lease-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The last number in a file of lines; the last line may be cut off.
fn last_ns(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    let whole = &text[..=text.rfind('\n').unwrap()];
    whole.lines().last().unwrap().parse().unwrap()
}

/// A command holds a lock by way of a network that is then `broken`, and another waits for the lock at the server itself.
fn old_command_ends_before_the_new_one_begins(name: &str, broken: fn(&Network)) {
    let scratch = Scratch::new(name);
    // Clients that come by the network do not find the server's own secret.
    let secret = scratch.0.join("secret");
    fs::write(&secret, "a secret of sixteen bytes").unwrap();
    let secret = secret.to_str().unwrap();
    let options =
        ["--listen", "127.0.0.1:0", "--grace", "2.5", "--heartbeat", "0.1", "--secret-file", secret];
    let served = Started::new(lockwright(&[&["serve", "--json"], &options[..]].concat()));
    let said: serde_json::Value = serde_json::from_str(&served.line).unwrap();
    let address: SocketAddr = said["listening"].as_str().unwrap().parse().unwrap();
    let network = network(address);
    let (old, new) = (scratch.0.join("old"), scratch.0.join("new"));
    // It does not heed SIGTERM, and says all the time that it is there.
    let script = "trap '' TERM; echo in; while :; do date +%s%N >> \"$0\"; done";
    let space = format!("tcp://{}/stock", network.address);
    let run = |space: &str, more: &[&str], script: &str, file: &Path| {
        let args = ["run", "--space", space, "--secret-file", secret];
        let command = ["a", "--", "sh", "-c", script, file.to_str().unwrap()];
        lockwright(&[&args, more, &command].concat())
    };
    let holder = Started::new(run(&space, &["--kill-after", "0.5"], script, &old));
    assert_eq!(holder.line, "in");
    let space = format!("tcp://{address}/stock");
    let script = "date +%s%N > \"$0\"";
    let mut rival = run(&space, &[], script, &new).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    broken(&network);
    assert!(rival.wait().unwrap().success());
    let (_, _, said) = holder.end();
    assert!(said.contains("lost"), "{said}");
    let (began, ended) = (last_ns(&new), last_ns(&old));
    assert!(ended < began, "two commands ran at once, for {} ms at least", (ended - began) / 1_000_000);
}

#[test]
fn in_a_network_hang_the_old_command_has_ended_before_the_new_one_begins() {
    old_command_ends_before_the_new_one_begins("hang", Network::hang);
}

#[test]
fn behind_a_proxy_that_closes_only_the_servers_side_the_old_command_has_ended_before_the_new_one_begins() {
    old_command_ends_before_the_new_one_begins("one-side", Network::close_at_server);
}

#[test]
fn tries_and_opens_at_a_stopped_server_end_in_bounded_time_and_say_why() {
    let served = Started::new(lockwright(&["serve", "--json", "--listen", "127.0.0.1:0", "--grace", "600"]));
    let said: serde_json::Value = serde_json::from_str(&served.line).unwrap();
    let space = format!("tcp://{}/stock", said["listening"].as_str().unwrap());
    let options = Client::options().timeout(Duration::from_millis(300));
    let client = options.open(&space).wait().unwrap();
    let lock = client.rwlock("a").unwrap();
    let mut guard = client.rwlock("b").unwrap().read().wait().unwrap().into_any();
    served.send(Signal::SIGSTOP);
    let status = format!("/proc/{}/status", served.child.id());
    while !fs::read_to_string(&status).unwrap().contains("State:\tT") {
        std::thread::sleep(Duration::from_millis(1));
    }
    let late = |error: TryLockError| match error {
        TryLockError::Failed(LockError::Disconnected(why)) => assert!(why.contains("0.3 s"), "{why}"),
        error => panic!("{error:?}"),
    };
    late(lock.try_write().wait().unwrap_err());
    late(block_on(lock.try_write()).unwrap_err());
    assert_eq!(guard.try_upgrade().wait(), Err(ChangeError::TimedOut));
    assert_eq!(lock.write_timeout(Duration::from_millis(50)).wait().unwrap_err(), LockError::TimedOut);
    let opened = options.open(&space).wait().map(drop).unwrap_err().to_string();
    assert!(opened.contains("did not answer within 0.3 s"), "{opened}");
    // Whatever was given up is not held once the server goes on.
    served.send(Signal::SIGCONT);
    let other = options.open(&space).wait().unwrap();
    assert!(other.rwlock("a").unwrap().write().wait().is_ok());
    assert!(other.rwlock("b").unwrap().read().wait().is_ok());
}

/// Once such a client waited until its lease was over, some eight seconds, whatever its timeout.
#[test]
fn at_a_stopped_server_clients_of_a_lent_space_also_get_an_answer_in_bounded_time() {
    let options = ["--listen", "127.0.0.1:0", "--grace", "600", "--state", "none"];
    let lend = ["--lend", "exact", "--lend", "trees,tree", "--lend"];
    let local = format!("lease-{},local", std::process::id());
    let served = Started::new(lockwright(&[&["serve", "--json"], &options[..], &lend, &[&local]].concat()));
    let said: serde_json::Value = serde_json::from_str(&served.line).unwrap();
    let at = |space: &str| format!("tcp://{}/lent:{space}", said["listening"].as_str().unwrap());
    let options = Client::options().timeout(Duration::from_millis(300));
    let names = ["exact", "trees", local.trim_end_matches(",local")];
    let clients = names.map(|name| options.clone().open(&at(name)).wait().unwrap());
    let locks = clients.each_ref().map(|client| client.rwlock("a").unwrap());
    let ranges = [clients[0].range_lock("r").unwrap(), clients[1].range_lock("r").unwrap()];
    let held = locks.each_ref().map(|lock| lock.read().wait().unwrap());
    served.send(Signal::SIGSTOP);
    let status = format!("/proc/{}/status", served.child.id());
    while !fs::read_to_string(&status).unwrap().contains("State:\tT") {
        std::thread::sleep(Duration::from_millis(1));
    }
    let began = std::time::Instant::now();
    let late = |error: TryLockError| match error {
        TryLockError::Failed(LockError::Disconnected(why)) => assert!(why.contains("0.3 s"), "{why}"),
        error => panic!("{error:?}"),
    };
    for lock in &locks {
        late(lock.try_write().wait().unwrap_err());
        late(block_on(lock.try_write()).unwrap_err());
        assert_eq!(lock.write_timeout(Duration::from_millis(50)).wait().unwrap_err(), LockError::TimedOut);
    }
    for lock in &ranges {
        late(lock.try_write(0..4).wait().unwrap_err());
        late(block_on(lock.try_write(4..8)).unwrap_err());
    }
    for client in &clients {
        let opened = client.mutex("b").map(drop).unwrap_err().to_string();
        assert!(opened.contains("did not answer within 0.3 s"), "{opened}");
    }
    let opened = options.open(&at("exact")).wait().map(drop).unwrap_err().to_string();
    assert!(opened.contains("did not answer within 0.3 s"), "{opened}");
    // Fifteen waits of 0.3 s at most, on a machine that has other things to do; one lease would be 600 s.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    // Whatever was given up is not held once the server goes on.
    served.send(Signal::SIGCONT);
    drop(held);
    for name in names {
        let other = Client::open(&at(name)).wait().unwrap();
        assert!(other.rwlock("a").unwrap().write().wait().is_ok());
    }
    for name in &names[..2] {
        let other = Client::open(&at(name)).wait().unwrap();
        assert!(other.range_lock("r").unwrap().write(0..8).wait().is_ok());
    }
    let file = lockwright_fabric::backend::shm::space_path(&format!("lent.{}", names[2])).unwrap();
    let _ = fs::remove_file(file);
}

/// A server whose clients lose their locks after 2.8 s, and where it listens.
fn short_lease() -> (Started, SocketAddr) {
    let options = ["--listen", "127.0.0.1:0", "--grace", "2.5", "--heartbeat", "0.1"];
    let served = Started::new(lockwright(&[&["serve", "--json"], &options[..]].concat()));
    let said: serde_json::Value = serde_json::from_str(&served.line).unwrap();
    let address = said["listening"].as_str().unwrap().parse().unwrap();
    (served, address)
}

#[test]
fn a_session_that_the_server_resumed_and_its_client_gave_up_is_not_waited_for() {
    let (served, address) = short_lease();
    let network = network(address);
    let client = Client::open(&format!("tcp://{}/stock", network.address)).wait().unwrap();
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    // The client notices, and asks to resume its session. The server does that when it goes on, and nobody hears of it:
    // its lease begins anew, the client's does not.
    served.send(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(2200));
    network.hang();
    served.send(Signal::SIGCONT);
    block_on(guard.lost());
    drop(guard);
    std::thread::sleep(Duration::from_millis(600));
    network.hangs.store(false, SeqCst);
    // What a client says first in its session has been heard once this is done.
    client.mutex("b").unwrap().lock().wait().unwrap().unlock().wait().unwrap();
    let other = Client::open(&format!("tcp://{address}/stock")).wait().unwrap();
    assert!(other.mutex("a").unwrap().try_lock().wait().is_ok(), "it is kept for a client that has stopped");
}

#[test]
fn a_server_that_was_stopped_for_longer_than_the_lease_does_not_wait_for_clients_that_have_stopped() {
    let (served, address) = short_lease();
    // The server is not told that a client has closed its connection: it would keep the session for another lease. (If it
    // looks at the time before it reads what has come meanwhile, it ends the session at once.)
    let through = network(address).address;
    let names = ["a", "b", "c", "d"];
    let clients = names.map(|_| Client::open(&format!("tcp://{through}/stock")).wait().unwrap());
    let guards = [0, 1, 2, 3].map(|at| clients[at].mutex(names[at]).unwrap().lock().wait().unwrap());
    served.send(Signal::SIGSTOP);
    for guard in guards {
        block_on(guard.lost());
    }
    // Their sessions are over a little later. They come back with new ones, which cannot unlock for the old.
    std::thread::sleep(Duration::from_millis(1500));
    served.send(Signal::SIGCONT);
    let other = Client::open(&format!("tcp://{address}/stock")).wait().unwrap();
    for (client, name) in clients.iter().zip(names) {
        // What a client says first in its session has been heard once this is done.
        client.mutex("e").unwrap().lock().wait().unwrap().unlock().wait().unwrap();
        assert!(
            other.mutex(name).unwrap().try_lock().wait().is_ok(),
            "{name} is kept for a client that has stopped"
        );
    }
}
