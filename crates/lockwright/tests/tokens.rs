//! Tokens of one name only rise, whatever happens to it: broken, recovered, given up and made anew.

#![cfg(target_os = "linux")]

use lockwright::inspect::Inspector;
use lockwright::{Client, Mutex};
use std::path::PathBuf;

/// From here on readers of JSON may round.
const EXACT: u64 = 1 << 53;

/// A space that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("lockwright-tokens-{name}-{}.space", std::process::id())))
    }

    fn address(&self) -> String {
        format!("shm:{}", self.0.display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Takes the lock and gives it back; its token.
fn token_of(lock: &Mutex) -> u64 {
    let guard = lock.lock().wait().unwrap();
    let token = guard.token();
    guard.unlock().wait().unwrap();
    token
}

#[test]
fn tokens_of_a_name_rise_through_seventy_thousand_breaks() {
    let scratch = Scratch::new("breaks");
    let client = Client::open(&scratch.address()).wait().unwrap();
    let inspector = Inspector::open(&scratch.address()).unwrap();
    let (lock, shared) = (client.mutex("a").unwrap(), client.rwlock("b").unwrap());
    let (mut last, mut last_shared) = (0, 0);
    for turn in 0..70_000 {
        let guard = lock.lock().wait().unwrap();
        assert!(guard.token() > last, "turn {turn}: {} after {last}", guard.token());
        last = guard.token();
        inspector.break_grant("a", last).unwrap();
        assert!(inspector.break_grant("a", last).is_err(), "turn {turn}: it is broken already");
        assert!(guard.unlock().wait().is_err(), "turn {turn}: it was lost");
        if turn % 10 == 0 {
            let guards = [shared.read().wait().unwrap(), shared.read().wait().unwrap()];
            let token = guards.iter().map(|guard| guard.token()).max().unwrap();
            assert!(token > last_shared, "turn {turn}: {token} after {last_shared}");
            last_shared = token;
            inspector.break_grant("b", token).unwrap();
            assert!(inspector.break_grant("b", token).is_err(), "turn {turn}: it is broken already");
        }
    }
    assert!(last < EXACT && last_shared < EXACT, "{last}, {last_shared}");
}

#[test]
fn a_broken_reader_does_not_name_the_readers_after_it() {
    let scratch = Scratch::new("readers");
    let client = Client::open(&scratch.address()).wait().unwrap();
    let inspector = Inspector::open(&scratch.address()).unwrap();
    let lock = client.rwlock("a").unwrap();
    let before = lock.read().wait().unwrap();
    inspector.break_grant("a", before.token()).unwrap();
    let after = lock.read().wait().unwrap();
    assert!(inspector.break_grant("a", before.token()).is_err());
    assert!(after.unlock().wait().is_ok(), "it was nobody else's");
}

#[test]
fn tokens_of_a_name_that_is_made_anew_go_on_and_do_not_leap() {
    let scratch = Scratch::new("anew");
    let client = Client::open(&scratch.address()).wait().unwrap();
    let inspector = Inspector::open(&scratch.address()).unwrap();
    let mut last = 0;
    for turn in 0..1_000 {
        let lock = client.mutex("a").unwrap();
        let token = token_of(&lock);
        assert!(token > last, "turn {turn}: {token} after {last}");
        last = token;
        if turn % 3 == 0 {
            let broken = lock.lock().wait().unwrap();
            last = broken.token();
            inspector.break_grant("a", last).unwrap();
        }
        if turn % 5 == 0 {
            let ranges = client.range_lock("a").unwrap();
            let range = ranges.write(0..1).wait().unwrap();
            last = last.max(range.token());
        }
    }
    // Two grants and a recovery a turn, and some more for the gate of the ranges.
    assert!(last < 10_000, "{last}");
}
