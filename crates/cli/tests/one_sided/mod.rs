//! Locks of a one-sided space over RDMA, taken by the verbs of `lockwright run` and of the library. The stress of them
//! is in `crates/server/tests/rdma.rs`.

use super::{Served, err, has_device, holder, lockwright, out, output};
use lockwright::{Client, LockError};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn server() -> (Served, String) {
    let served = Served::start(&["--lend", "stock"]);
    let space = format!("rdma://{}/lent:stock", served.rdma);
    (served, space)
}

#[test]
fn run_takes_lent_locks_by_its_own_verbs_and_a_killed_holder_frees_them() {
    if !has_device() {
        return;
    }
    let (_served, space) = server();
    let mut last = 0;
    for _ in 0..2 {
        let run = output(&["run", "--space", &space, "job", "--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN"]);
        assert!(run.status.success(), "{}", err(&run));
        let token = out(&run).trim().parse::<u64>().unwrap();
        assert!(token > last, "tokens rise");
        last = token;
    }
    let mut held = holder(&space, "job");
    let busy = output(&["run", "--space", &space, "-n", "job", "--", "true"]);
    assert_eq!(busy.status.code(), Some(1), "{}", err(&busy));
    let listed = output(&["ls", "--space", &space]);
    assert!(out(&listed).contains("job"), "{}{}", out(&listed), err(&listed));
    let waiter = lockwright(&["run", "--space", &space, "job", "--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    held.kill().unwrap();
    held.wait().unwrap();
    let mine = waiter.wait_with_output().unwrap();
    assert_eq!(mine.status.code(), Some(0), "{}", err(&mine));
    assert!(out(&mine).trim().parse::<u64>().unwrap() > last);
}

#[test]
fn a_holder_that_is_stopped_for_too_long_loses_its_lent_lock_and_learns_it() {
    if !has_device() {
        return;
    }
    let (_served, space) = server();
    let mut held = holder(&space, "job");
    let signal = |name: &str, child: &Child| {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status();
        assert!(sent.unwrap().success());
    };
    signal("STOP", &held);
    // Three heartbeats and the grace period later its queue pair is destroyed, and its lock is free.
    let next = output(&["run", "--space", &space, "-w", "60", "job", "--", "echo", "mine"]);
    assert_eq!(out(&next), "mine\n", "{}", err(&next));
    signal("CONT", &held);
    let ended = held.wait().unwrap();
    assert!(!ended.success(), "it learns that it has lost the lock, and ends what it runs: {ended}");
}

#[test]
fn lent_readers_share_and_lent_ranges_that_do_not_meet_are_held_together() {
    if !has_device() {
        return;
    }
    let (_served, space) = server();
    let (one, two) = (Client::open(&space).wait().unwrap(), Client::open(&space).wait().unwrap());
    let readers = (one.rwlock("a").unwrap().read().wait().unwrap(), two.rwlock("a").unwrap().read().wait());
    assert!(one.mutex("a").unwrap().try_lock().wait().is_err());
    drop(readers);
    let written = two.rwlock("a").unwrap().write().wait().unwrap();
    let late = one.mutex("a").unwrap().lock_timeout(Duration::from_millis(100)).wait();
    assert!(matches!(late, Err(LockError::TimedOut)));
    written.unlock().wait().unwrap();
    drop(one.mutex("a").unwrap().lock().wait().unwrap());
    let (mine, theirs) = (one.range_lock("r").unwrap(), two.range_lock("r").unwrap());
    let low = mine.write(0..64).wait().unwrap();
    let high = theirs.write(64..128).wait().unwrap();
    assert!(theirs.try_read(60..70).wait().is_err());
    assert!(high.token() > low.token());
    low.unlock().wait().unwrap();
    drop(theirs.read(0..64).wait().unwrap());
}

#[test]
fn what_would_be_unsound_or_is_not_there_is_refused_in_words() {
    if !has_device() {
        return;
    }
    let served = Served::start(&["--lend", "stock", "--export", "shm:rdma-test"]);
    let refused = |space: &str| {
        let run = output(&["run", "--space", space, "job", "--", "true"]);
        assert_eq!(run.status.code(), Some(70), "{space}: {}", err(&run));
        assert_eq!(err(&run).lines().count(), 1, "{}", err(&run));
        err(&run)
    };
    let (rdma, tcp) = (&served.rdma, &served.tcp);
    let said = refused(&format!("rdma://{rdma}/lent:nothing"));
    assert!(said.contains("lends no space called nothing"), "{said}");
    // The server's CPU would have to change words that its NIC changes.
    let said = refused(&format!("tcp://{tcp}/lent:stock"));
    assert!(said.contains("come by rdma://"), "{said}");
    let broken = output(&["break", "--space", &format!("rdma://{rdma}/lent:stock"), "job", "--token", "1"]);
    assert!(err(&broken).contains("cannot be broken"), "{}", err(&broken));
    let plain = Served::start(&[]);
    let said = refused(&format!("rdma://{}/lent:stock", plain.rdma));
    assert!(said.contains("lends no space called stock"), "{said}");
}
