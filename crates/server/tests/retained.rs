//! Locks that stay with the client that used them last: they cost it no message, and come back when another client wants
//! them.
#![cfg(target_os = "linux")]

mod apart;

use apart::{LONG, Scratch, TASK, address, client, eventually, holder, lasting, options, restart};
use lockwright::inspect::{EntryState, Inspector};
use lockwright::{ChangeError, Client, GuardState, Mutex, MutexGuard, RwLock, TryLockError};
use lockwright_server::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// A server that does not take a client for gone because the machine is busy.
fn server() -> Server {
    Server::start(options().grace(LONG)).unwrap()
}

/// More often than it takes until a lock stays, and for longer than others must not have asked for it.
fn often(mut take: impl FnMut() -> u64) -> u64 {
    let began = Instant::now();
    let (mut times, mut last) = (0, 0);
    while times < 10 || began.elapsed() < Duration::from_millis(40) {
        last = take();
        times += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    last
}

/// Takes the lock so often that it stays with its client, and gives it back.
fn use_often(lock: &Mutex) -> u64 {
    often(|| lock.lock().wait().unwrap().token())
}

/// The states in which the server lists the lock.
fn states(server: &Server, name: &str) -> Vec<EntryState> {
    states_at(&address(server), name)
}

fn states_at(address: &str, name: &str) -> Vec<EntryState> {
    let entries = Inspector::open(address).unwrap().entries().unwrap();
    entries.iter().filter(|entry| entry.name.as_bytes() == name.as_bytes()).map(|entry| entry.state).collect()
}

/// Uses the lock until it stays with its client, and returns its last token. A busy machine may need several rounds, since what
/// is not used for a while goes back.
fn settle(address: &str, name: &str, mut take: impl FnMut() -> u64) -> u64 {
    let mut token = 0;
    eventually("it stays", || {
        token = often(&mut take);
        states_at(address, name) == [EntryState::Retained]
    });
    token
}

/// A use of a lock that stays with its client.
fn use_of_retained(server: &Server, name: &str, lock: &Mutex) -> MutexGuard {
    let mut used = None;
    eventually("it stays while it is used", || {
        // Given back first: the lock is taken again below.
        used = None;
        settle(&address(server), name, || lock.lock().wait().unwrap().token());
        used = Some(lock.lock().wait().unwrap());
        states(server, name) == [EntryState::Retained]
    });
    used.expect("just taken")
}

fn read(lock: &RwLock) -> u64 {
    lock.read().wait().unwrap().token()
}

fn grants(server: &Server, name: &str) -> u64 {
    let heat = Inspector::open(&address(server)).unwrap().heat().unwrap();
    heat.iter().find(|heat| heat.name.as_bytes() == name.as_bytes()).map_or(0, |heat| heat.grants)
}

#[test]
fn a_lock_that_one_client_takes_again_and_again_stays_with_it_until_another_wants_it() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let lock = one.mutex("a").unwrap();
    let mut token = settle(&address(&server), "a", || use_often(&lock));
    eventually("ten cycles of which the server is not asked", || {
        let before = grants(&server, "a");
        for _ in 0..10 {
            let next = lock.lock().wait().unwrap().token();
            assert!(next > token, "tokens rise with every grant");
            token = next;
        }
        grants(&server, "a") == before
    });
    let guard = two.mutex("a").unwrap().lock().wait().unwrap();
    assert!(guard.token() > token, "also across clients");
    assert_eq!(states(&server, "a"), [EntryState::Held]);
    assert_eq!(lock.try_lock().wait().unwrap_err(), TryLockError::Busy);
    let token = guard.token();
    drop(guard);
    assert!(lock.lock().wait().unwrap().token() > token);
}

#[test]
fn tokens_rise_when_the_tokens_that_came_with_the_lock_are_used_up() {
    let server = server();
    let lock = client(&server).mutex("a").unwrap();
    let mut last = settle(&address(&server), "a", || use_often(&lock));
    let before = grants(&server, "a");
    for _ in 0..20_000 {
        let token = lock.lock().wait().unwrap().token();
        assert!(token > last);
        last = token;
    }
    assert!(grants(&server, "a") - before < 100, "few of them were asked for");
}

#[test]
fn a_lock_in_use_comes_back_when_it_is_unlocked_and_a_try_finds_it_busy_until_then() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let (lock, other) = (one.mutex("a").unwrap(), two.mutex("a").unwrap());
    settle(&address(&server), "a", || use_often(&lock));
    drop(other.try_lock().wait().expect("it only stayed with the first client"));
    let guard = use_of_retained(&server, "a", &lock);
    assert_eq!(other.try_lock().wait().unwrap_err(), TryLockError::Busy);
    assert_eq!(states(&server, "a"), [EntryState::Held], "its client has said that it is in use");
    let heat = Inspector::open(&address(&server)).unwrap().heat().unwrap();
    assert_eq!((heat[0].holders, heat[0].retained), (1, 0), "as `ls` says");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.lock().wait().unwrap().token());
        eventually("it waits", || states(&server, "a").contains(&EntryState::Waiting));
        let token = guard.token();
        assert_eq!(guard.state(), GuardState::Held);
        guard.unlock().wait().unwrap();
        assert!(waiter.join().unwrap() > token);
    });
}

#[test]
fn the_waiter_for_a_recalled_lock_is_served_before_others_of_the_client_it_stayed_with() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let (lock, other) = (one.mutex("a").unwrap(), two.mutex("a").unwrap());
    let guard = use_of_retained(&server, "a", &lock);
    let (before, contended) = (grants(&server, "a"), guard.contended().unwrap());
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _guard = lock.lock().wait().unwrap();
            order.lock().unwrap().push("local");
        });
        eventually("it waits", || contended.is_set());
        // In the client: the server knows of nobody.
        assert_eq!((states(&server, "a"), grants(&server, "a")), (vec![EntryState::Retained], before));
        scope.spawn(|| {
            let _guard = other.lock().wait().unwrap();
            order.lock().unwrap().push("other");
        });
        eventually("both wait at the server", || {
            states(&server, "a") == [EntryState::Held, EntryState::Waiting, EntryState::Waiting]
        });
        drop(guard);
    });
    assert_eq!(*order.lock().unwrap(), ["other", "local"]);
}

#[test]
fn threads_of_clients_that_a_lock_goes_back_and_forth_between_lose_no_update() {
    let server = server();
    let (counter, newest, busy) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let client = client(&server);
            for _ in 0..2 {
                let (lock, counter, newest, busy) = (client.mutex("a").unwrap(), &counter, &newest, &busy);
                scope.spawn(move || {
                    for round in 0..600_u64 {
                        let guard = lock.lock().wait().unwrap();
                        assert!(!busy.swap(true, SeqCst), "two hold it");
                        assert!(guard.token() > newest.swap(guard.token(), SeqCst), "tokens rise");
                        counter.store(counter.load(SeqCst) + 1, SeqCst);
                        busy.store(false, SeqCst);
                        drop(guard);
                        if round % 100 == 99 {
                            // The others have it to themselves for a while, so that it stays with one.
                            std::thread::sleep(Duration::from_millis(3));
                        }
                    }
                });
            }
        }
    });
    assert_eq!(counter.into_inner(), 3600);
}

#[test]
fn readers_keep_a_lock_together_and_a_writer_gets_it_from_all() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let readers = clients.each_ref().map(|client| client.rwlock("a").unwrap());
    let mut held = None;
    eventually("both read under the grant that stays with each client", || {
        held = None;
        for reader in &readers {
            // Others read it too, but not in between.
            often(|| read(reader));
        }
        held = Some([readers[0].read().wait().unwrap(), readers[0].read().wait().unwrap()]);
        states(&server, "a") == [EntryState::Retained; 2]
    });
    let held = held.expect("just taken");
    assert_ne!(held[0].token(), held[1].token());
    let writer = client(&server).rwlock("a").unwrap();
    assert_eq!(writer.try_write().wait().unwrap_err(), TryLockError::Busy);
    drop(held);
    let guard = writer.write().wait().unwrap();
    assert!(readers.iter().all(|reader| reader.try_read().wait().is_err()));
    drop(guard);
    // The same client in the other mode.
    drop(readers[0].write().wait().unwrap());
    drop(readers[0].read().wait().unwrap());
}

#[test]
fn a_reader_of_a_lock_that_stays_is_upgraded_once_it_is_alone() {
    let server = server();
    let lock = client(&server).rwlock("a").unwrap();
    settle(&address(&server), "a", || read(&lock));
    let (one, two) = (lock.read().wait().unwrap(), lock.read().wait().unwrap());
    let refused = one.try_upgrade().wait().unwrap_err();
    assert_eq!(refused.error, ChangeError::Busy);
    let one = refused.guard;
    let token = one.token();
    let mut upgrade = one.upgrade();
    let polled = Pin::new(&mut upgrade).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "the other one reads");
    drop(two);
    let guard = upgrade.wait().unwrap();
    assert!(guard.token() > token && !guard.is_shared());
    assert_eq!(states(&server, "a"), [EntryState::Held]);
    let shared = guard.downgrade().wait().unwrap();
    assert!(lock.try_read().wait().is_ok());
    drop(shared);
    assert!(client(&server).rwlock("a").unwrap().try_write().wait().is_ok());
}

#[test]
fn a_lock_that_stays_can_be_broken_by_the_token_it_was_granted_with_and_by_that_of_its_use() {
    let server = server();
    let one = client(&server);
    let lock = one.mutex("a").unwrap();
    let inspector = Inspector::open(&address(&server)).unwrap();
    settle(&address(&server), "a", || use_often(&lock));
    let listed = inspector.entries().unwrap()[0].token.unwrap();
    inspector.break_grant("a", listed).unwrap();
    assert!(states(&server, "a").is_empty());
    let guard = use_of_retained(&server, "a", &lock);
    inspector.break_grant("a", guard.token()).unwrap();
    eventually("it is lost", || guard.state() == GuardState::Lost);
    assert!(client(&server).mutex("a").unwrap().try_lock().wait().is_ok());
    assert!(guard.unlock().wait().is_err());
    drop(lock.lock().wait().unwrap());
}

#[test]
fn what_nobody_uses_comes_back_by_itself_and_with_its_last_handle() {
    let server = server();
    // Looks are a quarter of that apart.
    let with = Client::options().timeout(Duration::from_secs(1)).open_within(LONG);
    let one = with.open(&address(&server)).wait().unwrap();
    let lock = one.mutex("a").unwrap();
    settle(&address(&server), "a", || use_often(&lock));
    eventually("it is back", || states(&server, "a").is_empty());
    settle(&address(&server), "a", || use_often(&lock));
    drop(lock);
    eventually("it is back", || states(&server, "a").is_empty());
}

#[test]
fn nothing_stays_where_the_server_the_space_or_the_client_says_so() {
    let refuses = Server::start(options().retain(false)).unwrap();
    let lock = client(&refuses).mutex("a").unwrap();
    use_often(&lock);
    assert!(states(&refuses, "a").is_empty());
    let server = Server::start(options().retain_off_in("stock")).unwrap();
    let (base, with) = (address(&server), Client::options());
    for (address, options, stays) in [
        (format!("{base}/stock"), with.clone(), false),
        (format!("{base}/other"), with.clone(), true),
        (format!("{base}/other?retain=off"), with.clone(), false),
        (format!("{base}/other"), with.retain(false), false),
    ] {
        let client = options.open(&address).wait().unwrap();
        let lock = client.mutex("a").unwrap();
        if stays {
            settle(&address, "a", || use_often(&lock));
        } else {
            use_often(&lock);
            assert!(states_at(&address, "a").is_empty(), "{address}");
        }
    }
}

#[test]
fn after_a_restart_what_is_in_use_is_claimed_and_what_is_not_is_free() {
    let state = Scratch::new("retained-restart");
    let server = Server::start(lasting(&state)).unwrap();
    let (one, two) = (client(&server), client(&server));
    let (used, unused) = (one.mutex("used").unwrap(), one.mutex("unused").unwrap());
    let (mut last, mut guard) = (0, None);
    eventually("both stay at the same time", || {
        guard = None;
        settle(&address(&server), "used", || use_often(&used));
        last = settle(&address(&server), "unused", || use_often(&unused));
        guard = Some(used.lock().wait().unwrap());
        ["used", "unused"].iter().all(|name| states(&server, name) == [EntryState::Retained])
    });
    let guard = guard.expect("just taken");
    let server = restart(server, lasting(&state));
    let token = two.mutex("unused").unwrap().lock().wait().unwrap().token();
    assert!(token > last);
    eventually("it is claimed", || guard.state() == GuardState::Held);
    assert_eq!(states(&server, "used"), [EntryState::Held]);
    assert_eq!(two.mutex("used").unwrap().try_lock().wait().unwrap_err(), TryLockError::Busy);
    let before = guard.token();
    guard.unlock().wait().unwrap();
    assert!(two.mutex("used").unwrap().lock().wait().unwrap().token() > before);
}

/// How long the next waiter waits for the lock of a process that is stopped, so that only its lease frees it, and then killed.
fn time_until_free(server: &Server, test: &str, task: &str, state: EntryState) -> Duration {
    let (mut process, token) = holder(&format!("{task} {}", address(server)), test);
    eventually("it has the lock", || states(server, "a") == [state]);
    let began = Instant::now();
    kill(Pid::from_raw(process.id().cast_signed()), Signal::SIGSTOP).unwrap();
    let guard = client(server).mutex("a").unwrap().lock().wait().unwrap();
    let took = began.elapsed();
    assert!(guard.token() > token);
    drop(guard);
    process.kill().unwrap();
    process.wait().unwrap();
    took
}

#[test]
fn a_killed_client_that_only_keeps_a_lock_blocks_nobody_for_longer_than_one_that_holds_it() {
    if let Ok(task) = std::env::var(TASK) {
        let (kind, address) = task.split_once(' ').unwrap();
        let lock = Client::open(address).wait().unwrap().mutex("a").unwrap();
        let token = if kind == "keeps" { settle(address, "a", || use_often(&lock)) } else { 0 };
        let held = (kind == "holds").then(|| lock.lock().wait().unwrap());
        println!("\nholds {}", held.as_ref().map_or(token, |guard| guard.token()));
        std::thread::sleep(Duration::from_secs(600));
    }
    let test = "a_killed_client_that_only_keeps_a_lock_blocks_nobody_for_longer_than_one_that_holds_it";
    // Killed, the system closes its connection, and the server knows at once.
    let server = Server::start(options()).unwrap();
    let (mut process, token) = holder(&format!("keeps {}", address(&server)), test);
    eventually("it stays", || states(&server, "a") == [EntryState::Retained]);
    let began = Instant::now();
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(client(&server).mutex("a").unwrap().lock().wait().unwrap().token() > token);
    let grace = Duration::from_secs(20);
    assert!(began.elapsed() < grace, "long before its lease would have been over: {:?}", began.elapsed());
    drop(server);
    // The same if nobody closes the connection: the lease is that of a holder.
    let (grace, heartbeat) = (Duration::from_secs(2), Duration::from_millis(100));
    let server = Server::start(options().grace(grace).heartbeat(heartbeat)).unwrap();
    let held = time_until_free(&server, test, "holds", EntryState::Held);
    let kept = time_until_free(&server, test, "keeps", EntryState::Retained);
    assert!(held >= grace / 2, "freed by its lease, and not before: {held:?}");
    // As long as the other, but for what a busy machine adds.
    assert!(
        kept <= 2 * held + Duration::from_secs(5),
        "{kept:?} to get what was only kept, {held:?} to get what was held"
    );
}

#[test]
fn a_try_does_not_wait_for_the_word_of_a_client_that_is_stopped() {
    if let Ok(task) = std::env::var(TASK) {
        let lock = Client::open(&task).wait().unwrap().mutex("a").unwrap();
        println!("\nholds {}", settle(&task, "a", || use_often(&lock)));
        std::thread::sleep(Duration::from_secs(600));
    }
    // It is given up so late that the try must have been answered before.
    let server = Server::start(options().grace(Duration::from_secs(600))).unwrap();
    let (mut process, _) =
        holder(&address(&server), "a_try_does_not_wait_for_the_word_of_a_client_that_is_stopped");
    eventually("it stays", || states(&server, "a") == [EntryState::Retained]);
    let pid = Pid::from_raw(process.id().cast_signed());
    kill(pid, Signal::SIGSTOP).unwrap();
    // The signal is on its way when `kill` returns: until it has come to every thread, one could still answer.
    let is_stopped = |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"));
    let stat =
        |thread: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(thread?.path().join("stat"));
    let threads = || std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    eventually("all its threads are stopped", || threads().all(|thread| stat(thread).is_ok_and(is_stopped)));
    let lock = client(&server).mutex("a").unwrap();
    assert_eq!(lock.try_lock().wait().unwrap_err(), TryLockError::Busy);
    process.kill().unwrap();
    process.wait().unwrap();
}
