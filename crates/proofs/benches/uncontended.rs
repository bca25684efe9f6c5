//! What the abstraction costs: an uncontended lock and unlock through the generic protocol code on the
//! in-process fabric, against the same atomics written by hand, in the same run.
//!
//! `cargo bench -p lockwright-proofs --bench uncontended`
//!
//! Every figure is the median of many short runs, and the two of a pair take turns, so that a busy machine
//! disturbs both alike. The goal is a ratio of at most 1.5.

// Timing is this program's purpose, and it has one thread and no fabric clock.
#![expect(clippy::disallowed_methods, reason = "real time is what is measured here")]

use lockwright_baselines::{cas::Cas, mcs::Mcs};
use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Addr, Endpoint, NodeId, PeerId, Value, Word128};
use lockwright_locks::shiftlock::layout::{Delta, Entry, Layout, Member, Wide};
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams};
use lockwright_locks::{LockClient, Protocol, Space, Want};
use portable_atomic::AtomicU128;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

const CYCLES: u32 = 100_000;
const RUNS: usize = 61;
const LOCKS: usize = 64;

fn main() {
    println!("uncontended lock + unlock, median of {RUNS} runs of {CYCLES}, nanoseconds");
    println!("{:<34} {:>8} {:>8} {:>7}", "", "generic", "by hand", "ratio");
    cas();
    mcs();
    wide();
    shiftlock();
}

/// Runs the two in turns and prints their medians. A word on the command line picks rows.
fn compare(name: &str, mut generic: impl FnMut(), mut by_hand: impl FnMut()) {
    let mut picks = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    if picks.peek().is_some() && !picks.any(|word| name.contains(&word)) {
        return;
    }
    let (mut generic_ns, mut hand_ns) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        generic_ns.push(time(&mut generic));
        hand_ns.push(time(&mut by_hand));
    }
    let (generic, hand) = (median(&mut generic_ns), median(&mut hand_ns));
    println!("{name:<34} {generic:>8.2} {hand:>8.2} {:>7.2}", generic / hand);
}

fn time(run: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as f64 / f64::from(CYCLES)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn endpoint(bytes: u64) -> InProcEndpoint {
    InProc::new(1, bytes).endpoint(PeerId::client(0))
}

/// Acquire and release, awaited in one task.
fn awaited<C: LockClient>(client: &C) {
    awaited_in(Mode::Exclusive, client);
}

#[inline(always)]
fn awaited_in<C: LockClient>(mode: Mode, client: &C) {
    block_on(async {
        for _ in 0..CYCLES {
            let Ok(grant) = client.acquire(Want::whole(black_box(3), mode)).await else {
                panic!("nobody else is here")
            };
            client.release(grant).await.expect("nothing fails");
        }
    });
}

/// As [`awaited`], but the result goes through memory: `expect` takes its address to print it, and the grant is kept
/// where the compiler must believe that it can change, as in a guard that is passed around. Shows how much of the other
/// rows hangs on the result staying in registers.
fn through_memory<C: LockClient>(client: &C) {
    block_on(async {
        for _ in 0..CYCLES {
            let grant = client.acquire(Want::exclusive(black_box(3))).await.expect("nobody else is here");
            client.release(black_box(grant)).await.expect("nothing fails");
        }
    });
}

/// Acquire and release, each a future that is blocked on.
fn blocked_on<C: LockClient>(client: &C) {
    for _ in 0..CYCLES {
        let Ok(grant) = block_on(client.acquire(Want::exclusive(black_box(3)))) else {
            panic!("nobody else is here")
        };
        block_on(client.release(grant)).expect("nothing fails");
    }
}

fn cas() {
    let client = Cas::client(endpoint(8 * LOCKS as u64), &Space::of(LOCKS as u64), &());
    let words: Vec<AtomicU64> = (0..LOCKS).map(|_| AtomicU64::new(0)).collect();
    let me = black_box(1);
    let by_hand = || {
        for _ in 0..CYCLES {
            let lock = black_box(3);
            words[lock].compare_exchange(0, me, SeqCst, SeqCst).expect("nobody else is here");
            words[black_box(lock)].compare_exchange(me, 0, SeqCst, SeqCst).expect("it is still ours");
        }
    };
    compare("cas, awaited", || awaited(&client), by_hand);
    compare("cas, awaited, through memory", || through_memory(&client), by_hand);
}

fn mcs() {
    let client = Mcs::<lockwright_baselines::mcs::AsPrinted>::client(
        endpoint(8 * LOCKS as u64),
        &Space::of(LOCKS as u64),
        &(),
    );
    let words: Vec<AtomicU64> = (0..LOCKS).map(|_| AtomicU64::new(0)).collect();
    let me = black_box(1);
    let next = AtomicU64::new(0);
    let by_hand = || {
        for _ in 0..CYCLES {
            let lock = black_box(3);
            assert_eq!(words[lock].swap(me, SeqCst), 0);
            assert_eq!(next.load(SeqCst), 0);
            words[black_box(lock)].compare_exchange(me, 0, SeqCst, SeqCst).expect("nobody else is here");
        }
    };
    compare("mcs, awaited", || awaited(&client), by_hand);
    compare("mcs, block_on", || blocked_on(&client), by_hand);
    compare("mcs, awaited, through memory", || through_memory(&client), by_hand);
}

/// The verbs of a queue lock on one 16-byte word: swap the tail in its upper half, later add to a counter in
/// its lower half (ShiftLock's shape, not its code).
fn wide() {
    const TAIL: u128 = (u64::MAX as u128) << 64;
    const COUNTER_TOP: u128 = 1 << 15;
    let ep = endpoint(16 * LOCKS as u64);
    let word = |lock: usize| Word128::at(Addr::new(NodeId(0), 16 * lock as u64));
    let generic = || {
        block_on(async {
            for cycle in 0..CYCLES {
                let new = u128::from(black_box(cycle)) << 64;
                black_box(
                    ep.go(word(black_box(3)).masked_cas(0, 0, new, TAIL)).await.expect("nothing fails"),
                );
                let add = word(black_box(3)).masked_fetch_add(black_box(1), COUNTER_TOP);
                black_box(ep.go(add).await.expect("nothing fails"));
            }
        });
    };
    let words: Vec<AtomicU128> = (0..LOCKS).map(|_| AtomicU128::new(0)).collect();
    let update = |lock: usize, change: &dyn Fn(u128) -> u128| {
        let mut seen = words[lock].load(SeqCst);
        while let Err(now) = words[lock].compare_exchange(seen, change(seen), SeqCst, SeqCst) {
            seen = now;
        }
        seen
    };
    let by_hand = || {
        for cycle in 0..CYCLES {
            let new = u128::from(black_box(cycle)) << 64;
            black_box(update(black_box(3), &|old| (old & !TAIL) | new));
            let add = black_box(1);
            let sum = |old: u128| {
                ((old & !COUNTER_TOP).wrapping_add(add & !COUNTER_TOP)) ^ ((old ^ add) & COUNTER_TOP)
            };
            black_box(update(black_box(3), &sum));
        }
    };
    compare("128-bit masked swap + masked add", generic, by_hand);
}

/// ShiftLock's paper entry, against the two atomics of each mode written by hand: fetch-and-store of the tail and a
/// compare-and-swap of tail and RelCnt for a writer, two field-wise additions for a reader.
fn shiftlock() {
    let (space, params) = (Space::of(LOCKS as u64), ShiftParams::default());
    let client = ShiftLock::<Wide>::client(endpoint(16 * LOCKS as u64), &space, &params);
    let words: Vec<AtomicU128> = (0..LOCKS).map(|_| AtomicU128::new(0)).collect();
    let me = Member::new::<Wide>(PeerId::client(0), black_box(0)).expect("there is room for one");
    let update = |lock: usize, change: &dyn Fn(u128) -> Option<u128>| {
        let mut seen = words[lock].load(SeqCst);
        loop {
            let Some(new) = change(seen) else { return (seen, false) };
            match words[lock].compare_exchange(seen, new, SeqCst, SeqCst) {
                Ok(_) => return (seen, true),
                Err(now) => seen = now,
            }
        }
    };
    let writer = || {
        let tail = Wide::TAIL.put(u128::from(me.0));
        for _ in 0..CYCLES {
            let lock = black_box(3);
            let (old, _) = update(lock, &|old| Some((old & !Wide::TAIL.mask()) | tail));
            let entry = Entry::<Wide>::of(old);
            assert!(entry.tail() == Member::NOBODY && entry.rdr_cnt() == 0, "nobody else is here");
            let held = Wide::TAIL.mask() | Wide::STAMP;
            let mine = tail | Wide::put(entry.stamp());
            let freed = Wide::put(entry.stamp().plus(1)) | Wide::EPOCH.put(u128::from(!entry.epoch()));
            let release =
                |old: u128| (old & held == mine).then_some((old & !held & !Wide::EPOCH.mask()) | freed);
            assert!(update(black_box(lock), &release).1, "it is still ours");
        }
    };
    let reader = || {
        let add = |lock: usize, delta| {
            let op = Wide::add(Word128::at(Addr::new(NodeId(0), 0)), delta, None).raw().op;
            update(lock, &|old| op.apply(u128::WIDTH, old)).0
        };
        for _ in 0..CYCLES {
            let lock = black_box(3);
            assert_eq!(Entry::<Wide>::of(add(lock, Delta::ENTER)).tail(), Member::NOBODY);
            black_box(add(black_box(lock), Delta::LEAVE));
        }
    };
    compare("shiftlock writer, awaited", || awaited(&client), writer);
    compare("shiftlock writer, block_on", || blocked_on(&client), writer);
    compare("shiftlock reader, awaited", || awaited_in(Mode::Shared, &client), reader);
}
