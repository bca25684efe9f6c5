//! What shared memory costs, each as a ratio to what the hardware or the kernel does in the same run.
//!
//! `cargo bench -p lockwright-fabric --bench shm`
//!
//! Every figure is the median of many short runs, and the members of a group take turns, so that a busy machine disturbs
//! all alike. Ping-pong is between two processes (the bare one: two threads), pinned to cores 0 and 1.

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace, SpaceOptions};
use lockwright_fabric::{Addr, Cond, Endpoint, Message, NodeId, PeerId, Word64, Word128};
use portable_atomic::AtomicU128;
use rustix::fs::{FlockOperation, flock};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const RUNS: usize = 41;
const CYCLES: u32 = 20_000;
/// System calls are slow: fewer will do.
const CALLS: u32 = 2_000;
/// Few, so that on a busy machine most runs see both sides running.
const TURNS: u64 = 100;
const PLAYS: usize = 201;

const CHILD: &str = "LOCKWRIGHT_BENCH_SPACE";
const LOCK: Word128 = Word128::at(Addr::new(NodeId(0), 0));
const BALL: Word64 = Word64::at(Addr::new(NodeId(0), 128));

fn main() {
    if let Some(path) = std::env::var_os(CHILD) {
        return opponent(Path::new(&path));
    }
    let path = PathBuf::from(format!("/dev/shm/lockwright-bench-{}.space", std::process::id()));
    let space = ShmSpace::open(&path, &SpaceOptions::default()).expect("a space can be made");
    println!("shm fabric, medians of {RUNS} runs ({PLAYS} for handovers), nanoseconds");
    uncontended(&space, &path);
    ping_pong(&space, &path);
    ShmSpace::remove(&path).expect("it can be removed");
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn time(count: u64, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as f64 / count as f64
}

fn row(name: &str, ns: f64, against: &str, other: f64) {
    println!("{name:<46} {ns:>10.1}   {:>8.2} x {against} ({other:.1})", ns / other);
}

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    // Fails where there is no such core; then the scheduler chooses.
    let _ = sched_setaffinity(None, &cores);
}

/// Lock and unlock that nobody else wants.
fn uncontended(space: &ShmSpace, path: &Path) {
    let ep = space.endpoint().expect("there is room");
    let bare = AtomicU128::new(0);
    let file = File::open(path).expect("it is there");
    let (mut shm, mut blocking, mut cas, mut flocks) = (vec![], vec![], vec![], vec![]);
    for _ in 0..RUNS {
        let me = black_box(u128::from(ep.me().0));
        cas.push(time(CYCLES.into(), || {
            for _ in 0..CYCLES {
                black_box(bare.compare_exchange(0, me, SeqCst, SeqCst)).expect("free");
                black_box(bare.compare_exchange(me, 0, SeqCst, SeqCst)).expect("held");
            }
        }));
        shm.push(time(CYCLES.into(), || {
            block_on(async {
                for _ in 0..CYCLES {
                    assert_eq!(ep.go(LOCK.cas(0, me)).await, Ok(0));
                    assert_eq!(ep.go(LOCK.cas(me, 0)).await, Ok(me));
                }
            });
        }));
        blocking.push(time(CYCLES.into(), || {
            for _ in 0..CYCLES {
                assert_eq!(block_on(ep.go(LOCK.cas(0, me))), Ok(0));
                assert_eq!(block_on(ep.go(LOCK.cas(me, 0))), Ok(me));
            }
        }));
        flocks.push(time(CALLS.into(), || {
            for _ in 0..CALLS {
                flock(&file, FlockOperation::LockExclusive).expect("free");
                flock(&file, FlockOperation::Unlock).expect("held");
            }
        }));
    }
    let [shm, blocking, cas, flocks] = [shm, blocking, cas, flocks].map(median);
    row("uncontended lock + unlock", shm, "two bare 16-byte CAS", cas);
    row("the same, each in its own block_on", blocking, "two bare 16-byte CAS", cas);
    row("flock + unlock", flocks, "shm", shm);
}

/// The other process: hits the ball back, by word until it is told to stop, then by message.
fn opponent(path: &Path) {
    pin(1);
    let space = ShmSpace::open(path, &SpaceOptions::default().create(false)).expect("it is there");
    let ep = space.endpoint().expect("there is room");
    let other = PeerId(space.peek(Word64::at(Addr::new(NodeId(0), 256))) as u32);
    // Does not outlive the bench, however that ends.
    let watched = space.clone();
    std::thread::spawn(move || {
        while watched.is_alive(other) {
            std::thread::sleep(Duration::from_millis(500));
        }
        std::process::exit(1);
    });
    let hello = Message { words: [u64::from(ep.me().0), 0, 0, 0], ..Message::default() };
    block_on(ep.send(other, hello)).expect("the bench listens");
    for turn in (1..TURNS * PLAYS as u64 * 2).step_by(2) {
        hit(&ep, turn);
    }
    for _ in 0..TURNS * PLAYS as u64 {
        let ball = block_on(ep.recv(|_, message| Some(message.clone())));
        block_on(ep.send(other, ball)).expect("the bench listens");
    }
}

/// Waits for the ball and hits it back.
fn hit(ep: &ShmEndpoint, turn: u64) {
    let mine = BALL.until(Cond::Eq { mask: u128::MAX, value: turn.into() });
    block_on(ep.wait_until(mine)).expect("nothing fails");
    block_on(ep.go(BALL.fetch_add(1))).expect("nothing fails");
}

/// A handover there and back, halved.
fn ping_pong(space: &ShmSpace, path: &Path) {
    pin(0);
    let ep = space.endpoint().expect("there is room");
    block_on(ep.go(Word64::at(Addr::new(NodeId(0), 256)).write(ep.me().0.into()))).expect("nothing fails");
    let mut child: Child = Command::new(std::env::current_exe().expect("a program"))
        .env(CHILD, path)
        .spawn()
        .expect("it starts");
    let other = block_on(ep.recv(|_, message| Some(PeerId(message.words[0] as u32))));
    let (mut words, mut messages, mut bares) = (vec![], vec![], vec![]);
    let mut turn = 0;
    for _ in 0..PLAYS {
        words.push(time(2 * TURNS, || {
            for _ in 0..TURNS {
                hit(&ep, turn);
                turn += 2;
            }
        }));
        bares.push(bare_ping_pong());
    }
    for _ in 0..PLAYS {
        messages.push(time(2 * TURNS, || {
            for n in 0..TURNS {
                let ball = Message { words: [n, 0, 0, 0], ..Message::default() };
                block_on(ep.send(other, ball)).expect("the opponent listens");
                block_on(ep.recv(|_, message| (message.words[0] == n).then_some(())));
            }
        }));
    }
    child.wait().expect("it ends");
    let [words, messages, bare] = [words, messages, bares].map(median);
    row("handover by word between two processes", words, "a bare cache line", bare);
    row("handover by message between two processes", messages, "a bare cache line", bare);
}

fn bare_ping_pong() -> f64 {
    let (ball, ready) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
    let play = |ball: &AtomicU64, first: u64| {
        for turn in (first..2 * TURNS).step_by(2) {
            while ball.load(SeqCst) != turn {
                spin_loop();
            }
            ball.store(turn + 1, SeqCst);
        }
    };
    let (theirs, here) = (Arc::clone(&ball), Arc::clone(&ready));
    let other = std::thread::spawn(move || {
        pin(1);
        here.store(1, SeqCst);
        play(&theirs, 1);
    });
    while ready.load(SeqCst) == 0 {
        spin_loop();
    }
    ball.store(0, SeqCst);
    let ns = time(2 * TURNS, || play(&ball, 0));
    other.join().expect("no panic");
    ns
}
