//! Every step that is possible in a global state, and what it leads to.

use super::automaton::{Automaton, Kind, Stimulus};
use super::roles::Roles;
use super::state::{DEAD, FaultWord, Shape};
use super::tables::{Envelope, Tables};
use crate::case::{Checks, Clock, Faults, Timeouts};
use crate::check::{Violation, Watch};
use lockwright_fabric::{Addr, Message, PeerId, Time, Width};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// One step of a client, a role or the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A client's pending operation moves on.
    Client { client: usize, node: u32, stimulus: Stimulus },
    /// A role handles a message.
    Role { role: usize, envelope: u32 },
    /// A role's timer runs out.
    Timer { role: usize, id: u64 },
    /// A client stops for ever.
    Crash(usize),
    /// A role is restarted and has lost what it kept in volatile memory.
    Restart(usize),
    /// A node is lost, with its role and its clients.
    LoseNode(usize),
    /// A client stops for longer than any lease.
    Pause(usize),
    /// A paused client goes on.
    Resume(usize),
    /// A tick of the clock.
    Tick,
    /// A datagram on its way to this mailbox is lost.
    Lose { mailbox: usize, envelope: u32 },
    /// A datagram on its way to this mailbox is doubled.
    Duplicate { mailbox: usize, envelope: u32 },
}

impl Step {
    /// Whether it is progress, rather than a fault. No client may need a fault to finish.
    pub(super) fn is_progress(self) -> bool {
        matches!(
            self,
            Step::Client { .. } | Step::Role { .. } | Step::Timer { .. } | Step::Resume(_) | Step::Tick
        )
    }
}

/// The steps possible in one state, side by side with the states they lead to.
#[derive(Debug, Default)]
pub(super) struct Successors {
    pub(super) steps: Vec<Step>,
    pub(super) states: Vec<u32>,
    /// The checkers' objections, by index of the step.
    pub(super) violations: Vec<(usize, Violation)>,
}

impl Successors {
    fn clear(&mut self) {
        self.steps.clear();
        self.states.clear();
        self.violations.clear();
    }
}

/// The clients, the servers, the memory between them, and the checkers.
pub(super) struct World {
    pub(super) shape: Shape,
    pub(super) tables: Tables,
    pub(super) clients: Vec<Automaton>,
    pub(super) roles: Roles,
    pub(super) initial: Vec<u32>,
    pub(super) successors: Successors,
    pub(super) faults: Faults,
    /// So many of the roles, the last ones, are switches; role `i` of the others is on node `i`.
    pub(super) switches: usize,
    timeouts: Timeouts,
    pub(super) weak_scope: bool,
    pub(super) clock: Option<Clock>,
    pub(super) sleepers_know: bool,
    /// The clock came to its end somewhere: not everything was seen.
    pub(super) clock_ran_out: bool,
    watched: FxHashMap<(u32, u32, usize), Result<u32, Violation>>,
    sends: FxHashMap<(usize, u32, u8), u32>,
    pub(super) next: Vec<u32>,
}

/// What a world is made of.
pub(super) struct Setup {
    pub(super) nodes: usize,
    pub(super) words_per_node: usize,
    pub(super) memory: Vec<(Addr, u64)>,
    pub(super) clients: Vec<Automaton>,
    pub(super) roles: Roles,
    pub(super) switches: usize,
    pub(super) faults: Faults,
    pub(super) timeouts: Timeouts,
    pub(super) checks: Checks,
    pub(super) weak_scope: bool,
    pub(super) clock: Option<Clock>,
    pub(super) sleepers_know: bool,
}

/// Stands for "the client is gone" among lists of observations.
const FORGET: u32 = u32::MAX;

impl World {
    /// The world and its first state.
    ///
    /// # Errors
    /// If a checker objects before anything happened.
    pub(super) fn new(setup: Setup) -> Result<Self, Violation> {
        assert!(setup.clients.len() <= 8, "at most 8 clients");
        let shape = Shape {
            words_per_node: setup.words_per_node,
            memory_words: setup.nodes * setup.words_per_node,
            clients: setup.clients.len(),
            roles: setup.roles.len(),
            has_clock: setup.clock.is_some(),
        };
        let mut tables = Tables::default();
        // Number 0 is the empty one everywhere.
        tables.values.number(0);
        tables.mailboxes.number(Rc::from([]));
        tables.observations.number(Vec::new());
        tables.timers.number(Vec::new());
        tables.watches.number(Watch::new(setup.checks));
        let mut state = vec![0; shape.stride()];
        for (addr, value) in setup.memory {
            state[shape.word(addr)] = tables.values.number(u128::from(value));
        }
        for role in 0..shape.roles {
            state[shape.role(role)] = setup.roles.initial(role);
        }
        state[shape.faults()] = FaultWord::new(setup.faults).0;
        let mut world = Self {
            shape,
            tables,
            clients: setup.clients,
            roles: setup.roles,
            initial: Vec::new(),
            successors: Successors::default(),
            faults: setup.faults,
            switches: setup.switches,
            timeouts: setup.timeouts,
            weak_scope: setup.weak_scope,
            clock: setup.clock,
            sleepers_know: setup.sleepers_know,
            clock_ran_out: false,
            watched: FxHashMap::default(),
            sends: FxHashMap::default(),
            next: Vec::new(),
        };
        for client in 0..shape.clients {
            let edge = world.clients[client].start(&mut world.tables);
            state[shape.node(client)] = edge.target;
            let watch = world.watch(state[shape.watch()], edge.observations, client)?;
            state[shape.watch()] = watch;
        }
        world.initial = state;
        Ok(world)
    }

    /// Whether every client has finished or crashed.
    pub(super) fn is_final(&self, state: &[u32]) -> bool {
        (0..self.shape.clients).all(|client| self.is_done(state, client))
    }

    pub(super) fn is_done(&self, state: &[u32], client: usize) -> bool {
        let node = state[self.shape.node(client)];
        node == DEAD || self.clients[client].node(node).done
    }

    /// Fills `self.successors` with everything that can happen in `state`.
    pub(super) fn expand(&mut self, state: &[u32]) {
        self.successors.clear();
        let faults = FaultWord(state[self.shape.faults()]);
        let may_time_out = match self.timeouts {
            Timeouts::Any => true,
            Timeouts::WhenFaulty => faults.any_client_is_down() && self.no_healthy_client_holds(state),
            Timeouts::AnyUntil(_) | Timeouts::WhenStuck | Timeouts::WhenStuckByFaults => false,
        };
        self.healthy_steps(state, may_time_out);
        let when_stuck = match self.timeouts {
            Timeouts::WhenStuck | Timeouts::AnyUntil(_) => true,
            Timeouts::WhenStuckByFaults => self.faults != Faults::default(),
            Timeouts::Any | Timeouts::WhenFaulty => false,
        };
        if when_stuck && self.successors.steps.iter().all(|step| self.is_giving_up(*step)) {
            self.successors.clear();
            self.healthy_steps(state, true);
        }
        if self.clock.is_some() {
            self.tick(state);
        }
        for client in 0..self.shape.clients {
            if faults.is_paused(client) {
                self.change_faults(state, Step::Resume(client), faults.without_pause(client));
            }
        }
        if self.faults != Faults::default() {
            self.fault_steps(state, faults);
        }
    }

    /// Whether a client gives up of its own will: not a sign that things move.
    fn is_giving_up(&self, step: Step) -> bool {
        let Step::Client { client, node, stimulus } = step else { return false };
        if stimulus.kind != Kind::Timeout {
            return stimulus.kind == Kind::Ring;
        }
        let pending = &self.clients[client].node(node).pending;
        let deadline = pending.iter().find(|(slot, _)| *slot == stimulus.slot);
        deadline.and_then(|(_, pending)| pending.deadline()).is_some_and(|time| self.is_a_users(time))
    }

    /// Whether this is a deadline that a user set, and may pass at any moment.
    pub(super) fn is_a_users(&self, time: Time) -> bool {
        matches!(self.timeouts, Timeouts::AnyUntil(last) if time <= last)
    }

    /// No healthy client is in a critical section: the checkers have forgotten clients that are down.
    fn no_healthy_client_holds(&self, state: &[u32]) -> bool {
        self.tables.watches.get(state[self.shape.watch()]).holders().next().is_none()
    }

    fn healthy_steps(&mut self, state: &[u32], may_time_out: bool) {
        let faults = FaultWord(state[self.shape.faults()]);
        for client in 0..self.shape.clients {
            let node = state[self.shape.node(client)];
            if node == DEAD || faults.is_paused(client) {
                continue;
            }
            let (pending, stopped_at) = {
                let node = self.clients[client].node(node);
                (node.pending.clone(), node.stopped_at)
            };
            for (slot, pending) in &*pending {
                if stopped_at.is_some_and(|at| at != *slot) && !pending.is_under_way() {
                    continue;
                }
                self.client_steps(state, Turn { client, node, slot: *slot, may_time_out }, pending);
            }
        }
        for role in 0..self.shape.roles {
            self.role_steps(state, role, may_time_out);
        }
    }

    pub(super) fn push_forgetting(&mut self, step: Step, client: usize) {
        let violation = self.forget(client).err();
        self.push(step, violation);
    }

    /// The checkers forget a client that is down.
    pub(super) fn forget(&mut self, client: usize) -> Result<(), Violation> {
        let place = self.shape.watch();
        self.next[place] = self.watch(self.next[place], FORGET, client)?;
        Ok(())
    }

    pub(super) fn begin(&mut self, state: &[u32]) {
        self.next.clear();
        self.next.extend_from_slice(state);
    }

    /// The client learns what happened to its operation; the checkers learn what it makes of it.
    pub(super) fn finish(&mut self, turn: Turn, kind: Kind, payload: u32) {
        let Turn { client, node, slot, .. } = turn;
        let stimulus = Stimulus { slot, kind, payload };
        let edge =
            self.clients[client].edge(node, stimulus, &mut self.tables).expect("only offers are refused");
        self.next[self.shape.node(client)] = edge.target;
        if self.clock.is_some() {
            self.next[self.shape.moved(client)] = self.next[self.shape.clock()];
        }
        let step = Step::Client { client, node, stimulus };
        if edge.observations == 0 {
            self.push(step, None);
            return;
        }
        let place = self.shape.watch();
        match self.watch(self.next[place], edge.observations, client) {
            Ok(watch) => {
                self.next[place] = watch;
                self.push(step, None);
            }
            Err(violation) => self.push(step, Some(violation)),
        }
    }

    pub(super) fn push(&mut self, step: Step, violation: Option<Violation>) {
        if let Some(violation) = violation {
            self.successors.violations.push((self.successors.steps.len(), violation));
        }
        self.successors.steps.push(step);
        self.successors.states.extend_from_slice(&self.next);
    }

    fn watch(&mut self, watch: u32, observations: u32, client: usize) -> Result<u32, Violation> {
        if observations == 0 {
            return Ok(watch);
        }
        let tables = &mut self.tables;
        let me = self.clients[client].me();
        let result = self.watched.entry((watch, observations, client)).or_insert_with(|| {
            let mut watch = tables.watches.get(watch).clone();
            if observations == FORGET {
                watch.forget(me);
            } else {
                for what in tables.observations.get(observations) {
                    watch.on(me, *what)?;
                }
            }
            Ok(tables.watches.number(watch))
        });
        result.clone()
    }

    /// The message that a client's pending send puts into a mailbox.
    pub(super) fn envelope_of(&mut self, turn: Turn, message: &Message, datagram: bool) -> u32 {
        let (tables, from) = (&mut self.tables, self.clients[turn.client].me());
        *self.sends.entry((turn.client, turn.node, turn.slot)).or_insert_with(|| {
            tables.envelopes.number(Envelope { from, message: Rc::new(message.clone()), datagram })
        })
    }

    pub(super) fn deliver(&mut self, to: PeerId, envelope: u32) {
        let peer = match to.index() {
            (role, true) if self.next[self.shape.role(role)] == DEAD => return,
            (role, true) => self.shape.clients + role,
            // Messages to a dead client are not read.
            (client, false) if self.next[self.shape.node(client)] == DEAD => return,
            (client, false) => client,
        };
        let place = self.shape.mailbox(peer);
        self.next[place] = self.tables.with_envelope(self.next[place], envelope);
    }

    /// The word's value, and its number in `Tables::values`.
    pub(super) fn read(&mut self, state: &[u32], addr: Addr, width: Width) -> (u128, u32) {
        let word = self.shape.word(addr);
        let low = state[word];
        match width {
            Width::W64 => (*self.tables.values.get(low), low),
            Width::W128 => {
                let value = self.tables.values.get(low) | self.tables.values.get(state[word + 1]) << 64;
                (value, self.tables.values.number(value))
            }
        }
    }

    pub(super) fn write(&mut self, addr: Addr, width: Width, value: u128) {
        let word = self.shape.word(addr);
        self.next[word] = self.tables.values.number(value & u128::from(u64::MAX));
        if width == Width::W128 {
            self.next[word + 1] = self.tables.values.number(value >> 64);
        }
    }
}

/// Whose operation moves.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) client: usize,
    pub(super) node: u32,
    pub(super) slot: u8,
    pub(super) may_time_out: bool,
}
