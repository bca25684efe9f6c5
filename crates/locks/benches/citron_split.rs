//! How long the split of a range takes: it must stay under a microsecond, for any range (Citron §3.5.1).
//!
//! `cargo bench -p lockwright-locks --bench citron_split`
//!
//! Every figure is the median over many short runs, on a tree of 2²⁸ units.

#![expect(clippy::disallowed_methods, reason = "real time is what is measured here")]

use lockwright_locks::Space;
use lockwright_locks::citron::{Params, Shape, split};
use std::hint::black_box;
use std::time::Instant;

const UNITS: u64 = 1 << 28;
const RANGES: usize = 4096;
const RUNS: usize = 101;

fn main() {
    let shape = Shape::new(&Space::of(1).units(UNITS), &Params::default());
    println!("split of a range, median of {RUNS} runs over {RANGES} ranges, nanoseconds");
    println!("{:>12} {:>8} {:>8} {:>8}", "length", "k = 2", "k = 4", "k = 8");
    for bits in [0, 4, 6, 8, 12, 16, 20, 24, 27] {
        let ranges = ranges(1 << bits);
        let times = [2, 4, 8].map(|k| median_ns(&shape, &ranges, k));
        println!("{:>12} {:>8.1} {:>8.1} {:>8.1}", 1_u64 << bits, times[0], times[1], times[2]);
    }
}

/// Ranges of about `length`, anywhere.
fn ranges(length: u64) -> Vec<(u64, u64)> {
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 16
    };
    let range = |_| {
        let length = length + next() % length;
        let start = next() % (UNITS - length);
        (start, start + length)
    };
    (0..RANGES).map(range).collect()
}

fn median_ns(shape: &Shape, ranges: &[(u64, u64)], k: usize) -> f64 {
    let run = |_| {
        let began = Instant::now();
        for (start, end) in ranges {
            black_box(split(shape, *start, *end, k));
        }
        began.elapsed().as_nanos() as f64 / RANGES as f64
    };
    let mut times: Vec<f64> = (0..RUNS).map(run).collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}
