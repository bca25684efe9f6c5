//! Server-side roles as automata: what each state makes of each message, computed once.

use super::tables::{Envelope, Tables};
use lockwright_fabric::{BoxedRole, Outbox, PeerId, Time};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// What a role does about a message or a timer.
#[derive(Debug)]
pub(super) struct Reaction {
    pub(super) state: u32,
    /// Its messages, as envelopes.
    pub(super) envelopes: Vec<(PeerId, u32)>,
    /// Its verbs and timers.
    pub(super) out: Outbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Envelope(u32),
    Timer(u64),
}

/// All roles of a world, with every state any of them has been in.
#[derive(Debug, Default)]
pub(super) struct Roles {
    initial: Vec<u32>,
    states: Vec<BoxedRole>,
    numbers: FxHashMap<Vec<u8>, u32>,
    reactions: FxHashMap<(usize, u32, Event), Rc<Reaction>>,
}

impl Roles {
    pub(super) fn new(roles: Vec<BoxedRole>) -> Self {
        let mut all = Self::default();
        all.initial = roles.into_iter().map(|role| all.number(role)).collect();
        all
    }

    pub(super) fn len(&self) -> usize {
        self.initial.len()
    }

    pub(super) fn initial(&self, role: usize) -> u32 {
        self.initial[role]
    }

    /// Whether the role in this state wants to hear of clients that crashed.
    pub(super) fn wants_departures(&self, state: u32) -> bool {
        self.states[state as usize].wants_departures()
    }

    /// Whether the role in this state wants to hear of roles that were lost or restarted.
    pub(super) fn wants_role_departures(&self, state: u32) -> bool {
        self.states[state as usize].wants_role_departures()
    }

    /// The state that is left when the role in this state is restarted.
    pub(super) fn restarted(&mut self, state: u32) -> u32 {
        let mut role = self.states[state as usize].clone();
        role.restart();
        self.number(role)
    }

    pub(super) fn on_message(
        &mut self,
        role: usize,
        state: u32,
        envelope: u32,
        tables: &mut Tables,
    ) -> Rc<Reaction> {
        self.react(role, state, Event::Envelope(envelope), tables)
    }

    pub(super) fn on_timer(&mut self, role: usize, state: u32, id: u64, tables: &mut Tables) -> Rc<Reaction> {
        self.react(role, state, Event::Timer(id), tables)
    }

    fn react(&mut self, role: usize, state: u32, event: Event, tables: &mut Tables) -> Rc<Reaction> {
        if let Some(reaction) = self.reactions.get(&(role, state, event)) {
            return reaction.clone();
        }
        let mut machine = self.states[state as usize].clone();
        let mut out = Outbox::default();
        match event {
            Event::Envelope(envelope) => {
                let envelope = tables.envelopes.get(envelope);
                machine.on_message(Time(0), envelope.from, &envelope.message, &mut out);
            }
            Event::Timer(id) => machine.on_timer(Time(0), id, &mut out),
        }
        let messages = out.messages.drain(..).map(|(to, message)| (to, message, false));
        let datagrams = out.datagrams.drain(..).map(|(to, message)| (to, message, true));
        let envelopes = messages.chain(datagrams).map(|(to, message, datagram)| {
            let envelope = Envelope { from: PeerId::role(role), message: Rc::new(message), datagram };
            (to, tables.envelopes.number(envelope))
        });
        let envelopes = envelopes.collect();
        let reaction = Rc::new(Reaction { state: self.number(machine), envelopes, out });
        self.reactions.insert((role, state, event), reaction.clone());
        reaction
    }

    fn number(&mut self, role: BoxedRole) -> u32 {
        let states = &mut self.states;
        *self.numbers.entry(role.key()).or_insert_with(|| {
            states.push(role);
            states.len() as u32 - 1
        })
    }
}
