//! A coarse clock, for protocols whose safety rests on time.
//!
//! Time passes in ticks, between any two steps, with one promise: a healthy client that can move does so within the
//! case's delay. The delay counts from the client's last move, so for a client with several operations in flight it
//! bounds the first of them. A paused client breaks the promise: that is what pauses are for. The clock is absolute
//! and bounded, since protocols store times in words; a search that reaches the end says so. A client that waits for a word or
//! a message may take note of it at any time later, and a pause may last to the end of time; unless the case bounds
//! pauses, which makes both fast.

use super::automaton::{Kind, Stimulus};
use super::endpoint::Pending;
use super::state::{DEAD, FaultWord};
use super::world::{Step, Turn, World};
use crate::case::Clock;
use lockwright_fabric::{Deadline, Time};

/// How long a pause is, for clients that ask.
const LONGER_THAN_ANY_LEASE_NS: u64 = 1 << 50;

impl World {
    /// Whether a wait with this deadline may end without what it waited for.
    pub(super) fn times_out(&self, state: &[u32], turn: Turn, deadline: Deadline) -> bool {
        match (deadline, self.clock) {
            (Deadline::Never, _) => false,
            (Deadline::Now, _) => true,
            (Deadline::At(time), None) => turn.may_time_out || self.is_a_users(time),
            (Deadline::At(time), Some(_)) => self.now(state) >= time,
        }
    }

    /// Whether `client` was paused since it set this deadline, and knows it.
    pub(super) fn slept_past(&self, state: &[u32], client: usize, deadline: Time) -> bool {
        self.sleepers_know && self.own_time(state, client) >= deadline
    }

    /// What a client reads off its clock.
    pub(super) fn own_time(&self, state: &[u32], client: usize) -> Time {
        if self.clock.is_none() {
            let slept = FaultWord(state[self.shape.faults()]).has_slept(client);
            return Time(if slept { LONGER_THAN_ANY_LEASE_NS } else { 0 });
        }
        self.now(state)
    }

    /// The time, with a clock.
    pub(super) fn now(&self, state: &[u32]) -> Time {
        Time(u64::from(state[self.shape.clock()]) * self.tick_ns())
    }

    /// Whether `ns` have passed since the client last moved.
    pub(super) fn has_slept(&self, state: &[u32], client: usize, ns: u64) -> bool {
        let ticks = state[self.shape.clock()] - state[self.shape.moved(client)];
        u64::from(ticks) * self.tick_ns() >= ns
    }

    /// Whether time has come to its end in `state`, so that nothing can be said about who waits for it.
    pub(super) fn clock_has_stopped(&self, state: &[u32]) -> bool {
        self.clock.is_some_and(|clock| state[self.shape.clock()] >= clock.max_ticks)
    }

    /// Lets the clock tick, if no client would be late.
    pub(super) fn tick(&mut self, state: &[u32]) {
        let Some(Clock { delay_ticks, max_ticks, .. }) = self.clock else { return };
        if self.is_final(state) {
            return;
        }
        let now = state[self.shape.clock()];
        let late = (0..self.shape.clients).any(|client| {
            let since = now - state[self.shape.moved(client)];
            since >= delay_ticks && self.must_move(state, client, since - delay_ticks)
        });
        if late {
            return;
        }
        if now >= max_ticks {
            self.clock_ran_out = true;
            return;
        }
        self.begin(state);
        self.next[self.shape.clock()] = now + 1;
        self.push(Step::Tick, None);
    }

    /// Whether `client` has something to do that depends on no other, `late_ticks` past its delay.
    fn must_move(&mut self, state: &[u32], client: usize, late_ticks: u32) -> bool {
        let node = state[self.shape.node(client)];
        if node == DEAD {
            return false;
        }
        if FaultWord(state[self.shape.faults()]).is_paused(client) {
            return self.faults.pause_ticks.is_some_and(|longest| late_ticks >= longest);
        }
        let pending = self.clients[client].node(node).pending.clone();
        pending.iter().any(|(slot, pending)| match pending {
            Pending::Batch { .. }
            | Pending::Send { .. }
            | Pending::Now
            | Pending::Passed(_)
            | Pending::Gone(_)
            | Pending::Suspects(_) => true,
            // A sleeper has its delay only after it has slept.
            Pending::Sleep(ns) => u64::from(late_ticks) * self.tick_ns() >= *ns,
            Pending::Wait { .. } | Pending::Recv { .. } if self.faults.pause_ticks.is_some() => {
                self.is_over(state, client, *slot, pending)
            }
            Pending::Wait { .. } | Pending::Recv { .. } | Pending::Alarm => false,
        })
    }

    /// Whether what `client` waits for has happened, or its deadline is past.
    fn is_over(&mut self, state: &[u32], client: usize, slot: u8, pending: &Pending) -> bool {
        let past = |deadline: &Deadline, now| match deadline {
            Deadline::Never => false,
            Deadline::Now => true,
            Deadline::At(time) => now >= *time,
        };
        match pending {
            Pending::Wait { addr, width, cond, or, deadline } => {
                let (value, _) = self.read(state, *addr, *width);
                let met = cond.holds(value) || or.is_some_and(|or| or.holds(value));
                met || past(deadline, self.now(state))
            }
            Pending::Recv { deadline } => {
                let node = state[self.shape.node(client)];
                let envelopes = self.tables.mailboxes.get(state[self.shape.mailbox(client)]).clone();
                let wanted = envelopes.iter().any(|&envelope| {
                    let stimulus = Stimulus { slot, kind: Kind::Offer, payload: envelope };
                    self.clients[client].edge(node, stimulus, &mut self.tables).is_some()
                });
                wanted || past(deadline, self.now(state))
            }
            _ => false,
        }
    }

    fn tick_ns(&self) -> u64 {
        self.clock.map_or(0, |clock| clock.tick_ns)
    }
}
