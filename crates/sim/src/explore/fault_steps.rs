//! What can go wrong in a state, as far as the case allows it.

use super::state::{Budget, DEAD, FaultWord};
use super::tables::Letter;
use super::world::{Step, World};
use lockwright_fabric::{Message, PeerId};
use std::rc::Rc;

impl World {
    pub(super) fn things_that_go_wrong(&mut self, state: &[u32], faults: FaultWord) {
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

    /// The last letter from a crashed client, behind all it sent, for roles that want to know.
    fn tell_roles_of_departure(&mut self, state: &[u32], client: usize) {
        for role in 0..self.shape.roles {
            if self.roles.hears_departures(state[self.shape.role(role)]) {
                let message = Rc::new(Message::new(0, Message::DEPARTED, &[]));
                let letter = Letter { from: PeerId::client(client), message, datagram: false };
                let letter = self.tables.letters.number(letter);
                self.deliver(PeerId::role(role), letter);
            }
        }
    }

    pub(super) fn change_faults(&mut self, state: &[u32], step: Step, faults: FaultWord) {
        self.begin(state);
        self.next[self.shape.faults()] = faults.0;
        self.push(step, None);
    }
}
