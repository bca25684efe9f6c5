//! Spaces behind a server, within one process: the same handles and guards, and what becomes of them when clients go,
//! locks are broken and servers are restarted.
#![cfg(target_os = "linux")]

mod apart;

use apart::{
    LONG, Scratch, address, client, eventually, impatient, lasting, options, own_address, restart, server,
};
use lockwright::inspect::{EntryState, Inspector};
use lockwright::{Client, GuardState, LockError, LockSet, OpenError, TryLockError};
use lockwright_fabric::backend::shm::PrivateFolder;
use lockwright_fabric::random::SplitMix;
use lockwright_server::{ServeError, Server, ServerOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const HERE: &str = "127.0.0.1:0";

#[test]
fn locks_of_a_server_are_those_of_any_space() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    assert_eq!(guard.state(), GuardState::Held);
    let other = two.mutex("a").unwrap();
    assert_eq!(other.try_lock().wait().unwrap_err(), TryLockError::Busy);
    assert_eq!(other.lock_timeout(Duration::ZERO).wait().unwrap_err(), LockError::TimedOut);
    assert_eq!(other.lock_timeout(Duration::from_millis(20)).wait().unwrap_err(), LockError::TimedOut);
    let token = guard.token();
    guard.unlock().wait().unwrap();
    let second = other.lock().wait().unwrap();
    assert!(second.token() > token);
    drop(second);
    let (readers, writer) = (one.rwlock("config").unwrap(), two.rwlock("config").unwrap());
    let _readers = [readers.read().wait().unwrap(), two.rwlock("config").unwrap().try_read().wait().unwrap()];
    assert_eq!(writer.try_write().wait().unwrap_err(), TryLockError::Busy);
    let (left, right) = (one.range_lock("data").unwrap(), two.range_lock("data").unwrap());
    let _left = left.write(0..4096).wait().unwrap();
    let _right = right.write(4096..8192).wait().unwrap();
    assert!(right.try_read(4095..4096).wait().is_err());
    assert!(matches!(left.try_write(5..5).wait(), Err(TryLockError::Failed(LockError::BadRange { .. }))));
    let both = LockSet::new()
        .lock(&one.mutex("x").unwrap())
        .lock(&one.mutex("y").unwrap())
        .acquire()
        .wait()
        .unwrap();
    assert_eq!(both.len(), 2);
}

#[test]
fn threads_and_clients_lose_no_update_and_tokens_only_rise() {
    // Whether one thread of the server's reads all connections, or each its own.
    for threads in [1, 4] {
        lose_no_update(&Server::start(options().threads(threads)).unwrap());
    }
}

fn lose_no_update(server: &Server) {
    let (counter, newest) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for _ in 0..3 {
            let client = client(server);
            for _ in 0..3 {
                let lock = client.mutex("counter").unwrap();
                let (counter, newest) = (&counter, &newest);
                threads.spawn(move || {
                    for _ in 0..100 {
                        let guard = lock.lock().wait().unwrap();
                        assert!(newest.swap(guard.token(), Relaxed) < guard.token(), "tokens rise");
                        counter.store(counter.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        }
    });
    assert_eq!(counter.into_inner(), 900);
}

#[test]
fn a_waiter_that_is_dropped_is_out_of_the_queue_at_once() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let held = one.rwlock("a").unwrap().read().wait().unwrap();
    let lock = two.rwlock("a").unwrap();
    let mut writer = Box::pin(lock.write());
    assert!(writer.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending());
    let inspector = Inspector::open(&address(&server)).unwrap();
    eventually("the writer waits", || inspector.entries().unwrap().len() == 2);
    assert!(lock.try_read().wait().is_err(), "a waiting writer keeps readers out");
    drop(writer);
    assert!(lock.try_read().wait().is_ok(), "readers go on beside the one who reads");
    drop(held);
}

#[test]
fn async_code_waits_on_any_executor() {
    let server = server();
    let client = client(&server);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lock = client.mutex("a").unwrap();
        let held = lock.lock().await.unwrap();
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.lock().await.unwrap().token() }
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
        let token = held.token();
        held.unlock().await.unwrap();
        assert!(waiting.await.unwrap() > token);
    });
}

#[test]
fn a_client_that_goes_leaves_nothing_behind_and_others_get_its_locks() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let _range = one.range_lock("r").unwrap().write(0..10).wait().unwrap();
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    std::mem::forget(guard);
    let waiter = std::thread::spawn(move || two.mutex("a").unwrap().lock().wait().unwrap().token());
    let inspector = Inspector::open(&address(&server)).unwrap();
    eventually("a client waits", || {
        inspector.entries().unwrap().iter().any(|entry| entry.state == EntryState::Waiting)
    });
    drop(_range);
    drop(one);
    // The guard that was forgotten keeps its client; only the process's end would end it. So break it.
    let held = inspector.entries().unwrap().into_iter().find(|entry| entry.token.is_some()).unwrap();
    assert_eq!((held.pid, held.name.to_string()), (std::process::id(), "a".to_owned()));
    inspector.break_grant("a", held.token.unwrap()).unwrap();
    assert!(waiter.join().unwrap() > held.token.unwrap());
    assert!(inspector.break_grant("a", held.token.unwrap()).is_err(), "that grant is over");
}

#[test]
fn a_holder_whose_lock_is_broken_learns_it() {
    let server = server();
    let client = client(&server);
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    let lost = guard.lost();
    Inspector::open(&address(&server)).unwrap().break_grant("a", guard.token()).unwrap();
    eventually("the loss", || lost.is_lost());
    assert_eq!(guard.state(), GuardState::Lost);
    assert!(guard.unlock().wait().is_err());
    assert!(client.mutex("a").unwrap().try_lock().wait().is_ok());
}

#[test]
fn a_server_is_the_same_one_however_its_address_is_spelled() {
    let server = server();
    let port = server.address().port();
    let open = |address: String| Client::open(&address).wait().unwrap();
    let spelled = [format!("tcp://127.0.0.1:{port}"), format!("tcp://localhost:{port}/default")].map(open);
    let [one, two] = spelled.each_ref().map(|client| client.mutex("a").unwrap());
    let both = LockSet::new().lock(&one).lock(&two).timeout(Duration::from_millis(200)).acquire().wait();
    assert!(matches!(both, Err(LockError::Duplicate { .. })), "{both:?}");
}

#[test]
fn spaces_of_a_server_are_kept_apart() {
    let server = server();
    let one = Client::open(&format!("{}/one", address(&server))).wait().unwrap();
    let two = Client::open(&format!("{}/two", address(&server))).wait().unwrap();
    let _held = one.mutex("a").unwrap().lock().wait().unwrap();
    assert!(two.mutex("a").unwrap().try_lock().wait().is_ok());
    assert!(
        Client::open(&format!("{}/one", address(&server)))
            .wait()
            .unwrap()
            .mutex("a")
            .unwrap()
            .try_lock()
            .wait()
            .is_err()
    );
}

#[test]
fn after_a_restart_holders_keep_their_locks_and_nobody_else_gets_them() {
    let state = Scratch::new("restart");
    let server = Server::start(lasting(&state)).unwrap();
    let (one, two) = (client(&server), client(&server));
    let (a, b) = (one.mutex("a").unwrap(), two.mutex("b").unwrap());
    let guard = a.lock().wait().unwrap();
    let range = one.range_lock("r").unwrap().write(0..10).wait().unwrap();
    let waiting = std::thread::spawn({
        let two = two.clone();
        move || {
            let guard = two.mutex("a").unwrap().lock().wait().unwrap();
            (guard.token(), Instant::now())
        }
    });
    let inspector = Inspector::open(&address(&server)).unwrap();
    eventually("a client waits", || inspector.entries().unwrap().len() == 3);
    let server = restart(server, lasting(&state));
    assert!(server.began_recovering());
    eventually("the claim is heard", || {
        guard.state() == GuardState::Held && range.state() == GuardState::Held
    });
    // A new client that comes at once gets what is free, and only that.
    let three = client(&server);
    let free = three.mutex("b").unwrap().lock().wait().unwrap();
    assert!(free.token() > guard.token(), "tokens rise across restarts");
    drop(free);
    assert!(three.mutex("a").unwrap().try_lock().wait().is_err());
    assert!(three.range_lock("r").unwrap().try_read(9..12).wait().is_err());
    let released = Instant::now();
    let token = guard.token();
    guard.unlock().wait().unwrap();
    let (next, when) = waiting.join().unwrap();
    assert!(next > token && when >= released);
    assert!(b.lock().wait().is_ok());
    drop(range);
}

#[test]
fn a_recovery_ends_when_every_holder_has_claimed() {
    let state = Scratch::new("recovery");
    let options = lasting(&state).grace(Duration::from_secs(600));
    let server = Server::start(options.clone()).unwrap();
    let (one, two, idle) = (client(&server), client(&server), client(&server));
    let held =
        [one.mutex("a").unwrap().lock().wait().unwrap(), two.mutex("b").unwrap().lock().wait().unwrap()];
    let tokens = held.each_ref().map(|guard| guard.token());
    let listen = server.address();
    drop(server);
    let server = Server::start(options.listen(listen)).unwrap();
    assert!(server.began_recovering());
    let next = idle.mutex("c").unwrap().lock_timeout(LONG).wait().unwrap();
    assert!(tokens.iter().all(|token| *token < next.token()));
    assert!(idle.mutex("a").unwrap().try_lock().wait().is_err(), "what was claimed is held");
    assert_eq!(held.map(|guard| guard.unlock().wait()), [Ok(()), Ok(())]);
}

#[test]
fn who_comes_back_too_late_has_lost_its_lock() {
    let state = Scratch::new("late");
    let server = Server::start(impatient().listen(own_address()).state(&state.0)).unwrap();
    let one = client(&server);
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    let lost = guard.lost();
    let listen = server.address();
    drop(server);
    // Two restarts pass the client by: in between another client could have had the lock.
    for _ in 0..2 {
        let elsewhere = Server::start(impatient().state(&state.0)).unwrap();
        let other = client(&elsewhere);
        drop(other.mutex("a").unwrap().lock().wait().unwrap());
    }
    let _server = Server::start(impatient().state(&state.0).listen(listen)).unwrap();
    eventually("the loss", || lost.is_lost());
    assert!(guard.unlock().wait().is_err());
    assert!(one.mutex("a").unwrap().lock().wait().is_ok(), "the client goes on");
}

#[test]
fn without_a_state_file_a_restart_loses_every_lock_and_says_so() {
    let server = Server::start(options().listen(own_address())).unwrap();
    let listen = server.address();
    let one = client(&server);
    let guard = one.mutex("a").unwrap().lock().wait().unwrap();
    let token = guard.token();
    drop(server);
    std::thread::sleep(Duration::from_secs(1));
    let _server = Server::start(options().listen(listen)).unwrap();
    let lost = guard.lost();
    eventually("the loss", || lost.is_lost());
    let again = one.mutex("a").unwrap().lock().wait().unwrap();
    assert!(again.token() > token, "the clock keeps tokens rising");
}

#[test]
fn a_server_that_is_gone_for_good_is_a_loss_and_an_error() {
    let server = server();
    let client = Client::options().lease(Duration::from_millis(300)).open(&address(&server)).wait().unwrap();
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    let lost = guard.lost();
    drop(server);
    eventually("uncertainty", || guard.state() != GuardState::Held);
    eventually("the loss", || lost.is_lost());
    let error = client.mutex("b").unwrap().lock().wait().unwrap_err();
    assert!(error.to_string().contains("could not be reached"), "{error}");
}

#[test]
fn strangers_are_kept_out_and_told_why() {
    let exposed = Server::start(ServerOptions::default().listen("0.0.0.0:0".parse().unwrap())).unwrap_err();
    assert!(matches!(exposed, ServeError::Exposed(_)));
    let text = exposed.to_string();
    assert!(
        text.contains("--secret-file") && text.contains("--tls-cert") && text.contains("127.0.0.1"),
        "{text}"
    );
    let secret = "a long and random line of text";
    let server = Server::start(options().secret(secret).unwrap()).unwrap();
    let without = Client::open(&address(&server)).wait().unwrap_err().to_string();
    assert!(without.contains("wants a secret"), "{without}");
    let wrong = Client::options().secret("another line of text, as long").open(&address(&server)).wait();
    assert!(wrong.unwrap_err().to_string().contains("secret is not the server's"));
    let client = Client::options().secret(secret).open(&address(&server)).wait().unwrap();
    assert!(client.mutex("a").unwrap().lock().wait().is_ok());
}

#[test]
fn idle_connections_that_never_say_who_they_are_keep_nobody_out() {
    let server = Server::start(options().secret("a secret of sixteen bytes").unwrap()).unwrap();
    let open = || Client::options().secret("a secret of sixteen bytes").open(&address(&server)).wait();
    let before = open().unwrap();
    let guard = before.mutex("a").unwrap().lock().wait().unwrap();
    let idle: Vec<_> = (0..600).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    for _ in 0..3 {
        open().unwrap();
    }
    assert_eq!(guard.unlock().wait(), Ok(()), "the connection of a known client is not closed for them");
    drop(idle);
}

#[test]
fn an_unlock_that_no_message_follows_reaches_the_server_all_the_same() {
    let server = server();
    let unretained = || Client::options().retain(false).open(&address(&server)).wait().unwrap();
    let (busy, other) = (unretained(), unretained());
    let (one, same) = (busy.mutex("a").unwrap(), other.mutex("a").unwrap());
    for _ in 0..20 {
        // Each unlock is followed by a lock at once, so the last one is expected to be, too.
        for _ in 0..200 {
            drop(one.lock().wait().unwrap());
        }
        drop(same.lock_timeout(LONG).wait().unwrap());
    }
}

#[test]
fn nonsense_on_the_wire_disturbs_nobody_else() {
    let server = server();
    let client = client(&server);
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 100], &[0; 16], b"x"] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(nonsense).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(guard.state(), GuardState::Held);
    guard.unlock().wait().unwrap();
}

/// A corpus of messages in sound frames: every kind there is and some there are not, with words that mean nothing.
#[test]
fn nonsense_in_sound_frames_ends_its_own_session_only() {
    use lockwright_fabric::backend::tcp::{ConnectOptions, TcpEndpoint};
    use lockwright_fabric::{Addr, Endpoint, Message, NodeId, PeerId, Word64};
    let server = server();
    let client = client(&server);
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connect = || TcpEndpoint::connect(server.address(), ConnectOptions::default());
        let mut random = SplitMix::new(7);
        let mut next = || random.next() >> 20;
        for round in 0..30 {
            let ep = connect().await.unwrap();
            for seq in 1..100 {
                let kind = (next() % 18) as u32 | ((next() % 8) as u32) << 8;
                let words = [seq, next() % 5, next() % 5, next() % 3];
                let tail = (0..next() % 4).map(|_| next() % 20).collect();
                let message = Message { lock: next() % 3, kind, words, tail };
                // Half of them open the space first.
                let open = Message { lock: 1, kind: 1, words: [1, 0, 0, 0], tail: vec![0] };
                let first = if round % 2 == 0 && seq == 1 { open } else { message };
                ep.tell(PeerId::role(0), &first).unwrap();
            }
            // It is refused, or nothing comes of it.
            let _ = ep.send(PeerId::role(0), Message::new(0, 99, &[])).await;
        }
        let ep = connect().await.unwrap();
        let word = Word64::at(Addr::new(NodeId(0), 0));
        assert!(ep.go(word.read()).await.is_err(), "there is no memory to be had");
        assert!(ep.closed().await.to_string().contains("no word"), "and the client is told so");
    });
    assert_eq!(guard.state(), GuardState::Held);
    assert!(client.mutex("b").unwrap().try_lock().wait().is_ok());
    guard.unlock().wait().unwrap();
}

#[test]
fn what_is_not_exported_cannot_be_opened() {
    let server = server();
    let error = Client::open(&format!("{}/shm:", address(&server))).wait().unwrap_err();
    assert!(matches!(&error, OpenError::Failed { why, .. } if why.contains("--export")), "{error}");
    let nobody = Client::open("tcp://127.0.0.1:1").wait().unwrap_err().to_string();
    assert!(nobody.contains("cannot reach the server") && !nobody.contains('\n'), "{nobody}");
}

#[test]
fn remote_clients_and_local_processes_contend_for_an_exported_space() {
    let file = format!("/dev/shm/lockwright-test-export-{}", std::process::id());
    let space = format!("shm:{file}");
    let server = Server::start(options().export(&space)).unwrap();
    let local = Client::open(&space).wait().unwrap();
    let remote = Client::open(&format!("{}/{space}", address(&server))).wait().unwrap();
    let guard = remote.mutex("a").unwrap().lock().wait().unwrap();
    assert!(local.mutex("a").unwrap().try_lock().wait().is_err());
    let token = guard.token();
    let waiting = std::thread::spawn({
        let local = local.clone();
        move || local.mutex("a").unwrap().lock().wait().unwrap().token()
    });
    let inspector = Inspector::open(&format!("{}/{space}", address(&server))).unwrap();
    eventually("a local process waits", || {
        inspector.entries().unwrap().iter().any(|entry| entry.state == EntryState::Waiting)
    });
    drop(guard);
    assert!(waiting.join().unwrap() > token);
    let held = local.range_lock("r").unwrap().write(0..5).wait().unwrap();
    let far = remote.range_lock("r").unwrap();
    assert!(far.try_read(4..6).wait().is_err());
    let later = std::thread::spawn(move || far.read(4..6).wait().unwrap().token());
    drop(held);
    later.join().unwrap();
    // A session that ends gives back what the server held for it.
    let guard = remote.mutex("b").unwrap().lock().wait().unwrap();
    assert!(local.mutex("b").unwrap().try_lock().wait().is_err());
    inspector.break_grant("b", guard.token()).unwrap();
    let lost = guard.lost();
    eventually("the loss", || lost.is_lost());
    drop((guard, remote, inspector, local, server));
    let _ = std::fs::remove_file(file);
}

#[test]
fn prometheus_is_told_counts_and_no_names() {
    let server = Server::start(options().metrics(HERE.parse().unwrap())).unwrap();
    let client = client(&server);
    let _held = client.mutex("secret-name").unwrap().lock().wait().unwrap();
    let mut stream = TcpStream::connect(server.metrics().unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(
        text.contains("lockwright_grants_total{mode=\"exclusive\"} 1\n") && !text.contains("secret-name")
    );
}

/// A server that was killed left it, and another one listens there now.
#[test]
fn a_secret_that_does_not_fit_is_named() {
    let server = server();
    let port = server.address().port();
    let (folder, name) = (PrivateFolder::create().unwrap(), format!("serve-{port}.secret"));
    folder.create_new(&name).unwrap().write_all(&[b'a'; 64]).unwrap();
    let (file, refused) = (folder.path(&name), Client::open(&address(&server)).wait());
    folder.remove(&name).unwrap();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("remove that file") && refused.contains(file.to_str().unwrap()), "{refused}");
    Client::open(&address(&server)).wait().unwrap();
}
