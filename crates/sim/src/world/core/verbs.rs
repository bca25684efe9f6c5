//! Verbs at the NIC: their turn, what they do to memory, and what a CPU of the node sees of them meanwhile.

use super::event::EventKind;
use super::operation::RareFields;
use super::{Core, OpId, TraceEvent};
use lockwright_fabric::{AtomicScope, FabricError, RawVerb};

impl Core {
    #[inline]
    pub(super) fn arrive(&mut self, op: OpId) -> Option<u32> {
        let slot = &self.ops[op as usize];
        let node = slot.verb.addr.node;
        if self.dead_nodes[node.0 as usize] {
            self.ops[op as usize].error = Some(FabricError::NodeLost(node));
            self.completes_at(op, self.now_ns + self.model.node_lost_ns);
            return None;
        }
        if slot.at_home {
            self.execute_all(op);
            return self.complete(op);
        }
        if self.model.offers.scope == AtomicScope::Nic {
            self.plan_weak_turns(op);
            return None;
        }
        let nic = &mut self.nics[node.0 as usize];
        let mut turn_ns = nic.admit(&self.model, &slot.verb, self.now_ns, 0);
        if slot.verbs > 1 {
            for verb in &self.rare[op as usize].verbs {
                turn_ns = nic.admit(&self.model, verb, self.now_ns, turn_ns + self.model.batch_step_ns);
            }
        }
        self.execute_all(op);
        let home_ns = turn_ns + self.ops[op as usize].return_ns;
        if !self.polls_again(op, home_ns) {
            self.completes_at(op, home_ns);
        }
        None
    }

    #[inline]
    pub(super) fn execute_all(&mut self, op: OpId) {
        self.take_effect(op);
        if self.trace.is_some() || !self.local_waits.is_empty() {
            return self.execute_all_watched(op);
        }
        let slot = &mut self.ops[op as usize];
        (slot.old, slot.answers) = (self.memory.execute(&slot.verb), slot.verbs);
        if slot.verbs > 1 {
            let RareFields { verbs, olds, .. } = &mut self.rare[op as usize];
            olds.extend(verbs.iter().map(|verb| self.memory.execute(verb)));
        }
    }

    /// As [`Core::execute_all`], where every single verb is traced or watched.
    #[cold]
    pub(super) fn execute_all_watched(&mut self, op: OpId) {
        for at in 0..self.ops[op as usize].verbs {
            let verb = *self.verb(op, at);
            let old = self.execute(self.ops[op as usize].client, &verb);
            self.answer(op, old);
        }
    }

    /// What was said before the operation counts from here on.
    #[inline]
    pub(super) fn take_effect(&mut self, op: OpId) {
        let slot = &mut self.ops[op as usize];
        let (client, pending) = (slot.client, slot.pending.take());
        self.saw_all(client, pending);
    }

    pub(super) fn execute(&mut self, client: u32, verb: &RawVerb) -> u128 {
        let old = self.memory.read(verb.addr, verb.width);
        let new = verb.op.apply(verb.width, old);
        if let Some(new) = new {
            self.memory.write(verb.addr, verb.width, new);
            if !self.local_waits.is_empty() {
                self.wake_local_waits(verb.addr);
            }
        }
        self.note(client, TraceEvent::Verb { verb: *verb, old, new });
        old
    }

    // ---- weak scope: an atomic is a read when it gets its turn and a write when it gives its address back ----

    pub(super) fn plan_weak_turns(&mut self, op: OpId) {
        let RareFields { turns, verbs, .. } = &mut self.rare[op as usize];
        let mut not_before_ns = 0;
        for verb in std::iter::once(&self.ops[op as usize].verb).chain(&*verbs) {
            let nic = &mut self.nics[verb.addr.node.0 as usize];
            let turn_ns = nic.admit(&self.model, verb, self.now_ns, not_before_ns);
            turns.push_back(turn_ns);
            not_before_ns = turn_ns + self.model.occupies_ns(verb).max(self.model.batch_step_ns);
        }
        let first_ns = turns[0];
        self.push(first_ns, EventKind::WeakTurn(op));
    }

    pub(super) fn weak_turn(&mut self, op: OpId) -> Option<u32> {
        let slot = &self.ops[op as usize];
        let (client, verb) = (slot.client, *self.verb(op, slot.answers));
        let rare = &mut self.rare[op as usize];
        rare.turns.pop_front();
        if verb.op.is_atomic() {
            let old = self.memory.read(verb.addr, verb.width);
            rare.write_back = verb.op.apply(verb.width, old);
            self.answer(op, old);
            self.note(client, TraceEvent::WeakRead { verb, old });
            // Just before the address is given back: the client that gets it next at that very moment must find the write.
            let busy_ns = self.model.occupies_ns(&verb).saturating_sub(1);
            self.push(self.now_ns + busy_ns, EventKind::WeakWrite(op));
        } else {
            self.take_effect(op);
            let old = self.execute(client, &verb);
            self.answer(op, old);
            self.next_weak_turn(op);
        }
        None
    }

    pub(super) fn weak_write(&mut self, op: OpId) -> Option<u32> {
        self.take_effect(op);
        let slot = &self.ops[op as usize];
        let at = slot.answers - 1;
        let (client, verb, old) = (slot.client, *self.verb(op, at), self.old(op, at));
        if let Some(new) = self.rare[op as usize].write_back.take() {
            self.memory.write(verb.addr, verb.width, new);
            if !self.local_waits.is_empty() {
                self.wake_local_waits(verb.addr);
            }
            self.note(client, TraceEvent::Verb { verb, old, new: Some(new) });
        }
        self.next_weak_turn(op);
        None
    }

    pub(super) fn next_weak_turn(&mut self, op: OpId) {
        let slot = &self.ops[op as usize];
        match self.rare[op as usize].turns.front() {
            Some(turn_ns) => self.push(*turn_ns, EventKind::WeakTurn(op)),
            None => {
                let home_ns = self.now_ns + slot.return_ns;
                if !self.polls_again(op, home_ns) {
                    self.completes_at(op, home_ns);
                }
            }
        }
    }
}
