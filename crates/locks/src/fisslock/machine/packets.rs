//! Packets that arrive at a machine, from a decider or from another machine through one.
//!
//! A packet is acknowledged when it has been dealt with, not when it arrives: see [`Parked::Packet`].

use super::super::Rules;
use super::super::agent::Agent;
use super::super::packet::{Flags, Kind, Packet};
use super::{AgentState, Machine, Parked, rack_of};
use lockwright_fabric::Outbox;
use lockwright_fabric::observe::Mode;

impl<R: Rules> Machine<R> {
    pub(super) fn packet(&mut self, packet: Packet, out: &mut Outbox) {
        let number = packet.number;
        if R::EPOCHS_ARE_CHECKED && packet.epoch != self.racks[rack_of(packet.lid, &self.params)].epoch {
            return;
        }
        if packet.kind == Kind::Ack {
            self.acknowledged(&packet, out);
            return;
        }
        if packet.flags.echo {
            self.came_back(&packet, out);
            return;
        }
        let seen = self.seen.entry((number.origin, number.lane, packet.kind == Kind::Grant)).or_default();
        if number.seq <= *seen {
            let is_last = number.seq == *seen;
            // Once more: the acknowledgement was lost. Unless there is none yet.
            if is_last && !self.is_parked(&packet) {
                self.confirm(&packet, out);
            }
            return;
        }
        *seen = number.seq;
        self.deal_with(packet, out);
    }

    pub(super) fn deal_with(&mut self, packet: Packet, out: &mut Outbox) {
        match packet.kind {
            Kind::Acquire => self.asked(packet, out),
            Kind::Release => self.released(packet, out),
            Kind::Grant => self.given(&packet, out),
            Kind::Free | Kind::Bar | Kind::Ack => {}
        }
    }

    /// Says that `packet` was dealt with, to the machine that sent it to the decider.
    fn confirm(&mut self, packet: &Packet, out: &mut Outbox) {
        let flags =
            Flags { twin: packet.flags.twin, of_grant: packet.kind == Kind::Grant, ..Flags::default() };
        let ack = Packet { kind: Kind::Ack, flags, queue: Vec::new(), token: 0, ..packet.clone() };
        if packet.number.origin == self.me {
            self.acknowledged(&ack, out);
        } else {
            out.send_datagram(super::super::machine_of(packet.number.origin), ack.encode());
        }
    }

    fn acknowledged(&mut self, ack: &Packet, out: &mut Outbox) {
        let (number, flags) = (ack.number, ack.flags);
        let done = self.arrived(number.lane, number.seq, flags.of_grant, flags.twin, out);
        if let Some(done) = done
            && done.is_departure()
        {
            self.left(done.lid, out);
        }
    }

    /// FREE and BAR come back when the decider is done with them; FREE and GRANT when it refuses them.
    fn came_back(&mut self, packet: &Packet, out: &mut Outbox) {
        let Some(done) = self.arrived(packet.number.lane, packet.number.seq, true, false, out) else {
            return;
        };
        if done.is_departure() {
            if packet.flags.refused {
                self.stays(done.lid, out);
            } else {
                self.left(done.lid, out);
            }
        }
    }

    fn is_parked(&self, packet: &Packet) -> bool {
        let is_it = |parked: &Parked| matches!(parked, Parked::Packet(other) if other.number == packet.number && other.kind == packet.kind);
        let leaving = match self.agents.get(&packet.lid) {
            Some(AgentState::Leaving { parked, .. }) => parked.iter().any(is_it),
            _ => false,
        };
        leaving || self.parked.get(&packet.lid).is_some_and(|parked| parked.iter().any(is_it))
    }

    /// ACQUIRE, from the decider to the agent (workflows 2 and 3).
    fn asked(&mut self, packet: Packet, out: &mut Outbox) {
        let (lid, waiter, Flags { counted, granted, .. }) = (packet.lid, packet.waiter(), packet.flags);
        self.recall(lid, out);
        let comes_here =
            packet.number.origin == self.me && !self.departs_later(lid) && self.resident(lid).is_none();
        match self.agents.get_mut(&lid) {
            Some(AgentState::Here(agent)) if counted => {
                agent.count(waiter, granted);
                if waiter.tries && !granted {
                    self.deny(lid, waiter.ticket, out);
                }
                self.bar(lid, out);
                self.move_on(lid, out);
            }
            Some(AgentState::Leaving { parked, .. }) if counted => {
                parked.push(Parked::Packet(packet));
                return;
            }
            None if counted => {
                // The agent cannot have left without it, so it is on its way here.
                self.parked.entry(lid).or_default().push(Parked::Packet(packet));
                return;
            }
            // This machine's own packet found the agent here or on its way here, after all that was sent before it.
            None if comes_here => {
                self.parked.entry(lid).or_default().push(Parked::Asked(waiter));
            }
            // The agent is gone, or not here yet: the decider knows (Fig. 9 right).
            _ => self.request(lid, waiter, out),
        }
        self.confirm(&packet, out);
    }

    /// RELEASE, from the decider to the agent (workflow 9).
    fn released(&mut self, packet: Packet, out: &mut Outbox) {
        self.recall(packet.lid, out);
        match self.agents.get_mut(&packet.lid) {
            Some(AgentState::Here(agent)) => {
                agent.release(packet.ticket);
                self.move_on(packet.lid, out);
            }
            // For this agent, if it stays, or for the next that comes here.
            Some(AgentState::Leaving { parked, .. }) => {
                parked.push(Parked::Packet(packet));
                return;
            }
            None => {
                self.parked.entry(packet.lid).or_default().push(Parked::Packet(packet));
                return;
            }
        }
        self.confirm(&packet, out);
    }

    /// GRANT: to a task here, with or without the agent.
    fn given(&mut self, packet: &Packet, out: &mut Outbox) {
        let Packet { lid, ticket, mode, token, flags, .. } = *packet;
        if !flags.agent {
            if flags.refused {
                self.denied(lid, ticket, out);
            } else {
                self.granted(lid, ticket, token, out);
            }
            self.confirm(packet, out);
            return;
        }
        let inca = u8::from(flags.fresh && mode == Mode::Shared);
        let mut agent = Agent::new(mode, inca, token, ticket, packet.queue.clone());
        agent.barred = flags.bar;
        let readers = agent.take_readers(self.params.preference);
        let mut parked = match self.agents.insert(lid, AgentState::Here(agent)) {
            // It came back before this machine heard that it had left.
            Some(AgentState::Leaving { parked, .. }) => parked,
            _ => Vec::new(),
        };
        parked.extend(self.parked.remove(&lid).unwrap_or_default());
        self.granted(lid, ticket, token, out);
        for reader in readers {
            self.grant_to(lid, reader, token, out);
        }
        self.confirm(packet, out);
        self.unpark(lid, parked, out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::packet::{Number, Ticket, Waiter};
    use super::super::super::{Params, Shipped};
    use super::*;

    const LID: u64 = 3;

    #[test]
    fn a_packet_that_waits_for_an_agent_to_leave_is_not_acknowledged_before_however_often_it_comes() {
        let mut machine = Machine::<Shipped>::new(1, 2, &Params::default());
        let agent = Agent::idle(Mode::Shared, 0);
        machine.agents.insert(LID, AgentState::Leaving { agent, next: None, parked: Vec::new() });
        let ticket = Ticket { mid: 2, tid: 1 };
        let asks = Packet::acquire(LID, Waiter { ticket, mode: Mode::Exclusive, priority: 0, tries: false });
        let asks = Packet {
            flags: Flags { counted: true, ..asks.flags },
            number: Number { origin: 2, lane: 0, seq: 1 },
            epoch: machine.epoch(),
            ..asks
        };
        let mut out = Outbox::default();
        for _ in 0..3 {
            machine.packet(asks.clone(), &mut out);
            assert_eq!(out.datagrams.len(), 0, "its sender keeps the others back");
            let Some(AgentState::Leaving { parked, .. }) = machine.agents.get(&LID) else {
                panic!("it leaves")
            };
            assert_eq!(parked.len(), 1);
        }
    }
}
