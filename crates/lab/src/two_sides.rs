//! A stage with two sides: locks on one node, clients at home there, and clients each at home on a node of its own.
//!
//! [`lockwright_sim::run`] knows clients that are at home on a node and clients that are at home nowhere. Here the
//! remote ones have memory of their own, as in the asymmetric lock's paper, and everything is counted by side: grants,
//! latencies, and what every single acquire and release cost the network.

use crate::context::LabError;
use lockwright_fabric::count::{Counted, Counts};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{AtomicScope, Capabilities, Endpoint, NodeId, Width};
use lockwright_locks::{LockClient, Protocol, Space, Want};
use lockwright_sim::case::Checks;
use lockwright_sim::{Cause, Ended, Failure, NicModel, Setup, SimEndpoint, World};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Where the locks are.
const HERE: NodeId = NodeId(0);

/// Who plays, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage {
    /// Clients on the locks' own node.
    pub(crate) locals: usize,
    /// Clients elsewhere, each on a node of its own.
    pub(crate) remotes: usize,
    /// Local clients go through their own NIC like everybody else.
    pub(crate) loopback: bool,
    /// Locks, chosen uniformly.
    pub(crate) locks: u64,
    /// Nanoseconds between a release and the next acquire.
    pub(crate) think_ns: u64,
    /// Virtual nanoseconds after which nobody starts another cycle.
    pub(crate) until_ns: u64,
    /// Everything random comes from here.
    pub(crate) seed: u64,
}

/// What happened on one side.
#[derive(Clone, Debug, Default)]
pub(crate) struct SideOutcome {
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

impl SideOutcome {
    pub(crate) fn grants(&self) -> u64 {
        self.acquire_ns.len() as u64
    }

    /// A quantile of the acquire's latency in microseconds; not a number if there was none.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        let last = self.acquire_ns.len().wrapping_sub(1);
        let at = (self.acquire_ns.len() as f64 * quantile) as usize;
        self.acquire_ns.get(at.min(last)).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) local: SideOutcome,
    pub(crate) remote: SideOutcome,
    /// The most conflicting grants that overtook one waiting client.
    pub(crate) longest_bypass: u32,
    /// Virtual nanoseconds.
    pub(crate) ns: u64,
}

impl Outcome {
    /// Grants of both sides, in thousands per second.
    pub(crate) fn kops(&self) -> f64 {
        (self.local.grants() + self.remote.grants()) as f64 * 1e6 / self.ns as f64
    }

    /// Both sides as one.
    pub(crate) fn together(&self) -> SideOutcome {
        let mut all = self.local.clone();
        all.acquire_ns.extend(&self.remote.acquire_ns);
        all.acquire_ns.sort_unstable();
        all
    }
}

/// Plays `P` on `stage`. CPU and NIC atomics do not exclude each other there, unless everybody uses the NIC.
///
/// # Errors
/// What a checker objects to, or that clients never finished.
pub(crate) fn play<P: Protocol>(stage: &Stage, params: &P::Params) -> Result<Outcome, LabError> {
    let fail = |cause| LabError::Failed {
        run: format!("{} on {stage:?}", P::INFO.name),
        failure: Box::new(Failure {
            protocol: P::INFO.name,
            cause,
            seed: stage.seed,
            replay: "lockwright-lab lab run".into(),
            timeline: "".into(),
        }),
    };
    let scope = if stage.loopback { AtomicScope::Global } else { AtomicScope::Nic };
    let nic = NicModel { offers: Capabilities { scope, ..Capabilities::CPU }, ..NicModel::default() };
    P::needs(params).met_by(P::INFO.name, nic.offers).map_err(|mismatch| fail(mismatch.into()))?;
    // Locks go round robin over the nodes; those that the number of nodes divides are here.
    let nodes = 1 + stage.remotes as u16;
    let space = Space::of(u64::from(nodes) * stage.locks).over(nodes);
    let mut world = World::new(Setup {
        seed: stage.seed,
        clients: stage.locals + stage.remotes,
        nodes,
        bytes_per_node: P::bytes_per_node(&space, params),
        nic,
        checks: Checks { finish: true, quiet: true, tokens: P::INFO.offers.tokens, bypass: None },
        ..Setup::default()
    });
    for (addr, word) in P::initial_memory(&space, params) {
        world.write(addr, Width::W64, u128::from(word));
    }
    for (index, role) in P::roles(&space, params).into_iter().enumerate() {
        world.install_role(NodeId(index as u16), role);
    }
    let sides = [Rc::default(), Rc::default()];
    for index in 0..stage.locals + stage.remotes {
        let (home, side) = match index.checked_sub(stage.locals) {
            None => (HERE, &sides[0]),
            Some(remote) => (NodeId(1 + remote as u16), &sides[1]),
        };
        let home = (!stage.loopback).then_some(home);
        let (stage, side) = (*stage, Rc::clone(side));
        world.spawn(home, |ep| {
            let counted = Counted::new(ep.clone());
            let client = P::client(counted.clone(), &space, params);
            work(ep, counted, client, stage, side)
        });
    }
    let ended = world.run(stage.until_ns * 20).map_err(|violation| fail(Cause::Violation(violation)))?;
    if ended != Ended::AllDone {
        let moving = ended == Ended::TimeUp;
        return Err(fail(Cause::Stuck { at_ns: world.now_ns(), clients: world.unfinished(), moving }));
    }
    let (ns, longest_bypass) = (world.now_ns(), world.longest_bypass());
    drop(world);
    let [local, remote] = sides.map(|side| {
        let mut side: SideOutcome = side.take();
        side.acquire_ns.sort_unstable();
        side
    });
    Ok(Outcome { local, remote, longest_bypass, ns })
}

async fn work<C: LockClient>(
    ep: SimEndpoint,
    counted: Counted<SimEndpoint>,
    client: C,
    stage: Stage,
    side: Rc<RefCell<SideOutcome>>,
) {
    while ep.true_now_ns() < stage.until_ns {
        let want = Want::exclusive((1 + stage.remotes as u64) * (ep.random() % stage.locks));
        let (before, wanted_ns) = (counted.tally().snapshot(), ep.true_now_ns());
        ep.observe(Observation::Waiting(want.claim));
        let grant = client.acquire(want).await.expect("a node is never lost here");
        let (between, granted_ns) = (counted.tally().snapshot(), ep.true_now_ns());
        ep.observe(Observation::Granted(want.claim, lockwright_locks::Grant::token(&grant)));
        ep.observe(Observation::Releasing(want.claim));
        client.release(grant).await.expect("a node is never lost here");
        let after = counted.tally().snapshot();
        let mut side = side.borrow_mut();
        side.acquire_ns.push(granted_ns - wanted_ns);
        *side.acquires.entry((between - before).into()).or_default() += 1;
        *side.releases.entry((after - between).into()).or_default() += 1;
        drop(side);
        ep.spend(stage.think_ns);
    }
}
