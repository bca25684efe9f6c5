//! Every step that is possible in a global state, and what it leads to.

use super::automaton::{Automaton, Kind, Stimulus};
use super::endpoint::Pending;
use super::roles::Roles;
use super::state::{Budget, DEAD, FaultWord, Shape};
use super::tables::{Letter, Tables};
use crate::check::{Violation, Watch};
use lockwright_fabric::{Addr, Deadline, Message, Op, PeerId, RawVerb, Width};
use lockwright_locks::case::{Checks, Faults, Timeouts};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A client's pending operation moves on.
    Client { client: usize, node: u32, stimulus: Stimulus },
    /// A role handles a letter.
    Role { role: usize, letter: u32 },
    /// A role's timer runs out.
    Timer { role: usize, id: u64 },
    /// A client stops for ever.
    Crash(usize),
    /// A client stops for longer than any lease.
    Pause(usize),
    /// A paused client goes on.
    Resume(usize),
    /// A datagram on its way to this mailbox is lost.
    Lose { mailbox: usize, letter: u32 },
    /// A datagram on its way to this mailbox is doubled.
    Duplicate { mailbox: usize, letter: u32 },
}

impl Step {
    /// Whether somebody gets on with it, rather than something going wrong. Nobody may need a fault to finish.
    pub(super) fn is_progress(self) -> bool {
        matches!(self, Step::Client { .. } | Step::Role { .. } | Step::Timer { .. } | Step::Resume(_))
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
    faults: Faults,
    timeouts: Timeouts,
    weak_scope: bool,
    watched: FxHashMap<(u32, u32, usize), Result<u32, Violation>>,
    sends: FxHashMap<(usize, u32, u8), u32>,
    next: Vec<u32>,
}

/// What a world is made of.
pub(super) struct Setup {
    pub(super) nodes: usize,
    pub(super) words_per_node: usize,
    pub(super) memory: Vec<(Addr, u64)>,
    pub(super) clients: Vec<Automaton>,
    pub(super) roles: Roles,
    pub(super) faults: Faults,
    pub(super) timeouts: Timeouts,
    pub(super) checks: Checks,
    pub(super) weak_scope: bool,
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
            timeouts: setup.timeouts,
            weak_scope: setup.weak_scope,
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

    /// Whether everybody has finished or crashed.
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
            Timeouts::WhenFaulty => faults.somebody_is_down() && self.nobody_holds(state),
            Timeouts::WhenStuck => false,
        };
        self.healthy_steps(state, may_time_out);
        if self.successors.steps.is_empty() && self.timeouts == Timeouts::WhenStuck {
            self.healthy_steps(state, true);
        }
        for client in 0..self.shape.clients {
            if faults.is_paused(client) {
                self.change_faults(state, Step::Resume(client), faults.without_pause(client));
            }
        }
        if self.faults != Faults::default() {
            self.things_that_go_wrong(state, faults);
        }
    }

    /// Nobody healthy is in a critical section: the checkers have forgotten those who are down.
    fn nobody_holds(&self, state: &[u32]) -> bool {
        self.tables.watches.get(state[self.shape.watch()]).holders().next().is_none()
    }

    fn healthy_steps(&mut self, state: &[u32], may_time_out: bool) {
        let faults = FaultWord(state[self.shape.faults()]);
        for client in 0..self.shape.clients {
            let node = state[self.shape.node(client)];
            if node == DEAD || faults.is_paused(client) {
                continue;
            }
            let pending = self.clients[client].node(node).pending.clone();
            for (slot, pending) in &*pending {
                self.client_steps(state, Turn { client, node, slot: *slot, may_time_out }, pending);
            }
        }
        for role in 0..self.shape.roles {
            self.role_steps(state, role, may_time_out);
        }
    }

    fn client_steps(&mut self, state: &[u32], turn: Turn, pending: &Pending) {
        match pending {
            Pending::Batch { verbs, olds, half } => self.verb_step(state, turn, &verbs[olds.len()], *half),
            Pending::Send { to, message, datagram } => {
                let letter = self.letter_of(turn, message, *datagram);
                self.begin(state);
                self.deliver(*to, letter);
                self.finish(turn, Kind::Sent, 0);
            }
            Pending::Wait { addr, width, cond, or, deadline } => {
                let (value, number) = self.read(state, *addr, *width);
                if cond.holds(value) || or.is_some_and(|or| or.holds(value)) {
                    self.begin(state);
                    self.finish(turn, Kind::Met, number);
                } else if turn.times_out(*deadline) {
                    self.begin(state);
                    self.finish(turn, Kind::Timeout, number);
                }
            }
            Pending::Recv { deadline } => {
                self.offers(state, turn);
                // A message that was sent may still be on its way, so looking once may always miss it.
                if turn.times_out(*deadline) {
                    self.begin(state);
                    self.finish(turn, Kind::Timeout, 0);
                }
            }
            Pending::Alarm => {
                self.begin(state);
                self.finish(turn, Kind::Timeout, 0);
            }
            Pending::Passed => {
                self.begin(state);
                self.finish(turn, Kind::NotPassed, 0);
                if turn.may_time_out {
                    self.begin(state);
                    self.finish(turn, Kind::Passed, 0);
                }
            }
        }
    }

    /// One verb of a batch. Under weak scope a remote read-modify-write takes two steps.
    fn verb_step(&mut self, state: &[u32], turn: Turn, verb: &RawVerb, half: Option<u128>) {
        let remote = self.clients[turn.client].home() != Some(verb.addr.node);
        let splits = self.weak_scope && remote && verb.op.is_atomic();
        if let Some(old) = half {
            self.begin(state);
            if let Some(new) = verb.op.apply(verb.width, old) {
                self.write(verb.addr, verb.width, new);
            }
            let number = self.tables.values.number(old);
            self.finish(turn, Kind::Old, number);
            return;
        }
        let (old, number) = self.read(state, verb.addr, verb.width);
        if splits {
            // The NIC lets no other atomic in between; CPUs do not ask it.
            if self.nic_is_busy_with(state, turn.client, verb.addr) {
                return;
            }
            if verb.op.apply(verb.width, old).is_some() {
                self.begin(state);
                self.finish(turn, Kind::Half, number);
                return;
            }
        }
        self.begin(state);
        if verb.op != Op::Read
            && let Some(new) = verb.op.apply(verb.width, old)
        {
            self.write(verb.addr, verb.width, new);
        }
        self.finish(turn, Kind::Old, number);
    }

    fn nic_is_busy_with(&self, state: &[u32], me: usize, addr: Addr) -> bool {
        (0..self.shape.clients).any(|client| {
            let node = state[self.shape.node(client)];
            client != me
                && node != DEAD
                && self.clients[client].node(node).pending.iter().any(|(_, pending)| {
                    matches!(pending, Pending::Batch { verbs, olds, half: Some(_) } if verbs[olds.len()].addr == addr)
                })
        })
    }

    /// Messages a receive may take: from each sender the first that it wants, or any datagram if those overtake.
    fn offers(&mut self, state: &[u32], turn: Turn) {
        let mailbox = state[self.shape.mailbox(turn.client)];
        if mailbox == 0 {
            return;
        }
        let letters = self.tables.mailboxes.get(mailbox).clone();
        let mut served = None;
        for (place, &letter) in letters.iter().enumerate() {
            let (from, datagram) =
                (self.tables.letters.get(letter).from, self.tables.letters.get(letter).datagram);
            let overtakes = datagram && self.faults.reorders;
            if served == Some(from) && !overtakes {
                continue;
            }
            let stimulus = Stimulus { slot: turn.slot, kind: Kind::Offer, payload: letter };
            if self.clients[turn.client].edge(turn.node, stimulus, &mut self.tables).is_none() {
                continue;
            }
            self.begin(state);
            self.next[self.shape.mailbox(turn.client)] = self.tables.without_letter(mailbox, place);
            self.finish(turn, Kind::Offer, letter);
            served = Some(from);
        }
    }

    fn role_steps(&mut self, state: &[u32], role: usize, may_time_out: bool) {
        let place_of_mailbox = self.shape.mailbox(self.shape.clients + role);
        let mailbox = state[place_of_mailbox];
        let letters = self.tables.mailboxes.get(mailbox).clone();
        let mut served = None;
        for (place, &letter) in letters.iter().enumerate() {
            let Letter { from, datagram, .. } = *self.tables.letters.get(letter);
            if served == Some(from) && !(datagram && self.faults.reorders) {
                continue;
            }
            served = Some(from);
            self.begin(state);
            self.next[place_of_mailbox] = self.tables.without_letter(mailbox, place);
            let reaction =
                self.roles.on_message(role, state[self.shape.role(role)], letter, &mut self.tables);
            self.react(role, &reaction);
            self.push(Step::Role { role, letter }, None);
        }
        if may_time_out {
            let timers = self.tables.timers.get(state[self.shape.timers(role)]).clone();
            for (place, &id) in timers.iter().enumerate() {
                self.begin(state);
                let mut left = timers.clone();
                left.remove(place);
                self.next[self.shape.timers(role)] = self.tables.timers.number(left);
                let reaction = self.roles.on_timer(role, state[self.shape.role(role)], id, &mut self.tables);
                self.react(role, &reaction);
                self.push(Step::Timer { role, id }, None);
            }
        }
    }

    /// A role's verbs, messages and timers.
    fn react(&mut self, role: usize, reaction: &super::roles::Reaction) {
        self.next[self.shape.role(role)] = reaction.state;
        for verb in &reaction.out.verbs {
            let state = std::mem::take(&mut self.next);
            let (old, _) = self.read(&state, verb.addr, verb.width);
            self.next = state;
            if let Some(new) = verb.op.apply(verb.width, old) {
                self.write(verb.addr, verb.width, new);
            }
        }
        for &(to, letter) in &reaction.letters {
            self.deliver(to, letter);
        }
        if !reaction.out.timers.is_empty() {
            let place = self.shape.timers(role);
            let mut timers = self.tables.timers.get(self.next[place]).clone();
            timers.extend(reaction.out.timers.iter().map(|(_, id)| *id));
            timers.sort_unstable();
            self.next[place] = self.tables.timers.number(timers);
        }
    }

    fn things_that_go_wrong(&mut self, state: &[u32], faults: FaultWord) {
        for client in 0..self.shape.clients {
            if self.is_done(state, client) || faults.is_paused(client) {
                continue;
            }
            if faults.left(Budget::Crashes) > 0 {
                self.begin(state);
                self.next[self.shape.node(client)] = DEAD;
                self.next[self.shape.mailbox(client)] = 0;
                self.next[self.shape.faults()] = faults.with_crash().0;
                self.push_forgetting(Step::Crash(client), client);
            }
            if faults.left(Budget::Pauses) > 0 {
                self.begin(state);
                self.next[self.shape.faults()] = faults.with_pause(client).0;
                self.push_forgetting(Step::Pause(client), client);
            }
        }
        let (may_lose, may_double) = (faults.left(Budget::Losses) > 0, faults.left(Budget::Duplicates) > 0);
        if !may_lose && !may_double {
            return;
        }
        for peer in 0..self.shape.clients + self.shape.roles {
            let place = self.shape.mailbox(peer);
            for (at, &letter) in self.tables.mailboxes.get(state[place]).clone().iter().enumerate() {
                if !self.tables.letters.get(letter).datagram {
                    continue;
                }
                if may_lose {
                    self.begin(state);
                    self.next[place] = self.tables.without_letter(state[place], at);
                    self.next[self.shape.faults()] = faults.spend(Budget::Losses).0;
                    self.push(Step::Lose { mailbox: peer, letter }, None);
                }
                if may_double {
                    self.begin(state);
                    self.next[place] = self.tables.with_letter(state[place], letter);
                    self.next[self.shape.faults()] = faults.spend(Budget::Duplicates).0;
                    self.push(Step::Duplicate { mailbox: peer, letter }, None);
                }
            }
        }
    }

    fn change_faults(&mut self, state: &[u32], step: Step, faults: FaultWord) {
        self.begin(state);
        self.next[self.shape.faults()] = faults.0;
        self.push(step, None);
    }

    fn push_forgetting(&mut self, step: Step, client: usize) {
        let place = self.shape.watch();
        match self.watch(self.next[place], FORGET, client) {
            Ok(watch) => {
                self.next[place] = watch;
                self.push(step, None);
            }
            Err(violation) => self.push(step, Some(violation)),
        }
    }

    fn begin(&mut self, state: &[u32]) {
        self.next.clear();
        self.next.extend_from_slice(state);
    }

    /// The client learns what happened to its operation; the checkers learn what it makes of it.
    fn finish(&mut self, turn: Turn, kind: Kind, payload: u32) {
        let Turn { client, node, slot, .. } = turn;
        let stimulus = Stimulus { slot, kind, payload };
        let edge =
            self.clients[client].edge(node, stimulus, &mut self.tables).expect("only offers are refused");
        self.next[self.shape.node(client)] = edge.target;
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

    fn push(&mut self, step: Step, violation: Option<Violation>) {
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

    /// The letter that a client's pending send puts into the mail.
    fn letter_of(&mut self, turn: Turn, message: &Message, datagram: bool) -> u32 {
        let (tables, from) = (&mut self.tables, self.clients[turn.client].me());
        *self.sends.entry((turn.client, turn.node, turn.slot)).or_insert_with(|| {
            tables.letters.number(Letter { from, message: Rc::new(message.clone()), datagram })
        })
    }

    fn deliver(&mut self, to: PeerId, letter: u32) {
        let peer = match to.index() {
            (role, true) => self.shape.clients + role,
            // Nobody reads a dead client's mail.
            (client, false) if self.next[self.shape.node(client)] == DEAD => return,
            (client, false) => client,
        };
        let place = self.shape.mailbox(peer);
        self.next[place] = self.tables.with_letter(self.next[place], letter);
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

    fn write(&mut self, addr: Addr, width: Width, value: u128) {
        let word = self.shape.word(addr);
        self.next[word] = self.tables.values.number(value & u128::from(u64::MAX));
        if width == Width::W128 {
            self.next[word + 1] = self.tables.values.number(value >> 64);
        }
    }
}

/// Whose operation moves.
#[derive(Clone, Copy)]
struct Turn {
    client: usize,
    node: u32,
    slot: u8,
    may_time_out: bool,
}

impl Turn {
    fn times_out(self, deadline: Deadline) -> bool {
        match deadline {
            Deadline::Never => false,
            Deadline::Now => true,
            Deadline::At(_) => self.may_time_out,
        }
    }
}
