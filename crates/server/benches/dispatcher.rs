//! What a server could do if reading and writing cost nothing: pairs of lock and unlock per second at one dispatcher, against the
//! combiner's core alone on the same locks, in turns in the same run.
//!
//! `cargo bench -p lockwright-server --bench dispatcher`; with `profile THREADS AT_A_TIME SECONDS` one row for a profiler.
//!
//! Each thread is a client of its own with names of its own, none waits for another, and answers are dropped. A round is so many
//! unlocks and locks at a time, and one pass. Medians with the spread, so that a busy machine disturbs both alike and shows.

use lockwright_fabric::Message;
use lockwright_fabric::backend::tcp::Inbox;
use lockwright_fabric::observe::Mode;
use lockwright_locks::combiner::core::{ClientId, Core, Limits, NAMES, Request};
use lockwright_server::Bare;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const RUNS: usize = 11;
/// Pairs of each thread in a run.
const PAIRS: u64 = 1 << 18;
/// An answer's kind.
const GRANTED: u32 = 65;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if let [profile, threads, at_a_time, seconds] = &args[..]
        && profile == "profile"
    {
        let number = |arg: &str| arg.parse::<u64>().expect("a number");
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(number(seconds)) {
            dispatcher(number(threads), number(at_a_time));
        }
        return;
    }
    println!("million pairs of lock and unlock per second: medians of {RUNS}, least and most");
    for threads in [1, 2] {
        for at_a_time in [1, 8, 64] {
            let (mut dispatchers, mut cores, mut pass) = (Vec::new(), Vec::new(), 0.0);
            for _ in 0..RUNS {
                let (per_second, a_pass) = dispatcher(threads, at_a_time);
                dispatchers.push(per_second);
                cores.push(core(at_a_time));
                pass = a_pass;
            }
            let ratio = median(&mut dispatchers) / median(&mut cores);
            println!(
                "{threads} threads, {at_a_time:>2} at a time: {}, {pass:>5.1} messages a pass; the core alone {}: {ratio:.2} of it",
                spread(&mut dispatchers),
                spread(&mut cores),
            );
        }
    }
}

fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn spread(all: &mut [f64]) -> String {
    format!("{:>5.2} ({:.2} to {:.2})", median(all), all[0], all[all.len() - 1])
}

/// Million pairs per second at one dispatcher, and messages in a pass.
fn dispatcher(threads: u64, at_a_time: u64) -> (f64, f64) {
    let server = Bare::new().expect("a server");
    let grants = Arc::default();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (server, grants) = (&server, &grants);
            scope.spawn(move || client(server, thread, at_a_time, grants));
        }
    });
    let took = began.elapsed().as_secs_f64();
    assert_eq!(grants.load(Relaxed), threads * PAIRS, "nothing is left");
    let (passes, messages) = server.passes();
    ((threads * PAIRS) as f64 / took / 1e6, messages as f64 / passes as f64)
}

/// A client that asks for all its locks, gives them back, and asks again; `lockwright::wire` has the tables of what it says.
fn client(server: &Bare, number: u64, at_a_time: u64, grants: &Arc<AtomicU64>) {
    let grants = Arc::clone(grants);
    let peer = server.admit(Inbox::new(move |_, message| {
        if message.kind == GRANTED {
            // One thread at a time says something.
            grants.store(grants.load(Relaxed) + 1, Relaxed);
        }
        true
    }));
    let mut seq = 0;
    let mut say = |kind: u32, lock: u64, [a, b, c]: [u64; 3], tail: Vec<u64>| {
        seq += 1;
        server.say(peer, &Message { lock, kind, words: [seq, a, b, c], tail });
    };
    say(1, 1, [number, 1, 0], vec![0]);
    for handle in 0..at_a_time {
        let name = format!("{number:04}{handle:04}");
        let name = u64::from_le_bytes(*name.as_bytes().first_chunk().expect("eight digits"));
        say(2, handle, [0; 3], vec![8, name]);
    }
    for round in 0..PAIRS / at_a_time {
        for at in 0..at_a_time {
            say(4 | 1 << 8 | 1 << 9, round << 32 | at, [0, u64::MAX, at], Vec::new());
        }
        server.settle();
        for at in 0..at_a_time {
            say(5, round << 32 | at, [0; 3], Vec::new());
        }
    }
    server.leave(peer);
}

/// Million pairs per second in the combiner's core, with as many requests in a pass.
fn core(at_a_time: u64) -> f64 {
    let mut core: Core = Core::new(Limits { clients: 1 << 16, ids: 1 << 16 });
    let lock = |id: u32| Request::Lock {
        id,
        lock: NAMES,
        mode: Mode::Exclusive,
        start: u64::from(id),
        end: u64::from(id) + 1,
        wait: true,
    };
    let ids = 0..at_a_time as u32;
    let locks: Vec<_> = ids.clone().map(|id| (ClientId(1), lock(id))).collect();
    let unlocks = ids.map(|id| (ClientId(1), Request::Unlock { id }));
    let pass: Vec<_> = unlocks.chain(locks.iter().copied()).collect();
    let mut replies = Vec::new();
    core.serve(&locks, &mut replies);
    let began = Instant::now();
    for _ in 0..PAIRS / at_a_time {
        core.serve(black_box(&pass), &mut replies);
        black_box(&mut replies).clear();
    }
    PAIRS as f64 / began.elapsed().as_secs_f64() / 1e6
}
