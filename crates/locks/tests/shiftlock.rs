//! ShiftLock on threads and against a counter of verbs: what an uncontended lock costs, what a waiter costs, and that
//! readers, writers, those who try and those who give up keep out of each other's way.

#![expect(clippy::disallowed_methods, reason = "real threads are what is tested here")]

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::count::{Counted, Counts};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Addr, Endpoint, NodeId, PeerId, Time, Word64};
use lockwright_locks::shiftlock::layout::{Layout, Wide};
use lockwright_locks::shiftlock::portable::Portable;
use lockwright_locks::shiftlock::{ShiftClient, ShiftLock, ShiftParams, Shipped};
use lockwright_locks::{Denied, Grant, LockClient, Lost, Patience, Protocol, Space, Want};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

type CountedClient<L> = ShiftClient<Counted<InProcEndpoint>, L, Shipped>;

fn fabric<L: Layout>() -> InProc {
    InProc::new(1, ShiftLock::<L>::bytes_per_node(&Space::of(4), &ShiftParams::default()))
}

fn counted<L: Layout>(fabric: &InProc, index: usize) -> (CountedClient<L>, impl Fn() -> Counts) {
    let ep = Counted::new(fabric.endpoint(PeerId::client(index)));
    let tally = ep.tally().clone();
    (ShiftLock::<L>::client(ep, &Space::of(4), &ShiftParams::default()), move || tally.snapshot())
}

/// What one acquire and one release cost, when the lock is not new.
fn cost<L: Layout>(want: Want) -> (Counts, Counts) {
    let fabric = fabric::<L>();
    let (client, count) = counted::<L>(&fabric, 0);
    for warm_up in [Want::exclusive(2), Want::shared(2)] {
        block_on(async { client.release(client.acquire(warm_up).await.unwrap()).await }).unwrap();
    }
    let before = count();
    let grant = block_on(client.acquire(want)).unwrap();
    let between = count();
    block_on(client.release(grant)).unwrap();
    (between - before, count() - between)
}

#[test]
fn an_uncontended_lock_takes_one_verb_each_way_in_both_modes() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let (acquire, release) = cost::<Wide>(Want::whole(2, mode));
        assert_eq!((acquire.verbs(), acquire.round_trips, acquire.sent), (1, 1, 0), "{mode:?}");
        assert_eq!((release.verbs(), release.round_trips, release.sent), (1, 1, 0), "{mode:?}");
    }
}

#[test]
fn the_portable_layout_costs_readers_nothing_and_writers_a_read_each_way() {
    let (acquire, release) = cost::<Portable>(Want::shared(2));
    assert_eq!((acquire.verbs(), release.verbs()), (1, 1));
    let (acquire, release) = cost::<Portable>(Want::exclusive(2));
    assert_eq!((acquire.reads, acquire.cas), (1, 1));
    assert_eq!((release.reads, release.cas), (1, 1));
}

#[test]
fn a_waiting_writer_issues_no_verbs_until_it_is_handed_the_lock() {
    let fabric = fabric::<Wide>();
    let ((first, first_count), (second, second_count)) =
        (counted::<Wide>(&fabric, 0), counted::<Wide>(&fabric, 1));
    let held = block_on(first.acquire(Want::exclusive(0))).unwrap();

    let mut waiting = pin!(second.acquire(Want::exclusive(0)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    let queued = second_count();
    assert_eq!((queued.cas, queued.verbs(), queued.sent), (1, 1, 1), "one swap, one Successor");
    for _ in 0..10 {
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
    }
    assert_eq!(second_count(), queued);

    let before = first_count();
    let held_token = held.token();
    block_on(first.release(held)).unwrap();
    let release = first_count() - before;
    assert_eq!((release.fetch_adds, release.verbs(), release.sent), (1, 1, 1), "one FAA, one Handover");

    let Poll::Ready(Ok(grant)) = waiting.as_mut().poll(&mut cx) else { panic!("handed over") };
    assert_eq!(second_count().verbs(), 1);
    assert!(grant.token() > held_token);
    block_on(second.release(grant)).unwrap();
}

#[test]
fn who_only_tries_is_refused_and_leaves_nothing_behind() {
    let fabric = fabric::<Wide>();
    let (holder, _) = counted::<Wide>(&fabric, 0);
    let (other, count) = counted::<Wide>(&fabric, 1);
    let held = block_on(holder.acquire(Want::exclusive(0))).unwrap();
    for want in [Want::exclusive(0), Want::shared(0)] {
        assert_eq!(block_on(other.acquire(want.with(Patience::Try))), Err(Denied::Busy));
    }
    assert_eq!(count().sent, 0);
    block_on(holder.release(held)).unwrap();
    let held = block_on(holder.acquire(Want::shared(0))).unwrap();
    assert_eq!(block_on(other.acquire(Want::exclusive(0).with(Patience::Try))), Err(Denied::Busy));
    let too = block_on(other.acquire(Want::shared(0).with(Patience::Try))).unwrap();
    block_on(other.release(too)).unwrap();
    block_on(holder.release(held)).unwrap();
    assert_eq!(fabric.peek(Word64::at(Addr::new(NodeId(0), 0))) & !1, 0, "nobody is there");
}

#[test]
fn a_reader_waits_for_as_many_writers_in_a_row_as_the_threshold_says_and_for_no_more() {
    let fabric = fabric::<Wide>();
    let params = ShiftParams { threshold: 2, ..ShiftParams::default() };
    let client = |index| {
        let ep = fabric.endpoint(PeerId::client(index));
        ShiftLock::<Wide>::client(ep, &Space::of(4), &params)
    };
    let (first, second, third, reader) = (client(0), client(1), client(2), client(3));
    let mut cx = Context::from_waker(Waker::noop());
    let held = block_on(first.acquire(Want::exclusive(0))).unwrap();
    let mut waits_second = pin!(second.acquire(Want::exclusive(0)));
    let mut waits_third = pin!(third.acquire(Want::exclusive(0)));
    let mut reads = pin!(reader.acquire(Want::shared(0)));
    assert!(waits_second.as_mut().poll(&mut cx).is_pending());
    assert!(waits_third.as_mut().poll(&mut cx).is_pending());
    assert!(reads.as_mut().poll(&mut cx).is_pending());
    block_on(first.release(held)).unwrap();
    assert!(reads.as_mut().poll(&mut cx).is_pending(), "one writer in a row");
    let Poll::Ready(Ok(held)) = waits_second.as_mut().poll(&mut cx) else { panic!("handed over") };
    block_on(second.release(held)).unwrap();
    let Poll::Ready(Ok(read)) = reads.as_mut().poll(&mut cx) else { panic!("two writers in a row") };
    assert!(waits_third.as_mut().poll(&mut cx).is_pending());
    block_on(reader.release(read)).unwrap();
    let Poll::Ready(Ok(held)) = waits_third.as_mut().poll(&mut cx) else { panic!("no reader is left") };
    block_on(third.release(held)).unwrap();
}

#[test]
fn only_tunables_that_there_are_can_be_tuned() {
    let mut params = ShiftParams::default();
    assert!(!ShiftLock::<Wide>::tune(&mut params, "no-such-tunable", 7));
    assert_eq!(params, ShiftParams::default());
    assert!(ShiftLock::<Wide>::tune(&mut params, "threshold", 7));
    assert_eq!(params, ShiftParams { threshold: 7, ..ShiftParams::default() });
}

#[test]
fn who_gives_up_in_the_queue_still_passes_the_lock_on() {
    let fabric = fabric::<Wide>();
    let clients: Vec<_> = (0..3).map(|index| counted::<Wide>(&fabric, index).0).collect();
    let mut cx = Context::from_waker(Waker::noop());
    let held = block_on(clients[0].acquire(Want::exclusive(0))).unwrap();
    let soon = Want::exclusive(0).with(Patience::Until(Time(0)));
    assert_eq!(block_on(clients[1].acquire(soon)), Err(Denied::TimedOut));
    let mut behind = pin!(clients[2].acquire(Want::exclusive(0)));
    assert!(behind.as_mut().poll(&mut cx).is_pending());
    block_on(clients[0].release(held)).unwrap();
    assert!(behind.as_mut().poll(&mut cx).is_pending(), "the one that gave up is next");
    block_on(clients[1].settle());
    let Poll::Ready(Ok(grant)) = behind.as_mut().poll(&mut cx) else { panic!("handed over") };
    block_on(clients[2].release(grant)).unwrap();
}

#[test]
fn a_dead_holders_lock_is_recovered_and_its_token_stays_behind() {
    let fabric = fabric::<Wide>();
    let params = ShiftParams::default().with_lease(1_000_000);
    let client =
        |index| ShiftLock::<Wide>::client(fabric.endpoint(PeerId::client(index)), &Space::of(4), &params);
    let (dead, alive) = (client(0), client(1));
    for mode in [Mode::Exclusive, Mode::Shared] {
        let want = Want::whole(0, mode);
        let stale = block_on(dead.acquire(want)).unwrap();
        let grant = block_on(alive.acquire(Want::exclusive(0))).unwrap();
        assert!(grant.token() > stale.token());
        // It was not dead after all.
        assert_eq!(block_on(dead.release(stale)), Err(Lost::Recovered));
        block_on(alive.release(grant)).unwrap();
    }
}

#[test]
fn a_lock_whose_count_is_at_its_limit_lets_nobody_in_and_stays_as_it_is() {
    let fabric = fabric::<Portable>();
    let (client, _) = counted::<Portable>(&fabric, 0);
    let word = Word64::at(Addr::new(NodeId(0), 0));
    fabric.poke(word, Portable::REL_CNT.put(u128::from(Portable::LIMIT) - 1) as u64);
    let last = block_on(client.acquire(Want::exclusive(0))).unwrap();
    assert_eq!(last.token(), Some(Portable::LIMIT));
    block_on(client.release(last)).unwrap();
    let spent = fabric.peek(word);
    for want in [Want::exclusive(0), Want::shared(0)] {
        for patience in [Patience::Forever, Patience::Try, Patience::Until(Time(1))] {
            assert_eq!(block_on(client.acquire(want.with(patience))), Err(Denied::Exhausted), "{want:?}");
            assert_eq!(fabric.peek(word), spent, "{want:?}");
        }
    }
}

#[test]
fn tokens_rise_through_more_recoveries_than_there_are_generations() {
    let fabric = fabric::<Portable>();
    let params = ShiftParams::default().with_lease(1);
    let client =
        |index| ShiftLock::<Portable>::client(fabric.endpoint(PeerId::client(index)), &Space::of(4), &params);
    let clients = [client(0), client(1)];
    let (mut last, mut stale) = (None, None);
    for turn in 0..2 * Portable::GENERATION.max() as usize {
        // Nobody releases before the next has taken the lock away.
        let grant = block_on(clients[turn % 2].acquire(Want::exclusive(0))).unwrap();
        assert!(grant.token() > last, "turn {turn}: {:?} after {last:?}", grant.token());
        last = grant.token();
        if let Some(stale) = stale.replace(grant) {
            assert_eq!(block_on(clients[(turn + 1) % 2].release(stale)), Err(Lost::Recovered));
        }
    }
    assert!(last < Some(1 << 53), "{last:?}");
}

#[test]
fn a_client_that_the_portable_layout_cannot_name_is_refused() {
    let fabric = fabric::<Portable>();
    let ep = fabric.endpoint(PeerId(5000));
    let client = ShiftLock::<Portable>::client(ep, &Space::of(1), &ShiftParams::default());
    assert!(matches!(block_on(client.acquire(Want::exclusive(0))), Err(Denied::BadRequest(_))));
}

/// Writers keep two cells equal; a reader that sees them differ was inside beside a writer.
fn readers_and_writers_keep_apart<L: Layout>(threshold: u32) {
    const CYCLES: u64 = 2000;
    let fabric = fabric::<L>();
    let (left, right) = (AtomicU64::new(0), AtomicU64::new(0));
    let params = ShiftParams { threshold, ..ShiftParams::default() };
    let endpoints: Vec<_> = (0..4).map(|index| fabric.endpoint(PeerId::client(index))).collect();
    let written: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = endpoints
            .iter()
            .enumerate()
            .map(|(index, ep)| {
                let (left, right, params) = (&left, &right, &params);
                scope.spawn(move || {
                    let client = ShiftLock::<L>::client(ep.clone(), &Space::of(4), params);
                    let (mut written, mut last) = (0, 0);
                    for cycle in 0..CYCLES {
                        let mode = if (cycle + index as u64).is_multiple_of(3) {
                            Mode::Exclusive
                        } else {
                            Mode::Shared
                        };
                        let patience = match cycle % 7 {
                            0 => Patience::Try,
                            1 => Patience::Until(block_on(ep.now()).plus(20_000)),
                            _ => Patience::Forever,
                        };
                        let Ok(grant) = block_on(client.acquire(Want::whole(0, mode).with(patience))) else {
                            assert_ne!(patience, Patience::Forever);
                            continue;
                        };
                        let token = grant.token().unwrap();
                        assert!(token > last || mode == Mode::Shared && token >= last, "tokens rise");
                        last = token;
                        let seen = left.load(Relaxed);
                        assert_eq!(seen, right.load(Relaxed));
                        if mode == Mode::Exclusive {
                            left.store(seen + 1, Relaxed);
                            std::hint::spin_loop();
                            right.store(seen + 1, Relaxed);
                            written += 1;
                        }
                        block_on(client.release(grant)).unwrap();
                    }
                    block_on(client.settle());
                    written
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((left.into_inner(), right.into_inner()), (written, written));
    let quiet = ShiftLock::<L>::quiet_mask(&Space::of(4), &params, Addr::new(NodeId(0), 0));
    assert_eq!(fabric.peek(Word64::at(Addr::new(NodeId(0), 0))) & quiet, 0, "nobody is there");
}

#[test]
fn readers_and_writers_keep_apart_on_threads() {
    readers_and_writers_keep_apart::<Wide>(16);
    readers_and_writers_keep_apart::<Wide>(1);
}

#[test]
fn readers_and_writers_keep_apart_on_threads_in_eight_bytes() {
    readers_and_writers_keep_apart::<Portable>(16);
    readers_and_writers_keep_apart::<Portable>(1);
}
