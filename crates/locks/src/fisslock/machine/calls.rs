//! What the machine's own tasks ask of it (Fig. 6).

use super::super::Rules;
use super::super::packet::{Kind, Packet, TID_BITS, Ticket, Waiter, call};
use super::{AgentState, Machine, Parked, Task};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Message, Outbox, PeerId};

impl<R: Rules> Machine<R> {
    /// `fisslock_acquire`. Every acquisition has a number of its own: what is said of an earlier one, in packets that are
    /// still under way, is never said of this one.
    pub(super) fn lock(&mut self, client: PeerId, message: &Message, out: &mut Outbox) {
        let [slot, shared, priority, tries] = message.words;
        let lid = message.lock;
        let tid = self.next_tid();
        let mode = if shared == 1 { Mode::Shared } else { Mode::Exclusive };
        let (priority, tries) = (priority as u8, tries == 1);
        let task = Task { client, slot, lid, mode, priority, tries, held: false, abandoned: false };
        self.tasks.insert(tid, task);
        self.request(lid, Waiter { ticket: Ticket { mid: self.me, tid }, mode, priority, tries }, out);
    }

    fn next_tid(&mut self) -> u32 {
        loop {
            self.last_tid = (self.last_tid + 1) % (1 << TID_BITS);
            if !self.tasks.contains_key(&self.last_tid) {
                return self.last_tid;
            }
        }
    }

    /// A request that is in this machine's care: for the agent here (workflows 4 and 5), or for the decider.
    pub(super) fn request(&mut self, lid: u64, waiter: Waiter, out: &mut Outbox) {
        self.recall(lid, out);
        let stays_here = self.resident(lid) == Some(true) && !self.is_paused(lid);
        match self.agents.get_mut(&lid) {
            Some(AgentState::Here(_)) => self.ask(lid, waiter, out),
            Some(AgentState::Leaving { parked, .. }) => parked.push(Parked::Asked(waiter)),
            None if stays_here => self.take_seat(lid, waiter, out),
            None => self.post(Packet::acquire(lid, waiter), out),
        }
    }

    /// `fisslock_release`.
    pub(super) fn unlock(&mut self, client: PeerId, slot: u64, out: &mut Outbox) {
        if let Some(tid) = self.task(client, slot) {
            let Task { lid, .. } = self.tasks[&tid];
            self.tasks.remove(&tid);
            self.let_go(lid, Ticket { mid: self.me, tid }, out);
        }
    }

    /// A holder on this machine lets go (workflows 6 to 8), or asks the agent elsewhere to see to it (9).
    pub(super) fn let_go(&mut self, lid: u64, ticket: Ticket, out: &mut Outbox) {
        self.recall(lid, out);
        match self.agents.get_mut(&lid) {
            Some(AgentState::Here(agent)) => {
                agent.release(ticket);
                self.move_on(lid, out);
            }
            Some(AgentState::Leaving { parked, .. }) if R::RELEASES_WAIT => {
                parked.push(Parked::Released(ticket));
            }
            Some(AgentState::Leaving { agent, .. }) => agent.release(ticket),
            None => self.post(Packet::new(Kind::Release, lid, ticket, Mode::Shared), out),
        }
    }

    /// The client no longer wants it. A waiter in a queue elsewhere stays there until it is granted, and lets go then.
    pub(super) fn give_up(&mut self, client: PeerId, slot: u64, out: &mut Outbox) {
        let Some(tid) = self.task(client, slot) else { return };
        let Task { lid, held, .. } = self.tasks[&tid];
        let ticket = Ticket { mid: self.me, tid };
        if held {
            self.tasks.remove(&tid);
            self.let_go(lid, ticket, out);
        } else if let Some(AgentState::Here(agent)) = self.agents.get_mut(&lid)
            && agent.forget(ticket)
        {
            self.tasks.remove(&tid);
        } else if let Some(task) = self.tasks.get_mut(&tid) {
            task.abandoned = true;
        }
    }

    /// The client is gone: so is all it held and wanted.
    pub(super) fn departed(&mut self, client: PeerId, out: &mut Outbox) {
        let of_client = self.tasks.values().filter(|task| task.client == client && !task.abandoned);
        for slot in of_client.map(|task| task.slot).collect::<Vec<_>>() {
            self.give_up(client, slot, out);
        }
    }

    /// A task of this machine has the lock.
    pub(super) fn granted(&mut self, lid: u64, ticket: Ticket, token: u64, out: &mut Outbox) {
        match self.tasks.get_mut(&ticket.tid) {
            Some(task) if !task.abandoned => {
                task.held = true;
                out.send(task.client, Message::new(lid, call::LOCKED, &[task.slot, token]));
            }
            _ => self.unwanted.push((lid, ticket)),
        }
    }

    /// A task of this machine does not have it, and does not wait.
    pub(super) fn denied(&mut self, lid: u64, ticket: Ticket, out: &mut Outbox) {
        if let Some(task) = self.tasks.remove(&ticket.tid)
            && !task.abandoned
        {
            out.send(task.client, Message::new(lid, call::DENIED, &[task.slot]));
        }
    }

    fn task(&self, client: PeerId, slot: u64) -> Option<u32> {
        let mut tasks = self.tasks.iter();
        let is_it = |task: &Task| task.client == client && task.slot == slot && !task.abandoned;
        tasks.find(|(_, task)| is_it(task)).map(|(tid, _)| *tid)
    }
}
