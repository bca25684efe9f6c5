//! How long the split of a range takes: it must stay under a microsecond, for any range (Citron §3.5.1).
//!
//! `cargo bench -p lockwright-locks --bench citron_split`
//!
//! Every figure is the median over many short runs, on a tree of 2²⁸ units.

#![expect(clippy::disallowed_methods, reason = "real time is what is measured here")]

use lockwright_fabric::random::SplitMix;
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
    let mut random = SplitMix::new(1);
    let range = |_| {
        let length = length + random.below(length);
        let start = random.below(UNITS - length);
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
