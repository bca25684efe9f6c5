//! Latencies of a run, counted: three digits of each are kept, as `hdrhistogram` keeps them, which then works out means and
//! percentiles. Counting is here because it happens twice per cycle, and is a few instructions with all sizes known.

use crate::report::Latency;
use hdrhistogram::Histogram;

/// Three digits need this many bits.
const BITS: u32 = 11;

/// How often which latency was seen.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    /// By [`place`]: for all latencies of as many bits as the longest has.
    counts: Vec<u64>,
    /// What has more counts as this long.
    longest_ns: u64,
}

impl Latencies {
    /// Of up to `longest_ns`, and never less than a millisecond.
    pub(crate) fn up_to(longest_ns: u64) -> Self {
        let longest_ns = longest_ns.max(1_000_000);
        let all_bits_set = u64::MAX >> longest_ns.leading_zeros();
        Self { counts: vec![0; place(all_bits_set) + 1], longest_ns }
    }

    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        match self.counts.get_mut(place(ns)) {
            Some(count) => *count += 1,
            None => self.counts[place(self.longest_ns)] += 1,
        }
    }

    /// Takes over what others counted, of up to the same length.
    pub(crate) fn add(&mut self, others: &Self) {
        self.counts.iter_mut().zip(&others.counts).for_each(|(count, more)| *count += more);
    }

    pub(crate) fn len(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn summary(&self) -> Latency {
        let histogram = self.histogram();
        if histogram.is_empty() {
            return Latency::default();
        }
        Latency {
            count: histogram.len(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }

    fn histogram(&self) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, self.longest_ns, 3).expect("bounds are in order");
        for (place, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            histogram.saturating_record_n(shortest_at(place), *count);
        }
        histogram
    }
}

/// Where a latency is counted: up to [`BITS`] bits exactly, beyond that its first so many bits and their position.
#[inline]
fn place(ns: u64) -> usize {
    let dropped = u64::BITS - (ns | ((1 << BITS) - 1)).leading_zeros() - BITS;
    ((u64::from(dropped) << (BITS - 1)) + (ns >> dropped)) as usize
}

/// The shortest of the latencies that are counted there.
fn shortest_at(place: usize) -> u64 {
    let half = 1 << (BITS - 1);
    let dropped = (place as u64 / half).saturating_sub(1);
    (place as u64 - dropped * half) << dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn every_latency_has_a_place_and_every_place_its_latencies() {
        let mut last = None;
        for ns in (0..10_000).chain([1 << 20, (1 << 20) + 511, (1 << 20) + 512, 1 << 40, u64::MAX]) {
            let place = place(ns);
            assert!(last <= Some(place) && shortest_at(place) <= ns, "{ns}");
            assert_eq!(super::place(shortest_at(place)), place, "{ns}");
            last = Some(place);
        }
    }

    #[test]
    fn what_is_counted_here_is_what_a_histogram_of_all_would_say() {
        let longest_ns = 5_000_000_000;
        let (mut latencies, mut rng) = (Latencies::up_to(longest_ns), Rng::new(3, 0));
        let mut all = Histogram::<u64>::new_with_bounds(1, longest_ns, 3).unwrap();
        for _ in 0..200_000 {
            let ns = rng.below(2 << rng.clone().below(34));
            latencies.record(ns);
            all.saturating_record(ns);
        }
        assert_eq!((latencies.histogram(), latencies.len()), (all.clone(), all.len()));
        assert_eq!(latencies.summary().mean_ns, all.mean());
        assert_eq!(latencies.summary().max_ns, all.max());
    }
}
