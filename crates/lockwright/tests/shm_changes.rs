//! Names and ranges of a space in shared memory that are upgraded, downgraded and given back in part, by two clients, and by
//! processes that are killed and stopped.
#![cfg(target_os = "linux")]

use lockwright::inspect::{Entry, EntryState, Inspector};
use lockwright::{AnyGuard, ChangeError, Client, GuardState, LockGuard, RangeLock, RwLock};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// A space of the test's own, and two clients' view of one lock.
struct Two {
    path: PathBuf,
    mine: RangeLock,
    yours: RangeLock,
}

impl Two {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-{test}-{}.space", std::process::id()));
        let open = || Client::open(&format!("shm:{}", path.display())).wait().unwrap();
        let (mine, yours) = (open().range_lock("a").unwrap(), open().range_lock("a").unwrap());
        Self { path, mine, yours }
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn is_pending<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[test]
fn a_downgrade_lets_readers_in_and_an_upgrade_waits_for_them() {
    let two = Two::new("up-and-down");
    let mut mine = two.mine.write(0..10).wait().unwrap().into_any();
    let token = mine.token();
    assert!(two.yours.try_read(5..6).wait().is_err());
    mine.downgrade().wait().unwrap();
    assert!(mine.is_shared() && mine.token() > token);
    let yours = two.yours.try_read(5..6).wait().unwrap();
    assert!(yours.token() > mine.token() && two.yours.try_write(5..6).wait().is_err());
    assert_eq!(mine.try_upgrade().wait(), Err(ChangeError::Busy));
    assert_eq!(mine.upgrade_timeout(Duration::from_millis(5)).wait(), Err(ChangeError::TimedOut));
    assert!(mine.is_shared() && two.yours.try_read(0..1).wait().is_ok(), "it bars nobody any more");
    let before = mine.token();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            drop(yours);
        });
        mine.upgrade().wait().unwrap();
    });
    assert!(!mine.is_shared() && mine.token() > before);
    assert!(two.yours.try_read(9..10).wait().is_err() && two.yours.try_write(10..11).wait().is_ok());
    drop(mine);
    assert!(two.yours.try_write(0..10).wait().is_ok());
}

#[test]
fn of_two_readers_that_would_be_alone_the_second_is_refused_and_nobody_comes_in() {
    let two = Two::new("both-up");
    let mut mine = two.mine.read(0..10).wait().unwrap().into_any();
    let mut yours = two.yours.read(5..15).wait().unwrap().into_any();
    {
        let mut upgrade = pin!(mine.upgrade());
        assert!(is_pending(upgrade.as_mut()));
        assert!(two.yours.try_read(0..1).wait().is_err(), "a new reader queues behind it");
        assert_eq!(yours.upgrade().wait(), Err(ChangeError::WouldDeadlock));
        assert!(yours.is_shared());
        drop(yours);
        upgrade.wait_here();
    }
    assert!(!mine.is_shared());
}

/// An upgrade that need not wait any more.
trait WaitHere {
    fn wait_here(self);
}

impl<F: Future<Output = Result<(), ChangeError>>> WaitHere for std::pin::Pin<&mut F> {
    fn wait_here(mut self) {
        for _ in 0..10_000 {
            if !is_pending(self.as_mut()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("nobody else reads");
    }
}

#[test]
fn an_upgrade_that_is_dropped_leaves_the_lock_shared() {
    let two = Two::new("dropped");
    let mut mine = two.mine.read(0..10).wait().unwrap().into_any();
    let yours = two.yours.read(0..1).wait().unwrap();
    assert!(is_pending(pin!(mine.upgrade())), "another one reads");
    assert!(mine.is_shared() && two.yours.try_read(0..5).wait().is_ok());
    drop(mine.upgrade());
    drop(yours);
    mine.try_upgrade().wait().unwrap();
    assert!(two.yours.try_read(0..5).wait().is_err());
}

#[test]
fn parts_are_given_back_and_what_is_left_is_held() {
    let two = Two::new("parts");
    let mut left = two.mine.write(0..10).wait().unwrap();
    let right = left.unlock_part(4..6).unwrap().expect("two pieces are left");
    assert_eq!((left.range(), right.range()), (0..4, 6..10));
    let is_free = |unit: u64| two.yours.try_write(unit..unit + 1).wait().is_ok();
    let free = |expected: &[u64]| (0..10).filter(|unit| is_free(*unit)).eq(expected.iter().copied());
    assert!(free(&[4, 5]));
    assert!(left.unlock_part(0..1).unwrap().is_none() && left.range() == (1..4));
    assert!(left.unlock_part(3..4).unwrap().is_none() && left.range() == (1..3));
    assert!(free(&[0, 3, 4, 5]));
    left.unlock().wait().unwrap();
    assert!(free(&[0, 1, 2, 3, 4, 5]));
    right.unlock().wait().unwrap();
    assert!(free(&(0..10).collect::<Vec<_>>()));
}

#[test]
fn a_range_is_split_and_each_piece_goes_its_way() {
    let two = Two::new("split");
    let mut left = two.mine.write(0..10).wait().unwrap().into_any();
    let mut right = left.split(4).unwrap();
    assert_eq!((left.range(), right.range()), (Some(0..4), Some(4..10)));
    assert!((0..10).all(|unit| two.yours.try_read(unit..unit + 1).wait().is_err()));
    right.downgrade().wait().unwrap();
    assert!(two.yours.try_read(4..10).wait().is_ok() && two.yours.try_read(3..5).wait().is_err());
    right.try_upgrade().wait().unwrap();
    assert!(matches!(left.split(0), Err(ChangeError::BadRange { .. })));
    assert!(matches!(left.split(4), Err(ChangeError::BadRange { .. })));
    let guards: Vec<AnyGuard> = vec![left, right];
    drop(guards);
    assert!(two.yours.try_write(0..10).wait().is_ok());
}

/// Two clients' view of one name.
struct Names {
    path: PathBuf,
    mine: RwLock,
    yours: RwLock,
}

impl Names {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-{test}-{}.space", std::process::id()));
        let open = || Client::open(&format!("shm:{}", path.display())).wait().unwrap();
        let (mine, yours) = (open().rwlock("a").unwrap(), open().rwlock("a").unwrap());
        Self { path, mine, yours }
    }

    fn address(&self) -> String {
        format!("shm:{}", self.path.display())
    }

    fn entries(&self) -> Vec<Entry> {
        Inspector::open(&self.address()).unwrap().entries().unwrap()
    }

    /// Until so many wait.
    fn waiting(&self, count: usize) {
        let waits = |entry: &&Entry| entry.state == EntryState::Waiting;
        eventually("they wait", || self.entries().iter().filter(waits).count() == count);
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_name_is_downgraded_and_upgraded_and_its_token_rises() {
    let names = Names::new("names-up-and-down");
    let mut mine = names.mine.write().wait().unwrap().into_any();
    let written = mine.token();
    mine.downgrade().wait().unwrap();
    assert!(mine.is_shared() && mine.state() == GuardState::Held && mine.token() > written);
    let yours = names.yours.try_read().wait().unwrap();
    assert!(yours.token() > written && names.yours.try_write().wait().is_err());
    assert_eq!(mine.try_upgrade().wait(), Err(ChangeError::Busy));
    assert_eq!(mine.upgrade_timeout(Duration::from_millis(5)).wait(), Err(ChangeError::TimedOut));
    assert!(mine.is_shared() && mine.state() == GuardState::Held);
    drop(names.yours.try_read().wait().expect("it bars nobody any more"));
    let read = mine.token();
    drop(yours);
    mine.try_upgrade().wait().unwrap();
    assert!(!mine.is_shared() && mine.state() == GuardState::Held && mine.token() > read);
    assert!(names.yours.try_read().wait().is_err());
    let held = names.entries();
    assert!(matches!(&held[..], [held] if !held.shared && held.token == Some(mine.token())), "{held:?}");
    let last = mine.token();
    mine.unlock().wait().unwrap();
    assert!(names.yours.try_write().wait().unwrap().token() > last);
}

#[test]
fn a_name_is_upgraded_before_all_who_wait_and_seen_to_wait_for_readers() {
    let names = Names::new("names-before-all");
    let (mut mine, yours) =
        (names.mine.read().wait().unwrap().into_any(), names.yours.read().wait().unwrap());
    let token = mine.token();
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| names.yours.write().wait().unwrap().token());
        names.waiting(1);
        let upgrade = threads.spawn(|| {
            mine.upgrade().wait().unwrap();
            mine
        });
        names.waiting(2);
        let all = names.entries();
        assert!(
            all.iter().any(|entry| entry.token == Some(token) && entry.shared),
            "it still reads: {all:?}"
        );
        assert!(names.yours.try_read().wait().is_err(), "no reader comes in");
        drop(yours);
        let mine = upgrade.join().unwrap();
        assert!(!mine.is_shared() && mine.token() > token && mine.state() == GuardState::Held);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!writer.is_finished());
        let token = mine.token();
        mine.unlock().wait().unwrap();
        assert!(writer.join().unwrap() > token);
    });
}

#[test]
fn of_two_readers_of_a_name_the_second_upgrade_is_refused_and_it_goes_on_reading() {
    let names = Names::new("names-both-up");
    let mut mine = names.mine.read().wait().unwrap().into_any();
    let mut yours = names.yours.read().wait().unwrap().into_any();
    let mut upgrade = pin!(mine.upgrade());
    assert!(is_pending(upgrade.as_mut()));
    assert!(names.yours.try_read().wait().is_err(), "a new reader waits for it");
    assert_eq!(yours.upgrade().wait(), Err(ChangeError::WouldDeadlock));
    assert_eq!(yours.try_upgrade().wait(), Err(ChangeError::WouldDeadlock));
    assert!(yours.is_shared() && yours.state() == GuardState::Held);
    drop(yours);
    upgrade.wait_here();
}

#[test]
fn an_upgrade_of_a_name_that_is_dropped_leaves_it_shared_and_lets_readers_in() {
    let names = Names::new("names-dropped");
    let (mut mine, yours) =
        (names.mine.read().wait().unwrap().into_any(), names.yours.read().wait().unwrap());
    let token = mine.token();
    {
        let mut upgrade = pin!(mine.upgrade());
        assert!(is_pending(upgrade.as_mut()));
        assert!(names.yours.try_read().wait().is_err());
    }
    assert!(mine.is_shared() && mine.token() == token && mine.state() == GuardState::Held);
    drop(names.yours.try_read().wait().expect("readers come in again"));
    drop(mine.upgrade());
    drop(yours);
    mine.upgrade().wait().unwrap();
    assert!(names.yours.try_read().wait().is_err());
}

#[test]
fn a_downgrade_of_a_name_lets_waiting_readers_in_and_the_writer_behind_comes_after_them() {
    let names = Names::new("names-waiters");
    let mut mine = names.mine.write().wait().unwrap().into_any();
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| names.yours.write().wait().unwrap().token());
        names.waiting(1);
        let reader = threads.spawn(|| names.yours.read().wait().unwrap());
        names.waiting(2);
        mine.downgrade().wait().unwrap();
        let yours = reader.join().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!writer.is_finished() && mine.state() == GuardState::Held);
        let tokens = [mine.token(), yours.token()];
        mine.unlock().wait().unwrap();
        yours.unlock().wait().unwrap();
        let written = writer.join().unwrap();
        assert!(tokens.iter().all(|token| *token < written));
    });
}

const TASK: &str = "LOCKWRIGHT_TEST_TASK";

/// This test's binary once more, which does its task in the space and says when it holds what it should.
fn started(test: &str, address: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(TASK, address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("ready")), "it says that it is ready");
    child
}

fn killed(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_process_that_is_killed_after_a_change_or_during_an_upgrade_leaves_nothing_behind() {
    const SOON: Duration = Duration::from_secs(5);
    if let Ok(address) = std::env::var(TASK) {
        let client = Client::open(&address).wait().unwrap();
        let lock = |name: &str| client.rwlock(name).unwrap();
        let mut up = lock("up").read().wait().unwrap().into_any();
        up.upgrade().wait().unwrap();
        let mut down = lock("down").write().wait().unwrap().into_any();
        down.downgrade().wait().unwrap();
        let mut waits = lock("a").read().wait().unwrap().into_any();
        println!("ready");
        // Its parent reads, too: until the end.
        let _ = waits.upgrade().wait();
        return;
    }
    let names = Names::new("names-killed");
    let client = Client::open(&names.address()).wait().unwrap();
    let mut mine = names.mine.read().wait().unwrap().into_any();
    let test = "a_process_that_is_killed_after_a_change_or_during_an_upgrade_leaves_nothing_behind";
    let child = started(test, &names.address());
    names.waiting(1);
    assert!(client.rwlock("up").unwrap().try_read().wait().is_err());
    drop(client.rwlock("down").unwrap().try_read().wait().unwrap());
    assert!(client.rwlock("down").unwrap().try_write().wait().is_err());
    assert!(names.yours.try_read().wait().is_err(), "the upgrade keeps readers out");
    assert_eq!(mine.upgrade().wait(), Err(ChangeError::WouldDeadlock));
    killed(child);
    drop(
        names.yours.read_timeout(SOON).wait().expect("readers come in again, beside the one that was there"),
    );
    drop(client.rwlock("up").unwrap().write_timeout(SOON).wait().unwrap());
    drop(client.rwlock("down").unwrap().write_timeout(SOON).wait().unwrap());
    assert!(mine.state() == GuardState::Held, "what others hold is not touched");
    mine.upgrade_timeout(SOON).wait().expect("the dead do not read");
    mine.unlock().wait().unwrap();
    assert!(names.yours.try_write().wait().is_ok());
}

#[test]
fn an_upgrade_goes_on_when_the_other_reader_is_killed_and_before_the_writer_that_waits() {
    if let Ok(address) = std::env::var(TASK) {
        let _guard = Client::open(&address).wait().unwrap().rwlock("a").unwrap().read().wait().unwrap();
        println!("ready");
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let names = Names::new("names-reader-killed");
    let mut mine = names.mine.read().wait().unwrap().into_any();
    let test = "an_upgrade_goes_on_when_the_other_reader_is_killed_and_before_the_writer_that_waits";
    let child = started(test, &names.address());
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| names.yours.write().wait().unwrap().token());
        names.waiting(1);
        let upgrade = threads.spawn(|| {
            mine.upgrade_timeout(Duration::from_secs(30)).wait().unwrap();
            assert!(!mine.is_shared() && mine.state() == GuardState::Held);
            let token = mine.token();
            std::thread::sleep(Duration::from_millis(50));
            mine.unlock().wait().unwrap();
            token
        });
        names.waiting(2);
        killed(child);
        assert!(upgrade.join().unwrap() < writer.join().unwrap());
    });
}

#[test]
fn a_process_that_is_stopped_past_its_lease_is_told_that_its_upgrade_is_lost() {
    const LEASE: Duration = Duration::from_millis(500);
    if let Ok(address) = std::env::var(TASK) {
        let client = Client::options().lease(LEASE).open(&address).wait().unwrap();
        let mut waits = client.rwlock("a").unwrap().read().wait().unwrap().into_any();
        println!("ready");
        let outcome = waits.upgrade().wait();
        std::process::exit(i32::from(!matches!(outcome, Err(ChangeError::Lost { .. }))));
    }
    let names = Names::new("names-stopped");
    let mine = names.mine.read().wait().unwrap();
    let test = "a_process_that_is_stopped_past_its_lease_is_told_that_its_upgrade_is_lost";
    let mut child = started(test, &names.address());
    names.waiting(1);
    signal(&child, "-STOP");
    eventually("all of its threads are stopped", || is_stopped(&child));
    drop(mine);
    let mine = names.mine.write_timeout(Duration::from_secs(60)).wait().expect("it has lost its lock");
    signal(&child, "-CONT");
    let told = child.wait().unwrap();
    assert!(told.success(), "{told}");
    assert!(mine.state() == GuardState::Held);
}

fn is_stopped(child: &Child) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    threads.map_while(Result::ok).all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && line.contains("stopped"))
    })
}

fn signal(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}
