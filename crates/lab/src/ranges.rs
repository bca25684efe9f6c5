//! Range locks under load: clients that lock random ranges of one lock, in the two patterns of the combiner thesis
//! (Dezalos, EPFL 2024, §5.2.2 and §5.2.3), for any protocol of the catalog that offers ranges.

use crate::context::LabError;
use lockwright::fabric::observe::{Mode, Observation};
use lockwright::fabric::{Endpoint, NodeId, Width};
use lockwright::locks::case::Checks;
use lockwright::locks::catalog::{self, Mutant, Visitor};
use lockwright::locks::{Grant, LockClient, Protocol, Space, Want};
use lockwright_sim::{Ended, Setup, SimEndpoint, World};
use std::cell::RefCell;
use std::rc::Rc;

/// Units of the lock in all of the thesis's experiments.
pub(crate) const UNITS: u64 = 1 << 16;

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// Ranges between two random units, so many percent of them exclusive (§5.2.2).
    Random {
        /// Percent of exclusive acquires.
        writes_percent: f64,
    },
    /// Filebench's OLTP (§5.2.3): eight data files and a log; readers and writers of 64 units in the data files, one
    /// writer of 2048 units in the log; 100 writes of each writer for 1000 reads, one of the log for 3200.
    Oltp,
}

/// One simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeRun {
    /// The protocol's name in the catalog.
    pub(crate) protocol: &'static str,
    /// Threads of the server, where there is one.
    pub(crate) server_threads: usize,
    pub(crate) clients: usize,
    pub(crate) pattern: Pattern,
    /// Virtual nanoseconds, of which the first tenth is not counted.
    pub(crate) duration_ns: u64,
    pub(crate) seed: u64,
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RangeReport {
    pub(crate) ops_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) messages_per_op: f64,
    pub(crate) verbs_per_op: f64,
}

/// Simulates `run`.
///
/// # Errors
/// If there is no such protocol, a checker objects, or clients get stuck.
pub(crate) fn simulate(run: &RangeRun) -> Result<RangeReport, LabError> {
    let mut one = One { run, outcome: None };
    catalog::visit(&mut one);
    let outcome = one.outcome.ok_or_else(|| LabError::UnknownProtocol(run.protocol.to_owned()))?;
    outcome.map_err(|why| LabError::Ranges {
        run: format!("{} with {} clients", run.protocol, run.clients),
        why,
    })
}

struct One<'a> {
    run: &'a RangeRun,
    outcome: Option<Result<RangeReport, String>>,
}

impl Visitor for One<'_> {
    fn protocol<P: Protocol>(&mut self) {
        if P::INFO.name == self.run.protocol {
            self.outcome = Some(once::<P>(self.run));
        }
    }

    fn mutant<P: Protocol>(&mut self, _: Mutant) {}
}

fn once<P: Protocol>(run: &RangeRun) -> Result<RangeReport, String> {
    let (space, params) = (Space::of(1).units(UNITS), P::Params::default());
    let nic = lockwright_sim::NicModel::default();
    let service_ns = nic.role_service_ns;
    let mut world = World::new(Setup {
        seed: run.seed,
        clients: run.clients,
        nodes: 1,
        bytes_per_node: P::bytes_per_node(&space, &params),
        nic,
        // Tokens of thousands of overlapping ranges are the explorer's and the property tests' to check.
        checks: Checks { finish: true, quiet: false, tokens: false, bypass: None },
        recovers: P::INFO.offers.recovery,
        ..Setup::default()
    });
    for (addr, word) in P::initial_memory(&space, &params) {
        world.write(addr, Width::W64, u128::from(word));
    }
    for role in P::roles(&space, &params) {
        world.install_role_on(NodeId(0), role, service_ns, run.server_threads);
    }
    let tally = Rc::new(RefCell::new(Tally::default()));
    for index in 0..run.clients {
        let worker = Worker::new(run, index, Rc::clone(&tally));
        world.spawn(None, |ep| {
            let client = P::client(ep.clone(), &space, &params);
            worker.run(ep, client)
        });
    }
    match world.run(run.duration_ns * 20) {
        Err(violation) => return Err(violation.to_string()),
        Ok(Ended::AllDone) => {}
        Ok(_) => return Err(format!("clients are stuck at {} ns", world.now_ns())),
    }
    let counters = world.counters();
    let tally = &mut *tally.borrow_mut();
    let all = tally.all_ops.max(1) as f64;
    tally.waits_ns.sort_unstable();
    let at = |share: f64| {
        tally
            .waits_ns
            .get((tally.waits_ns.len() as f64 * share) as usize)
            .map_or(f64::NAN, |ns| *ns as f64 / 1e3)
    };
    Ok(RangeReport {
        ops_per_s: tally.waits_ns.len() as f64 * 1e9 / (run.duration_ns - run.duration_ns / 10) as f64,
        p50_us: at(0.5),
        p99_us: at(0.99),
        messages_per_op: counters.messages as f64 / all,
        verbs_per_op: counters.verbs() as f64 / all,
    })
}

/// What all clients of a run share.
#[derive(Debug, Default)]
struct Tally {
    reads: u64,
    all_ops: u64,
    waits_ns: Vec<u64>,
}

/// What a client is, in the OLTP pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Job {
    Random(f64),
    Reader,
    Writer,
    LogWriter,
}

/// Writers of the OLTP pattern. The thesis counts 39 readers, 9 writers and a log writer among 48 clients, which is one
/// too many; there are 38 readers here.
const WRITERS: usize = 9;
const FILE: u64 = UNITS / 9;

struct Worker {
    job: Job,
    random: u64,
    done: u64,
    ends_ns: u64,
    counts_from_ns: u64,
    tally: Rc<RefCell<Tally>>,
}

impl Worker {
    fn new(run: &RangeRun, index: usize, tally: Rc<RefCell<Tally>>) -> Self {
        let job = match run.pattern {
            Pattern::Random { writes_percent } => Job::Random(writes_percent / 100.0),
            Pattern::Oltp if index == 0 => Job::LogWriter,
            Pattern::Oltp if index <= WRITERS => Job::Writer,
            Pattern::Oltp => Job::Reader,
        };
        let (ends_ns, counts_from_ns) = (run.duration_ns, run.duration_ns / 10);
        let random = run.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (index as u64 + 1) << 32;
        Self { job, random, done: 0, ends_ns, counts_from_ns, tally }
    }

    async fn run<C: LockClient>(mut self, ep: SimEndpoint, client: C) {
        while ep.true_now_ns() < self.ends_ns {
            if !self.is_due() {
                ep.sleep(1_000).await;
                continue;
            }
            let want = self.pick();
            let wanted_ns = ep.true_now_ns();
            ep.observe(Observation::Waiting(want.claim));
            let Ok(grant) = client.acquire(want).await else {
                ep.observe(Observation::GaveUp(want.claim));
                ep.sleep(1_000).await;
                continue;
            };
            let granted_ns = ep.true_now_ns();
            ep.observe(Observation::Granted(want.claim, grant.token()));
            ep.observe(Observation::Releasing(want.claim));
            if client.release(grant).await.is_err() {
                ep.observe(Observation::Lost(want.claim));
            }
            self.done += 1;
            let mut tally = self.tally.borrow_mut();
            tally.all_ops += 1;
            tally.reads += u64::from(self.job == Job::Reader);
            if (self.counts_from_ns..self.ends_ns).contains(&ep.true_now_ns()) {
                tally.waits_ns.push(granted_ns - wanted_ns);
            }
            drop(tally);
            ep.spend(50);
        }
    }

    /// Whether the readers have done enough for another turn of this client.
    fn is_due(&self) -> bool {
        let reads = self.tally.borrow().reads;
        match self.job {
            Job::Random(_) | Job::Reader => true,
            Job::Writer => self.done * 10 <= reads,
            Job::LogWriter => self.done * 3_200 <= reads,
        }
    }

    fn pick(&mut self) -> Want {
        let within = |start: u64, units: u64, mode| Want::range(0, mode, start, start + units);
        match self.job {
            Job::Random(writes) => {
                let (a, b) = (self.below(UNITS), self.below(UNITS));
                let exclusive = (self.below(1 << 20) as f64) < writes * f64::from(1 << 20);
                let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
                within(a.min(b), a.abs_diff(b) + 1, mode)
            }
            Job::Reader => within(self.below(8) * FILE + self.below(FILE - 64), 64, Mode::Shared),
            Job::Writer => within(self.done % 8 * FILE + self.below(FILE - 64), 64, Mode::Exclusive),
            Job::LogWriter => within(8 * FILE + self.below(FILE - 2_048), 2_048, Mode::Exclusive),
        }
    }

    /// SplitMix64, below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
