//! What a simulated run found out.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The figures of one run. All times are virtual: simulated, not measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The protocol.
    pub protocol: String,
    /// Clients.
    pub clients: usize,
    /// Locks.
    pub locks: u64,
    /// The seed that repeats the run.
    pub seed: u64,
    /// Virtual nanoseconds from the end of the warm-up to the end of the run.
    pub virtual_ns: u64,
    /// Acquire+release cycles that completed in that time.
    pub cycles: u64,
    /// Cycles per virtual second.
    pub goodput_per_s: f64,
    /// Latency of acquire, both modes.
    pub acquire: Latency,
    /// Latency of acquire in exclusive mode.
    pub acquire_exclusive: Latency,
    /// Latency of acquire in shared mode.
    pub acquire_shared: Latency,
    /// Latency of release.
    pub release: Latency,
    /// How long the first verb of each takes: what ShiftLock's Tables 3 and 4 call IA.
    pub first_verb: FirstVerb,
    /// Verbs and messages per cycle.
    pub per_cycle: PerCycle,
    /// Acquire attempts that failed and were tried again.
    pub retries: u64,
    /// Share of CAS verbs that were retries of an acquire, in percent.
    pub retry_percent: f64,
    /// Acquires that were undone and started over.
    pub aborts: u64,
    /// Acquires that were denied or timed out.
    pub denied: u64,
    /// Locks reset after a client's crash.
    pub recoveries: u64,
    /// Grants that turned out to be void.
    pub lost: u64,
    /// The most conflicting grants that overtook one waiting client.
    pub longest_bypass: u64,
    /// Clients that crashed.
    pub crashed: usize,
    /// All verbs of the run, warm-up included.
    pub total_verbs: u64,
    /// With ranges: the different kinds of clients.
    pub kinds: Vec<Kind>,
}

/// Clients of one kind: those that ask for ranges of one length, or have one job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kind {
    /// What they are.
    pub name: String,
    /// Cycles per virtual second of all of them together.
    pub goodput_per_s: f64,
    /// Latency of their acquires.
    pub acquire: Latency,
}

/// Latencies in virtual nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Samples.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

impl Latency {
    pub(crate) fn of(samples: &Histogram<u64>) -> Self {
        if samples.is_empty() {
            return Self::default();
        }
        Self {
            count: samples.len(),
            mean_ns: samples.mean(),
            p50_ns: samples.value_at_quantile(0.5),
            p99_ns: samples.value_at_quantile(0.99),
            p999_ns: samples.value_at_quantile(0.999),
            max_ns: samples.max(),
        }
    }
}

/// Mean virtual nanoseconds from the call to the answer of its first verb or, if it has none, to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FirstVerb {
    /// Of an acquire in exclusive mode.
    pub exclusive_ns: f64,
    /// Of an acquire in shared mode.
    pub shared_ns: f64,
    /// Of a release.
    pub release_ns: f64,
}

/// Counts per acquire+release cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PerCycle {
    /// READs, polling included.
    pub reads: f64,
    /// WRITEs.
    pub writes: f64,
    /// Compare-and-swaps.
    pub cas: f64,
    /// Fetch-and-adds.
    pub fetch_adds: f64,
    /// CAS and FAA together, as ShiftLock Fig. 6 counts them.
    pub atomics: f64,
    /// Messages sent.
    pub messages: f64,
    /// Round trips.
    pub round_trips: f64,
    /// Payload bytes.
    pub bytes: f64,
}
