//! Held locks that are upgraded, downgraded and given back in part, in a server's own space: who gets in and who does not, what
//! becomes of a change that nobody waits for to the end, and what is held after a restart or a death.
#![cfg(target_os = "linux")]

mod apart;

use apart::{Scratch, TASK, address, client, eventually, holder, lasting, options, restart, server};
use lockwright::inspect::{Entry, EntryState, Inspector};
use lockwright::{AnyGuard, ChangeError, Client, GuardState, LockGuard, RangeLock, RwLock};
use lockwright_server::Server;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::time::Duration;

fn entries(server: &Server) -> Vec<Entry> {
    Inspector::open(&address(server)).unwrap().entries().unwrap()
}

/// Until so many wait.
fn waiting(server: &Server, count: usize) {
    let inspector = Inspector::open(&address(server)).unwrap();
    let waits = |entry: &&Entry| entry.state == EntryState::Waiting;
    eventually("they wait", || inspector.entries().unwrap().iter().filter(waits).count() == count);
}

fn rwlock(server: &Server) -> RwLock {
    client(server).rwlock("config").unwrap()
}

fn range(server: &Server) -> RangeLock {
    client(server).range_lock("data").unwrap()
}

#[test]
fn a_downgrade_lets_waiting_readers_in_and_no_writer() {
    let server = server();
    let (one, two, three) = (rwlock(&server), rwlock(&server), rwlock(&server));
    let mut guard = one.write().wait().unwrap().into_any();
    let written = guard.token();
    let (writes, reads) = (&AtomicBool::new(false), &AtomicBool::new(true));
    std::thread::scope(|threads| {
        let reader = threads.spawn(|| two.read().wait().unwrap());
        waiting(&server, 1);
        let writer = threads.spawn(move || {
            let guard = three.write().wait().unwrap();
            assert!(!reads.load(SeqCst), "a writer came in beside readers");
            writes.store(true, SeqCst);
            guard.token()
        });
        waiting(&server, 2);
        guard.downgrade().wait().unwrap();
        let read = reader.join().unwrap();
        assert!(guard.is_shared() && guard.state() == GuardState::Held);
        assert!(written < guard.token() && guard.token() < read.token(), "every grant has a larger token");
        let held: Vec<_> = entries(&server).into_iter().filter(|entry| entry.token.is_some()).collect();
        assert!(held.len() == 2 && held.iter().all(|entry| entry.shared), "{held:?}");
        assert!(held.iter().any(|entry| entry.token == Some(guard.token())));
        assert!(!writes.load(SeqCst));
        let last = read.token();
        reads.store(false, SeqCst);
        drop((guard, read));
        assert!(writer.join().unwrap() > last);
    });
}

#[test]
fn an_upgrade_goes_before_all_who_wait_and_waits_for_readers_only() {
    let server = server();
    let (one, two, three) = (range(&server), range(&server), range(&server));
    let mut guard = one.read(0..10).wait().unwrap().into_any();
    let other = two.read(5..15).wait().unwrap();
    let token = guard.token();
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| three.write(0..20).wait().unwrap());
        waiting(&server, 1);
        assert_eq!(guard.try_upgrade().wait(), Err(ChangeError::Busy));
        assert!(guard.is_shared() && guard.token() == token);
        let upgrade = threads.spawn(move || {
            guard.upgrade().wait().unwrap();
            guard
        });
        waiting(&server, 2);
        let all = entries(&server);
        let line = all.iter().find(|entry| entry.state == EntryState::Waiting && entry.range == Some(0..10));
        assert!(line.is_some_and(|line| !line.shared), "an upgrade that waits is seen: {all:?}");
        assert!(
            all.iter().any(|entry| entry.token == Some(token) && entry.shared),
            "it still reads: {all:?}"
        );
        drop(other);
        let guard = upgrade.join().unwrap();
        assert!(!guard.is_shared() && guard.token() > token);
        let held: Vec<_> = entries(&server).into_iter().filter(|entry| entry.token.is_some()).collect();
        assert!(
            matches!(&held[..], [held] if !held.shared && held.token == Some(guard.token()) && held.range == Some(0..10)),
            "{held:?}"
        );
        let token = guard.token();
        guard.unlock().wait().unwrap();
        assert!(writer.join().unwrap().token() > token);
    });
}

#[test]
fn of_two_upgraders_the_second_is_refused_at_once_and_still_reads() {
    let server = server();
    let (one, two) = (rwlock(&server), rwlock(&server));
    let (mut first, mut second) =
        (one.read().wait().unwrap().into_any(), two.read().wait().unwrap().into_any());
    std::thread::scope(|threads| {
        let upgrade = threads.spawn(|| first.upgrade().wait().map(|()| first.token()));
        waiting(&server, 1);
        assert_eq!(second.upgrade().wait(), Err(ChangeError::WouldDeadlock));
        assert_eq!(second.try_upgrade().wait(), Err(ChangeError::WouldDeadlock));
        assert!(second.is_shared() && second.state() == GuardState::Held);
        let token = second.token();
        second.unlock().wait().unwrap();
        assert!(upgrade.join().unwrap().unwrap() > token);
    });
}

#[test]
fn upgraders_of_units_they_do_not_share_do_not_mind_each_other() {
    let server = server();
    let (one, two) = (range(&server), range(&server));
    let (mut left, mut right) =
        (one.read(0..5).wait().unwrap().into_any(), two.read(5..9).wait().unwrap().into_any());
    left.upgrade().wait().unwrap();
    right.try_upgrade().wait().unwrap();
    assert_eq!((left.range(), right.range()), (Some(0..5), Some(5..9)));
    assert!(one.try_read(4..6).wait().is_err());
    left.upgrade().wait().expect("it is exclusive already, and stays so");
}

#[test]
fn a_token_changes_only_by_a_call_of_the_guards_owner() {
    let server = server();
    let (one, two) = (rwlock(&server), rwlock(&server));
    let (mut guard, other) = (one.read().wait().unwrap().into_any(), two.read().wait().unwrap());
    let token = guard.token();
    assert_eq!(guard.upgrade_timeout(Duration::from_millis(20)).wait(), Err(ChangeError::TimedOut));
    waiting(&server, 0);
    // Behind all that the server had to say about the upgrade.
    drop(one.try_read().wait().unwrap());
    assert_eq!(guard.token(), token, "nobody called");
    drop(other);
    guard.upgrade().wait().unwrap();
    assert!(guard.token() > token);
}

#[test]
fn an_upgrade_that_is_late_or_dropped_leaves_the_lock_shared_and_held() {
    let server = server();
    let (one, two) = (rwlock(&server), rwlock(&server));
    let (mut guard, other) = (one.read().wait().unwrap().into_any(), two.read().wait().unwrap());
    assert_eq!(guard.upgrade_timeout(Duration::from_millis(20)).wait(), Err(ChangeError::TimedOut));
    assert_eq!(guard.upgrade_timeout(Duration::ZERO).wait(), Err(ChangeError::TimedOut));
    assert!(guard.is_shared() && guard.state() == GuardState::Held);
    drop(two.try_read().wait().expect("readers come in again"));
    {
        let mut upgrade = pin!(guard.upgrade());
        assert!(upgrade.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        waiting(&server, 1);
        assert!(two.try_read().wait().is_err(), "an upgrade that waits keeps new readers out");
    }
    waiting(&server, 0);
    drop(two.try_read().wait().expect("and in again"));
    // The server's word on the token may come a little later.
    let inspector = Inspector::open(&address(&server)).unwrap();
    eventually("the token", || {
        inspector.entries().unwrap().iter().any(|entry| entry.token == Some(guard.token()) && entry.shared)
    });
    drop(other);
    guard.upgrade().wait().expect("nobody else reads");
    assert!(!guard.is_shared() && two.try_read().wait().is_err());
}

#[test]
fn an_upgrade_that_is_granted_while_it_is_given_up_is_shared_in_the_end() {
    let server = server();
    let (one, two) = (rwlock(&server), rwlock(&server));
    let mut guard = one.read().wait().unwrap().into_any();
    for round in 0..200 {
        // Granted at once; whether that is heard before it is dropped is chance.
        let mut upgrade = Box::pin(guard.upgrade());
        let done = upgrade.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        drop(upgrade);
        assert_eq!(guard.is_shared(), !done);
        if round % 3 == 0 {
            guard.upgrade().wait().unwrap();
            assert!(!guard.is_shared() && two.try_read().wait().is_err());
        }
        guard.downgrade().wait().unwrap();
        assert!(guard.is_shared() && two.try_write().wait().is_err());
        drop(two.read().wait().unwrap());
    }
    let token = guard.token();
    guard.unlock().wait().unwrap();
    assert!(two.try_write().wait().unwrap().token() > token);
}

#[test]
fn async_code_changes_locks_too() {
    let server = server();
    let (one, two) = (rwlock(&server), rwlock(&server));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut guard = one.write().await.unwrap().into_any();
        guard.downgrade().await.unwrap();
        let other = two.read().await.unwrap();
        let late = tokio::time::timeout(Duration::from_millis(20), guard.upgrade()).await;
        assert!(late.is_err() && guard.is_shared());
        let task = tokio::spawn(async move {
            guard.upgrade().await.unwrap();
            guard
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        other.unlock().await.unwrap();
        assert!(!task.await.unwrap().is_shared());
    });
}

#[test]
fn parts_are_given_back_and_what_is_kept_keeps_its_token() {
    let server = server();
    let (one, two) = (range(&server), range(&server));
    let mut guard = one.write(0..100).wait().unwrap().into_any();
    let token = guard.token();
    assert!(guard.unlock_part(0..10).unwrap().is_none());
    assert!(guard.unlock_part(90..100).unwrap().is_none());
    let mut right = guard.unlock_part(40..60).unwrap().expect("two pieces are left");
    assert_eq!((guard.range(), right.range()), (Some(10..40), Some(60..90)));
    assert_eq!((guard.token(), right.token()), (token, token));
    for free in [0..10, 40..60, 90..100] {
        drop(two.write(free).wait().unwrap());
    }
    for kept in [10..11, 39..40, 60..61, 89..90] {
        assert!(two.try_read(kept.clone()).wait().is_err(), "{kept:?} was kept");
    }
    let mut ranges: Vec<_> = entries(&server).into_iter().map(|entry| entry.range.unwrap().start).collect();
    ranges.sort_unstable();
    assert_eq!(ranges, [10, 60]);
    // Each piece goes its own way.
    right.downgrade().wait().unwrap();
    assert!(right.token() > token && guard.token() == token);
    assert!(two.try_read(60..90).wait().is_ok() && two.try_read(39..40).wait().is_err());
    guard.unlock().wait().unwrap();
    assert!(two.try_write(0..60).wait().is_ok());
    right.unlock().wait().unwrap();
    assert!(two.try_write(0..100).wait().is_ok());
}

#[test]
fn parts_that_are_none_are_refused_and_nothing_changes() {
    let server = server();
    let one = range(&server);
    let mut guard = one.write(10..20).wait().unwrap().into_any();
    #[allow(clippy::reversed_empty_ranges, reason = "nonsense is the point")]
    let bad = [5..12, 15..25, 0..5, 12..12, 14..12, 10..20, 0..u64::MAX];
    for part in bad {
        assert!(matches!(guard.unlock_part(part.clone()), Err(ChangeError::BadRange { .. })), "{part:?}");
    }
    assert_eq!((guard.range(), guard.state()), (Some(10..20), GuardState::Held));
    let mut named = rwlock(&server).write().wait().unwrap().into_any();
    let error = named.unlock_part(0..1).unwrap_err();
    assert!(error.to_string().contains("no range lock"), "{error}");
}

#[test]
fn a_waiter_for_a_part_gets_it_when_it_is_given_back() {
    let server = server();
    let (one, two) = (range(&server), range(&server));
    let mut guard = one.write(0..10).wait().unwrap().into_any();
    let waiter = std::thread::spawn(move || two.read(8..12).wait().unwrap().token());
    waiting(&server, 1);
    assert!(guard.unlock_part(4..10).unwrap().is_none());
    assert!(waiter.join().unwrap() > guard.token());
    assert_eq!(guard.range(), Some(0..4));
}

#[test]
fn a_changed_lock_can_be_broken_by_its_new_token_and_all_pieces_of_one_grant_go_together() {
    let server = server();
    let inspector = Inspector::open(&address(&server)).unwrap();
    let mut guard = rwlock(&server).read().wait().unwrap().into_any();
    let (old, lost) = (guard.token(), guard.lost());
    guard.upgrade().wait().unwrap();
    assert!(inspector.break_grant("config", old).is_err(), "that grant is over");
    assert!(!lost.is_lost());
    inspector.break_grant("config", guard.token()).unwrap();
    eventually("the loss", || lost.is_lost());
    assert_eq!(guard.state(), GuardState::Lost);
    assert!(matches!(guard.downgrade().wait(), Err(ChangeError::Lost { .. })));
    assert!(!guard.is_shared(), "what is lost is not changed");
    let mut left = range(&server).write(0..10).wait().unwrap().into_any();
    let mut right = left.unlock_part(4..6).unwrap().unwrap();
    let (left_lost, right_lost) = (left.lost(), right.lost());
    inspector.break_grant("data", left.token()).unwrap();
    eventually("both losses", || left_lost.is_lost() && right_lost.is_lost());
    assert!(matches!(left.upgrade().wait(), Ok(())), "it was exclusive, and nobody is asked");
    assert!(matches!(right.unlock_part(6..7), Err(ChangeError::Lost { .. })));
    assert!(range(&server).try_write(0..10).wait().is_ok());
}

fn is_held(guard: &AnyGuard) -> bool {
    guard.state() == GuardState::Held
}

#[test]
fn after_a_restart_every_client_holds_what_it_held_after_the_change() {
    let state = Scratch::new("restart");
    let server = Server::start(lasting(&state)).unwrap();
    let client_ = client(&server);
    let lock = |name: &str| client_.rwlock(name).unwrap();
    let mut upgraded = lock("up").read().wait().unwrap().into_any();
    upgraded.upgrade().wait().unwrap();
    let mut downgraded = lock("down").write().wait().unwrap().into_any();
    downgraded.downgrade().wait().unwrap();
    let mut left = client_.range_lock("data").unwrap().write(0..10).wait().unwrap().into_any();
    let mut right = left.unlock_part(4..6).unwrap().unwrap();
    let tokens = [&upgraded, &downgraded, &left, &right].map(AnyGuard::token);
    let server = restart(server, lasting(&state));
    assert!(server.began_recovering());
    eventually("the claims", || entries(&server).len() == 4);
    assert!([&upgraded, &downgraded, &left, &right].into_iter().all(is_held));
    // What is changed while claims are heard is changed, too.
    let other = left.unlock_part(1..2).unwrap().unwrap();
    right.downgrade().wait().unwrap();
    let seen = entries(&server);
    let find = |token: u64, shared: bool, range: Option<std::ops::Range<u64>>| {
        seen.iter().any(|entry| {
            entry.state == EntryState::Held
                && entry.token == Some(token)
                && entry.shared == shared
                && entry.range == range
        })
    };
    assert!(find(tokens[0], false, None) && find(tokens[1], true, None), "{seen:?}");
    assert!(find(tokens[2], false, Some(0..1)) && find(tokens[2], false, Some(2..4)), "{seen:?}");
    assert!(find(right.token(), true, Some(6..10)), "{seen:?}");
    let three = client(&server);
    drop(three.rwlock("down").unwrap().read().wait().expect("when claims are over"));
    assert!(three.rwlock("up").unwrap().try_read().wait().is_err());
    assert!(three.rwlock("down").unwrap().try_write().wait().is_err());
    drop(three.range_lock("data").unwrap().write(4..6).wait().unwrap());
    drop(three.range_lock("data").unwrap().write(1..2).wait().unwrap());
    for guard in [upgraded, downgraded, left, right, other] {
        guard.unlock().wait().unwrap();
    }
    assert!(entries(&server).is_empty());
}

#[test]
fn an_upgrade_that_waits_goes_on_waiting_after_a_restart() {
    let state = Scratch::new("waits");
    let server = Server::start(lasting(&state)).unwrap();
    let (one, two) = (rwlock(&server), rwlock(&server));
    let (mut guard, other) = (one.read().wait().unwrap().into_any(), two.read().wait().unwrap());
    let upgrade = std::thread::spawn(move || {
        guard.upgrade().wait().unwrap();
        guard
    });
    waiting(&server, 1);
    let server = restart(server, lasting(&state));
    let token = other.token();
    // A guard is as it was until its client notices the restart: only the server knows whether the claim was heard.
    eventually("both claims", || {
        let seen = entries(&server);
        let holds = |entry: &Entry| entry.state == EntryState::Held && entry.token == Some(token);
        seen.iter().any(holds) && seen.iter().any(|entry| entry.state == EntryState::Waiting)
    });
    assert!(!upgrade.is_finished(), "the other still reads");
    other.unlock().wait().unwrap();
    let guard = upgrade.join().unwrap();
    assert!(!guard.is_shared() && guard.token() > token);
    assert!(rwlock(&server).try_read().wait().is_err());
}

#[test]
fn a_client_that_is_killed_after_a_change_leaves_nothing_behind() {
    if let Ok(address) = std::env::var(TASK) {
        let client = Client::open(&address).wait().unwrap();
        let mut upgraded = client.rwlock("up").unwrap().read().wait().unwrap().into_any();
        upgraded.upgrade().wait().unwrap();
        let mut left = client.range_lock("data").unwrap().write(0..10).wait().unwrap().into_any();
        let _right = left.unlock_part(4..6).unwrap();
        let mut read = client.rwlock("config").unwrap().read().wait().unwrap().into_any();
        println!("holds {}", left.token());
        // Its parent reads the same: this waits until the end.
        let _ = read.upgrade().wait();
        return;
    }
    let server = server();
    let config = rwlock(&server).read().wait().unwrap();
    let test = "a_client_that_is_killed_after_a_change_leaves_nothing_behind";
    let (mut child, _) = holder(&address(&server), test);
    waiting(&server, 1);
    assert!(client(&server).rwlock("up").unwrap().try_read().wait().is_err());
    child.kill().unwrap();
    child.wait().unwrap();
    let three = client(&server);
    drop(three.rwlock("up").unwrap().write().wait().unwrap());
    drop(three.range_lock("data").unwrap().write(0..10).wait().unwrap());
    drop(three.rwlock("config").unwrap().read().wait().unwrap());
    drop(config);
    drop(three.rwlock("config").unwrap().write().wait().unwrap());
    eventually("nothing is left", || entries(&server).is_empty());
}

#[test]
fn where_changes_are_not_offered_that_is_said_and_the_lock_is_as_it_was() {
    let file = format!("/dev/shm/lockwright-test-changes-{}", std::process::id());
    let space = format!("shm:{file}");
    let server = Server::start(options().export(&space).lend("loan")).unwrap();
    let far = |name: &str| format!("{}/{name}", address(&server));
    let one_sided = ("a one-sided space", "a one-sided space, whose ranges are given back as a whole");
    for (space, (what, of_ranges)) in
        [(far(&space), ("shared memory", "shared memory")), (far("lent:loan"), one_sided)]
    {
        let client = Client::open(&space).wait().unwrap();
        let mut read = client.rwlock("a").unwrap().read().wait().unwrap().into_any();
        let mut written = client.rwlock("b").unwrap().write().wait().unwrap().into_any();
        let mut range = client.range_lock("c").unwrap().write(0..10).wait().unwrap().into_any();
        let why = ChangeError::Unsupported(what);
        assert!(why.to_string().starts_with(&format!("not offered by {what};")));
        let no = Err(why);
        assert_eq!(read.upgrade().wait(), no, "{space}");
        assert_eq!(read.try_upgrade().wait(), no, "{space}");
        assert_eq!(written.downgrade().wait(), no, "{space}");
        assert!(read.is_shared() && !written.is_shared());
        let kept = range.unlock_part(3..5).map(drop);
        assert_eq!(kept, Err(ChangeError::Unsupported(of_ranges)), "{space}");
        assert_eq!(range.range(), Some(0..10));
        for guard in [read, written, range] {
            assert_eq!(guard.state(), GuardState::Held, "{space}");
            guard.unlock().wait().unwrap();
        }
    }
    drop(server);
    let _ = std::fs::remove_file(file);
}
