//! The simulated world: virtual time, memory nodes behind NICs, clients, roles, faults, and the checkers.
//!
//! One thread, one queue of events ordered by (time, number), and no wakers: the same [`Setup`] gives the same
//! run, event for event. [`run`](crate::run()) builds its workload on it; other harnesses can too.

mod core;
mod endpoint;
mod faults;
mod interest;
mod overtaken;
mod stats;
mod trace;
mod watcher;

pub use endpoint::SimEndpoint;
pub use stats::Counters;

use self::core::{Core, LOOK_EVERY, Stop};
use crate::case::Checks;
use crate::check::Violation;
use crate::fault::FaultPlan;
use crate::memory::Memory;
use crate::nic::NicModel;
use crate::rng::Rng;
use crate::server::ServerThreads;
use lockwright_fabric::{Addr, BoxedRole, NodeId, PeerId, Width};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Everything random comes from here.
    pub seed: u64,
    /// How many clients the network should be slowed down by; normally as many as are spawned.
    pub clients: usize,
    /// Memory nodes.
    pub nodes: u16,
    /// Bytes of lock memory on each.
    pub bytes_per_node: u64,
    /// Bytes behind them for what the locks protect.
    pub data_bytes: u64,
    /// The network.
    pub nic: NicModel,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// What is checked besides mutual exclusion (`tokens` and `bypass`; the rest is the harness's).
    pub checks: Checks,
    /// Whether the protocol can recover from crashed clients.
    pub recovers: bool,
    /// Whether to keep a timeline. Slow: for repeating a run that failed.
    pub trace: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seed: 1,
            clients: 1,
            nodes: 1,
            bytes_per_node: 4096,
            data_bytes: 0,
            nic: NicModel::default(),
            faults: FaultPlan::default(),
            checks: Checks { finish: true, quiet: true, tokens: false, permits: false, bypass: None },
            recovers: false,
            trace: false,
        }
    }
}

/// How a stretch of virtual time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every client that did not crash has come to its end.
    AllDone,
    /// Nothing is under way any more, but some client has not come to its end.
    Stuck,
    /// The time is up.
    TimeUp,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Virtual time.
    pub virtual_ns: u64,
    /// Events so far.
    pub events: u64,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;
type ProgressFn<'a> = Box<dyn FnMut(Progress) + 'a>;

/// A checker objected; the core knows what it said.
struct Violated;

/// A simulated world.
///
/// ```
/// use lockwright_fabric::{Addr, Endpoint, NodeId, Width, Word64};
/// use lockwright_sim::{Ended, Setup, World};
///
/// let mut world = World::new(Setup { clients: 2, ..Setup::default() });
/// let word = Word64::at(Addr::new(NodeId(0), 0));
/// for _ in 0..2 {
///     world.spawn(None, move |ep| async move {
///         ep.go(word.fetch_add(1)).await.unwrap();
///     });
/// }
/// assert_eq!(world.run(1_000_000).unwrap(), Ended::AllDone);
/// assert_eq!(world.read(word.addr(), Width::W64), 2);
/// assert!(world.now_ns() < 4_000); // a round trip, and clients do not begin at the same moment
/// ```
pub struct World<'a> {
    core: Rc<RefCell<Core>>,
    tasks: Vec<Option<Task>>,
    running: usize,
    seed: u64,
    progress: Option<ProgressFn<'a>>,
}

impl std::fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now_ns", &self.now_ns()).field("running", &self.running).finish()
    }
}

impl<'a> World<'a> {
    /// An empty world at time zero.
    pub fn new(setup: Setup) -> Self {
        let faults = faults::Faults::new(setup.faults, setup.seed);
        let clients_fail = faults.client_faults || !faults.plan.node_deaths.is_empty();
        let watcher = watcher::Watcher::new(setup.checks, setup.recovers, clients_fail);
        let memory = Memory::new(setup.nodes, setup.bytes_per_node + setup.data_bytes);
        let trace = setup.trace.then(trace::Trace::default);
        let core = Core::new(memory, setup.nic, setup.clients, setup.seed, faults, watcher, trace);
        Self {
            core: Rc::new(RefCell::new(core)),
            tasks: Vec::new(),
            running: 0,
            seed: setup.seed,
            progress: None,
        }
    }

    /// Calls `progress` every few hundred thousand events.
    pub fn on_progress(&mut self, progress: impl FnMut(Progress) + 'a) {
        self.progress = Some(Box::new(progress));
    }

    /// Adds a client that runs what `body` returns; at home on a node that owns memory, or nowhere.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        &mut self,
        home: Option<NodeId>,
        body: impl FnOnce(SimEndpoint) -> F,
    ) -> PeerId {
        let rng = Rng::new(self.seed, 1_000 + self.tasks.len() as u64);
        let index = self.core.borrow_mut().add_client(home, rng);
        let task = Box::pin(body(SimEndpoint::new(Rc::clone(&self.core), index, home)));
        self.tasks.push(Some(task));
        self.running += 1;
        self.core.borrow_mut().start(index);
        PeerId::client(index as usize)
    }

    /// Adds a role on `node`, with as many threads and as much work per message as the model says.
    pub fn install_role(&mut self, node: NodeId, role: BoxedRole) -> PeerId {
        let threads = self.core.borrow().model.server;
        self.install_role_on(node, role, &[threads])
    }

    /// Adds a role on `node` with groups of threads. A role that has several groups says to which of them a message goes.
    pub fn install_role_on(&mut self, node: NodeId, role: BoxedRole, groups: &[ServerThreads]) -> PeerId {
        self.core.borrow_mut().add_role(Some(node), role, groups)
    }

    /// Adds a role in the network: a switch, half the way from every node, that takes no time for a packet.
    pub fn install_switch(&mut self, role: BoxedRole) -> PeerId {
        let line_rate = ServerThreads { service_ns: 0, ..ServerThreads::default() };
        self.core.borrow_mut().add_role(None, role, &[line_rate])
    }

    /// Adds the server side of a protocol: role `i` on node `i`, but for its `switches` last ones. Those on nodes have these
    /// `groups` of threads, or what the network model says.
    pub fn install_roles(
        &mut self,
        roles: Vec<BoxedRole>,
        switches: usize,
        groups: Option<&[ServerThreads]>,
    ) {
        let on_nodes = roles.len() - switches;
        for (index, role) in roles.into_iter().enumerate() {
            let node = NodeId(index as u16);
            match groups {
                _ if index >= on_nodes => self.install_switch(role),
                None => self.install_role(node, role),
                Some(groups) => self.install_role_on(node, role, groups),
            };
        }
    }

    /// Runs until every client is done or crashed, nothing is under way, or virtual time `until_ns`.
    ///
    /// # Errors
    /// What a checker objects to, at once.
    pub fn run(&mut self, until_ns: u64) -> Result<Ended, Violation> {
        loop {
            if self.running == 0 {
                return Ok(Ended::AllDone);
            }
            match self.step(until_ns) {
                Ok(None) => {}
                Ok(Some(ended)) => return Ok(ended),
                Err(Violated) => return Err(self.objection()),
            }
        }
    }

    /// Runs on until nothing is under way any more, or virtual time `until_ns`: also when all clients are done.
    ///
    /// # Errors
    /// What a checker objects to, at once.
    pub fn drain(&mut self, until_ns: u64) -> Result<Ended, Violation> {
        loop {
            match self.step(until_ns) {
                Ok(None) => {}
                Ok(Some(Ended::Stuck)) if self.running == 0 => return Ok(Ended::AllDone),
                Ok(Some(ended)) => return Ok(ended),
                Err(Violated) => return Err(self.objection()),
            }
        }
    }

    /// The end of the run: lets the checkers say what they can only say now.
    ///
    /// # Errors
    /// What a checker objects to.
    pub fn finish(&mut self) -> Result<(), Violation> {
        let mut core = self.core.borrow_mut();
        let has_roles = core.has_roles();
        core.watcher.at_end(has_roles);
        core.watcher.objection.as_ref().map_or(Ok(()), |objection| Err(objection.violation.clone()))
    }

    fn objection(&self) -> Violation {
        let core = self.core.borrow();
        core.watcher.objection.as_ref().expect("a checker objected").violation.clone()
    }

    /// Lets things happen up to the next turn of a client, or up to something that has to be looked at.
    #[inline]
    fn step(&mut self, until_ns: u64) -> Result<Option<Ended>, Violated> {
        let stop = self.core.borrow_mut().advance(until_ns);
        match stop {
            Stop::Ready(client) => self.poll(client),
            Stop::Look => {}
            Stop::Later => return Ok(Some(Ended::TimeUp)),
            Stop::Nothing => return Ok(Some(Ended::Stuck)),
        }
        if self.core.borrow().needs_attention() { self.look() } else { Ok(None) }
    }

    #[cold]
    fn look(&mut self) -> Result<Option<Ended>, Violated> {
        let (virtual_ns, events, taken) = {
            let mut core = self.core.borrow_mut();
            (core.now_ns, core.events, std::mem::take(&mut core.taken))
        };
        if events.is_multiple_of(LOOK_EVERY)
            && let Some(progress) = &mut self.progress
        {
            progress(Progress { virtual_ns, events });
        }
        if !taken.is_empty() {
            taken.into_iter().for_each(|client| self.end(client));
            return Ok(None);
        }
        if self.core.borrow().watcher.objection.is_some() { Err(Violated) } else { Ok(None) }
    }

    #[inline]
    fn poll(&mut self, client: u32) {
        let Some(task) = &mut self.tasks[client as usize] else { return };
        let done = task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let crashed = {
            let mut core = self.core.borrow_mut();
            let state = &mut core.clients[client as usize];
            state.done = done;
            state.crashed
        };
        if done || crashed {
            self.end(client);
        }
    }

    /// Drops a client's future: whatever it has in flight still takes effect.
    fn end(&mut self, client: u32) {
        if self.tasks[client as usize].take().is_some() {
            self.running -= 1;
        }
    }

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.core.borrow().now_ns
    }

    /// The word at `addr` as it is now; a 64-bit one in the low bits.
    pub fn read(&self, addr: Addr, width: Width) -> u128 {
        self.core.borrow().memory.read(addr, width)
    }

    /// Sets a word without a verb, unnoticed by all clients: to prepare a run.
    pub fn write(&mut self, addr: Addr, width: Width, value: u128) {
        self.core.borrow_mut().memory.write(addr, width, value);
    }

    /// Looks at all memory, or adds regions to it.
    pub fn with_memory<T>(&mut self, look: impl FnOnce(&mut Memory) -> T) -> T {
        look(&mut self.core.borrow_mut().memory)
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.core.borrow().counters.clone()
    }

    /// The most conflicting grants that overtook one waiting client.
    pub fn longest_bypass(&self) -> u32 {
        self.core.borrow().watcher.longest_bypass()
    }

    /// What every role knows, to find out why clients are stuck.
    pub fn role_states(&self) -> Vec<String> {
        self.core.borrow().role_states()
    }

    /// Clients that have neither come to their end nor crashed.
    pub fn unfinished(&self) -> Vec<PeerId> {
        let unfinished = self.tasks.iter().enumerate().filter(|(_, task)| task.is_some());
        unfinished.map(|(index, _)| PeerId::client(index)).collect()
    }

    /// The timeline around an objection, or around the clients that are stuck, and of `word`; empty without a
    /// trace.
    pub fn timeline(&self, word: Option<Addr>) -> String {
        let core = self.core.borrow();
        let Some(trace) = &core.trace else { return String::new() };
        match &core.watcher.objection {
            Some(objection) => trace.render(&objection.clients, word),
            None => {
                let unfinished: Vec<_> = self.unfinished().iter().map(|peer| peer.index().0 as u32).collect();
                trace.render(&unfinished, word)
            }
        }
    }
}
