//! Handles on tokio: awaited, given up, raced, and seen to be lost; on one thread and on several.

use lockwright::{Client, GuardState, LockError, LockSet};
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
            return Self { client: Client::open("mem:").unwrap(), path: None };
        }
        let path = format!("/dev/shm/lockwright-tokio-{test}-{}", std::process::id());
        Self { client: Client::open(&format!("shm:{path}")).unwrap(), path: Some(path) }
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
    assert_eq!(file.read(10..20).await.unwrap().range(), Some(10..20), "nobody holds these");
    head.unlock().await.unwrap();
    assert_eq!(waiter.await.unwrap(), Some(5..15));
    assert_eq!(LockSet::new().lock(&mutex).acquire().await.unwrap().len(), 1);
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
    lost.await.unwrap();
    assert_eq!(guard.state(), GuardState::Lost);
    assert!(guard.unlock().await.is_err());
}
