//! A rack as in FissLock's testbed (§7.1): eight nodes around a switch, clients that run transactions on them, and a lock
//! manager wherever its protocol has one.
//!
//! | protocol | lock manager | clients |
//! |---|---|---|
//! | FissLock | the switch; library and agents on every node, 10 + 1 cores | on all nodes |
//! | ParLock | one core of every node | on all nodes |
//! | SrvLock, NetLock | 8 cores of node 0 (and the switch) | on the other seven |
//! | one-sided locks | memory of node 0 | at home nowhere |
//!
//! Network and cores are [FissLock's testbed](crate::testbeds::fisslock), unless a run has another network. Clients are
//! coroutines of application cores, two or more on each: a core works on one of them at a time.

use crate::context::{LabError, side_by_side};
use crate::testbeds::fisslock::{self, APPLICATION_CORES, MACHINES, REQUEST_NS, RESUME_NS};
use crate::workload::{Stream, Txn, Workload};
use lockwright_baselines::{
    cas_backoff::CasBackoff, dslr::Dslr, mcs::Mcs, netlock::NetLock, parlock::ParLock, rma_rw::RmaRw,
    srvlock::SrvLock,
};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Endpoint, NodeId, Time};
use lockwright_locks::{
    Grant, LockClient, Patience, Protocol, Space, fisslock::FissLock, shiftlock::ShiftLock,
};
use lockwright_proofs::subject::Tunable;
use lockwright_sim::case::Checks;
use lockwright_sim::fault::FaultPlan;
use lockwright_sim::{Cause, NicModel, ServerThreads, Setup, SimEndpoint, Simulation};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// After this a transaction gives up what it waits for and lets go of what it has (§7.1).
const ABORT_NS: u64 = 10_000_000;

/// One simulation.
#[derive(Clone, Debug)]
pub(crate) struct RackRun {
    /// The protocol's name, one of those in [`simulate`].
    pub(crate) protocol: &'static str,
    pub(crate) tunables: Vec<Tunable>,
    pub(crate) workload: Workload,
    pub(crate) clients: usize,
    /// Virtual time that is not counted, and then is.
    pub(crate) warmup_ns: u64,
    pub(crate) duration_ns: u64,
    /// If set, grants are counted by slices of time, from the beginning.
    pub(crate) slice_ns: Option<u64>,
    pub(crate) faults: FaultPlan,
    /// Locks of a transaction are taken in the order of their ids, so that no client has to give up: for protocols that cannot.
    pub(crate) in_order: bool,
    /// What every transaction works, at least.
    pub(crate) work_ns: u64,
    pub(crate) nic: NicModel,
    pub(crate) seed: u64,
}

impl RackRun {
    /// `workload` with 160 clients, for a time in which every client has done something hundreds of times.
    pub(crate) fn new(protocol: &'static str, workload: Workload) -> Self {
        Self {
            protocol,
            tunables: Vec::new(),
            workload,
            clients: 160,
            warmup_ns: 1_000_000,
            duration_ns: 10_000_000,
            slice_ns: None,
            faults: FaultPlan::default(),
            in_order: false,
            work_ns: 0,
            nic: fisslock::nic(),
            seed: 1,
        }
    }
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RackReport {
    pub(crate) protocol: String,
    /// Nanoseconds of every acquire, sorted.
    pub(crate) acquire_ns: Vec<u64>,
    /// Nanoseconds of every transaction, by type, sorted.
    pub(crate) txn_ns: BTreeMap<&'static str, Vec<u64>>,
    pub(crate) aborts: u64,
    /// Requests by eighths of the lock ids.
    pub(crate) eighths: [u64; MACHINES],
    /// Grants per slice.
    pub(crate) slices: Vec<u64>,
    pub(crate) duration_ns: u64,
    pub(crate) messages_per_acquire: f64,
    pub(crate) lost_packets: u64,
}

impl RackReport {
    /// Grants per second, in millions.
    pub(crate) fn mrps(&self) -> f64 {
        self.acquire_ns.len() as f64 * 1e3 / self.duration_ns as f64
    }

    /// Transactions per second, in millions.
    pub(crate) fn mtps(&self) -> f64 {
        self.txn_ns.values().map(Vec::len).sum::<usize>() as f64 * 1e3 / self.duration_ns as f64
    }

    /// A quantile of the acquires, in microseconds.
    pub(crate) fn grant_us(&self, quantile: f64) -> f64 {
        quantile_us(&self.acquire_ns, quantile)
    }

    /// Percent of the requests that the busiest eighth of the locks takes.
    pub(crate) fn busiest_percent(&self) -> f64 {
        let all: u64 = self.eighths.iter().sum();
        100.0 * self.eighths.iter().copied().max().unwrap_or(0) as f64 / all.max(1) as f64
    }
}

/// A quantile of sorted nanoseconds, in microseconds.
pub(crate) fn quantile_us(sorted: &[u64], quantile: f64) -> f64 {
    let at = ((sorted.len() as f64 * quantile) as usize).min(sorted.len().wrapping_sub(1));
    sorted.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}

/// Simulates all `runs`, on `threads` threads, and returns what came out in the same order.
///
/// # Errors
/// The first run, in order, that failed.
pub(crate) fn simulate_all(runs: &[RackRun], threads: usize) -> Result<Vec<RackReport>, LabError> {
    side_by_side(threads, runs.len(), |index| simulate(&runs[index])).into_iter().collect()
}

/// Simulates `run`.
///
/// # Errors
/// If no rack runs that protocol, a checker objects, or clients get stuck.
pub(crate) fn simulate(run: &RackRun) -> Result<RackReport, LabError> {
    let outcome = match run.protocol {
        "fisslock" => once::<FissLock>(run),
        "netlock" => once::<NetLock>(run),
        "srvlock" => once::<SrvLock>(run),
        "parlock" => once::<ParLock>(run),
        "shiftlock" => once::<ShiftLock>(run),
        "cas-backoff" => once::<CasBackoff>(run),
        "dslr" => once::<Dslr>(run),
        "mcs" => once::<Mcs>(run),
        "rma-rw" => once::<RmaRw>(run),
        other => return Err(LabError::UnknownProtocol(other.to_owned())),
    };
    outcome.map_err(|cause| {
        LabError::failed(
            format!("{} with {} clients", run.protocol, run.clients),
            run.protocol,
            cause,
            run.seed,
        )
    })
}

/// Where things are, for one kind of lock manager.
struct Layout {
    nodes: u16,
    /// The threads of each role on a node, group by group.
    threads: &'static [ServerThreads],
    /// The node of a client, if it is at home on one.
    home: fn(usize) -> Option<usize>,
}

fn layout(protocol: &str) -> Layout {
    let all = |client| Some(client % MACHINES);
    let rest = |client| Some(1 + client % (MACHINES - 1));
    let nodes = MACHINES as u16;
    match protocol {
        "fisslock" => Layout { nodes, threads: &fisslock::FISSION, home: all },
        "parlock" => Layout { nodes, threads: &fisslock::MANAGER, home: all },
        "srvlock" | "netlock" => Layout { nodes, threads: &fisslock::SERVER, home: rest },
        _ => Layout { nodes: 1, threads: &fisslock::SERVER, home: |_| None },
    }
}

fn once<P: Protocol>(run: &RackRun) -> Result<RackReport, Cause> {
    let mut params = P::Params::default();
    for (name, value) in &run.tunables {
        assert!(P::tune(&mut params, name, *value), "{} has no {name} to be {value}", P::INFO.name);
    }
    let layout = layout(run.protocol);
    let space = Space::of(run.workload.locks()).over(layout.nodes);
    let setup = Setup {
        seed: run.seed,
        clients: run.clients,
        nic: run.nic.clone(),
        faults: run.faults.clone(),
        checks: Checks {
            finish: true,
            quiet: false,
            tokens: P::INFO.offers.tokens,
            permits: false,
            bypass: None,
        },
        recovers: P::INFO.offers.recovery,
        ..Setup::default()
    };
    let mut simulation = Simulation::<P>::new(space, &params, setup, Some(layout.threads));
    let mut placed = [0; MACHINES];
    let cores: Vec<_> = (0..MACHINES * APPLICATION_CORES).map(|_| Core::default()).collect();
    let tally = Rc::new(RefCell::new(Tally::default()));
    for index in 0..run.clients {
        let home = (layout.home)(index);
        let machine = home.unwrap_or(index % MACHINES);
        let stream = run.workload.stream(run.seed, index, machine, MACHINES);
        let worker = Worker {
            stream,
            locks: run.workload.locks(),
            gives_up: P::INFO.offers.timeouts && !run.in_order,
            in_order: run.in_order,
            work_ns: run.work_ns,
            counts_ns: (run.warmup_ns, run.warmup_ns + run.duration_ns),
            slice_ns: run.slice_ns,
            core: home.map(|node| {
                placed[node] += 1;
                cores[node * APPLICATION_CORES + placed[node] % APPLICATION_CORES].clone()
            }),
            tally: Rc::clone(&tally),
        };
        simulation.spawn(home.map(|node| NodeId(node as u16)), |ep, space, params| {
            let client = P::client(ep.clone(), space, params);
            worker.run(ep, client)
        });
    }
    simulation.run(run.warmup_ns + 10 * run.duration_ns + 1_000_000_000)?;
    let counters = simulation.world.counters();
    let mut tally = tally.borrow_mut();
    let mut report = std::mem::take(&mut tally.report);
    report.acquire_ns.sort_unstable();
    report.txn_ns.values_mut().for_each(|ns| ns.sort_unstable());
    run.protocol.clone_into(&mut report.protocol);
    report.duration_ns = run.duration_ns;
    report.messages_per_acquire = counters.messages as f64 / tally.acquires.max(1) as f64;
    report.lost_packets = counters.lost;
    Ok(report)
}

/// What all clients of a run share.
#[derive(Debug, Default)]
struct Tally {
    report: RackReport,
    acquires: u64,
}

/// An application's core: it works on one of its coroutines at a time, first come, first served.
#[derive(Clone, Debug, Default)]
struct Core {
    free_ns: Rc<Cell<u64>>,
}

impl Core {
    /// A coroutine has something to do on it.
    async fn work(&self, ep: &SimEndpoint, ns: u64) {
        let now_ns = ep.true_now_ns();
        let done_ns = now_ns.max(self.free_ns.get()) + ns;
        self.free_ns.set(done_ns);
        ep.sleep(done_ns - now_ns).await;
    }
}

struct Worker {
    /// The application's core, for clients that are coroutines.
    core: Option<Core>,
    stream: Stream,
    locks: u64,
    gives_up: bool,
    in_order: bool,
    work_ns: u64,
    counts_ns: (u64, u64),
    slice_ns: Option<u64>,
    tally: Rc<RefCell<Tally>>,
}

impl Worker {
    async fn run<C: LockClient>(mut self, ep: SimEndpoint, client: C) {
        while ep.true_now_ns() < self.counts_ns.1 {
            let mut txn = self.stream.next(ep.true_now_ns());
            txn.work_ns = txn.work_ns.max(self.work_ns);
            if self.in_order {
                txn.wants.sort_unstable_by_key(|want| want.claim.lock);
            }
            let began_ns = ep.true_now_ns();
            if self.transact(&ep, &client, &txn).await {
                self.done(txn.kind, began_ns, ep.true_now_ns());
            }
            ep.spend(50);
        }
    }

    /// Two-phase locking. False if it was aborted.
    async fn transact<C: LockClient>(&self, ep: &SimEndpoint, client: &C, txn: &Txn) -> bool {
        let aborts_at = Time(ep.true_now_ns() + ABORT_NS);
        let mut held = Vec::with_capacity(txn.wants.len());
        for want in &txn.wants {
            // A client that waits for one lock only cannot be in a circle.
            let patience = if self.gives_up && txn.wants.len() > 1 {
                Patience::Until(aborts_at)
            } else {
                Patience::Forever
            };
            self.application(ep, REQUEST_NS).await;
            let wanted_ns = ep.true_now_ns();
            ep.observe(Observation::Waiting(want.claim));
            let Ok(grant) = client.acquire(want.with(patience)).await else {
                ep.observe(Observation::GaveUp(want.claim));
                break;
            };
            ep.observe(Observation::Granted(want.claim, grant.token()));
            self.application(ep, RESUME_NS).await;
            self.granted(want.claim.lock, wanted_ns, ep.true_now_ns());
            held.push((want.claim, grant));
        }
        let complete = held.len() == txn.wants.len();
        if complete && txn.work_ns > 0 {
            match &self.core {
                Some(core) => core.work(ep, txn.work_ns).await,
                None => ep.sleep(txn.work_ns).await,
            }
        }
        for (claim, grant) in held.into_iter().rev() {
            ep.observe(Observation::Releasing(claim));
            if client.release(grant).await.is_err() {
                ep.observe(Observation::Lost(claim));
            }
        }
        if !complete {
            self.tally.borrow_mut().report.aborts += 1;
        }
        complete
    }

    async fn application(&self, ep: &SimEndpoint, ns: u64) {
        if let Some(core) = &self.core {
            core.work(ep, ns).await;
        }
    }

    fn counts(&self, now_ns: u64) -> bool {
        (self.counts_ns.0..self.counts_ns.1).contains(&now_ns)
    }

    fn granted(&self, lock: u64, wanted_ns: u64, now_ns: u64) {
        let mut tally = self.tally.borrow_mut();
        tally.acquires += 1;
        if let Some(slice_ns) = self.slice_ns {
            let slice = (now_ns / slice_ns) as usize;
            let slices = &mut tally.report.slices;
            slices.resize(slices.len().max(slice + 1), 0);
            slices[slice] += 1;
        }
        if self.counts(now_ns) {
            tally.report.acquire_ns.push(now_ns - wanted_ns);
            let eighth = lock * MACHINES as u64 / self.locks;
            tally.report.eighths[eighth as usize] += 1;
        }
    }

    fn done(&self, kind: &'static str, began_ns: u64, now_ns: u64) {
        if self.counts(now_ns) {
            self.tally.borrow_mut().report.txn_ns.entry(kind).or_default().push(now_ns - began_ns);
        }
    }
}
