//! What a client's pending operations can do in a state: execute a verb, see a word, send, receive, run out of time.

use super::automaton::{Kind, Stimulus};
use super::endpoint::Pending;
use super::state::{DEAD, FaultWord};
use super::world::{Turn, World};
use lockwright_fabric::{Addr, Deadline, Op, RawVerb};

impl World {
    pub(super) fn client_steps(&mut self, state: &[u32], turn: Turn, pending: &Pending) {
        match pending {
            Pending::Batch { verbs, olds, half } => self.verb_step(state, turn, &verbs[olds.len()], *half),
            Pending::Send { to, message, datagram } => {
                let envelope = self.envelope_of(turn, message, *datagram);
                self.begin(state);
                self.deliver(*to, envelope);
                self.finish(turn, Kind::Sent, 0);
            }
            Pending::Wait { addr, width, cond, or, deadline } => {
                let (value, number) = self.read(state, *addr, *width);
                if cond.holds(value) || or.is_some_and(|or| or.holds(value)) {
                    self.begin(state);
                    self.finish(turn, Kind::Met, number);
                } else if self.times_out(state, turn, *deadline) {
                    self.begin(state);
                    self.finish(turn, Kind::Timeout, number);
                }
            }
            Pending::Recv { deadline } => {
                self.offers(state, turn);
                // A message that was sent may still be on its way, so looking once may always miss it.
                if self.times_out(state, turn, *deadline) {
                    self.begin(state);
                    self.finish(turn, Kind::Timeout, 0);
                }
            }
            Pending::Alarm => {
                self.begin(state);
                self.finish(turn, Kind::Ring, 0);
            }
            Pending::Passed(deadline) => {
                // A sleeper knows that it slept; a wait of its own it ends by the same rule as the others, since
                // they may have done much or nothing meanwhile.
                let slept = self.slept_past(state, turn.client, *deadline);
                let past = slept || self.times_out(state, turn, Deadline::At(*deadline));
                if past {
                    self.begin(state);
                    self.finish(turn, Kind::Passed, 0);
                }
                // Without a clock, a deadline that may have passed may as well not have.
                if !past || (self.clock.is_none() && !slept) {
                    self.begin(state);
                    self.finish(turn, Kind::NotPassed, 0);
                }
            }
            Pending::Suspects(peer) => {
                let (other, _) = peer.index();
                let crashed = state[self.shape.node(other)] == DEAD;
                if crashed || FaultWord(state[self.shape.faults()]).is_paused(other) {
                    self.begin(state);
                    self.finish(turn, Kind::Passed, 0);
                }
                // A pause may not have lasted for long yet.
                if !crashed {
                    self.begin(state);
                    self.finish(turn, Kind::NotPassed, 0);
                }
            }
            Pending::Gone(peer) => {
                let (index, is_role) = peer.index();
                let gone = !is_role && state[self.shape.node(index)] == DEAD;
                self.begin(state);
                self.finish(turn, if gone { Kind::Passed } else { Kind::NotPassed }, 0);
            }
            Pending::Now => {
                let now = self.tables.values.number(u128::from(self.own_time(state, turn.client).0));
                self.begin(state);
                self.finish(turn, Kind::Now, now);
            }
            Pending::Sleep(ns) => {
                if self.has_slept(state, turn.client, *ns) {
                    self.begin(state);
                    self.finish(turn, Kind::Slept, 0);
                }
            }
        }
    }

    /// One verb of a batch. Under weak scope a remote read-modify-write takes two steps.
    fn verb_step(&mut self, state: &[u32], turn: Turn, verb: &RawVerb, half: Option<u128>) {
        let remote = self.clients[turn.client].home() != Some(verb.addr.node);
        let splits = self.weak_scope && remote && verb.op.is_atomic();
        if let Some(old) = half {
            self.begin(state);
            if let Some(new) = verb.op.apply(verb.width, old) {
                self.write(verb.addr, verb.width, new);
            }
            let number = self.tables.values.number(old);
            self.finish(turn, Kind::Old, number);
            return;
        }
        let (old, number) = self.read(state, verb.addr, verb.width);
        if splits {
            // The NIC lets no other atomic in between; CPUs do not ask it.
            if self.nic_is_busy_with(state, turn, verb.addr) {
                return;
            }
            if verb.op.apply(verb.width, old).is_some() {
                self.begin(state);
                self.finish(turn, Kind::Half, number);
                return;
            }
        }
        self.begin(state);
        if verb.op != Op::Read
            && let Some(new) = verb.op.apply(verb.width, old)
        {
            self.write(verb.addr, verb.width, new);
        }
        self.finish(turn, Kind::Old, number);
    }

    /// Whether another atomic, of any client, is half done at `addr`. One client can have several under way.
    fn nic_is_busy_with(&self, state: &[u32], turn: Turn, addr: Addr) -> bool {
        (0..self.shape.clients).any(|client| {
            let node = state[self.shape.node(client)];
            node != DEAD
                && self.clients[client].node(node).pending.iter().any(|(slot, pending)| {
                    (client, *slot) != (turn.client, turn.slot)
                        && matches!(pending, Pending::Batch { verbs, olds, half: Some(_) } if verbs[olds.len()].addr == addr)
                })
        })
    }

    /// Messages a receive may take: from each sender the first that it wants, or any datagram if those overtake.
    fn offers(&mut self, state: &[u32], turn: Turn) {
        let mailbox = state[self.shape.mailbox(turn.client)];
        if mailbox == 0 {
            return;
        }
        let envelopes = self.tables.mailboxes.get(mailbox).clone();
        let mut served = None;
        for (place, &envelope) in envelopes.iter().enumerate() {
            let (from, datagram) =
                (self.tables.envelopes.get(envelope).from, self.tables.envelopes.get(envelope).datagram);
            let overtakes = datagram && self.faults.reorders;
            if served == Some(from) && !overtakes {
                continue;
            }
            let stimulus = Stimulus { slot: turn.slot, kind: Kind::Offer, payload: envelope };
            if self.clients[turn.client].edge(turn.node, stimulus, &mut self.tables).is_none() {
                continue;
            }
            self.begin(state);
            self.next[self.shape.mailbox(turn.client)] = self.tables.without_envelope(mailbox, place);
            self.finish(turn, Kind::Offer, envelope);
            served = Some(from);
        }
    }
}
