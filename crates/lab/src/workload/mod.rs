//! What clients do with locks: streams of transactions, seeded, the same for every lock manager.
//!
//! A transaction takes its locks in order, two-phase, works for a while and lets go of them all. The microbenchmark's
//! have one lock each; TATP's and TPC-C's follow the benchmarks' rules ([`tatp`], [`tpcc`]). Nothing here knows a
//! protocol.

pub(crate) mod tatp;
pub(crate) mod tpcc;

use lockwright_fabric::observe::Mode;
use lockwright_locks::Want;
use lockwright_sim::{Rng, Zipf};

/// What is done under locks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Txn {
    /// Its type, by the benchmark's abbreviation.
    pub(crate) kind: &'static str,
    /// What it locks, in this order.
    pub(crate) wants: Vec<Want>,
    /// How long it works once it has them all.
    pub(crate) work_ns: u64,
}

/// How closely a benchmark is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// The benchmark's own rules.
    #[cfg_attr(not(test), expect(dead_code, reason = "the papers' experiments have the papers' shape"))]
    Spec,
    /// The shape that the papers' traces have.
    Paper,
}

/// A workload: who it is, and a stream per client.
#[derive(Clone, Debug)]
pub(crate) enum Workload {
    /// One lock per transaction (FissLock §7.1).
    Micro {
        /// Locks.
        locks: u64,
        /// Zipf exponent; zero is uniform.
        zipf: f64,
        /// Percent of shared acquires.
        reads_percent: f64,
    },
    /// As [`Workload::Micro`], over objects that are dealt out among the locks (FissLock §7.7).
    Objects {
        /// Objects.
        objects: u64,
        /// Locks.
        locks: u64,
        /// Zipf exponent of the choice of object.
        zipf: f64,
        /// Percent of shared acquires.
        reads_percent: f64,
    },
    /// Half of the requests go to a few locks, which change from time to time (FissLock §7.5).
    Hotspot {
        /// Locks.
        locks: u64,
        /// Hot ones among them.
        hot: u64,
        /// When the hot ones change, and back again.
        change_ns: u64,
        /// Percent of shared acquires.
        reads_percent: f64,
    },
    /// TATP.
    Tatp(tatp::Tatp),
    /// TPC-C.
    Tpcc(tpcc::Tpcc),
}

impl Workload {
    /// How many locks there are.
    pub(crate) fn locks(&self) -> u64 {
        match self {
            Self::Micro { locks, .. } | Self::Objects { locks, .. } | Self::Hotspot { locks, .. } => *locks,
            Self::Tatp(tatp) => tatp.locks(),
            Self::Tpcc(tpcc) => tpcc.locks(),
        }
    }

    /// The stream of client `client`, on machine `machine` of `machines`.
    pub(crate) fn stream(&self, seed: u64, client: usize, machine: usize, machines: usize) -> Stream {
        let rng = Rng::new(seed, 2_000_000 + client as u64);
        let zipf = match self {
            Self::Micro { locks, zipf, .. } => Zipf::new(*locks, *zipf),
            Self::Objects { objects, zipf, .. } => Zipf::new(*objects, *zipf),
            other => Zipf::new(other.locks(), 0.0),
        };
        Stream { workload: self.clone(), rng, zipf, place: (client, machine, machines) }
    }
}

/// One client's transactions.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    workload: Workload,
    rng: Rng,
    zipf: Zipf,
    place: (usize, usize, usize),
}

impl Stream {
    /// The next one, asked for at this time.
    pub(crate) fn next(&mut self, now_ns: u64) -> Txn {
        let Self { rng, zipf, .. } = self;
        match &self.workload {
            Workload::Micro { reads_percent, .. } => {
                let lock = zipf.sample(rng);
                single(lock, *reads_percent, rng)
            }
            Workload::Objects { locks, reads_percent, .. } => {
                let lock = zipf.sample(rng) % locks;
                single(lock, *reads_percent, rng)
            }
            Workload::Hotspot { locks, hot, change_ns, reads_percent } => {
                let moved = now_ns / change_ns % 2 == 1;
                let from = if moved { locks / 2 } else { 0 };
                let inside = rng.chance(0.5);
                let lock = if inside {
                    from + rng.below(*hot)
                } else {
                    let cold = rng.below(locks - hot);
                    if cold >= from { cold + hot } else { cold }
                };
                single(lock, *reads_percent, rng)
            }
            Workload::Tatp(tatp) => tatp.next(rng),
            Workload::Tpcc(tpcc) => tpcc.next(rng, self.place),
        }
    }
}

fn single(lock: u64, reads_percent: f64, rng: &mut Rng) -> Txn {
    let mode = if rng.chance(reads_percent / 100.0) { Mode::Shared } else { Mode::Exclusive };
    Txn { kind: "one", wants: vec![Want::whole(lock, mode)], work_ns: 0 }
}

/// The shape of a workload, as it can be held against a trace.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(not(test), expect(dead_code, reason = "shapes are compared by tests"))]
pub(crate) struct Shape {
    pub(crate) locks_per_txn: f64,
    pub(crate) most_locks: usize,
    pub(crate) shared_percent: f64,
    pub(crate) touched: usize,
    /// Percent of requests that the hottest 0.1, 1 and 10 % of the touched locks take.
    pub(crate) hottest_percent: [f64; 3],
}

#[cfg(test)]
pub(crate) fn shape(workload: &Workload, txns: usize) -> Shape {
    let (machines, clients) = (8, 160);
    let mut streams: Vec<_> =
        (0..clients).map(|client| workload.stream(7, client, client % machines, machines)).collect();
    let mut counts = std::collections::BTreeMap::<u64, u64>::new();
    let (mut requests, mut shared, mut most) = (0, 0, 0);
    for number in 0..txns {
        let txn = streams[number % clients].next(0);
        most = most.max(txn.wants.len());
        for want in &txn.wants {
            requests += 1;
            shared += usize::from(want.claim.mode == Mode::Shared);
            *counts.entry(want.claim.lock).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let hottest = |part: f64| {
        let first = (counts.len() as f64 * part) as usize;
        100.0 * counts[..first].iter().sum::<u64>() as f64 / requests as f64
    };
    Shape {
        locks_per_txn: requests as f64 / txns as f64,
        most_locks: most,
        shared_percent: 100.0 * shared as f64 / requests as f64,
        touched: counts.len(),
        hottest_percent: [hottest(0.001), hottest(0.01), hottest(0.1)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_requests_go_to_the_hotspot_wherever_it_is() {
        let workload = Workload::Hotspot { locks: 1_000, hot: 10, change_ns: 100, reads_percent: 50.0 };
        let mut stream = workload.stream(1, 0, 0, 8);
        for (now_ns, from) in [(0, 0), (100, 500), (250, 0)] {
            let inside = (0..10_000)
                .map(|_| stream.next(now_ns).wants[0].claim.lock)
                .filter(|lock| (from..from + 10).contains(lock))
                .count();
            assert!((4_800..5_200).contains(&inside), "{inside} at {now_ns}");
        }
    }

    #[test]
    fn a_stream_repeats_from_its_seed() {
        let workload = Workload::Micro { locks: 100, zipf: 0.7, reads_percent: 50.0 };
        let take = |seed, client| {
            let mut stream = workload.stream(seed, client, 0, 8);
            (0..20).map(|_| stream.next(0)).collect::<Vec<_>>()
        };
        assert_eq!(take(1, 1), take(1, 1));
        assert_ne!(take(1, 1), take(1, 2));
        assert_ne!(take(1, 1), take(2, 1));
    }
}
