//! What locks are measured against: bare atomics, the system's own locks, a cache line between two cores.

use super::measure::median;
use anyhow::Result;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use portable_atomic::AtomicU128;
use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// Two bare compare-and-swaps of 16 bytes: there and back.
#[derive(Debug, Default)]
pub(super) struct Bare(AtomicU128);

impl Bare {
    pub(super) fn cycle(&self) {
        black_box(self.0.compare_exchange(black_box(0), 1, SeqCst, SeqCst).is_ok());
        black_box(self.0.compare_exchange(black_box(1), 0, SeqCst, SeqCst).is_ok());
    }
}

fn lock_of(kind: i32, start: i64, len: i64) -> nix::libc::flock {
    nix::libc::flock {
        l_type: kind as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// A lock of the system's on an open file, and back.
pub(super) fn ofd_cycle(file: &File, start: i64, len: i64) {
    for kind in [nix::libc::F_WRLCK, nix::libc::F_UNLCK] {
        fcntl(file, FcntlArg::F_OFD_SETLKW(&lock_of(kind, start, len))).expect("the range is free");
    }
}

/// A record lock of this process on the first bytes of a file, or its end; by the library if one is loaded.
pub(super) fn record_lock(file: &File, takes: bool) {
    let kind = if takes { nix::libc::F_WRLCK } else { nix::libc::F_UNLCK };
    fcntl(file, FcntlArg::F_SETLKW(&lock_of(kind, 0, 64))).expect("the range is free");
}

/// Whether the system says that those bytes are free; if so they were taken and given back.
pub(super) fn try_ofd(file: &File) -> bool {
    let take = |kind| fcntl(file, FcntlArg::F_OFD_SETLK(&lock_of(kind, 0, 64))).is_ok();
    take(nix::libc::F_WRLCK) && take(nix::libc::F_UNLCK)
}

/// Holds `count` ranges of `file`, with gaps between them so that the system does not make one of them.
pub(super) fn hold_ranges(file: &File, count: i64) -> Result<()> {
    for range in 0..count {
        fcntl(file, FcntlArg::F_OFD_SETLK(&lock_of(nix::libc::F_WRLCK, 128 * range, 64)))?;
    }
    Ok(())
}

/// Keeps the calling thread on one core. Where that is not allowed, it goes where it likes.
pub(super) fn pin(core: usize) {
    let mut set = CpuSet::new();
    if set.set(core).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// How long a cache line takes from one core to another.
pub(super) fn ping_pong(plays: usize) -> f64 {
    /// Few, so that on a busy machine most plays see both sides running.
    const TURNS: u64 = 200;
    let (ball, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pin(1);
            while !stop.load(SeqCst) {
                let seen = ball.load(SeqCst);
                if seen % 2 == 1 {
                    ball.store(seen + 1, SeqCst);
                } else {
                    spin_loop();
                }
            }
        });
        let mine = threads.spawn(|| {
            pin(0);
            let mut times = Vec::new();
            for _ in 0..plays {
                let began = Instant::now();
                for _ in 0..TURNS {
                    let next = ball.load(SeqCst) + 1;
                    ball.store(next, SeqCst);
                    while ball.load(SeqCst) == next {
                        spin_loop();
                    }
                }
                times.push(began.elapsed().as_nanos() as f64 / (2 * TURNS) as f64);
            }
            stop.store(true, SeqCst);
            times
        });
        median(mine.join().expect("it only counts"))
    })
}
