//! A coarse clock, for protocols whose safety rests on time.
//!
//! Time passes in ticks, between any two steps, with one promise: a healthy client that can move does so within the
//! case's delay. The delay counts from the client's last move, so for a client with several operations in flight it
//! bounds the first of them. A paused client breaks the promise: that is what pauses are for. The clock is absolute
//! and bounded, since protocols store times in words; a search that reaches the end says so.

use super::endpoint::Pending;
use super::state::{DEAD, FaultWord};
use super::world::{Step, Turn, World};
use lockwright_fabric::{Deadline, Time};
use lockwright_locks::case::Clock;

impl World {
    /// Whether a wait with this deadline may end without what it waited for.
    pub(super) fn times_out(&self, state: &[u32], turn: Turn, deadline: Deadline) -> bool {
        match (deadline, self.clock) {
            (Deadline::Never, _) => false,
            (Deadline::Now, _) => true,
            (Deadline::At(_), None) => turn.may_time_out,
            (Deadline::At(time), Some(_)) => self.now(state) >= time,
        }
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

    /// Lets the clock tick, if nobody would be late.
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

    /// Whether `client` has something to do that depends on nobody else, `late_ticks` past its delay.
    fn must_move(&self, state: &[u32], client: usize, late_ticks: u32) -> bool {
        let node = state[self.shape.node(client)];
        if node == DEAD || FaultWord(state[self.shape.faults()]).is_paused(client) {
            return false;
        }
        self.clients[client].node(node).pending.iter().any(|(_, pending)| match pending {
            Pending::Batch { .. }
            | Pending::Send { .. }
            | Pending::Now
            | Pending::Passed(_)
            | Pending::Suspects(_) => true,
            // A sleeper has its delay only after it has slept.
            Pending::Sleep(ns) => u64::from(late_ticks) * self.tick_ns() >= *ns,
            Pending::Wait { .. } | Pending::Recv { .. } | Pending::Alarm => false,
        })
    }

    fn tick_ns(&self) -> u64 {
        self.clock.map_or(0, |clock| clock.tick_ns)
    }
}
