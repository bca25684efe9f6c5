//! The kernel of the asymmetric lock under weak memory: the leaders of both sides, each with its own tail as its flag,
//! the look at the other's tail, and `victim`. Loom tries every outcome that the C11 memory model allows.
//!
//! Loom treats sequentially consistent accesses as acquire and release ones and knows only the fence as stronger, so
//! the fence stands here by itself. In the fabric's CPU backends every verb is sequentially consistent (a WRITE is an
//! exchange), which gives at least as much: on x86 both are the same locked instruction.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

/// The words that both leaders see.
struct Words {
    tails: [AtomicU64; 2],
    victim: AtomicU64,
}

impl Words {
    fn new() -> Self {
        Self { tails: [AtomicU64::new(0), AtomicU64::new(0)], victim: AtomicU64::new(0) }
    }
}

/// The store-load fence that Peterson's lock needs, or what is left without it.
fn store_load(fenced: bool) {
    if fenced {
        fence(Ordering::SeqCst);
    }
}

/// Enters if it can do so without waiting; says whether it is in.
fn enter(words: &Words, side: usize, fenced: bool) -> bool {
    let other = 1 - side;
    let found = words.tails[side].compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
    assert_eq!(found, Ok(0), "each side has one leader here");
    store_load(fenced);
    if words.tails[other].load(Ordering::Acquire) == 0 {
        return true;
    }
    words.victim.store(side as u64 + 1, Ordering::Release);
    store_load(fenced);
    words.tails[other].load(Ordering::Acquire) == 0 || words.victim.load(Ordering::Acquire) != side as u64 + 1
}

/// Both leaders come at once. Nobody leaves, so at most one may get in.
fn at_most_one_enters(fenced: bool) {
    loom::model(move || {
        let words = Arc::new(Words::new());
        let theirs = Arc::clone(&words);
        let remote = thread::spawn(move || enter(&theirs, 1, fenced));
        let local = enter(&words, 0, fenced);
        assert!(!(local && remote.join().unwrap()), "both leaders are in");
    });
}

#[test]
fn with_a_store_load_fence_at_most_one_leader_enters() {
    at_most_one_enters(true);
}

#[test]
#[should_panic(expected = "both leaders are in")]
fn without_the_fence_both_can_enter() {
    at_most_one_enters(false);
}
