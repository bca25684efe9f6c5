//! A run with two sides: locks on one node, clients at home there, and clients each at home on a node of its own.
//!
//! [`lockwright_sim::run`] knows clients that are at home on a node and clients that are at home nowhere. Here the
//! remote ones have memory of their own, as in the asymmetric lock's paper, and everything is counted by side: grants,
//! latencies, and what every single acquire and release cost the network.

use crate::context::LabError;
use crate::rack::quantile_us;
use crate::testbeds;
use lockwright_fabric::count::{Counted, Counts};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{AtomicScope, Capabilities, Endpoint, NodeId};
use lockwright_locks::{LockClient, Protocol, Space, Want};
use lockwright_sim::case::Checks;
use lockwright_sim::{NicModel, Setup, SimEndpoint, Simulation};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Where the locks are.
const LOCK_NODE: NodeId = NodeId(0);

/// One simulation: who takes part, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SidesRun {
    /// Clients on the locks' own node.
    pub(crate) locals: usize,
    /// Clients elsewhere, each on a node of its own.
    pub(crate) remotes: usize,
    /// Local clients go through their own NIC, as remote ones do.
    pub(crate) loopback: bool,
    /// Locks, chosen uniformly.
    pub(crate) locks: u64,
    /// Nanoseconds that a local and a remote client hold a lock.
    pub(crate) hold_ns: [u64; 2],
    /// Nanoseconds between a release and the next acquire.
    pub(crate) think_ns: u64,
    /// Virtual nanoseconds after which no client starts another cycle.
    pub(crate) until_ns: u64,
    /// Everything random comes from here.
    pub(crate) seed: u64,
}

/// What happened on one side.
#[derive(Clone, Debug, Default)]
pub(crate) struct SideReport {
    /// Nanoseconds of every acquire, sorted.
    pub(crate) acquire_ns: Vec<u64>,
    /// How often an acquire cost what.
    pub(crate) acquires: BTreeMap<Cost, u64>,
    /// How often a release cost what.
    pub(crate) releases: BTreeMap<Cost, u64>,
}

/// What one acquire or release sent over the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    pub(crate) cas: u64,
    pub(crate) writes: u64,
    pub(crate) reads: u64,
    pub(crate) messages: u64,
    pub(crate) round_trips: u64,
}

impl From<Counts> for Cost {
    fn from(counts: Counts) -> Self {
        let Counts { cas, fetch_adds, writes, reads, sent, round_trips, .. } = counts;
        Self { cas: cas + fetch_adds, writes, reads, messages: sent, round_trips }
    }
}

impl SideReport {
    pub(crate) fn grants(&self) -> u64 {
        self.acquire_ns.len() as u64
    }

    /// A quantile of the acquire's latency in microseconds; not a number if there was none.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        quantile_us(&self.acquire_ns, quantile)
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) struct SidesReport {
    pub(crate) local: SideReport,
    pub(crate) remote: SideReport,
    /// The most conflicting grants that overtook one waiting client.
    pub(crate) longest_bypass: u32,
    /// Virtual nanoseconds.
    pub(crate) ns: u64,
}

impl SidesReport {
    /// Grants of both sides, in thousands per second.
    pub(crate) fn kops(&self) -> f64 {
        (self.local.grants() + self.remote.grants()) as f64 * 1e6 / self.ns as f64
    }

    /// Both sides as one.
    pub(crate) fn together(&self) -> SideReport {
        let mut all = self.local.clone();
        all.acquire_ns.extend(&self.remote.acquire_ns);
        all.acquire_ns.sort_unstable();
        all
    }
}

/// Simulates `run` with `P`. CPU and NIC atomics do not exclude each other there, unless all clients use the NIC.
///
/// # Errors
/// What a checker objects to, or that clients never finished.
pub(crate) fn simulate_sides<P: Protocol>(
    run: &SidesRun,
    params: &P::Params,
) -> Result<SidesReport, LabError> {
    let fail =
        |cause| LabError::failed(format!("{} on {run:?}", P::INFO.name), P::INFO.name, cause, run.seed);
    let scope = if run.loopback { AtomicScope::Global } else { AtomicScope::Nic };
    let nic = NicModel { offers: Capabilities { scope, ..Capabilities::CPU }, ..testbeds::qplock::nic() };
    P::needs(params).met_by(P::INFO.name, nic.offers).map_err(|mismatch| fail(mismatch.into()))?;
    // Locks go round robin over the nodes; those that the number of nodes divides are here.
    let nodes = 1 + run.remotes as u16;
    let space = Space::of(u64::from(nodes) * run.locks).over(nodes);
    let setup = Setup {
        seed: run.seed,
        clients: run.locals + run.remotes,
        nic,
        checks: Checks {
            finish: true,
            quiet: true,
            tokens: P::INFO.offers.tokens,
            permits: false,
            bypass: None,
        },
        ..Setup::default()
    };
    let mut simulation = Simulation::<P>::new(space, params, setup, None);
    let sides = [Rc::default(), Rc::default()];
    for index in 0..run.locals + run.remotes {
        let (home, place) = match index.checked_sub(run.locals) {
            None => (LOCK_NODE, 0),
            Some(remote) => (NodeId(1 + remote as u16), 1),
        };
        let (side, hold_ns) = (&sides[place], run.hold_ns[place]);
        let home = (!run.loopback).then_some(home);
        let (run, side) = (*run, Rc::clone(side));
        simulation.spawn(home, |ep, space, params| {
            let counted = Counted::new(ep.clone());
            let client = P::client(counted.clone(), space, params);
            work(ep, counted, client, run, hold_ns, side)
        });
    }
    simulation.run(run.until_ns * 20).map_err(fail)?;
    let (ns, longest_bypass) = (simulation.world.now_ns(), simulation.world.longest_bypass());
    drop(simulation);
    let [local, remote] = sides.map(|side| {
        let mut side: SideReport = side.take();
        side.acquire_ns.sort_unstable();
        side
    });
    Ok(SidesReport { local, remote, longest_bypass, ns })
}

async fn work<C: LockClient>(
    ep: SimEndpoint,
    counted: Counted<SimEndpoint>,
    client: C,
    run: SidesRun,
    hold_ns: u64,
    side: Rc<RefCell<SideReport>>,
) {
    while ep.true_now_ns() < run.until_ns {
        let want = Want::exclusive((1 + run.remotes as u64) * (ep.random() % run.locks));
        let (before, wanted_ns) = (counted.tally().snapshot(), ep.true_now_ns());
        ep.observe(Observation::Waiting(want.claim));
        let grant = client.acquire(want).await.expect("a node is never lost here");
        let (between, granted_ns) = (counted.tally().snapshot(), ep.true_now_ns());
        ep.observe(Observation::Granted(want.claim, lockwright_locks::Grant::token(&grant)));
        if hold_ns > 0 {
            ep.sleep(hold_ns).await;
        }
        ep.observe(Observation::Releasing(want.claim));
        client.release(grant).await.expect("a node is never lost here");
        let after = counted.tally().snapshot();
        let mut side = side.borrow_mut();
        side.acquire_ns.push(granted_ns - wanted_ns);
        *side.acquires.entry((between - before).into()).or_default() += 1;
        *side.releases.entry((after - between).into()).or_default() += 1;
        drop(side);
        ep.spend(run.think_ns);
    }
}
