//! `EDEADLK` is for circles that are there. Owners that go around a ring of one lock more than there are of them never close
//! one: there is always a free lock, and the owner that wants it goes on. What looked like a circle were edges of two moments.

use lockwright::Client;
use lockwright_posix::node::Changes;
use lockwright_posix::{Extent, FileId, Kind, Node, NodeFile, Owner, Pause, Request, Stop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

struct Patient;

impl Pause for Patient {
    fn pause(&mut self, changes: &Changes, seen: u64, time: Duration) -> bool {
        // As a mount does: short waits are not slept, so that owners overtake each other's looks at the waits.
        if time < Duration::from_micros(200) {
            std::thread::yield_now();
        } else {
            changes.wait(seen, time);
        }
        true
    }
}

fn byte(owner: u64, at: u64) -> Request {
    let extent = Extent { start: at, end: at + 1 };
    Request { owner: Owner::Process(owner), pid: owner as u32, extent, kind: Kind::Write }
}

fn node() -> (Node, Arc<NodeFile>) {
    let node = Node::open("mem:", &Client::options()).unwrap();
    let file = node.file(&FileId { name: "ring".to_owned(), flocks: false }).unwrap();
    (node, file)
}

#[test]
fn owners_in_a_ring_with_a_free_lock_are_never_refused_and_never_overtake() {
    // More threads than most machines have cores, so that owners are stopped also between a look at a lock and one at the waits.
    std::thread::scope(|rings| (0..2).for_each(|_| drop(rings.spawn(go_around_a_ring))));
}

fn go_around_a_ring() {
    const OWNERS: u64 = 4;
    const LOCKS: u64 = OWNERS + 1;
    const STEPS: u64 = 40_000;
    let (node, file) = node();
    let visits: Vec<AtomicU64> = (0..LOCKS).map(|_| AtomicU64::new(0)).collect();
    let outcomes: Vec<Result<(), Stop>> = std::thread::scope(|threads| {
        let mut owners = Vec::new();
        for owner in 0..OWNERS {
            let (node, file, visits) = (&node, &file, &visits);
            let go_around = move || {
                // They begin one behind the other.
                let mut at = owner;
                node.lock(file, &byte(owner, at), &mut Patient)?;
                for _ in 0..STEPS {
                    let next = (at + 1) % LOCKS;
                    node.lock(file, &byte(owner, next), &mut Patient)?;
                    let seen = visits[next as usize].load(SeqCst);
                    visits[next as usize].store(seen + 1, SeqCst);
                    node.unlock(file, Owner::Process(owner), byte(owner, at).extent)?;
                    at = next;
                }
                Ok::<(), Stop>(())
            };
            let leave = move |outcome| {
                // The others go on without it.
                node.unlock(file, Owner::Process(owner), Extent::WHOLE).unwrap();
                outcome
            };
            owners.push(threads.spawn(move || leave(go_around())));
        }
        owners.into_iter().map(|owner| owner.join().unwrap()).collect()
    });
    assert_eq!(outcomes, vec![Ok(()); OWNERS as usize]);
    let sum: u64 = visits.iter().map(|visits| visits.load(SeqCst)).sum();
    assert_eq!(sum, OWNERS * STEPS, "no visit was lost");
}

#[test]
fn a_circle_that_is_there_is_refused() {
    let (node, file) = node();
    node.try_lock(&file, &byte(1, 1)).unwrap();
    node.try_lock(&file, &byte(2, 2)).unwrap();
    // Both ask for what the other has; the second to ask is refused, and lets the other go on.
    let ask = |owner, at| {
        let outcome = node.lock(&file, &byte(owner, at), &mut Patient);
        node.unlock(&file, Owner::Process(owner), Extent::WHOLE).unwrap();
        outcome
    };
    std::thread::scope(|threads| {
        let first = threads.spawn(|| ask(1, 2));
        let outcomes = [ask(2, 1), first.join().unwrap()];
        let refused = outcomes.iter().filter(|outcome| **outcome == Err(Stop::Deadlock)).count();
        assert_eq!(refused, 1, "{outcomes:?}");
    });
}
