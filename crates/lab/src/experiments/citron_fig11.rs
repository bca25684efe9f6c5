//! Citron Fig. 11: how often two requests collide that have no unit in common, by range length and k.
//!
//! No simulation: which nodes a range is split into decides it. A cover has no gaps, so what a request locks is one
//! interval, its own lengthened on both sides; two requests collide falsely if the long intervals overlap and the
//! short ones do not. Left borders are uniform, and every pair of many requests counts, which shows rates that
//! drawing one pair at a time never would.
//!
//! The paper prints no numbers beside the figure but these: none for L ≤ 64 at k = 2; at k = 2 on average 3.6 % of k = 1;
//! an order of magnitude less at k = 5. It does not say which lengths the average is over: ours is over all that are
//! shown, from 128 units, where two nodes begin to waste any, up.

use super::prelude::*;
use lockwright_fabric::random::SplitMix;
use lockwright_locks::Space;
use lockwright_locks::citron::{Params, Shape, split};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "citron-fig11",
    title: "Citron: false conflicts by range length and number of nodes",
    source: "Citron (FAST '23) §4.6, Fig. 11",
    run,
};

/// Units of the tree (§4.1).
const UNITS: u64 = 1 << 28;
/// Nodes per range.
const KS: [usize; 5] = [1, 2, 3, 4, 5];
/// Lengths, as powers of two.
const LENGTH_BITS: std::ops::RangeInclusive<u32> = 0..=16;
/// From here on two nodes waste something.
const WASTE_BITS: u32 = 7;

fn run(context: &Context) -> Result<Findings, LabError> {
    let requests = context.pick(400_000, 40_000);
    let shape = Shape::new(&Space::of(1).units(UNITS), &Params::default());
    let mut table = Table::new("false-conflicts", &["length", "k1", "k2", "k3", "k4", "k5"]);
    let mut rates = Vec::new();
    for bits in LENGTH_BITS {
        let row = KS.map(|k| false_conflicts(&shape, 1 << bits, k, requests));
        let cells = row.map(|rate| format!("{rate:.3e}"));
        let [k1, k2, k3, k4, k5] = cells;
        table.row([(1_u64 << bits).to_string(), k1, k2, k3, k4, k5]);
        rates.push((1_u64 << bits, row));
    }
    Ok(Findings { claims: claims(&rates), plots: vec![plot(&rates)], tables: vec![table] })
}

/// False conflicts per request (two requests a time) of ranges of `length` units, split into at most `k` nodes.
fn false_conflicts(shape: &Shape, length: u64, k: usize, requests: u64) -> f64 {
    let mut random = SplitMix::new(1);
    let mut asked = Vec::new();
    let mut locked = Vec::new();
    for _ in 0..requests {
        let start = random.below(UNITS - length + 1);
        let end = start + length;
        asked.push((start, end));
        let cover = split(shape, start, end, k);
        let edge = |node: usize, side: fn((u64, u64)) -> u64, own: u64| {
            // A leaf locks the units that were asked for and no others.
            if shape.is_leaf(cover[node]) { own } else { side(shape.range(cover[node])) }
        };
        locked.push((edge(0, |range| range.0, start), edge(cover.len() - 1, |range| range.1, end)));
    }
    let pairs = requests as f64 * (requests - 1) as f64 / 2.0;
    (overlaps(&locked) - overlaps(&asked)) as f64 / pairs / 2.0
}

/// Pairs of intervals that overlap: all pairs but those of which one ends before the other starts.
fn overlaps(intervals: &[(u64, u64)]) -> u64 {
    let mut ends: Vec<u64> = intervals.iter().map(|interval| interval.1).collect();
    ends.sort_unstable();
    let apart: u64 =
        intervals.iter().map(|interval| ends.partition_point(|end| *end <= interval.0) as u64).sum();
    let count = intervals.len() as u64;
    count * (count - 1) / 2 - apart
}

fn claims(rates: &[(u64, [f64; KS.len()])]) -> Vec<Claim> {
    let small = rates.iter().filter(|(length, _)| *length <= 64).map(|(_, row)| row[1]).sum();
    let large: Vec<_> = rates.iter().filter(|(length, _)| *length >= 1 << WASTE_BITS).collect();
    let average = |a: usize, b: usize| {
        let ratios = large.iter().filter(|(_, row)| row[b] > 0.0).map(|(_, row)| row[a] / row[b]);
        ratios.clone().sum::<f64>() / ratios.count() as f64
    };
    vec![
        Claim::new("k2-false-conflicts-up-to-64-units", 0.0, small),
        Claim::new("k2-percent-of-k1", 3.6, 100.0 * average(1, 0))
            .within_factor(2.0)
            .note("the paper does not say which lengths it averages over"),
        Claim::new("k5-of-k2", 0.1, average(4, 1))
            .within_factor(2.0)
            .note("the paper says an order of magnitude"),
    ]
}

fn plot(rates: &[(u64, [f64; KS.len()])]) -> Plot {
    let series = KS.iter().enumerate().map(|(i, k)| {
        let points = rates.iter().map(|(length, row)| (*length as f64, row[i])).collect();
        Series::new(&format!("k = {k}"), Style::Line, points)
    });
    Plot {
        name: "false-conflicts".into(),
        title: "False conflicts of two requests, uniform left borders, 2^28 units".into(),
        note: "computed from the split; a rate of zero is not drawn".into(),
        x: Axis::log("units per range"),
        y: Axis::log("false conflicts per request"),
        series: series.collect(),
    }
}
