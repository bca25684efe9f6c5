//! Ranges of a space in shared memory that are upgraded, downgraded and given back in part, by two clients.

use lockwright::{AnyGuard, ChangeError, Client, LockGuard, RangeLock};
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

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

#[test]
fn names_in_shared_memory_are_not_changed_and_stay_held() {
    let path = std::env::temp_dir().join(format!("lockwright-names-{}.space", std::process::id()));
    let client = Client::open(&format!("shm:{}", path.display())).wait().unwrap();
    let mut guard = client.rwlock("a").unwrap().write().wait().unwrap().into_any();
    assert!(matches!(guard.downgrade().wait(), Err(ChangeError::Unsupported(_))));
    assert!(!guard.is_shared());
    let _ = std::fs::remove_file(path);
}
