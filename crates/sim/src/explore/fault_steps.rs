//! What can go wrong in a state, as far as the case allows it.

use super::state::{Budget, DEAD, FaultWord};
use super::tables::Envelope;
use super::world::{Step, World};
use lockwright_fabric::{Message, PeerId};
use std::rc::Rc;

impl World {
    pub(super) fn fault_steps(&mut self, state: &[u32], faults: FaultWord) {
        for client in 0..self.shape.clients {
            if self.is_done(state, client) || faults.is_paused(client) {
                continue;
            }
            if faults.left(Budget::Crashes) > 0 {
                self.begin(state);
                self.next[self.shape.node(client)] = DEAD;
                self.next[self.shape.mailbox(client)] = 0;
                self.next[self.shape.faults()] = faults.with_crash().0;
                self.tell_roles_of_departure(state, client);
                self.push_forgetting(Step::Crash(client), client);
            }
            if faults.left(Budget::Pauses) > 0 {
                self.begin(state);
                self.next[self.shape.faults()] = faults.with_pause(client).0;
                self.push_forgetting(Step::Pause(client), client);
            }
        }
        self.roles_that_fail(state, faults);
        let (may_lose, may_double) = (faults.left(Budget::Losses) > 0, faults.left(Budget::Duplicates) > 0);
        if !may_lose && !may_double {
            return;
        }
        for peer in 0..self.shape.clients + self.shape.roles {
            let place = self.shape.mailbox(peer);
            for (at, &envelope) in self.tables.mailboxes.get(state[place]).clone().iter().enumerate() {
                if !self.tables.envelopes.get(envelope).datagram {
                    continue;
                }
                if may_lose {
                    self.begin(state);
                    self.next[place] = self.tables.without_envelope(state[place], at);
                    self.next[self.shape.faults()] = faults.spend(Budget::Losses).0;
                    self.push(Step::Lose { mailbox: peer, envelope }, None);
                }
                if may_double {
                    self.begin(state);
                    self.next[place] = self.tables.with_envelope(state[place], envelope);
                    self.next[self.shape.faults()] = faults.spend(Budget::Duplicates).0;
                    self.push(Step::Duplicate { mailbox: peer, envelope }, None);
                }
            }
        }
    }

    /// A switch is restarted; a node is lost. Packets under way stay under way: the restarted switch may find them, and
    /// what a lost node has sent may still arrive.
    fn roles_that_fail(&mut self, state: &[u32], faults: FaultWord) {
        let on_nodes = self.shape.roles - self.switches;
        if faults.left(Budget::Restarts) > 0 {
            for role in on_nodes..self.shape.roles {
                let place = self.shape.role(role);
                // The role that recovers others is reliable.
                if self.roles.wants_role_departures(state[place]) {
                    continue;
                }
                self.begin(state);
                self.next[place] = self.roles.restarted(state[place]);
                self.next[self.shape.timers(role)] = 0;
                self.next[self.shape.faults()] = faults.spend(Budget::Restarts).0;
                self.notify_role_lost(state, role);
                self.push(Step::Restart(role), None);
            }
        }
        if faults.left(Budget::NodeLosses) > 0 {
            for role in 0..on_nodes {
                if state[self.shape.role(role)] != DEAD {
                    self.lose_node(state, faults, role);
                }
            }
        }
    }

    fn lose_node(&mut self, state: &[u32], faults: FaultWord, role: usize) {
        self.begin(state);
        self.next[self.shape.role(role)] = DEAD;
        self.next[self.shape.mailbox(self.shape.clients + role)] = 0;
        self.next[self.shape.timers(role)] = 0;
        self.next[self.shape.faults()] = faults.with_node_loss().0;
        let mut violation = None;
        for client in 0..self.shape.clients {
            let is_there = self.clients[client].home().is_some_and(|node| usize::from(node.0) == role);
            if is_there && !self.is_done(state, client) {
                self.next[self.shape.node(client)] = DEAD;
                self.next[self.shape.mailbox(client)] = 0;
                violation = violation.or(self.forget(client).err());
            }
        }
        self.notify_role_lost(state, role);
        self.push(Step::LoseNode(role), violation);
    }

    /// Roles that watch the others hear that this one was lost or restarted.
    fn notify_role_lost(&mut self, state: &[u32], lost: usize) {
        for role in 0..self.shape.roles {
            let number = state[self.shape.role(role)];
            if number != DEAD && self.roles.wants_role_departures(number) {
                let message = Rc::new(Message::new(0, Message::DEPARTED, &[]));
                let envelope = Envelope { from: PeerId::role(lost), message, datagram: false };
                let envelope = self.tables.envelopes.number(envelope);
                self.deliver(PeerId::role(role), envelope);
            }
        }
    }

    /// The last message from a crashed client, behind all it sent, for roles that want to know.
    fn tell_roles_of_departure(&mut self, state: &[u32], client: usize) {
        for role in 0..self.shape.roles {
            let number = state[self.shape.role(role)];
            if number != DEAD && self.roles.wants_departures(number) {
                let message = Rc::new(Message::new(0, Message::DEPARTED, &[]));
                let envelope = Envelope { from: PeerId::client(client), message, datagram: false };
                let envelope = self.tables.envelopes.number(envelope);
                self.deliver(PeerId::role(role), envelope);
            }
        }
    }

    pub(super) fn change_faults(&mut self, state: &[u32], step: Step, faults: FaultWord) {
        self.begin(state);
        self.next[self.shape.faults()] = faults.0;
        self.push(step, None);
    }
}
