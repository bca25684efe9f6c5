//! What a machine does when something else has failed (§5.3): it reports what it knows, and takes over what the
//! coordinator has gathered.
//!
//! While a rack is paused nothing goes to its decider, and no agent of its locks leaves. Agents that are here go on serving
//! this machine's own tasks, as long as they can without the decider: readers join readers, a writer follows a writer.
//! What tasks ask for beyond that waits in lanes, in the new epoch.

use super::super::agent::Agent;
use super::super::decider::LOCAL_BITS;
use super::super::packet::{Ticket, Waiter, call};
use super::super::report::{Entry, EntryKind};
use super::super::{Params, Rules};
use super::{AgentState, Machine, Task};
use lockwright_fabric::{Message, Outbox, PeerId};
use std::collections::{BTreeMap, BTreeSet};

/// How a machine stands to one decider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rack {
    pub(super) epoch: u32,
    /// Something has failed, and is not put right yet.
    pub(super) paused: bool,
}

/// The rack of a lock.
pub(super) fn rack_of(lid: u64, params: &Params) -> usize {
    (lid % u64::from(params.racks)) as usize
}

impl<R: Rules> Machine<R> {
    pub(super) fn is_paused(&self, lid: u64) -> bool {
        self.racks[rack_of(lid, &self.params)].paused
    }

    /// S1: packets of before are void from here on, and what they said is in the reports of the machines concerned.
    pub(super) fn pause(&mut self, coordinator: PeerId, message: &Message, out: &mut Outbox) {
        let [epoch, racks, ..] = message.words;
        self.lost = message.tail.iter().map(|mid| *mid as u8).collect();
        // The next machine with a lost one's number counts from the beginning, in a later epoch.
        let lost = &self.lost;
        self.seen.retain(|(origin, ..), _| !lost.contains(origin));
        let params = self.params.clone();
        let is_meant = |lid: u64| racks >> rack_of(lid, &params) & 1 != 0;
        for (number, rack) in self.racks.iter_mut().enumerate() {
            if racks >> number & 1 != 0 {
                *rack = Rack { epoch: epoch as u32, paused: true };
            }
        }
        self.parked.retain(|lid, _| !is_meant(*lid));
        // The lock of an agent that was to leave has no holder, and its waiters report themselves.
        self.agents.retain(|lid, state| !is_meant(*lid) || matches!(state, AgentState::Here(_)));
        self.forget_abandoned(&is_meant, out);
        let lanes: Vec<u32> = self.lanes.keys().copied().collect();
        for lane in lanes {
            if let Some(packets) = self.lanes.get_mut(&lane) {
                packets.forget(|packet| is_meant(packet.lid));
            }
            self.transmit(lane, out);
        }
        let mut report = Message::new(0, call::REPORT, &[epoch]);
        report.tail = Entry::encode(&self.report(&is_meant));
        out.touch(report.tail.len() as u64 / 2);
        out.send(coordinator, report);
    }

    /// Ends waiting tasks that were given up, and those that only try: they do not wait for the recovery.
    fn forget_abandoned(&mut self, is_meant: &impl Fn(u64) -> bool, out: &mut Outbox) {
        let goes = |task: &Task| is_meant(task.lid) && (task.abandoned || task.tries) && !task.held;
        let going = self.tasks.iter().filter(|(_, task)| goes(task)).map(|(tid, task)| (*tid, task.lid));
        for (tid, lid) in going.collect::<Vec<_>>() {
            let ticket = Ticket { mid: self.me, tid };
            if let Some(AgentState::Here(agent)) = self.agents.get_mut(&lid) {
                agent.forget(ticket);
            }
            self.denied(lid, ticket, out);
        }
    }

    fn report(&self, is_meant: &impl Fn(u64) -> bool) -> Vec<Entry> {
        let agents = self.agents.iter().filter_map(|(lid, state)| match state {
            AgentState::Here(agent) => Some(Entry::agent(*lid, self.me, agent.mode, agent.barred)),
            AgentState::Leaving { .. } => None,
        });
        let agents = agents.filter(|agent| is_meant(agent.lid));
        let tasks = self.tasks.iter().filter(|(_, task)| is_meant(task.lid));
        agents.chain(tasks.map(|(tid, task)| Entry::task(task.lid, self.waiter(*tid), task.held))).collect()
    }

    /// A task as it stands in queues.
    fn waiter(&self, tid: u32) -> Waiter {
        let task = &self.tasks[&tid];
        let Task { mode, priority, tries, .. } = *task;
        Waiter { ticket: Ticket { mid: self.me, tid }, mode, priority, tries }
    }

    /// S2: the agents that belong here, and who holds and waits.
    pub(super) fn restore(&mut self, coordinator: PeerId, message: &Message, out: &mut Outbox) {
        let [epoch, _, stamps, _] = message.words;
        // Also of locks that are kept on machines: their tokens go on above all that a lost machine gave.
        self.stamp = self.stamp.max(stamps << LOCAL_BITS);
        let mut own: BTreeMap<u64, Vec<(Waiter, bool)>> = BTreeMap::new();
        for (tid, task) in &self.tasks {
            own.entry(task.lid).or_default().push((self.waiter(*tid), task.held));
        }
        let entries = Entry::decode(&message.tail);
        out.touch(entries.len() as u64);
        for entries in entries.chunk_by(|a, b| a.lid == b.lid) {
            let [agent, tasks @ ..] = entries else { continue };
            let tasks: Vec<_> =
                tasks.iter().map(|entry| (entry.waiter, entry.what == EntryKind::Holds)).collect();
            if matches!(self.agents.get(&agent.lid), Some(AgentState::Here(_))) {
                // Own tasks may have come and gone since they were reported.
                let elsewhere = tasks.into_iter().filter(|(waiter, _)| waiter.ticket.mid != self.me);
                let tasks: Vec<_> =
                    own.remove(&agent.lid).unwrap_or_default().into_iter().chain(elsewhere).collect();
                self.set_right(agent.lid, &tasks, out);
            } else {
                self.restore_agent(agent, &tasks, stamps << LOCAL_BITS);
            }
        }
        out.send(coordinator, Message::new(0, call::RESTORED, &[epoch]));
    }

    /// Corrects an agent that was here all the time: tasks hold the lock if their machines say so.
    fn set_right(&mut self, lid: u64, tasks: &[(Waiter, bool)], out: &mut Outbox) {
        let Some(AgentState::Here(agent)) = self.agents.get_mut(&lid) else { return };
        if R::AGENTS_ARE_SET_RIGHT {
            agent.holders.clear();
        }
        agent.holders.extend(tasks.iter().filter(|(_, held)| *held).map(|(task, _)| task.ticket));
        agent.early.clear();
        (agent.inca, agent.refused_at) = (0, None);
        let waiting: BTreeSet<Ticket> =
            tasks.iter().filter(|(_, held)| !held).map(|(task, _)| task.ticket).collect();
        agent.queue.retain(|waiter| waiting.contains(&waiter.ticket));
        let queued: BTreeSet<Ticket> = agent.queue.iter().map(|waiter| waiter.ticket).collect();
        for (waiter, held) in tasks {
            if !held && !queued.contains(&waiter.ticket) {
                self.ask(lid, *waiter, out);
            }
        }
    }

    /// An agent for a lock that has none any more. Holders may have earlier tokens; those it gives are above them.
    fn restore_agent(&mut self, entry: &Entry, tasks: &[(Waiter, bool)], token: u64) {
        let (holders, waiters): (Vec<_>, Vec<_>) = tasks.iter().partition(|(_, held)| *held);
        let mut agent = Agent::idle(entry.waiter.mode, if self.params.tokens { token } else { 0 });
        agent.barred = entry.barred;
        agent.holders.extend(holders.iter().map(|(task, _)| task.ticket));
        for (waiter, _) in waiters {
            agent.enqueue(waiter);
        }
        self.agents.insert(entry.lid, AgentState::Here(agent));
    }

    /// The decider is back.
    pub(super) fn resume(&mut self, message: &Message, out: &mut Outbox) {
        let [epoch, racks, ..] = message.words;
        for (number, rack) in self.racks.iter_mut().enumerate() {
            if racks >> number & 1 != 0 && rack.epoch == epoch as u32 {
                rack.paused = false;
            }
        }
        let lanes: Vec<u32> = self.lanes.keys().copied().collect();
        for lane in lanes {
            self.transmit(lane, out);
        }
        let lids: Vec<u64> = self.agents.keys().copied().collect();
        for lid in lids {
            self.bar(lid, out);
            self.move_on(lid, out);
        }
    }
}
