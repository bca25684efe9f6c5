//! Agents on a machine: what they grant, and how they leave (Fig. 7).

use super::super::Rules;
use super::super::agent::Agent;
use super::super::packet::{Flags, Kind, Packet, Ticket, Waiter};
use super::super::pipeline::Preference;
use super::{AgentState, Machine, Parked};
use lockwright_fabric::Outbox;
use lockwright_fabric::observe::Mode;
use std::collections::VecDeque;

impl<R: Rules> Machine<R> {
    /// A request that nobody has decided yet, for the agent here.
    pub(super) fn ask(&mut self, lid: u64, waiter: Waiter, out: &mut Outbox) {
        let Some(AgentState::Here(agent)) = self.agents.get_mut(&lid) else { return };
        let token = agent.token;
        if agent.ask(waiter) {
            self.grant_to(lid, waiter.ticket, token, out);
        } else if waiter.tries {
            self.deny(lid, waiter.ticket, out);
        }
        self.bar(lid, out);
        self.move_on(lid, out);
    }

    /// Tells the decider to let no more readers in, where that is called for (§6). Where writers are preferred it knows
    /// of those that came through it, but not of this machine's own, nor of one that came late, after the agent had been
    /// elsewhere.
    pub(super) fn bar(&mut self, lid: u64, out: &mut Outbox) {
        let preference = self.params.preference;
        let stays = self.resident(lid).is_some();
        let Some(AgentState::Here(agent)) = self.agents.get_mut(&lid) else { return };
        if agent.barred || agent.mode == Mode::Exclusive || !agent.writer_waits() {
            return;
        }
        agent.barred = match preference {
            Preference::ReadersAlways => false,
            Preference::Readers => agent.passed >= self.params.readers_past_writer,
            Preference::Writers => true,
        };
        if agent.barred && !stays {
            let ticket = Ticket { mid: self.me, tid: 0 };
            self.post(Packet::new(Kind::Bar, lid, ticket, Mode::Shared), out);
        }
    }

    pub(super) fn grant_to(&mut self, lid: u64, ticket: Ticket, token: u64, out: &mut Outbox) {
        if ticket.mid == self.me {
            self.granted(lid, ticket, token, out);
        } else {
            let grant = Packet::new(Kind::Grant, lid, ticket, Mode::Shared);
            self.post(Packet { token, ..grant }, out);
        }
    }

    /// A task that only tries is told no, wherever it is.
    pub(super) fn deny(&mut self, lid: u64, ticket: Ticket, out: &mut Outbox) {
        if ticket.mid == self.me {
            self.denied(lid, ticket, out);
        } else {
            let no = Packet::new(Kind::Grant, lid, ticket, Mode::Shared);
            self.post(Packet { flags: Flags { refused: true, ..no.flags }, ..no }, out);
        }
    }

    /// Once nobody holds the lock: it goes to the next in the queue, or is free (workflows 7 and 8).
    pub(super) fn move_on(&mut self, lid: u64, out: &mut Outbox) {
        let (me, stays, paused) = (self.me, self.resident(lid).is_some(), self.is_paused(lid));
        let Some(AgentState::Here(agent)) = self.agents.get_mut(&lid) else { return };
        if !agent.is_idle() {
            return;
        }
        let next = agent.queue.front().copied();
        let mode = agent.mode;
        let goes_on_here = !stays
            && next.is_some_and(|next| next.ticket.mid == me && next.mode == Mode::Exclusive)
            && mode == Mode::Exclusive
            && agent.token as u16 != u16::MAX;
        if paused && !goes_on_here && R::DEPARTURES_WAIT {
            return;
        }
        agent.queue.pop_front();
        if stays {
            match next {
                None => drop(self.agents.remove(&lid)),
                Some(next) => self.hand_on_here(lid, next, out),
            }
            return;
        }
        if let Some(next) = next
            && goes_on_here
        {
            // The decider's registers are right as they are: nobody has to be asked.
            agent.holders.insert(next.ticket);
            agent.token += u64::from(self.params.tokens);
            let token = agent.token;
            self.granted(lid, next.ticket, token, out);
            return;
        }
        let mut behind = VecDeque::new();
        let packet = match next {
            None => Packet::new(Kind::Free, lid, Ticket { mid: me, tid: 0 }, mode),
            Some(next) => {
                let bar = self.params.preference == Preference::Writers && agent.writer_waits();
                let flags = Flags { agent: true, bar, ..Flags::default() };
                let goes = agent.queue.len().min(self.params.queue_limit);
                behind = agent.queue.split_off(goes);
                let queue = agent.queue.iter().copied().collect();
                Packet { flags, queue, ..Packet::new(Kind::Grant, lid, next.ticket, next.mode) }
            }
        };
        let packet = Packet { held: mode, inca: agent.inca, ..packet };
        if let Some(AgentState::Here(agent)) = self.agents.remove(&lid)
            && mode == Mode::Shared
        {
            self.agents.insert(lid, AgentState::Leaving { agent, next, parked: Vec::new() });
        }
        self.post(packet, out);
        // In the same lane, so the decider hears of them after the departure, and in their order.
        for waiter in behind {
            self.post(Packet::acquire(lid, waiter), out);
        }
    }

    /// The lock of an agent that never leaves this machine, for its first holder.
    pub(super) fn take_seat(&mut self, lid: u64, waiter: Waiter, out: &mut Outbox) {
        self.stamp += u64::from(self.params.tokens);
        let agent = Agent::new(waiter.mode, 0, self.stamp, waiter.ticket, Vec::new());
        self.agents.insert(lid, AgentState::Here(agent));
        self.grant_to(lid, waiter.ticket, self.stamp, out);
    }

    /// Hands on the lock of an agent that stays.
    fn hand_on_here(&mut self, lid: u64, next: Waiter, out: &mut Outbox) {
        let preference = self.params.preference;
        let Some(AgentState::Here(agent)) = self.agents.get_mut(&lid) else { return };
        self.stamp += u64::from(self.params.tokens);
        let queue = std::mem::take(&mut agent.queue).into();
        *agent = Agent::new(next.mode, 0, self.stamp, next.ticket, queue);
        let readers = agent.take_readers(preference);
        agent.barred = preference == Preference::Writers && agent.writer_waits();
        let token = self.stamp;
        for ticket in std::iter::once(next.ticket).chain(readers) {
            self.grant_to(lid, ticket, token, out);
        }
    }

    /// A departure that has not been sent is taken back: tasks that came in the meantime are better served here.
    pub(super) fn recall(&mut self, lid: u64, out: &mut Outbox) {
        if !matches!(self.agents.get(&lid), Some(AgentState::Leaving { .. })) {
            return;
        }
        let lane = self.lane_of_lock(lid);
        if let Some(behind) = self.lanes.get_mut(&lane).and_then(|lane| lane.recall(lid)) {
            self.sit_down_again(lid, &behind, false, out);
        }
    }

    /// The decider has let the agent go.
    pub(super) fn left(&mut self, lid: u64, out: &mut Outbox) {
        // A later departure may be on its way already; this one was of an agent before.
        if self.departs(lid) || !matches!(self.agents.get(&lid), Some(AgentState::Leaving { .. })) {
            return;
        }
        if let Some(AgentState::Leaving { parked, .. }) = self.agents.remove(&lid) {
            self.unpark(lid, parked, out);
        }
    }

    /// The decider has counted a request that the agent has not seen: the agent stays (§4.2 "delayed packets").
    pub(super) fn stays(&mut self, lid: u64, out: &mut Outbox) {
        self.sit_down_again(lid, &[], true, out);
    }

    /// Takes a departure back. Waiters that were to ask again `behind` it join the queue.
    fn sit_down_again(&mut self, lid: u64, behind: &[Waiter], refused: bool, out: &mut Outbox) {
        if !matches!(self.agents.get(&lid), Some(AgentState::Leaving { .. })) {
            return;
        }
        let Some(AgentState::Leaving { mut agent, next, parked }) = self.agents.remove(&lid) else { return };
        if let Some(next) = next {
            agent.queue.push_front(next);
        }
        agent.queue.extend(behind);
        agent.refused_at = refused.then_some(agent.inca);
        self.agents.insert(lid, AgentState::Here(agent));
        self.unpark(lid, parked, out);
    }

    /// What had to wait for an agent is dealt with, wherever the agent is now.
    pub(super) fn unpark(&mut self, lid: u64, parked: Vec<Parked>, out: &mut Outbox) {
        for parked in parked {
            match parked {
                Parked::Asked(waiter) => self.request(lid, waiter, out),
                Parked::Released(ticket) => self.let_go(lid, ticket, out),
                Parked::Packet(packet) => self.deal_with(packet, out),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::packet::call;
    use super::super::super::{Params, Shipped};
    use super::super::Task;
    use super::*;
    use lockwright_fabric::PeerId;

    const LID: u64 = 3;

    /// What a machine sends when a lock that it last granted under `token` is released, and its next waiter is its own.
    fn hand_over(token: u64) -> Outbox {
        let mut machine = Machine::<Shipped>::new(1, 1, &Params::default());
        let ticket = Ticket { mid: machine.me, tid: 7 };
        let task = Task {
            client: PeerId::client(0),
            slot: 0,
            lid: LID,
            mode: Mode::Exclusive,
            priority: 0,
            tries: false,
            held: false,
            abandoned: false,
        };
        machine.tasks.insert(ticket.tid, task);
        let mut agent = Agent::idle(Mode::Exclusive, token);
        agent.enqueue(Waiter { ticket, mode: Mode::Exclusive, priority: 0, tries: false });
        machine.agents.insert(LID, AgentState::Here(agent));
        let mut out = Outbox::default();
        machine.move_on(LID, &mut out);
        out
    }

    #[test]
    fn a_machine_hands_on_a_lock_by_itself_until_its_tokens_are_used_up_and_then_asks_the_decider() {
        let stamp = 5 << 16;
        let out = hand_over(stamp | 0xfffe);
        let told: Vec<_> = out.messages.iter().map(|(_, told)| (told.kind, told.words[1])).collect();
        assert_eq!((told, out.datagrams.len()), (vec![(call::LOCKED, stamp | 0xffff)], 0));
        // The next token of this machine would be the first of the decider's next stamp, which may be another's.
        let out = hand_over(stamp | 0xffff);
        assert_eq!((out.messages.len(), out.datagrams.len()), (0, 1));
    }
}
