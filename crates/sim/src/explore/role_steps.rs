//! What server-side roles can do in a state: handle a message, or a timer that ran out.

use super::roles::Reaction;
use super::state::DEAD;
use super::tables::Envelope;
use super::world::{Step, World};

impl World {
    pub(super) fn role_steps(&mut self, state: &[u32], role: usize, may_time_out: bool) {
        if state[self.shape.role(role)] == DEAD {
            return;
        }
        let place_of_mailbox = self.shape.mailbox(self.shape.clients + role);
        let mailbox = state[place_of_mailbox];
        let envelopes = self.tables.mailboxes.get(mailbox).clone();
        let mut served = None;
        for (place, &envelope) in envelopes.iter().enumerate() {
            let Envelope { from, datagram, .. } = *self.tables.envelopes.get(envelope);
            if served == Some(from) && !(datagram && self.faults.reorders) {
                continue;
            }
            served = Some(from);
            self.begin(state);
            self.next[place_of_mailbox] = self.tables.without_envelope(mailbox, place);
            let reaction =
                self.roles.on_message(role, state[self.shape.role(role)], envelope, &mut self.tables);
            self.react(role, &reaction);
            self.push(Step::Role { role, envelope }, None);
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
    fn react(&mut self, role: usize, reaction: &Reaction) {
        self.next[self.shape.role(role)] = reaction.state;
        for verb in &reaction.out.verbs {
            let state = std::mem::take(&mut self.next);
            let (old, _) = self.read(&state, verb.addr, verb.width);
            self.next = state;
            if let Some(new) = verb.op.apply(verb.width, old) {
                self.write(verb.addr, verb.width, new);
            }
        }
        for &(to, envelope) in &reaction.envelopes {
            self.deliver(to, envelope);
        }
        if !reaction.out.timers.is_empty() {
            let place = self.shape.timers(role);
            let mut timers = self.tables.timers.get(self.next[place]).clone();
            timers.extend(reaction.out.timers.iter().map(|(_, id)| *id));
            timers.sort_unstable();
            self.next[place] = self.tables.timers.number(timers);
        }
    }
}
