//! What the combiner's core can do: pairs of lock and unlock per second, how the cost grows with the number of held ranges,
//! what a held range weighs, and what flags without padding cost.
//!
//! `cargo bench -p lockwright-locks --bench combiner`
//!
//! Figures that are compared are taken in turns in the same run, and medians are printed with the spread, so that a busy
//! machine disturbs both alike and shows.

// Timing is this program's purpose.
#![expect(clippy::disallowed_methods, reason = "real time and real threads are what is measured here")]

use lockwright_fabric::observe::Mode;
use lockwright_fabric::random::SplitMix;
use lockwright_locks::combiner::core::{ClientId, Core, Limits, Reply, Request, Rules, Shipped};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The space of the goal: 2^32 units, 10 000 ranges held at random places.
const UNITS: u64 = 1 << 32;
const HELD: u32 = 10_000;
const RUNS: usize = 15;
const PAIRS: u32 = 200_000;

fn main() {
    let picks: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| picks.is_empty() || picks.iter().any(|pick| name.contains(pick.as_str()));
    if wanted("core") {
        core();
    }
    if wanted("growth") && !picks.iter().any(|pick| pick == "profile") {
        let only: Vec<u32> = picks.iter().filter_map(|pick| pick.parse().ok()).collect();
        let sizes = [10_000, 30_000, 100_000, 300_000, 1_000_000];
        let sizes = if only.is_empty() { &sizes[..] } else { &only };
        growth::<Shipped>("the wide tree", sizes);
    }
    if wanted("flags") {
        flags();
    }
    // For a profiler, so only if asked for: `profile 1000000`. What is of interest is `batches`.
    if picks.iter().any(|pick| pick == "profile") {
        for held in picks.iter().filter_map(|pick| pick.parse().ok()) {
            let (mut random, mut replies) = (Random(SplitMix::new(2)), Vec::new());
            batches(&mut filled::<Shipped>(held), 40 * PAIRS, &mut random, &mut replies);
        }
    }
}

/// Repeatable requests.
struct Random(SplitMix);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A range of up to 64 units, somewhere.
    fn lock(&mut self, id: u32) -> Request {
        let start = self.next() % (UNITS - 64);
        let end = start + 1 + self.next() % 64;
        Request::Lock { id, lock: 0, mode: Mode::Exclusive, start, end, wait: false }
    }
}

/// A core in which client 0 holds `held` ranges at random places.
fn filled<R: Rules>(held: u32) -> Core<R> {
    let mut core: Core<R> = Core::new(Limits { ids: held.max(64) + 1, ..Limits::default() });
    let mut random = Random(SplitMix::new(1));
    let mut replies = Vec::new();
    let mut id = 0;
    while id < held {
        core.handle(ClientId(0), random.lock(id), &mut replies);
        // A place that was taken is tried elsewhere.
        id += u32::from(
            replies.pop().is_some_and(|reply| matches!(reply, Reply { answer, .. } if is_grant(answer))),
        );
    }
    core
}

fn is_grant(answer: lockwright_locks::combiner::core::Answer) -> bool {
    matches!(answer, lockwright_locks::combiner::core::Answer::Granted { .. })
}

/// One client locks and unlocks at random places.
fn pairs<R: Rules>(
    core: &mut Core<R>,
    client: u32,
    pairs: u32,
    random: &mut Random,
    replies: &mut Vec<Reply>,
) {
    for _ in 0..pairs {
        core.handle(ClientId(client), random.lock(0), replies);
        core.handle(ClientId(client), Request::Unlock { id: 0 }, replies);
        black_box(&*replies);
        replies.clear();
    }
}

struct Spread {
    median: f64,
    low: f64,
    high: f64,
}

fn spread(mut figures: Vec<f64>) -> Spread {
    figures.sort_by(f64::total_cmp);
    Spread { median: figures[figures.len() / 2], low: figures[0], high: figures[figures.len() - 1] }
}

fn print(what: &str, per_second: &Spread) {
    println!(
        "{what:<58} {:>6.2} M pairs/s (from {:.2} to {:.2})",
        per_second.median / 1e6,
        per_second.low / 1e6,
        per_second.high / 1e6
    );
}

/// What a goal came to.
fn verdict(is_met: bool) -> &'static str {
    if is_met { "ok" } else { "MISS" }
}

fn core() {
    let mut core = filled::<Shipped>(HELD);
    let (mut random, mut replies) = (Random(SplitMix::new(2)), Vec::new());
    let runs = (0..RUNS)
        .map(|_| f64::from(PAIRS) * 1e9 / cpu_ns(|| pairs(&mut core, 1, PAIRS, &mut random, &mut replies)));
    let runs = spread(runs.collect());
    print("core alone, one thread, 10 k held", &runs);
    println!("{:<58} {}", "at least 5 M pairs/s", verdict(runs.median >= 5e6));
}

/// Nanoseconds this thread has been ready to run without a core to run on, where the system says so. (How long it has run
/// the system says too, but in steps of milliseconds.)
fn waited_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Nanoseconds that `run` takes on one core: those in which another thread had the core do not count.
fn cpu_ns(run: impl FnOnce()) -> f64 {
    let (began, before) = (Instant::now(), waited_ns());
    run();
    let (took, after) = (began.elapsed().as_nanos() as u64, waited_ns());
    (took - (after - before).min(took)) as f64
}

/// Two threads that begin together, each doing its part. Items per second, or nothing if one of them had to wait for a
/// core: then it was not two threads at once that were measured.
fn both<A: FnOnce() + Send, B: FnOnce()>(items: u32, one: A, other: B) -> Option<f64> {
    let barrier = &Barrier::new(2);
    /// When a thread began and ended, and how long it waited for a core meanwhile.
    fn timed(barrier: &Barrier, part: impl FnOnce()) -> (Instant, Instant, u64) {
        barrier.wait();
        let (began, before) = (Instant::now(), waited_ns());
        part();
        (began, Instant::now(), waited_ns() - before)
    }
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| timed(barrier, one));
        let second = timed(barrier, other);
        (first.join().expect("no thread panics"), second)
    });
    let took = first.1.max(second.1) - first.0.min(second.0);
    let (apart, waited) = (first.0.max(second.0) - first.0.min(second.0), first.2.max(second.2));
    let disturbed = apart.as_nanos() + u128::from(waited) > took.as_nanos() / 50;
    (!disturbed).then(|| f64::from(items) / took.as_secs_f64())
}

/// Runs the two in turns until each has enough undisturbed runs, or the machine is too busy for that.
fn in_turns(
    mut one: impl FnMut() -> Option<f64>,
    mut other: impl FnMut() -> Option<f64>,
) -> Option<(Spread, Spread)> {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..3_000 {
        ones.extend(one());
        others.extend(other());
        if ones.len() >= RUNS && others.len() >= RUNS {
            break;
        }
    }
    println!("undisturbed runs: {} and {}", ones.len(), others.len());
    (!ones.is_empty() && !others.is_empty()).then(|| (spread(ones), spread(others)))
}

/// As [`pairs`], in batches of so many pairs: one pass of a combiner for which requests of as many clients wait.
#[inline(never)]
fn batches<R: Rules>(core: &mut Core<R>, pairs: u32, random: &mut Random, replies: &mut Vec<Reply>) {
    const CLIENTS: u32 = 64;
    let mut batch = Vec::new();
    for _ in 0..pairs / CLIENTS {
        let locks = (1..=CLIENTS).map(|client| (ClientId(client), random.lock(0)));
        let unlocks = (1..=CLIENTS).map(|client| (ClientId(client), Request::Unlock { id: 0 }));
        batch.clear();
        batch.extend(locks.chain(unlocks));
        core.serve(&batch, replies);
        black_box(&*replies);
        replies.clear();
    }
}

/// What a pair costs and a held range weighs, from ten thousand to a million; one request at a time, and in batches. Beside
/// each cost, how many times the first row's it is; log n beside them.
fn growth<R: Rules>(tree: &str, sizes: &[u32]) {
    let columns = ["held", "log n", "one by one", "grown", "in batches", "grown", "bytes/range"];
    let goals = "  grown no more than log n, one by one and in batches; at most 100 bytes";
    println!("\n{tree}, ns a pair\n{}{goals}", columns.map(|column| format!("{column:>12}")).concat());
    let mut first = None;
    for held in sizes.iter().copied() {
        let mut core = filled::<R>(held);
        let (mut random, mut replies) = (Random(SplitMix::new(2)), Vec::new());
        let mut timed = |run: fn(&mut Core<R>, u32, &mut Random, &mut Vec<Reply>)| {
            let runs = (0..7).map(|_| {
                cpu_ns(|| run(&mut core, 4 * PAIRS, &mut random, &mut replies)) / f64::from(4 * PAIRS)
            });
            spread(runs.collect()).median
        };
        let alone = timed(|core, count, random, replies| pairs(core, 1, count, random, replies));
        let batched = timed(batches);
        let (depth, bytes) = (f64::from(held).log2(), core.bytes() as f64 / f64::from(held));
        let (first_depth, first_alone, first_batched) = *first.get_or_insert((depth, alone, batched));
        let [deeper, slower, slower_batched] =
            [depth / first_depth, alone / first_alone, batched / first_batched];
        let goals = [slower <= deeper, slower_batched <= deeper, bytes <= 100.0].map(verdict).join(", ");
        println!(
            "{held:>12}{deeper:>12.2}{alone:>12.1}{slower:>12.2}{batched:>12.1}{slower_batched:>12.2}{bytes:>12.1}  {goals}"
        );
    }
}

/// Words that begin with a cache line.
#[repr(align(64))]
struct Lines([AtomicU64; 64]);

impl Default for Lines {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; 64])
    }
}

/// A combiner that sets flags one after the other while another core polls one of them: what the thesis suspected.
fn flags() {
    const FLAGS: usize = 8;
    const SETS: u32 = 1_000_000;
    let run = |stride: usize| {
        let lines = Lines::default();
        let (words, done) = (&lines.0, &AtomicBool::new(false));
        let poll = move || {
            // The last flag, which nobody sets.
            while !done.load(Ordering::Relaxed) {
                black_box(words[(FLAGS - 1) * stride].load(Ordering::Acquire));
            }
        };
        let set = || {
            for token in 1..=u64::from(SETS) {
                words[token as usize % (FLAGS - 1) * stride].store(token, Ordering::Release);
            }
            done.store(true, Ordering::Relaxed);
        };
        both(SETS, poll, set)
    };
    println!("\nflags set per second while another core polls a neighbour");
    match in_turns(|| run(1), || run(8)) {
        None => println!("this machine is too busy for two threads at once"),
        Some((unpadded, padded)) => {
            for (what, flags) in [("side by side", &unpadded), ("a cache line each", &padded)] {
                let Spread { median, low, high } = flags;
                println!("{what:<58} {:>6.1} M/s (from {:.1} to {:.1})", median / 1e6, low / 1e6, high / 1e6);
            }
            println!("{:<58} {:>6.2}", "ratio", padded.median / unpadded.median);
        }
    }
}
