//! Listings of locks in shared memory that change hands all the time: what they say of a lock is true at one moment, or is
//! marked as changing.

#![cfg(target_os = "linux")]

use lockwright::Client;
use lockwright::inspect::{Entry, EntryState, Inspector};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const LISTINGS: usize = 100;

/// What the listings of a space say of "a", for which two clients `work` all the while. A third has many other locks, so it
/// takes long to read what is between the records of those two.
fn listings(test: &str, work: impl Fn(&Client, &AtomicBool) + Sync) -> Vec<Vec<Entry>> {
    let path = format!("/dev/shm/lockwright-listings-{test}-{}", std::process::id());
    let address = format!("shm:{path}");
    let [first, between, last] = [0, 1000, 0].map(|locks| {
        let client = Client::open(&address).wait().unwrap();
        let names = (0..locks).map(|n| format!("between {n}"));
        let held: Vec<_> = names.map(|name| client.mutex(name).unwrap().lock().wait().unwrap()).collect();
        (client, held)
    });
    let (stop, work) = (AtomicBool::new(false), &work);
    let listings = std::thread::scope(|threads| {
        for (client, _) in [&first, &last] {
            let stop = &stop;
            threads.spawn(move || work(client, stop));
        }
        let inspector = Inspector::open(&address).unwrap();
        let listings = (0..LISTINGS).map(|_| inspector.entries().unwrap());
        let listings =
            listings.map(|entries| entries.into_iter().filter(|entry| entry.name.as_bytes() == b"a"));
        let listings = listings.map(Iterator::collect).collect();
        stop.store(true, Relaxed);
        listings
    });
    drop(between);
    let _ = std::fs::remove_file(path);
    listings
}

/// Keeps a guard for some microseconds.
fn hold<G>(guard: G) {
    (0..1000).for_each(|_| std::hint::spin_loop());
    drop(guard);
}

fn holders(listing: &[Entry]) -> impl Iterator<Item = &Entry> {
    listing.iter().filter(|entry| entry.state == EntryState::Held)
}

/// Whether two who hold the lock exclude each other.
fn contradicts(listing: &[Entry]) -> bool {
    holders(listing).any(|entry| !entry.shared) && holders(listing).count() > 1
}

#[test]
fn a_busy_lock_is_never_listed_with_two_exclusive_holders() {
    let listings = listings("keyed", |client, stop| {
        let lock = client.mutex("a").unwrap();
        while !stop.load(Relaxed) {
            hold(lock.lock().wait().unwrap());
        }
    });
    assert!(listings.iter().any(|listing| !listing.is_empty()));
    assert_eq!(listings.iter().find(|listing| contradicts(listing)), None);
}

#[test]
fn a_busy_range_that_is_listed_twice_is_marked_as_changing() {
    let listings = listings("ranges", |client, stop| {
        let lock = client.range_lock("a").unwrap();
        while !stop.load(Relaxed) {
            hold(lock.write(3..5).wait().unwrap());
        }
    });
    let is_torn = |listing: &&Vec<Entry>| contradicts(listing) && !listing.iter().all(|entry| entry.changing);
    assert_eq!(listings.iter().find(is_torn), None);
}

#[test]
fn a_lock_that_was_free_and_is_given_back_has_no_holder() {
    let path = format!("/dev/shm/lockwright-listings-free-{}", std::process::id());
    let address = format!("shm:{path}");
    let client = Client::open(&address).wait().unwrap();
    let inspector = Inspector::open(&address).unwrap();
    let lock = client.rwlock("a").unwrap();
    let listed = || inspector.entries().unwrap().into_iter().filter(|entry| entry.name.as_bytes() == b"a");
    for _ in 0..3 {
        let guard = lock.write().wait().unwrap();
        assert_eq!(listed().map(|entry| entry.state).collect::<Vec<_>>(), [EntryState::Held]);
        drop(guard);
        assert_eq!(listed().next(), None, "its record says that it is held");
        drop(lock.read().wait().unwrap());
        assert_eq!(listed().next(), None, "its record says that it is read");
    }
    let _ = std::fs::remove_file(path);
}
