//! Handles, guards and cancelling, between threads of one process.

use lockwright::{Client, GuardState, LockError, LockSet, TryLockError};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Waker};
use std::time::Duration;

fn client() -> Client {
    Client::open("mem:").wait().expect("a space in memory can always be made")
}

fn assert_send_sync<T: Send + Sync>() {}
fn assert_send<T: Send>() {}

#[test]
fn everything_can_be_sent_where_users_expect_it() {
    assert_send_sync::<Client>();
    assert_send_sync::<lockwright::Mutex>();
    assert_send_sync::<lockwright::RwLock>();
    assert_send_sync::<lockwright::RangeLock>();
    assert_send_sync::<lockwright::MutexGuard>();
    assert_send_sync::<lockwright::SetGuard>();
    assert_send::<lockwright::Acquire<lockwright::MutexGuard>>();
    assert_send::<lockwright::TryAcquire<lockwright::AnyGuard>>();
    assert_send::<lockwright::Upgrade<lockwright::RwLockReadGuard>>();
    assert_send::<lockwright::Open>();
    assert_send::<lockwright::AcquireSet>();
    assert_send::<lockwright::Unlock>();
    assert_send_sync::<lockwright::LostSignal>();
}

#[test]
fn eight_threads_of_one_client_lose_no_update_and_tokens_only_rise() {
    let client = client();
    let (counter, newest) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for _ in 0..8 {
            let lock = client.mutex("counter").unwrap();
            threads.spawn(|| {
                let lock = lock;
                for _ in 0..500 {
                    let guard = lock.lock().wait().unwrap();
                    assert!(newest.swap(guard.token(), Relaxed) < guard.token(), "tokens rise");
                    counter.store(counter.load(Relaxed) + 1, Relaxed);
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 4000);
}

#[test]
fn a_waiter_that_is_dropped_in_the_queue_loses_nobody_the_lock() {
    let client = client();
    let lock = client.mutex("a").unwrap();
    let held = lock.lock().wait().unwrap();
    let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(lock.lock())).collect();
    for acquire in &mut waiting {
        let polled = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    drop(waiting);
    let mut last = Box::pin(lock.lock());
    assert!(last.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(held);
    let guard = lockwright_fabric::backend::block_on(last).unwrap();
    assert_eq!(guard.state(), GuardState::Held);
    drop(guard);
    assert!(client.settle(Duration::from_secs(10)), "the abandoned ones came and went");
    assert!(lock.try_lock().wait().is_ok());
}

#[test]
fn a_timeout_gives_up_and_the_lock_goes_on() {
    let client = client();
    let lock = client.rwlock("a").unwrap();
    let held = lock.write().wait().unwrap();
    assert_eq!(lock.read_timeout(Duration::from_millis(5)).wait().unwrap_err(), LockError::TimedOut);
    assert_eq!(lock.write_timeout(Duration::from_millis(5)).wait().unwrap_err(), LockError::TimedOut);
    drop(held);
    assert!(client.settle(Duration::from_secs(10)));
    let one = lock.read().wait().unwrap();
    let two = lock.try_read().wait().unwrap();
    assert_eq!(lock.try_write().wait().unwrap_err(), TryLockError::Busy);
    one.unlock().wait().unwrap();
    two.unlock().wait().unwrap();
    assert!(lock.try_write().wait().is_ok());
}

#[test]
fn lock_sets_in_opposite_orders_do_not_wait_for_each_other() {
    let client = client();
    let names = ["a", "b", "c"];
    std::thread::scope(|threads| {
        for turn in 0..3 {
            let client = client.clone();
            threads.spawn(move || {
                for _ in 0..200 {
                    let locks = [0, 1, 2].map(|i| client.mutex(names[(i + turn) % 3]).unwrap());
                    let set = locks.iter().fold(LockSet::new(), |set, lock| set.lock(lock));
                    assert_eq!(set.acquire().wait().unwrap().len(), 3);
                }
            });
        }
    });
}

#[test]
fn an_unlock_that_is_never_awaited_still_unlocks() {
    let client = client();
    let lock = client.mutex("a").unwrap();
    drop(lock.lock().wait().unwrap().unlock());
    assert!(lock.try_lock().wait().is_ok());
}

#[test]
fn handles_of_one_name_are_one_lock_and_names_are_used_again() {
    let client = client();
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    assert!(client.rwlock("a").unwrap().try_read().wait().is_err());
    drop(guard);
    // More names than a space has locks, one after the other.
    for n in 0..100_000 {
        drop(client.mutex(format!("name {n}")).unwrap());
    }
}
