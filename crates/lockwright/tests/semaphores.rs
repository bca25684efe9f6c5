//! Semaphores, as users of every kind of space in this process see them.

use lockwright::inspect::{Inspector, Kind};
use lockwright::{Client, HandleError, LockError, LockSet, TryLockError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A space in shared memory that is gone with this.
struct Space(String);

impl Space {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-semaphore-{name}-{}", std::process::id()));
        Self(format!("shm:{}", path.display()))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0["shm:".len()..]);
    }
}

fn both(name: &str, test: impl Fn(&Client)) {
    test(&Client::open("mem:").wait().unwrap());
    let space = Space::new(name);
    test(&Client::open(&space.0).wait().unwrap());
}

#[test]
fn so_many_hold_it_at_a_time_and_the_next_gets_what_is_given_back() {
    both("limit", |client| {
        let gpus = client.semaphore("gpu", 2).unwrap();
        let (one, two) = (gpus.acquire().wait().unwrap(), gpus.acquire().wait().unwrap());
        assert!(two.token() > one.token());
        assert!(matches!(gpus.try_acquire().wait(), Err(TryLockError::Busy)));
        let late = gpus.acquire_timeout(1, Duration::from_millis(20)).wait();
        assert!(matches!(late, Err(LockError::TimedOut)));
        one.unlock().wait().unwrap();
        let three = gpus.try_acquire().wait().unwrap();
        assert!(three.token() > two.token());
    });
}

#[test]
fn who_wants_many_is_not_overtaken_by_who_wants_one() {
    both("weights", |client| {
        let gpus = client.semaphore("gpu", 3).unwrap();
        let one = gpus.acquire().wait().unwrap();
        let all = std::thread::scope(|scope| {
            let waits = scope.spawn(|| gpus.acquire_many(3).wait().unwrap());
            // From when it waits, nobody gets what is left.
            while gpus.try_acquire().wait().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(one);
            waits.join().unwrap()
        });
        assert_eq!(all.permits(), 3);
    });
}

#[test]
fn another_limit_is_refused_as_long_as_permits_are_out() {
    both("other-limit", |client| {
        let two = client.semaphore("gpu", 2).unwrap();
        let three = client.semaphore("gpu", 3).unwrap();
        let held = two.acquire().wait().unwrap();
        let refused = three.acquire().wait().unwrap_err();
        assert_eq!(refused, LockError::Refused("others use this semaphore with another limit".to_owned()));
        drop(held);
        assert_eq!(three.acquire_many(3).wait().unwrap().permits(), 3);
    });
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    both("nonsense", |client| {
        assert!(matches!(client.semaphore("gpu", 0), Err(HandleError::Limit(0))));
        let gpus = client.semaphore("gpu", 2).unwrap();
        for count in [0, 3] {
            assert!(matches!(gpus.acquire_many(count).wait(), Err(LockError::Refused(_))));
            assert!(LockSet::new().permits(&gpus, count).is_err());
        }
        assert!(gpus.acquire_many(2).wait().is_ok());
    });
}

#[test]
fn locks_of_one_name_and_different_kinds_have_nothing_to_do_with_each_other() {
    both("kinds", |client| {
        let permits = client.semaphore("a", 1).unwrap().acquire().wait().unwrap();
        let lock = client.mutex("a").unwrap().try_lock().wait().unwrap();
        let range = client.range_lock("a").unwrap().try_write(0..9).wait().unwrap();
        assert!(client.semaphore("a", 1).unwrap().try_acquire().wait().is_err());
        drop((permits, lock, range));
        let set = LockSet::new()
            .permits(&client.semaphore("a", 1).unwrap(), 1)
            .unwrap()
            .lock(&client.mutex("a").unwrap())
            .acquire()
            .wait()
            .unwrap();
        assert_eq!(set.len(), 2);
    });
}

#[test]
fn never_more_than_the_limit_are_inside_however_many_threads_come_and_give_up() {
    both("threads", |client| {
        let (inside, entered) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (gpus, inside, entered) = (client.semaphore("gpu", 4).unwrap(), &inside, &entered);
                scope.spawn(move || {
                    for round in 0..60 {
                        let weight = 1 + (thread + round) % 3;
                        let patience = Duration::from_micros(200 * (round % 5));
                        let taken = match round % 3 {
                            0 => gpus.acquire_timeout(weight, patience).wait(),
                            _ => gpus.acquire_many(weight).wait(),
                        };
                        let Ok(permit) = taken else { continue };
                        assert!(inside.fetch_add(weight, SeqCst) + weight <= 4);
                        entered.fetch_add(1, SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(weight, SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert!(entered.load(SeqCst) >= 8 * 40);
    });
}

#[test]
fn a_listing_says_how_many_of_how_many_and_a_permit_can_be_broken() {
    let space = Space::new("listing");
    let client = Client::open(&space.0).wait().unwrap();
    let permit = client.semaphore("gpu", 4).unwrap().acquire_many(3).wait().unwrap();
    let inspector = Inspector::open(&space.0).unwrap();
    let entries = inspector.entries().unwrap();
    let permits = entries[0].permits.unwrap();
    assert_eq!((entries.len(), permits.held, permits.limit), (1, 3, 4));
    assert_eq!((entries[0].token, entries[0].range.clone()), (Some(permit.token()), None));
    let mutex = client.mutex("gpu").unwrap().lock().wait().unwrap();
    let heat = inspector.heat().unwrap();
    let row = |kind| heat.iter().find(|row| row.kind == kind).map(|row| row.holders);
    assert_eq!((row(Kind::Keyed), row(Kind::Semaphores)), (Some(1), Some(1)), "two locks, and two rows");
    drop(mutex);
    inspector.break_grant("gpu", permit.token()).unwrap();
    assert_eq!(client.semaphore("gpu", 4).unwrap().acquire_many(4).wait().unwrap().permits(), 4);
    assert!(permit.unlock().wait().is_err());
}
