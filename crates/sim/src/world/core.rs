//! What happens, in order: the heap of events, the operations in flight, and what each event does.
//!
//! Everything is kept by index and every event has a number, so that the same seed gives the same run. Clients'
//! futures are not in here: [`World`](super::World) polls them, and they reach in through their endpoint.

use super::faults::{Fate, Faults};
use super::stats::Counters;
use super::trace::{Trace, What};
use super::watcher::Watcher;
use crate::memory::Memory;
use crate::nic::{NicModel, NicQueues};
use crate::rng::Rng;
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{
    Addr, AtomicScope, BoxedRole, Cond, FabricError, Message, NodeId, Outbox, PeerId, RawVerb, Time, Width,
};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// The index of an operation in flight.
pub(crate) type OpId = u32;

/// Something that happens at a time; `seq` orders what happens at the same time.
#[derive(Clone, Copy, Debug)]
struct Event {
    at_ns: u64,
    seq: u64,
    what: EventKind,
}

impl Event {
    #[inline(always)]
    fn key(&self) -> u128 {
        (u128::from(self.at_ns) << 64) | u128::from(self.seq)
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    #[inline(always)]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest is the greatest, because the heap hands out the greatest.
    #[inline(always)]
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

#[derive(Clone, Copy, Debug)]
enum EventKind {
    /// The operation's verbs reach the NIC (or, at home, the memory).
    Arrive(OpId),
    /// Its answer reaches the client, or its time has come.
    Complete(OpId),
    /// Weak scope: the next verb of the operation gets its turn.
    WeakTurn(OpId),
    /// Weak scope: the atomic that had its turn writes back.
    WeakWrite(OpId),
    /// A message arrives.
    Deliver(u32),
    /// A role's thread has dealt with a message.
    Serve(u32),
    /// A role's timer runs out.
    RoleTimer(u32),
    /// A client begins.
    Start(u32),
    /// A paused client goes on.
    Resume(u32),
    /// A memory node dies.
    NodeDeath(u16),
}

/// One operation of one client: a batch, a sleep, or a wait for a word at home.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) client: u32,
    pub(crate) done: bool,
    abandoned: bool,
    /// How many of the verbs are left to execute: fewer than there are where the client crashed in between.
    verbs: Vec<RawVerb>,
    pub(crate) olds: Vec<u128>,
    pub(crate) error: Option<FabricError>,
    /// What takes effect with the first verb.
    observed: Vec<Observation>,
    /// Weak scope: when each verb gets its turn, and what the one at work will write.
    turns: VecDeque<u64>,
    write_back: Option<u128>,
    /// There and back again: how long the operation's way to the NIC and its way home are.
    way_ns: u64,
    return_ns: u64,
    /// Set for a wait: its one verb, a READ, is repeated until this is met.
    poll: Option<Polling>,
}

/// A wait that polls. The executor repeats the READ; the client's future is not bothered until it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Polling {
    pub(crate) cond: Cond,
    pub(crate) or: Option<Cond>,
    /// Pause between an answer and the next READ.
    pub(crate) pace_ns: u64,
    /// No READ leaves after this, in true time.
    pub(crate) deadline_ns: u64,
    /// READs so far.
    pub(crate) polls: u32,
}

impl Polling {
    #[inline]
    fn met_by(&self, value: u128) -> bool {
        self.cond.holds(value) || self.or.is_some_and(|or| or.holds(value))
    }
}

/// A client as the executor sees it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) home: Option<NodeId>,
    pub(crate) rng: Rng,
    pub(crate) crashed: bool,
    pub(crate) done: bool,
    /// Nothing it starts leaves before this.
    pub(crate) busy_until_ns: u64,
    pub(crate) paused_until_ns: u64,
    /// Clock drift, parts per billion.
    pub(crate) drift_ppb: i64,
    pub(crate) mailbox: VecDeque<(u64, PeerId, Message)>,
    pub(crate) mail_seq: u64,
    pub(crate) steps: u64,
    /// Things done without time passing since it was last polled.
    pub(crate) instant: u32,
    /// Said, but not yet in effect.
    observed: Vec<Observation>,
}

/// A message under way or in a role's queue.
#[derive(Debug, Default)]
struct Flight {
    from: Option<PeerId>,
    to: Option<PeerId>,
    message: Message,
    observed: Vec<Observation>,
}

#[derive(Debug)]
struct RoleState {
    node: NodeId,
    role: BoxedRole,
    service_ns: u64,
    /// When each of its threads is free.
    threads: Vec<u64>,
}

/// A client at home that waits for a word to change.
#[derive(Debug)]
struct LocalWait {
    op: OpId,
    addr: Addr,
    width: Width,
    cond: Cond,
    or: Option<Cond>,
}

/// The state of the simulated world, apart from its clients' futures.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) now_ns: u64,
    seq: u64,
    events: BinaryHeap<Event>,
    /// The top of the heap has happened. It stays until the next push takes its place: half the work of taking
    /// it out and putting another in, and most events have exactly one successor.
    top_is_spent: bool,
    ops: Vec<Operation>,
    free_ops: Vec<OpId>,
    flights: Vec<Flight>,
    free_flights: Vec<u32>,
    /// Roles' timers: role and id.
    timers: Vec<(usize, u64)>,
    free_timers: Vec<u32>,
    last_delivery: FxHashMap<(PeerId, PeerId), u64>,
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
            seq: 0,
            events: BinaryHeap::new(),
            top_is_spent: false,
            ops: Vec::new(),
            free_ops: Vec::new(),
            flights: Vec::new(),
            free_flights: Vec::new(),
            timers: Vec::new(),
            free_timers: Vec::new(),
            last_delivery: FxHashMap::default(),
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
            steps: 0,
            instant: 0,
            observed: Vec::new(),
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
        node: NodeId,
        role: BoxedRole,
        service_ns: u64,
        threads: usize,
    ) -> PeerId {
        self.roles.push(RoleState { node, role, service_ns, threads: vec![0; threads.max(1)] });
        PeerId::role(self.roles.len() - 1)
    }

    pub(crate) fn has_roles(&self) -> bool {
        !self.roles.is_empty()
    }

    // ---- events ----

    #[inline]
    fn push(&mut self, at_ns: u64, what: EventKind) {
        self.seq += 1;
        let event = Event { at_ns, seq: self.seq, what };
        if self.top_is_spent {
            self.top_is_spent = false;
            *self.events.peek_mut().expect("a spent event is still there") = event;
        } else {
            self.events.push(event);
        }
    }

    /// When the next event is.
    #[inline]
    pub(crate) fn next_at(&mut self) -> Option<u64> {
        if self.top_is_spent {
            self.top_is_spent = false;
            self.events.pop();
        }
        self.events.peek().map(|event| event.at_ns)
    }

    /// Lets the event that [`Core::next_at`] told of happen and says which client may go on because of it.
    #[inline]
    pub(crate) fn step(&mut self) -> Option<u32> {
        let event = *self.events.peek()?;
        self.top_is_spent = true;
        self.now_ns = event.at_ns;
        match event.what {
            EventKind::Arrive(op) => self.arrive(op),
            EventKind::Complete(op) => self.complete(op),
            EventKind::WeakTurn(op) => self.weak_turn(op),
            EventKind::WeakWrite(op) => self.weak_write(op),
            EventKind::Deliver(flight) => self.deliver(flight),
            EventKind::Serve(flight) => self.serve(flight),
            EventKind::RoleTimer(timer) => self.role_timer(timer),
            EventKind::Start(client) => self.may_go_on(client),
            EventKind::Resume(client) => {
                self.note(client, What::Fault("goes on"));
                self.may_go_on(client)
            }
            EventKind::NodeDeath(node) => self.node_death(node),
        }
    }

    #[inline]
    fn may_go_on(&self, client: u32) -> Option<u32> {
        let state = &self.clients[client as usize];
        (!state.crashed && !state.done && state.paused_until_ns <= self.now_ns).then_some(client)
    }

    // ---- operations ----

    fn new_op(&mut self, client: u32) -> OpId {
        if let Some(op) = self.free_ops.pop() {
            let slot = &mut self.ops[op as usize];
            slot.client = client;
            slot.done = false;
            slot.abandoned = false;
            slot.error = None;
            return op;
        }
        self.ops.push(Operation {
            client,
            done: false,
            abandoned: false,
            verbs: Vec::new(),
            olds: Vec::new(),
            error: None,
            observed: Vec::new(),
            turns: VecDeque::new(),
            write_back: None,
            way_ns: 0,
            return_ns: 0,
            poll: None,
        });
        self.ops.len() as OpId - 1
    }

    pub(crate) fn free_op(&mut self, op: OpId) {
        let slot = &mut self.ops[op as usize];
        slot.verbs.clear();
        slot.olds.clear();
        slot.observed.clear();
        slot.poll = None;
        self.free_ops.push(op);
    }

    /// READs that a wait took so far.
    pub(crate) fn polls(&self, op: OpId) -> u32 {
        self.ops[op as usize].poll.map_or(0, |poll| poll.polls)
    }

    #[inline]
    pub(crate) fn op(&self, op: OpId) -> &Operation {
        &self.ops[op as usize]
    }

    /// The future of `op` is gone. What is under way still takes effect.
    pub(crate) fn abandon(&mut self, op: OpId) {
        if let Some(place) = self.local_waits.iter().position(|wait| wait.op == op) {
            self.local_waits.remove(place);
            self.free_op(op);
        } else if self.ops[op as usize].done {
            self.free_op(op);
        } else {
            self.ops[op as usize].abandoned = true;
        }
    }

    /// Starts a batch, whose verbs `list` hands over. `None` if the client crashes before any of it leaves.
    #[inline]
    pub(crate) fn start_batch(&mut self, client: u32, list: impl FnOnce(&mut Vec<RawVerb>)) -> Option<OpId> {
        if self.clients[client as usize].crashed {
            return None;
        }
        let op = self.new_op(client);
        list(&mut self.ops[op as usize].verbs);
        let count = self.ops[op as usize].verbs.len();
        if count == 0 {
            self.ops[op as usize].done = true;
            return Some(op);
        }
        let (leaves_ns, executed) = self.fate(client, count);
        if executed < count {
            self.ops[op as usize].verbs.truncate(executed);
        }
        if executed == 0 {
            self.free_op(op);
            return None;
        }
        let state = &mut self.clients[client as usize];
        let slot = &mut self.ops[op as usize];
        std::mem::swap(&mut slot.observed, &mut state.observed);
        let first = slot.verbs[0];
        debug_assert!(
            slot.verbs.iter().all(|verb| verb.addr.node == first.addr.node),
            "a batch goes to one node"
        );
        if state.home == Some(first.addr.node) {
            self.counters.local += count as u64;
            let cost_ns = self.model.cpu_access_ns * count as u64;
            self.push(leaves_ns + cost_ns, EventKind::Arrive(op));
        } else {
            self.memory.prefetch(first.addr);
            let slot = &self.ops[op as usize];
            self.counters.round_trip(&slot.verbs);
            let rtt_ns = slot.verbs.iter().map(|verb| self.model.rtt_ns(verb)).max().unwrap_or(0);
            let way_ns = (rtt_ns + self.growth_ns) / 2;
            let jitter_ns = self.model.jitter_ns.min(way_ns);
            let shift_ns = if jitter_ns > 0 { self.network.below(2 * jitter_ns + 1) } else { 0 };
            let slot = &mut self.ops[op as usize];
            (slot.way_ns, slot.return_ns) = (way_ns, rtt_ns + self.growth_ns - way_ns);
            self.push(leaves_ns + way_ns + shift_ns - jitter_ns, EventKind::Arrive(op));
        }
        Some(op)
    }

    /// Starts a wait that polls `verb`, a READ over the network.
    pub(crate) fn start_poll(&mut self, client: u32, verb: RawVerb, polling: Polling) -> Option<OpId> {
        let op = self.start_batch(client, |verbs| verbs.push(verb))?;
        self.ops[op as usize].poll = Some(Polling { polls: 1, ..polling });
        Some(op)
    }

    /// The answer of a polling READ will be home at `home_ns`. Is another one needed? Then it is under way.
    #[inline]
    fn polls_again(&mut self, op: OpId, home_ns: u64) -> bool {
        let slot = &mut self.ops[op as usize];
        let Some(poll) = &mut slot.poll else { return false };
        if slot.abandoned || poll.met_by(slot.olds[0]) || home_ns >= poll.deadline_ns {
            return false;
        }
        // The last look is at the deadline.
        let again_ns = (home_ns + poll.pace_ns).min(poll.deadline_ns);
        poll.polls += 1;
        let (client, way_ns) = (slot.client, slot.way_ns);
        let delay_ns = again_ns - self.now_ns;
        let (leaves_ns, executed) = self.fate(client, 1);
        if executed == 0 || self.clients[client as usize].crashed {
            self.taken.push(client);
        }
        if executed == 0 {
            return false;
        }
        let slot = &mut self.ops[op as usize];
        slot.olds.clear();
        self.counters.round_trip(&slot.verbs);
        self.push(leaves_ns + delay_ns + way_ns, EventKind::Arrive(op));
        true
    }

    /// Asks the faults about the next `count` steps of `client`: when do they leave, and how many of them?
    #[inline]
    fn fate(&mut self, client: u32, count: usize) -> (u64, usize) {
        let state = &mut self.clients[client as usize];
        let leaves_ns = state.busy_until_ns.max(self.now_ns);
        let first = state.steps;
        state.steps += count as u64;
        if !self.faults.client_faults {
            return (leaves_ns, count);
        }
        for step in 0..count {
            match self.faults.at(client, first + step as u64) {
                Fate::GoOn => {}
                Fate::Crash { after } => {
                    self.crash(client);
                    return (leaves_ns, step + usize::from(after));
                }
                Fate::Pause { after, ns } => {
                    let until_ns = leaves_ns + ns;
                    let state = &mut self.clients[client as usize];
                    (state.busy_until_ns, state.paused_until_ns) = (until_ns, until_ns);
                    self.counters.pauses += 1;
                    self.watcher.paused(client, until_ns);
                    self.note(client, What::Fault("pauses"));
                    self.push(until_ns, EventKind::Resume(client));
                    return (if after { leaves_ns } else { until_ns }, count);
                }
            }
        }
        (leaves_ns, count)
    }

    fn crash(&mut self, client: u32) {
        let state = &mut self.clients[client as usize];
        if state.crashed || state.done {
            return;
        }
        state.crashed = true;
        self.counters.crashes += 1;
        self.watcher.crashed(client);
        self.note(client, What::Fault("crashes"));
    }

    /// Completes after `ns` of true time.
    pub(crate) fn start_sleep(&mut self, client: u32, ns: u64) -> OpId {
        let op = self.new_op(client);
        let from_ns = self.clients[client as usize].busy_until_ns.max(self.now_ns);
        self.push(from_ns.saturating_add(ns), EventKind::Complete(op));
        op
    }

    /// Completes when the word at home meets a condition.
    pub(crate) fn start_local_wait(
        &mut self,
        client: u32,
        (addr, width): (Addr, Width),
        cond: Cond,
        or: Option<Cond>,
    ) -> OpId {
        let op = self.new_op(client);
        self.local_waits.push(LocalWait { op, addr, width, cond, or });
        self.wake_local_waits(addr);
        op
    }

    #[cold]
    fn wake_local_waits(&mut self, changed: Addr) {
        let granule = |addr: Addr| Addr { offset: addr.offset & !15, ..addr };
        let mut at = 0;
        while at < self.local_waits.len() {
            let wait = &self.local_waits[at];
            let value = self.memory.read(wait.addr, wait.width);
            let met = granule(wait.addr) == granule(changed)
                && (wait.cond.holds(value) || wait.or.is_some_and(|or| or.holds(value)));
            if met {
                let op = self.local_waits.remove(at).op;
                self.ops[op as usize].olds.push(value);
                self.push(self.now_ns + self.model.cpu_access_ns, EventKind::Complete(op));
            } else {
                at += 1;
            }
        }
    }

    #[inline]
    fn arrive(&mut self, op: OpId) -> Option<u32> {
        let slot = &self.ops[op as usize];
        let (client, first) = (slot.client, slot.verbs[0]);
        let node = first.addr.node;
        if self.dead_nodes[node.0 as usize] {
            self.ops[op as usize].error = Some(FabricError::NodeLost(node));
            self.push(self.now_ns + self.model.node_lost_ns, EventKind::Complete(op));
            return None;
        }
        if self.clients[client as usize].home == Some(node) {
            self.execute_all(op);
            return self.complete(op);
        }
        if self.model.offers.scope == AtomicScope::Nic {
            self.plan_weak_turns(op);
            return None;
        }
        let mut turn_ns = 0;
        for at in 0..self.ops[op as usize].verbs.len() {
            let verb = &self.ops[op as usize].verbs[at];
            turn_ns = self.nics[node.0 as usize].admit(&self.model, verb, self.now_ns, turn_ns);
        }
        self.execute_all(op);
        let home_ns = turn_ns + self.ops[op as usize].return_ns;
        if !self.polls_again(op, home_ns) {
            self.push(home_ns, EventKind::Complete(op));
        }
        None
    }

    #[inline]
    fn execute_all(&mut self, op: OpId) {
        self.take_effect(op);
        for at in 0..self.ops[op as usize].verbs.len() {
            let verb = self.ops[op as usize].verbs[at];
            let old = self.execute(self.ops[op as usize].client, &verb);
            self.ops[op as usize].olds.push(old);
        }
    }

    /// What was said before the operation counts from here on.
    #[inline]
    fn take_effect(&mut self, op: OpId) {
        if self.ops[op as usize].observed.is_empty() {
            return;
        }
        let client = self.ops[op as usize].client;
        let mut observed = std::mem::take(&mut self.ops[op as usize].observed);
        for what in observed.drain(..) {
            self.saw(client, what);
        }
        self.ops[op as usize].observed = observed;
    }

    #[inline]
    fn execute(&mut self, client: u32, verb: &RawVerb) -> u128 {
        let old = self.memory.read(verb.addr, verb.width);
        let new = verb.op.apply(verb.width, old);
        if let Some(new) = new {
            self.memory.write(verb.addr, verb.width, new);
            if !self.local_waits.is_empty() {
                self.wake_local_waits(verb.addr);
            }
        }
        self.note(client, What::Verb { verb: *verb, old, new });
        old
    }

    #[inline]
    fn complete(&mut self, op: OpId) -> Option<u32> {
        let slot = &mut self.ops[op as usize];
        if slot.abandoned {
            self.free_op(op);
            return None;
        }
        slot.done = true;
        let client = slot.client;
        self.may_go_on(client)
    }

    // ---- weak scope: an atomic is a read when it gets its turn and a write when it gives its address back ----

    fn plan_weak_turns(&mut self, op: OpId) {
        let slot = &mut self.ops[op as usize];
        let mut not_before_ns = 0;
        for verb in &slot.verbs {
            let nic = &mut self.nics[verb.addr.node.0 as usize];
            let turn_ns = nic.admit(&self.model, verb, self.now_ns, not_before_ns);
            slot.turns.push_back(turn_ns);
            not_before_ns = turn_ns + self.model.occupies_ns(verb);
        }
        let first_ns = slot.turns[0];
        self.push(first_ns, EventKind::WeakTurn(op));
    }

    fn weak_turn(&mut self, op: OpId) -> Option<u32> {
        let slot = &mut self.ops[op as usize];
        let (client, verb) = (slot.client, slot.verbs[slot.olds.len()]);
        slot.turns.pop_front();
        if verb.op.is_atomic() {
            let old = self.memory.read(verb.addr, verb.width);
            slot.write_back = verb.op.apply(verb.width, old);
            slot.olds.push(old);
            self.note(client, What::WeakRead { verb, old });
            self.push(self.now_ns + self.model.occupies_ns(&verb), EventKind::WeakWrite(op));
        } else {
            self.take_effect(op);
            let old = self.execute(client, &verb);
            self.ops[op as usize].olds.push(old);
            self.next_weak_turn(op);
        }
        None
    }

    fn weak_write(&mut self, op: OpId) -> Option<u32> {
        self.take_effect(op);
        let slot = &mut self.ops[op as usize];
        let at = slot.olds.len() - 1;
        let (client, verb, old) = (slot.client, slot.verbs[at], slot.olds[at]);
        if let Some(new) = slot.write_back.take() {
            self.memory.write(verb.addr, verb.width, new);
            if !self.local_waits.is_empty() {
                self.wake_local_waits(verb.addr);
            }
            self.note(client, What::Verb { verb, old, new: Some(new) });
        }
        self.next_weak_turn(op);
        None
    }

    fn next_weak_turn(&mut self, op: OpId) {
        let slot = &self.ops[op as usize];
        match slot.turns.front() {
            Some(turn_ns) => self.push(*turn_ns, EventKind::WeakTurn(op)),
            None => {
                let home_ns = self.now_ns + slot.return_ns;
                if !self.polls_again(op, home_ns) {
                    self.push(home_ns, EventKind::Complete(op));
                }
            }
        }
    }

    // ---- messages ----

    /// Sends on behalf of a client; nothing comes back to one that crashed.
    pub(crate) fn client_send(
        &mut self,
        client: u32,
        to: PeerId,
        message: Message,
        datagram: bool,
    ) -> Option<Result<(), FabricError>> {
        if self.clients[client as usize].crashed {
            return None;
        }
        let exists = match to.index() {
            (role, true) => role < self.roles.len(),
            (other, false) => other < self.clients.len(),
        };
        if !exists {
            return Some(if datagram { Ok(()) } else { Err(FabricError::PeerLost(to)) });
        }
        let (leaves_ns, executed) = self.fate(client, 1);
        if executed == 0 {
            return None;
        }
        self.counters.message(&message);
        if self.trace.is_some() {
            self.note(client, What::Sent { to, message: message.clone() });
        }
        self.send(PeerId::client(client as usize), to, message, leaves_ns, datagram);
        (!self.clients[client as usize].crashed).then_some(Ok(()))
    }

    fn send(&mut self, from: PeerId, to: PeerId, message: Message, leaves_ns: u64, datagram: bool) {
        let network = self.faults.plan.network;
        let jitter_ns = self.model.jitter_ns.min(self.message_ns);
        let mut at_ns = leaves_ns + self.message_ns - jitter_ns + self.network.below(2 * jitter_ns + 1);
        if network.extra_delay_ns > 0 {
            at_ns += self.network.below(network.extra_delay_ns + 1);
        }
        if datagram {
            if self.network.chance(network.loss) {
                self.counters.lost += 1;
                return;
            }
            if self.network.chance(network.reorder) {
                self.counters.reordered += 1;
                at_ns += self.message_ns + network.extra_delay_ns;
            }
            if self.network.chance(network.duplication) {
                self.counters.doubled += 1;
                let again_ns = at_ns + 1 + self.network.below(self.message_ns + 1);
                self.fly(from, to, message.clone(), again_ns);
            }
        } else {
            // First sent, first there: per pair of peers.
            let last = self.last_delivery.entry((from, to)).or_insert(0);
            at_ns = at_ns.max(*last);
            *last = at_ns;
        }
        let flight = self.fly(from, to, message, at_ns);
        // What the sender said takes effect when the message does. A lost one leaves it to the next.
        if let (client, false) = from.index() {
            std::mem::swap(&mut self.flights[flight as usize].observed, &mut self.clients[client].observed);
        }
    }

    fn fly(&mut self, from: PeerId, to: PeerId, message: Message, at_ns: u64) -> u32 {
        let flight = self.free_flights.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            self.flights.len() as u32 - 1
        });
        let slot = &mut self.flights[flight as usize];
        (slot.from, slot.to, slot.message) = (Some(from), Some(to), message);
        self.push(at_ns, EventKind::Deliver(flight));
        flight
    }

    fn deliver(&mut self, flight: u32) -> Option<u32> {
        let (from, to) = self.ends(flight);
        if let (client, false) = from.index() {
            let mut observed = std::mem::take(&mut self.flights[flight as usize].observed);
            for what in observed.drain(..) {
                self.saw(client as u32, what);
            }
            self.flights[flight as usize].observed = observed;
        }
        match to.index() {
            (role, true) => {
                let state = &mut self.roles[role];
                let thread = state.threads.iter_mut().min().expect("a role has a thread");
                let done_ns = self.now_ns.max(*thread) + state.service_ns;
                *thread = done_ns;
                self.push(done_ns, EventKind::Serve(flight));
                None
            }
            (client, false) => {
                let message = std::mem::take(&mut self.flights[flight as usize].message);
                self.free_flights.push(flight);
                let state = &mut self.clients[client];
                if state.crashed || state.done {
                    return None;
                }
                if self.trace.is_some() {
                    self.note(client as u32, What::Got { from, message: message.clone() });
                }
                let state = &mut self.clients[client];
                state.mail_seq += 1;
                state.mailbox.push_back((state.mail_seq, from, message));
                self.may_go_on(client as u32)
            }
        }
    }

    fn ends(&self, flight: u32) -> (PeerId, PeerId) {
        let slot = &self.flights[flight as usize];
        (slot.from.expect("in flight"), slot.to.expect("in flight"))
    }

    fn serve(&mut self, flight: u32) -> Option<u32> {
        let (from, to) = self.ends(flight);
        let message = std::mem::take(&mut self.flights[flight as usize].message);
        self.free_flights.push(flight);
        let role = to.index().0;
        if !self.dead_nodes[self.roles[role].node.0 as usize] {
            let mut out = Outbox::default();
            self.roles[role].role.on_message(Time(self.now_ns), from, &message, &mut out);
            self.do_outbox(role, out);
        }
        None
    }

    fn role_timer(&mut self, timer: u32) -> Option<u32> {
        let (role, id) = self.timers[timer as usize];
        self.free_timers.push(timer);
        if !self.dead_nodes[self.roles[role].node.0 as usize] {
            let mut out = Outbox::default();
            self.roles[role].role.on_timer(Time(self.now_ns), id, &mut out);
            self.do_outbox(role, out);
        }
        None
    }

    fn do_outbox(&mut self, role: usize, out: Outbox) {
        let node = self.roles[role].node;
        for verb in out.verbs {
            assert_eq!(verb.addr.node, node, "a role's verbs stay on its own node");
            let old = self.memory.read(verb.addr, verb.width);
            if let Some(new) = verb.op.apply(verb.width, old) {
                self.memory.write(verb.addr, verb.width, new);
                if !self.local_waits.is_empty() {
                    self.wake_local_waits(verb.addr);
                }
            }
        }
        for (to, message) in out.messages {
            let (index, is_role) = to.index();
            assert!(
                index < if is_role { self.roles.len() } else { self.clients.len() },
                "{to} does not exist"
            );
            self.counters.message(&message);
            self.send(PeerId::role(role), to, message, self.now_ns, false);
        }
        for (delay_ns, id) in out.timers {
            let timer = self.timers.len() as u32;
            let timer = self.free_timers.pop().unwrap_or(timer);
            if timer as usize == self.timers.len() {
                self.timers.push((role, id));
            }
            self.timers[timer as usize] = (role, id);
            self.push(self.now_ns + delay_ns, EventKind::RoleTimer(timer));
        }
    }

    fn node_death(&mut self, node: u16) -> Option<u32> {
        self.dead_nodes[node as usize] = true;
        for client in 0..self.clients.len() as u32 {
            if self.clients[client as usize].home == Some(NodeId(node)) {
                self.crash(client);
                self.taken.push(client);
            }
        }
        None
    }

    // ---- watching ----

    /// A client says what it does with a lock.
    #[inline]
    pub(crate) fn observe(&mut self, client: u32, what: Observation) {
        let state = &mut self.clients[client as usize];
        if state.crashed {
            return;
        }
        if let Observation::Waiting(_) | Observation::Releasing(_) = what {
            state.observed.push(what);
            return;
        }
        // Said before and still without effect: it came first all the same.
        if !state.observed.is_empty() && !matches!(what, Observation::Retried(_) | Observation::Aborted(_)) {
            let mut observed = std::mem::take(&mut state.observed);
            for earlier in observed.drain(..) {
                self.saw(client, earlier);
            }
            self.clients[client as usize].observed = observed;
        }
        self.saw(client, what);
    }

    #[inline]
    fn saw(&mut self, client: u32, what: Observation) {
        self.counters.observation(what);
        self.note(client, What::Observed(what));
        self.watcher.on(self.now_ns, client, what);
    }

    #[inline]
    pub(crate) fn note(&mut self, client: u32, what: What) {
        if let Some(trace) = &mut self.trace {
            trace.note(self.now_ns, client, what);
        }
    }
}
