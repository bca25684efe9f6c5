//! Citron on the in-process fabric: what an acquire costs, what is refused, and ranges under real threads.

#![expect(clippy::disallowed_methods, reason = "real threads are what is tested here")]

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::count::{Counted, Counts};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::random::SplitMix;
use lockwright_fabric::{PeerId, Time};
use lockwright_locks::citron::{Citron, CitronRw, Growth, Params, Synchrony, Timing};
use lockwright_locks::{Denied, Grant, LockClient, Lost, Patience, Protocol, Space, Want};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const UNITS: u64 = 1 << 20;

fn space() -> Space {
    Space::of(1).units(UNITS)
}

fn fabric<P: Protocol>(params: &P::Params) -> InProc {
    InProc::new(1, P::bytes_per_node(&space(), params))
}

/// What it costs to acquire and to release `want`, with nobody about.
fn cost<P: Protocol>(params: &P::Params, want: Want) -> (Counts, Counts) {
    let fabric = fabric::<P>(params);
    let ep: Counted<InProcEndpoint> = Counted::new(fabric.endpoint(PeerId::client(0)));
    let client = P::client(ep.clone(), &space(), params);
    let begin = ep.tally().snapshot();
    let grant = block_on(client.acquire(want)).expect("nobody is about");
    let acquired = ep.tally().snapshot();
    block_on(client.release(grant)).expect("it is ours");
    (acquired - begin, ep.tally().snapshot() - acquired)
}

const fn range(start: u64, end: u64) -> Want {
    Want::range(0, Mode::Exclusive, start, end)
}

const fn shared(start: u64, end: u64) -> Want {
    Want::range(0, Mode::Shared, start, end)
}

#[test]
fn a_small_range_takes_one_round_trip_to_acquire_and_one_to_release() {
    for (start, end) in [(0, 1), (7, 71), (100, 164), (UNITS - 64, UNITS), (UNITS / 2 - 32, UNITS / 2 + 32)] {
        let (acquire, release) = cost::<Citron>(&Params::default(), range(start, end));
        assert_eq!((acquire.round_trips, release.round_trips), (1, 1), "{start}..{end}");
    }
}

#[test]
fn a_range_of_one_internal_node_takes_one_round_trip_too() {
    let (acquire, release) = cost::<Citron>(&Params::default(), range(256, 512));
    assert_eq!((acquire.round_trips, release.round_trips), (1, 1));
}

#[test]
fn a_reader_takes_one_round_trip_like_a_writer() {
    for want in [shared(3, 8), range(3, 8), shared(32, 64), range(32, 64)] {
        let (acquire, release) = cost::<CitronRw>(&Params::default(), want);
        assert_eq!((acquire.round_trips, release.round_trips), (1, 1), "{want:?}");
    }
}

#[test]
fn wait_mode_takes_the_papers_two_round_trips_and_the_token() {
    // A T_wait that a busy machine keeps: else requests abort and begin again.
    let timing = Timing { t_wait_ns: 50_000_000, ..Timing::default() };
    let params = Params { synchrony: Synchrony::Wait(timing), ..Params::default() };
    let (acquire, release) = cost::<Citron>(&params, range(0, 16));
    assert_eq!((acquire.round_trips, release.round_trips), (3, 1));
    let without = Params { token_level: 0, lease_ns: 0, ..params };
    assert_eq!(cost::<Citron>(&without, range(0, 16)).0.round_trips, 2);
    // Four leaf children are locked explicitly, so that nobody has to wait (§3.8).
    assert_eq!(cost::<Citron>(&without, range(256, 512)).0.round_trips, 2);
}

#[test]
fn nonsense_is_refused_and_nothing_is_locked() {
    let fabric = fabric::<Citron>(&Params::default());
    let ep = Counted::new(fabric.endpoint(PeerId::client(0)));
    let client = <Citron>::client(ep.clone(), &space(), &Params::default());
    let mut texts = Vec::new();
    for want in [
        range(5, 5),
        range(6, 5),
        range(0, UNITS + 1),
        range(UNITS, UNITS + 5),
        range(0, (1 << 63) + 1),
        range(5, u64::MAX),
        Want::range(1, Mode::Exclusive, 0, 1),
    ] {
        let denied = block_on(client.acquire(want)).expect_err("nonsense");
        assert!(matches!(denied, Denied::BadRequest(_)), "{want:?}: {denied}");
        texts.push(denied.to_string());
    }
    assert!(
        texts[0].contains("empty") && texts[1].contains("reversed") && texts[4].contains("2^63"),
        "{texts:?}"
    );
    for params in [Params { k: 0, ..Params::default() }, Params { m: 0, ..Params::default() }] {
        let client = <Citron>::client(ep.clone(), &space(), &params);
        let denied = block_on(client.acquire(range(0, 1))).expect_err("nonsense");
        assert!(matches!(denied, Denied::BadRequest(_)), "{denied}");
    }
    assert_eq!(ep.tally().snapshot().verbs(), 0, "lock memory was not touched");
}

#[test]
fn the_whole_lock_is_all_of_its_units() {
    let fabric = fabric::<Citron>(&Params::default());
    let [one, two] =
        [0, 1].map(|i| <Citron>::client(fabric.endpoint(PeerId::client(i)), &space(), &Params::default()));
    let grant = block_on(one.acquire(Want::exclusive(0))).expect("free");
    for want in [range(0, 1), range(UNITS - 1, UNITS), range(0, UNITS)] {
        assert_eq!(block_on(two.acquire(want.with(Patience::Try))).unwrap_err(), Denied::Busy);
    }
    block_on(one.release(grant)).expect("ours");
    let again = block_on(two.acquire(range(0, UNITS).with(Patience::Try))).expect("free again");
    block_on(two.release(again)).expect("ours");
}

#[test]
fn a_deadline_passes_and_leaves_nothing_behind() {
    let fabric = fabric::<Citron>(&Params::default());
    let [one, two] =
        [0, 1].map(|i| <Citron>::client(fabric.endpoint(PeerId::client(i)), &space(), &Params::default()));
    for (held, wanted) in
        [(range(0, 64), range(10, 20)), (range(0, 64), range(0, 4096)), (range(0, 4096), range(70, 71))]
    {
        let grant = block_on(one.acquire(held)).expect("free");
        let denied = block_on(two.acquire(wanted.with(Patience::Until(Time(1))))).unwrap_err();
        assert_eq!(denied, Denied::TimedOut);
        block_on(one.release(grant)).expect("ours");
        let all =
            block_on(one.acquire(Want::exclusive(0).with(Patience::Try))).expect("nothing was left behind");
        block_on(one.release(all)).expect("ours");
    }
}

#[test]
fn tokens_rise_over_every_unit_that_two_ranges_share() {
    let fabric = fabric::<Citron>(&Params::default());
    let client = <Citron>::client(fabric.endpoint(PeerId::client(0)), &space(), &Params::default());
    let segment = UNITS / 64;
    let mut last = 0;
    // A chain of ranges, each of which shares a unit with the one before it, over many token words.
    for i in 1..40 {
        let end = i * segment + 2;
        let start = end - segment - 1;
        let grant = block_on(client.acquire(range(start, end))).expect("free");
        let token = grant.token().expect("grants have tokens");
        assert!(token > last, "{token} after {last}");
        last = token;
        block_on(client.release(grant)).expect("ours");
    }
    let all = block_on(client.acquire(Want::exclusive(0))).expect("free");
    assert!(all.token() > Some(last));
}

/// Long enough for the living on a busy machine: who holds for longer is taken for dead, too.
const LEASE_NS: u64 = 50_000_000;

/// A client takes `dead` and is never heard of again; another gets `wanted` all the same, with a later token.
fn is_recovered<P: Protocol>(params: &P::Params, dead: Want, wanted: Want) {
    let fabric = fabric::<P>(params);
    let [one, two] = [0, 1].map(|i| P::client(fabric.endpoint(PeerId::client(i)), &space(), params));
    let lost = block_on(one.acquire(dead)).expect("free");
    let grant = block_on(two.acquire(wanted)).expect("taken away from the dead");
    assert!(grant.token() > lost.token(), "{dead:?}, {wanted:?}");
    // The dead was not dead: it learns what happened, and does no harm.
    assert_eq!(block_on(one.release(lost)), Err(Lost::Recovered), "{dead:?}, {wanted:?}");
    if wanted.claim.mode == Mode::Exclusive {
        let busy = block_on(one.acquire(wanted.with(Patience::Try))).err();
        assert_eq!(busy, Some(Denied::Busy), "held by the other");
    }
    // A client that goes by its clock may be told by it to leave the rest to others, too.
    let _ = block_on(two.release(grant));
    block_on(one.acquire(Want::exclusive(0))).map(drop).expect("nothing is left behind for good");
}

#[test]
fn what_a_dead_client_holds_is_taken_away_at_every_level() {
    for leaf_units in [32, 64] {
        let params = Params { lease_ns: LEASE_NS, leaf_units, ..Params::default() };
        let wants = [range(0, 1), range(0, 256), range(0, UNITS)];
        for dead in wants {
            for wanted in wants {
                is_recovered::<Citron>(&params, dead, wanted);
            }
        }
    }
}

#[test]
fn what_a_dead_client_holds_past_the_end_of_the_tree_is_taken_away() {
    let params = Params { lease_ns: LEASE_NS, leaf_units: 32, start_units: 64, m: 1, ..Params::default() };
    let (past, across) = (range(500, 700), range(60, 600));
    for (dead, wanted) in [(past, past), (past, across), (across, past), (across, range(63, 64))] {
        is_recovered::<Citron>(&params, dead, wanted);
    }
}

#[test]
fn what_dead_readers_hold_is_taken_away_too() {
    let params = Params { lease_ns: LEASE_NS, leaf_units: 4, ..Params::default() };
    for (dead, wanted) in [
        (shared(0, 1), range(0, 1)),
        (shared(0, 1), range(0, 64)),
        (shared(0, 64), range(0, 1)),
        (range(0, 64), shared(0, 1)),
        (range(0, 1), shared(0, 64)),
        (shared(0, 64), range(0, UNITS)),
    ] {
        is_recovered::<CitronRw>(&params, dead, wanted);
    }
}

/// Threads that add to every unit of random ranges in two steps: two of them inside at once would lose an addition.
fn loses_no_update<P: Protocol>(params: &P::Params, shared_too: bool) {
    const SMALL: u64 = 1024;
    let space = Space::of(1).units(SMALL);
    let fabric = InProc::new(1, P::bytes_per_node(&space, params));
    let units: Vec<AtomicU64> = (0..SMALL).map(|_| AtomicU64::new(0)).collect();
    let added = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (ep, units, added) = (fabric.endpoint(PeerId::client(thread as usize)), &units, &added);
            let space = &space;
            scope.spawn(move || {
                let client = P::client(ep, space, params);
                let mut random = SplitMix::new(thread);
                for _ in 0..1500 {
                    let length = [1, 16, 60, 256][random.below(4) as usize];
                    let start = random.below(SMALL - length);
                    let read = shared_too && random.below(2) == 0;
                    let want =
                        if read { shared(start, start + length) } else { range(start, start + length) };
                    let grant = block_on(client.acquire(want)).expect("granted");
                    let mine = &units[start as usize..(start + length) as usize];
                    let before: Vec<u64> = mine.iter().map(|unit| unit.load(Relaxed)).collect();
                    std::hint::spin_loop();
                    for (unit, before) in mine.iter().zip(before) {
                        if read {
                            assert_eq!(unit.load(Relaxed), before, "a writer came in beside a reader");
                        } else {
                            unit.store(before + 1, Relaxed);
                        }
                    }
                    if !read {
                        added.fetch_add(length, Relaxed);
                    }
                    block_on(client.release(grant)).expect("released");
                }
            });
        }
    });
    let total: u64 = units.iter().map(|unit| unit.load(Relaxed)).sum();
    assert_eq!(total, added.load(Relaxed));
}

#[test]
fn threads_with_random_ranges_lose_no_update() {
    loses_no_update::<Citron>(&Params::default(), false);
}

#[test]
fn threads_that_escalate_at_once_lose_no_update() {
    loses_no_update::<Citron>(&Params { escalate_after: 1, m: 1, k: 4, ..Params::default() }, false);
}

#[test]
fn threads_that_read_and_write_ranges_see_no_torn_range() {
    loses_no_update::<CitronRw>(&Params::default(), true);
}

#[test]
fn threads_that_let_the_tree_grow_lose_no_update() {
    let growing = Params { start_units: 64, m: 1, ..Params::default() };
    loses_no_update::<Citron>(&Params { growth: Growth::AtOnce, ..growing }, false);
    loses_no_update::<Citron>(&Params { growth: Growth::Elastic, ..growing }, false);
    loses_no_update::<Citron>(&growing, false);
}

#[test]
fn threads_that_let_the_tree_grow_in_wait_mode_lose_no_update() {
    let timing = Timing { t_wait_ns: 100_000, ..Timing::default() };
    let growing = Params { synchrony: Synchrony::Wait(timing), start_units: 64, m: 1, ..Params::default() };
    loses_no_update::<Citron>(&Params { growth: Growth::AtOnce, ..growing }, false);
    loses_no_update::<Citron>(&Params { growth: Growth::Elastic, ..growing }, false);
}

#[test]
fn a_tree_grows_when_asked_to_and_shrinks_when_quiet() {
    let timing = Timing { t_wait_ns: 50_000_000, ..Timing::default() };
    for synchrony in [Synchrony::Handshake, Synchrony::Wait(timing)] {
        grows_and_shrinks(&Params { synchrony, start_units: 64, m: 1, ..Params::default() });
    }
}

fn grows_and_shrinks(params: &Params) {
    let params = *params;
    let fabric = fabric::<Citron>(&params);
    let [one, two] = [0, 1].map(|i| <Citron>::client(fabric.endpoint(PeerId::client(i)), &space(), &params));
    assert!(!block_on(one.grow(0)).expect("reached"), "nobody asked for more");
    let held = block_on(one.acquire(range(0, 1))).expect("free");
    // Past the end there is one mutex.
    let past = block_on(two.acquire(range(1000, 1001))).expect("free");
    assert_eq!(block_on(one.acquire(range(2000, 2001).with(Patience::Try))).unwrap_err(), Denied::Busy);
    block_on(two.release(past)).expect("ours");
    assert!(block_on(two.grow(0)).expect("reached"), "one of them did");
    // What was held before is held, and seen from above.
    assert_eq!(block_on(two.acquire(range(0, 1024).with(Patience::Try))).unwrap_err(), Denied::Busy);
    assert!(!block_on(two.shrink(0)).expect("reached"), "it is in use");
    block_on(one.release(held)).expect("ours");
    let above = block_on(two.acquire(range(0, 1024).with(Patience::Try))).expect("free");
    block_on(two.release(above)).expect("ours");
    assert!(block_on(two.shrink(0)).expect("reached"), "nobody uses it");
    let again = block_on(one.acquire(range(0, 64).with(Patience::Try))).expect("free");
    block_on(one.release(again)).expect("ours");
}

#[test]
fn a_reader_too_many_is_refused_and_leaves_nothing_behind() {
    /// Of one unit.
    const MOST_READERS: usize = 64;
    let params = Params::default();
    let fabric = fabric::<CitronRw>(&params);
    let client = <CitronRw>::client(fabric.endpoint(PeerId::client(0)), &space(), &params);
    let readers: Vec<_> =
        (0..MOST_READERS).map(|_| block_on(client.acquire(shared(8, 9))).expect("there is room")).collect();
    // Its first unit is in the leaf before, and free.
    let refused = block_on(client.acquire(shared(7, 9)));
    assert!(matches!(refused, Err(Denied::Unsupported(_))), "{:?}", refused.err());
    let try_write = |start, end| block_on(client.acquire(range(start, end).with(Patience::Try)));
    let first = try_write(7, 8).expect("nobody reads it any more");
    for reader in readers {
        block_on(client.release(reader)).expect("it is held");
    }
    let second = try_write(8, 9).expect("nobody reads it any more");
    for grant in [first, second] {
        block_on(client.release(grant)).expect("it is held");
    }
}

#[test]
fn a_range_that_is_refused_for_too_many_readers_of_one_part_holds_none_of_the_others() {
    const CROWDED: u64 = 4096;
    let params = Params::default();
    let fabric = fabric::<CitronRw>(&params);
    let client =
        |index| <CitronRw as Protocol>::client(fabric.endpoint(PeerId::client(index)), &space(), &params);
    let mut readers = Vec::new();
    let refused = (0..1000).find_map(|index| {
        let reader = client(index);
        match block_on(reader.acquire(shared(CROWDED, CROWDED + 1))) {
            Ok(grant) => readers.push((reader, grant)),
            Err(denied) => return Some(denied),
        }
        None
    });
    assert!(matches!(refused, Some(Denied::Unsupported(_))), "{} readers", readers.len());
    let (next, writer) = (client(1000), client(1001));
    for before in [1, 2, 40, 64, 100, 1000] {
        let refused = block_on(next.acquire(shared(CROWDED - before, CROWDED + 1)));
        assert!(matches!(refused, Err(Denied::Unsupported(_))), "from {before} before: {:?}", refused.err());
        let free = range(CROWDED - before, CROWDED).with(Patience::Try);
        let grant =
            block_on(writer.acquire(free)).unwrap_or_else(|denied| panic!("{before} before: {denied}"));
        block_on(writer.release(grant)).expect("it is ours");
    }
    for (reader, grant) in readers {
        block_on(reader.release(grant)).expect("it is its");
    }
    let grant = block_on(writer.acquire(range(CROWDED, CROWDED + 1))).expect("nobody reads any more");
    block_on(writer.release(grant)).expect("it is ours");
}
