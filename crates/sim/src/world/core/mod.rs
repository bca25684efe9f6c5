//! What happens, in order: the event queue, the operations in flight, and what each event does.
//!
//! Everything is kept by index and every event has a number, so that the same seed gives the same run. Clients'
//! futures are not in here: [`World`](super::World) polls them, and they reach in through their endpoint.

mod event;
mod event_queue;
mod messages;
mod observations;
mod operation;
mod threads;
mod verbs;

pub(crate) use operation::{BatchBuilder, Polling};

use self::event::EventKind;
use self::event_queue::{EventQueue, Next};
use self::messages::{InFlight, LastArrivals};
use self::observations::{ObservationPool, PendingObservations};
use self::operation::{LocalWait, Operation, RareFields};
use self::threads::RoleState;
use super::faults::{Faults, StepFault};
use super::stats::Counters;
use super::trace::{Trace, TraceEvent};
use super::watcher::Watcher;
use crate::memory::Memory;
use crate::nic::{NicModel, NicQueues};
use crate::rng::Rng;
use crate::server::ServerThreads;
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{BoxedRole, Message, NodeId, PeerId};
use std::collections::VecDeque;

/// The index of an operation in flight.
pub(crate) type OpId = u32;

/// Why the events do not go on by themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    /// Nothing is under way.
    Nothing,
    /// What is under way comes later than was asked for.
    Later,
    /// This client may go on.
    Ready(u32),
    /// The caller has to look at [`Core::taken`], the watcher's objection, or the progress.
    Look,
}

/// Events between two looks at the progress.
pub(crate) const LOOK_EVERY: u64 = 1 << 18;

/// A client as the executor sees it. What every event looks at comes first, in one cache line; the rest is for few.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Client {
    /// Nothing it starts leaves before this.
    pub(crate) busy_until_ns: u64,
    pub(crate) paused_until_ns: u64,
    /// When its first operation since it last began to acquire or release came to its end; zero if none has.
    pub(crate) first_answer_ns: u64,
    pub(crate) steps: u64,
    /// PendingObservations, but not yet in effect.
    pending: PendingObservations,
    /// The operation that last took along what was said, and how many have.
    told_with: OpId,
    told: u32,
    pub(crate) home: Option<NodeId>,
    pub(crate) crashed: bool,
    pub(crate) done: bool,
    /// Things done without time passing since it was last polled.
    pub(crate) instant: u32,
    pub(crate) mailbox: VecDeque<(u64, PeerId, Message)>,
    pub(crate) mail_seq: u64,
    /// What it sent and has not arrived.
    sent: LastArrivals,
    /// Clock drift, parts per billion.
    pub(crate) drift_ppb: i64,
    pub(crate) rng: Rng,
}

/// The state of the simulated world, apart from its clients' futures.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) now_ns: u64,
    /// Events so far.
    pub(crate) events: u64,
    queue: EventQueue,
    ops: Vec<Operation>,
    /// By operation too.
    rare: Vec<RareFields>,
    free_ops: Vec<OpId>,
    observations: ObservationPool,
    flights: Vec<InFlight>,
    free_flights: Vec<u32>,
    /// Roles' timers: role and id.
    timers: Vec<(usize, u64)>,
    free_timers: Vec<u32>,
    pub(crate) clients: Vec<Client>,
    roles: Vec<RoleState>,
    pub(crate) memory: Memory,
    nics: Vec<NicQueues>,
    dead_nodes: Vec<bool>,
    local_waits: Vec<LocalWait>,
    pub(crate) model: NicModel,
    growth_ns: u64,
    message_ns: u64,
    pub(crate) faults: Faults,
    network: Rng,
    pub(crate) watcher: Watcher,
    pub(crate) counters: Counters,
    pub(crate) trace: Option<Trace>,
    /// Clients that a node's death took with it; their futures are still to be dropped.
    pub(crate) taken: Vec<u32>,
}

impl Core {
    pub(crate) fn new(
        memory: Memory,
        model: NicModel,
        clients: usize,
        seed: u64,
        faults: Faults,
        watcher: Watcher,
        trace: Option<Trace>,
    ) -> Self {
        let nodes = memory.nodes() as usize;
        let mut core = Self {
            now_ns: 0,
            events: 0,
            queue: EventQueue::new(),
            ops: Vec::new(),
            rare: Vec::new(),
            free_ops: Vec::new(),
            observations: ObservationPool::new(),
            flights: Vec::new(),
            free_flights: Vec::new(),
            timers: Vec::new(),
            free_timers: Vec::new(),
            clients: Vec::new(),
            roles: Vec::new(),
            memory,
            nics: (0..nodes).map(|_| NicQueues::new(&model)).collect(),
            dead_nodes: vec![false; nodes],
            local_waits: Vec::new(),
            growth_ns: model.growth_ns(clients),
            message_ns: model.message_ns(clients),
            model,
            faults,
            network: Rng::new(seed, 1),
            watcher,
            counters: Counters::default(),
            trace,
            taken: Vec::new(),
        };
        for (node, at_ns) in core.faults.plan.node_deaths.clone() {
            core.push(at_ns, EventKind::NodeDeath(node.0));
        }
        for (role, at_ns) in core.faults.plan.restarts.clone() {
            core.push(at_ns, EventKind::Restart(role as u32));
        }
        core
    }

    pub(crate) fn add_client(&mut self, home: Option<NodeId>, rng: Rng) -> u32 {
        let index = self.clients.len() as u32;
        self.faults.add_client();
        self.clients.push(Client {
            home,
            rng,
            crashed: false,
            done: false,
            busy_until_ns: 0,
            paused_until_ns: 0,
            drift_ppb: self.faults.drift_ppb(),
            mailbox: VecDeque::new(),
            mail_seq: 0,
            sent: LastArrivals::default(),
            steps: 0,
            instant: 0,
            pending: PendingObservations::default(),
            told_with: 0,
            told: 0,
            first_answer_ns: 0,
        });
        index
    }

    /// Lets a new client begin: not at the same moment as all others, or they would march in step.
    pub(crate) fn start(&mut self, client: u32) {
        let shift_ns = self.network.below(self.model.read_rtt_ns + 1);
        self.push(self.now_ns + shift_ns, EventKind::Start(client));
    }

    pub(crate) fn add_role(
        &mut self,
        node: Option<NodeId>,
        role: BoxedRole,
        groups: &[ServerThreads],
    ) -> PeerId {
        self.roles.push(RoleState::new(node, role, groups));
        PeerId::role(self.roles.len() - 1)
    }

    pub(crate) fn role_states(&self) -> Vec<String> {
        self.roles.iter().map(|state| format!("{:?}", state.role)).collect()
    }

    pub(crate) fn has_roles(&self) -> bool {
        !self.roles.is_empty()
    }

    // ---- events ----

    #[inline]
    fn push(&mut self, at_ns: u64, what: EventKind) {
        self.queue.push(at_ns, what);
    }

    /// Lets events happen that are not after `until_ns`, up to one because of which a client may go on or the caller has to
    /// look.
    #[inline]
    pub(crate) fn advance(&mut self, until_ns: u64) -> Stop {
        loop {
            let what = match self.queue.pop(until_ns) {
                Next::Now(at_ns, what) => {
                    self.now_ns = at_ns;
                    what
                }
                Next::Later => return Stop::Later,
                Next::Nothing => return Stop::Nothing,
            };
            self.events += 1;
            if let Some(client) = self.dispatch(what) {
                self.clients[client as usize].instant = 0;
                return Stop::Ready(client);
            }
            if self.needs_attention() {
                return Stop::Look;
            }
        }
    }

    /// Whether the last event is reason to look at more than the next one.
    #[inline]
    pub(crate) fn needs_attention(&self) -> bool {
        self.watcher.objection.is_some() || !self.taken.is_empty() || self.events.is_multiple_of(LOOK_EVERY)
    }

    /// The event happens. Which client may go on because of it?
    #[inline]
    fn dispatch(&mut self, what: EventKind) -> Option<u32> {
        match what {
            EventKind::Arrive(op) => self.arrive(op),
            EventKind::Complete(op) => self.complete(op),
            EventKind::WeakTurn(op) => self.weak_turn(op),
            EventKind::WeakWrite(op) => self.weak_write(op),
            EventKind::Deliver(flight) => self.deliver(flight),
            EventKind::Serve(flight) => self.serve(flight),
            EventKind::RoleTimer(timer) => self.role_timer(timer),
            EventKind::Start(client) => self.may_go_on(client),
            EventKind::Resume(client) => {
                self.note(client, TraceEvent::Fault("goes on"));
                self.may_go_on(client)
            }
            EventKind::NodeDeath(node) => self.node_death(node),
            EventKind::Restart(role) => self.restart(role as usize),
        }
    }

    #[inline]
    fn may_go_on(&self, client: u32) -> Option<u32> {
        let state = &self.clients[client as usize];
        (!state.crashed && !state.done && state.paused_until_ns <= self.now_ns).then_some(client)
    }

    fn node_death(&mut self, node: u16) -> Option<u32> {
        self.dead_nodes[node as usize] = true;
        for client in 0..self.clients.len() as u32 {
            if self.clients[client as usize].home == Some(NodeId(node)) {
                self.crash(client);
                self.taken.push(client);
            }
        }
        for role in 0..self.roles.len() {
            if self.roles[role].node == Some(NodeId(node)) {
                self.notify_role_lost(role);
            }
        }
        None
    }

    fn restart(&mut self, role: usize) -> Option<u32> {
        if let Some(state) = self.roles.get_mut(role) {
            state.role.restart();
            self.notify_role_lost(role);
        }
        None
    }

    // ---- watching ----

    /// A client says what it does with a lock.
    #[inline(always)]
    pub(crate) fn observe(&mut self, client: u32, what: Observation) {
        if let Observation::Waiting(_) | Observation::Releasing(_) = what {
            self.said_before_its_effect(client, what);
        } else {
            self.said_in_effect(client, &what);
        }
    }

    // Into the caller, which then puts the parts of `what` where they belong: put together first, they would be written in
    // eights and read in sixteens, and the CPU would wait for that.
    #[inline(always)]
    fn said_before_its_effect(&mut self, client: u32, what: Observation) {
        let state = &mut self.clients[client as usize];
        if !state.crashed {
            self.observations.add(&mut state.pending, what);
            state.first_answer_ns = 0;
        }
    }

    fn said_in_effect(&mut self, client: u32, what: &Observation) {
        if self.clients[client as usize].crashed {
            return;
        }
        // PendingObservations before and still without effect: it came first all the same.
        if !matches!(what, Observation::Retried(_) | Observation::Aborted(_)) {
            self.settle(client);
        }
        self.saw(client, what);
    }

    /// What the client said is in effect, even if no verb made it so.
    #[inline]
    pub(crate) fn settle(&mut self, client: u32) {
        let state = &mut self.clients[client as usize];
        if state.crashed {
            return;
        }
        let pending = state.pending.take();
        self.saw_all(client, pending);
    }

    #[inline]
    fn saw_all(&mut self, client: u32, mut pending: PendingObservations) {
        while let Some(what) = self.observations.take_first(&mut pending) {
            self.saw(client, &what);
        }
    }

    #[inline]
    fn saw(&mut self, client: u32, what: &Observation) {
        self.counters.observation(what);
        if self.trace.is_some() {
            self.note(client, TraceEvent::Observed(*what));
        }
        self.watcher.on(self.now_ns, client, what);
    }

    #[cold]
    pub(crate) fn note(&mut self, client: u32, what: TraceEvent) {
        if let Some(trace) = &mut self.trace {
            trace.note(self.now_ns, client, what);
        }
    }
}
