//! What the clients of a run share and what is measured of them: how much is left to do, how long everything took, and the
//! report that comes of it.

use crate::plan::Plan;
use crate::ranges::{Done, Ranges};
use crate::report::{FirstVerb, Kind, Latency, PerCycle, Report};
use crate::world::{Counters, World};
use hdrhistogram::Histogram;
use lockwright_fabric::observe::Mode;
use lockwright_locks::Protocol;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) to_start: u64,
    /// Nothing is started from here on.
    ends_ns: u64,
    warmup_left: u64,
    cycles: u64,
    began_ns: u64,
    ended_ns: u64,
    exclusive: Histogram<u64>,
    shared: Histogram<u64>,
    release: Histogram<u64>,
    /// Acquires by kind of client.
    kinds: Vec<Histogram<u64>>,
    /// What the groups of clients have done, for clients whose turns depend on it.
    pub(crate) done: Done,
    /// The first verb of an acquire, exclusive and shared, and of a release: sums, which are all that is asked for.
    first: [FirstVerbs; 3],
    /// The counters when the warm-up ended.
    pub(crate) before: Option<Counters>,
}

impl Tally {
    pub(crate) fn new(plan: &Plan) -> Self {
        let longest_ns = plan.max_virtual_ns.max(1_000_000);
        let latencies = || Histogram::new_with_bounds(1, longest_ns, 3).expect("bounds are in order");
        Self {
            to_start: if plan.duration_ns.is_some() { u64::MAX } else { plan.ops + plan.warmup_ops },
            ends_ns: plan.duration_ns.unwrap_or(u64::MAX),
            warmup_left: plan.warmup_ops,
            cycles: 0,
            began_ns: 0,
            ended_ns: 0,
            exclusive: latencies(),
            shared: latencies(),
            release: latencies(),
            kinds: plan.ranges.iter().flat_map(Ranges::kinds).map(|_| latencies()).collect(),
            done: Done::default(),
            first: [FirstVerbs::default(); 3],
            before: None,
        }
    }

    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.to_start == 0 || now_ns >= self.ends_ns
    }

    /// A cycle is over. True if the warm-up ended with it.
    pub(crate) fn cycle(&mut self, mode: Mode, kind: usize, times: Times) -> bool {
        let Times { wanted_ns, first_ns, granted_ns, releasing_ns, released_first_ns, released_ns } = times;
        if self.warmup_left > 0 {
            self.warmup_left -= 1;
            self.began_ns = released_ns;
            return self.warmup_left == 0;
        }
        self.cycles += 1;
        self.ended_ns = released_ns;
        let acquire = match mode {
            Mode::Exclusive => &mut self.exclusive,
            Mode::Shared => &mut self.shared,
        };
        acquire.saturating_record(granted_ns - wanted_ns);
        if let Some(kind) = self.kinds.get_mut(kind) {
            kind.saturating_record(granted_ns - wanted_ns);
        }
        self.first[usize::from(mode == Mode::Shared)].add(first_ns - wanted_ns);
        self.first[2].add(released_first_ns - releasing_ns);
        self.release.saturating_record(released_ns - releasing_ns);
        false
    }

    /// What there is to say of the run, from the end of the warm-up on.
    pub(crate) fn report<P: Protocol>(&self, plan: &Plan, world: &World<'_>) -> Report {
        let all = world.counters();
        let before = self.before.clone().unwrap_or_default();
        let cycles = self.cycles.max(1) as f64;
        let per = |now: u64, then: u64| (now - then) as f64 / cycles;
        let cut_ns = plan.duration_ns.filter(|_| plan.cut_off);
        let virtual_ns = cut_ns.unwrap_or(self.ended_ns).saturating_sub(self.began_ns);
        let (cas, fetch_adds) = (per(all.cas, before.cas), per(all.fetch_adds, before.fetch_adds));
        let retries = all.retries - before.retries;
        let mut acquire = self.exclusive.clone();
        acquire.add(&self.shared).expect("both have the same bounds");
        Report {
            protocol: P::INFO.name.to_owned(),
            clients: plan.clients,
            locks: plan.locks,
            seed: plan.seed,
            virtual_ns,
            cycles: self.cycles,
            goodput_per_s: self.cycles as f64 * 1e9 / virtual_ns.max(1) as f64,
            acquire: Latency::of(&acquire),
            acquire_exclusive: Latency::of(&self.exclusive),
            acquire_shared: Latency::of(&self.shared),
            release: Latency::of(&self.release),
            first_verb: FirstVerb {
                exclusive_ns: self.first[0].mean_ns(),
                shared_ns: self.first[1].mean_ns(),
                release_ns: self.first[2].mean_ns(),
            },
            per_cycle: PerCycle {
                reads: per(all.reads, before.reads),
                writes: per(all.writes, before.writes),
                cas,
                fetch_adds,
                atomics: cas + fetch_adds,
                messages: per(all.messages, before.messages),
                round_trips: per(all.round_trips, before.round_trips),
                bytes: per(all.bytes, before.bytes),
            },
            retries,
            retry_percent: if all.cas == before.cas {
                0.0
            } else {
                100.0 * retries as f64 / (all.cas - before.cas) as f64
            },
            aborts: all.aborts - before.aborts,
            denied: all.denied - before.denied,
            recoveries: all.recoveries - before.recoveries,
            lost: all.void_grants - before.void_grants,
            longest_bypass: u64::from(world.longest_bypass()),
            crashed: all.crashes as usize,
            total_verbs: all.verbs(),
            kinds: kinds(plan, self, virtual_ns),
        }
    }
}

/// When the steps of a cycle were over.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) wanted_ns: u64,
    pub(crate) first_ns: u64,
    pub(crate) granted_ns: u64,
    pub(crate) releasing_ns: u64,
    pub(crate) released_first_ns: u64,
    pub(crate) released_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct FirstVerbs {
    count: u64,
    sum_ns: u64,
}

impl FirstVerbs {
    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns += ns;
    }

    fn mean_ns(self) -> f64 {
        self.sum_ns as f64 / self.count.max(1) as f64
    }
}

fn kinds(plan: &Plan, tally: &Tally, virtual_ns: u64) -> Vec<Kind> {
    let names = plan.ranges.iter().flat_map(Ranges::kinds);
    let kind = |(name, acquires): (String, &Histogram<u64>)| Kind {
        name,
        goodput_per_s: acquires.len() as f64 * 1e9 / virtual_ns.max(1) as f64,
        acquire: Latency::of(acquires),
    };
    names.zip(&tally.kinds).map(kind).collect()
}
