//! Server-side roles as automata: what each state makes of each message, computed once.

use lockwright_fabric::{BoxedRole, Message, Outbox, PeerId, Time};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// What a role does about a message or a timer.
#[derive(Debug)]
pub(super) struct Reaction {
    pub(super) state: u32,
    pub(super) out: Outbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Letter(u32),
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

    pub(super) fn on_message(
        &mut self,
        role: usize,
        state: u32,
        letter: u32,
        from: PeerId,
        message: &Message,
    ) -> Rc<Reaction> {
        self.react(role, state, Event::Letter(letter), |role, out| {
            role.on_message(Time(0), from, message, out);
        })
    }

    pub(super) fn on_timer(&mut self, role: usize, state: u32, id: u64) -> Rc<Reaction> {
        self.react(role, state, Event::Timer(id), |role, out| role.on_timer(Time(0), id, out))
    }

    fn react(
        &mut self,
        role: usize,
        state: u32,
        event: Event,
        act: impl FnOnce(&mut BoxedRole, &mut Outbox),
    ) -> Rc<Reaction> {
        if let Some(reaction) = self.reactions.get(&(role, state, event)) {
            return reaction.clone();
        }
        let mut machine = self.states[state as usize].clone();
        let mut out = Outbox::default();
        act(&mut machine, &mut out);
        let reaction = Rc::new(Reaction { state: self.number(machine), out });
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
