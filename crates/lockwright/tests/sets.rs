//! Lock sets over several spaces and clients: one order for all, and no set that waits for itself.

use lockwright::{Client, LockError, LockSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

/// A space in a file that goes with it.
#[cfg(target_os = "linux")]
struct Space(PathBuf);

#[cfg(target_os = "linux")]
impl Space {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("lockwright-sets-{name}-{}.space", std::process::id())))
    }

    fn client(&self) -> Client {
        Client::open(&format!("shm:{}", self.0.display())).wait().unwrap()
    }
}

#[cfg(target_os = "linux")]
impl Drop for Space {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether a set that names both waits for the first lock before it takes the second.
fn takes_in_order(first: &Client, second: &Client) -> bool {
    let (one, two) = (first.mutex("a").unwrap(), second.mutex("a").unwrap());
    let _held = one.lock().wait().unwrap();
    let mut set = LockSet::new().lock(&two).lock(&one).acquire();
    assert!(Pin::new(&mut set).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    two.try_lock().wait().is_ok()
}

#[test]
fn equal_names_in_two_spaces_are_taken_in_the_same_order_however_they_were_added() {
    let (one, two) = (Client::open("mem:").wait().unwrap(), Client::open("mem:").wait().unwrap());
    assert!(takes_in_order(&one, &two) != takes_in_order(&two, &one));
}

#[cfg(target_os = "linux")]
#[test]
fn two_clients_of_two_spaces_of_this_host_agree_on_the_order() {
    let (one, two) = (Space::new("one"), Space::new("two"));
    let forth = takes_in_order(&one.client(), &two.client());
    assert_eq!(forth, takes_in_order(&one.client(), &two.client()));
    assert_ne!(forth, takes_in_order(&two.client(), &one.client()));
}

#[test]
fn a_set_that_names_a_lock_twice_is_refused_in_words() {
    let client = Client::open("mem:").wait().unwrap();
    let (mutex, rwlock) = (client.mutex("a").unwrap(), client.rwlock("a").unwrap());
    let error = LockSet::new().read(&rwlock).lock(&mutex).acquire().wait().unwrap_err();
    assert!(matches!(&error, LockError::Duplicate { overlap: false, .. }), "{error}");
    assert_eq!(error.to_string(), "the lock set names a twice, and would wait for itself");
    assert!(mutex.try_lock().wait().is_ok(), "nothing was locked");
}

#[test]
fn two_readings_of_one_lock_are_twice_the_same_too() {
    let client = Client::open("mem:").wait().unwrap();
    let lock = client.rwlock("a").unwrap();
    assert!(LockSet::new().read(&lock).read(&lock).acquire().wait().is_err());
}

#[cfg(target_os = "linux")]
#[test]
fn a_lock_named_through_two_clients_of_one_space_is_found_to_be_the_same() {
    let space = Space::new("same");
    let (one, two) = (space.client(), space.client());
    let (here, there) = (one.mutex("a").unwrap(), two.mutex("a").unwrap());
    let set = LockSet::new().lock(&here).lock(&there).timeout(Duration::from_secs(1));
    assert!(matches!(set.acquire().wait(), Err(LockError::Duplicate { .. })));
}

#[test]
fn ranges_of_one_lock_may_touch_and_not_overlap() {
    let client = Client::open("mem:").wait().unwrap();
    let lock = client.range_lock("a").unwrap();
    assert!(LockSet::new().write_range(&lock, 4..8).read_range(&lock, 0..4).acquire().wait().is_ok());
    let set = LockSet::new().write_range(&lock, 4..8).read_range(&lock, 0..5).acquire();
    assert!(matches!(set.wait(), Err(LockError::Duplicate { overlap: true, .. })));
}

#[test]
fn ranges_that_overlap_are_noticed_with_locks_of_another_space_between_them() {
    let clients = [Client::open("mem:").wait().unwrap(), Client::open("mem:").wait().unwrap()];
    for (one, two) in [(&clients[0], &clients[1]), (&clients[1], &clients[0])] {
        let (lock, between) = (one.range_lock("a").unwrap(), two.range_lock("a").unwrap());
        let set = LockSet::new().write_range(&lock, 0..4).write_range(&between, 1..2).read_range(&lock, 3..8);
        assert!(matches!(set.acquire().wait(), Err(LockError::Duplicate { overlap: true, .. })));
        assert!(lock.try_write(0..8).wait().is_ok(), "nothing was taken");
    }
}
