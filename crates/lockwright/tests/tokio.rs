//! Handles on tokio: awaited, given up, raced, and seen to be lost; on one thread and on several.

use lockwright::{Client, GuardState, LockError, LockSet, LostReason};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A space of its own in shared memory, gone with it; elsewhere one in this process.
struct Space {
    client: Client,
    path: Option<String>,
}

impl Space {
    fn new(test: &str) -> Self {
        if !cfg!(target_os = "linux") {
            return Self { client: Client::open("mem:").wait().unwrap(), path: None };
        }
        let path = format!("/dev/shm/lockwright-tokio-{test}-{}", std::process::id());
        Self { client: Client::open(&format!("shm:{path}")).wait().unwrap(), path: Some(path) }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_await_one_mutex_lose_no_update() {
    let space = Space::new("counter");
    let counter = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (lock, counter) = (space.client.mutex("counter").unwrap(), Arc::clone(&counter));
            tokio::spawn(async move {
                for _ in 0..50 {
                    let guard = lock.lock().await.unwrap();
                    let seen = counter.load(Relaxed);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Relaxed);
                    guard.unlock().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.load(Relaxed), 16 * 50);
}

#[tokio::test]
async fn tasks_of_one_thread_hand_the_lock_to_each_other() {
    let space = Space::new("one-thread");
    let lock = space.client.rwlock("a").unwrap();
    let writer = lock.write().await.unwrap();
    let theirs = lock.clone();
    let reader = tokio::spawn(async move { theirs.read().await.unwrap().token() });
    tokio::task::yield_now().await;
    let token = writer.token();
    drop(writer);
    assert!(reader.await.unwrap() > token);
}

#[tokio::test]
async fn a_waiter_that_loses_a_race_leaves_the_lock_to_others() {
    let space = Space::new("race");
    let lock = space.client.mutex("a").unwrap();
    let held = lock.lock().await.unwrap();
    for _ in 0..20 {
        tokio::select! {
            _ = lock.lock() => panic!("it is held"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    assert_eq!(lock.lock_timeout(Duration::from_millis(1)).await.unwrap_err(), LockError::TimedOut);
    drop(held);
    drop(lock.lock().await.unwrap());
}

#[tokio::test]
async fn ranges_and_sets_are_awaited_like_everything_else() {
    let space = Space::new("ranges");
    let (file, mutex) = (space.client.range_lock("file").unwrap(), space.client.mutex("m").unwrap());
    let head = file.write(0..10).await.unwrap();
    let theirs = file.clone();
    let waiter = tokio::spawn(async move { theirs.write(5..15).await.unwrap().range() });
    assert_eq!(file.read(10..20).await.unwrap().range(), 10..20, "nobody holds these");
    head.unlock().await.unwrap();
    assert_eq!(waiter.await.unwrap(), 5..15);
    assert_eq!(LockSet::new().lock(&mutex).acquire().await.unwrap().len(), 1);
}

/// In silence it would wait for itself: the holder is a task of the same thread.
#[tokio::test]
async fn a_task_of_a_runtime_with_one_thread_that_would_block_it_is_told_so() {
    let space = Space::new("blocks");
    let lock = space.client.mutex("a").unwrap();
    let held = lock.lock().wait().expect("a lock that is free is taken, wherever one waits for it");
    assert!(lock.try_lock().wait().is_err(), "a try waits for nobody");
    let waits = std::panic::AssertUnwindSafe(|| lock.lock().wait());
    let told = std::panic::catch_unwind(waits).expect_err("it would wait for ever");
    let told = told
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| told.downcast_ref::<String>().cloned());
    assert!(told.is_some_and(|told| told.contains("multi-threaded runtime")), "in words");
    held.unlock().wait().unwrap();
    assert!(lock.try_lock().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_task_of_a_runtime_with_more_threads_may_block_and_the_others_go_on() {
    let space = Space::new("in-place");
    let lock = space.client.mutex("a").unwrap();
    let held = lock.lock().await.unwrap();
    let theirs = lock.clone();
    let waiter = tokio::spawn(async move { theirs.lock().wait().unwrap().token() });
    let token = held.token();
    tokio::spawn(async move { drop(held) }).await.unwrap();
    assert!(waiter.await.unwrap() > token);
}

#[tokio::test]
async fn a_space_is_opened_without_blocking_the_thread_and_an_error_comes_through() {
    let client = Client::open("mem:").await.unwrap();
    assert!(client.mutex("a").unwrap().try_lock().await.is_ok());
    assert!(Client::open("carrier-pigeon:").await.is_err());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_lost_lock_wakes_the_task_that_waits_for_it_to_be_uncertain_too() {
    let space = Space::new("uncertain");
    let guard = space.client.mutex("a").unwrap().lock().await.unwrap();
    let uncertain = tokio::spawn(guard.uncertain());
    let address = format!("shm:{}", space.path.as_ref().unwrap());
    let inspector = lockwright::inspect::Inspector::open(&address).unwrap();
    inspector.break_grant("a", guard.token()).unwrap();
    assert_eq!(uncertain.await.unwrap(), GuardState::Lost);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_lost_lock_wakes_the_task_that_listens() {
    let space = Space::new("lost");
    let guard = space.client.mutex("a").unwrap().lock().await.unwrap();
    let lost = tokio::spawn(guard.lost());
    let address = format!("shm:{}", space.path.as_ref().unwrap());
    let inspector = lockwright::inspect::Inspector::open(&address).unwrap();
    inspector.break_grant("a", guard.token()).unwrap();
    assert_eq!(lost.await.unwrap(), LostReason::Broken);
    assert_eq!(guard.state(), GuardState::Lost);
    assert!(guard.unlock().await.is_err());
}
