//! Operations in flight: batches, sleeps, and waits. A client may have several at once; each is an index, given
//! back when it has come to its end and no client waits for it any more.

use super::event::EventKind;
use super::observations::PendingObservations;
use super::{Core, OpId, StepFault, TraceEvent};
use crate::nic::NicModel;
use crate::rng::Rng;
use lockwright_fabric::{Addr, Cond, FabricError, NodeId, Op, RawVerb, Width};
use std::collections::VecDeque;

/// One operation of one client: a batch, a sleep, or a wait for a word at home. Most have one verb, which lies here with
/// its answer; what a batch has beyond that is [`RareFields`].
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Operation {
    pub(crate) client: u32,
    /// Verbs to execute: fewer than there were where the client crashed in between.
    pub(super) verbs: u32,
    /// How many of them are answered.
    pub(super) answers: u32,
    pub(crate) done: bool,
    pub(super) abandoned: bool,
    /// Whether it is a wait that polls.
    polls: bool,
    /// Whether its verbs are to memory of the client's own node.
    pub(super) at_home: bool,
    pub(crate) error: Option<FabricError>,
    /// There and back again: how long the operation's way to the NIC and its way home are.
    pub(super) way_ns: u64,
    pub(super) return_ns: u64,
    /// What takes effect with the first verb.
    pub(super) pending: PendingObservations,
    /// What the first verb found, if it is answered.
    pub(super) old: u128,
    /// The first verb, if there is one.
    pub(super) verb: RawVerb,
}

const _: () = assert!(size_of::<Operation>() <= 3 * 64, "an operation is three cache lines");
const _: () = assert!(std::mem::offset_of!(Operation, verb) == 64, "its answer is in the first of them");

/// What stands where no verb is.
const NO_VERB: RawVerb = RawVerb { addr: Addr::new(NodeId(0), 0), width: Width::W64, op: Op::Read };

impl Operation {
    /// What the first verb found, or a wait at home saw; nothing after a sleep.
    #[inline]
    pub(crate) fn first_old(&self) -> Option<u128> {
        (self.answers > 0).then_some(self.old)
    }
}

/// What few operations have: kept apart, so that all the others are small.
#[derive(Debug, Default)]
pub(super) struct RareFields {
    /// The verbs of a batch behind its first, and what they found.
    pub(super) verbs: Vec<RawVerb>,
    pub(super) olds: Vec<u128>,
    /// Weak scope: when each verb gets its turn, and what the one at work will write.
    pub(super) turns: VecDeque<u64>,
    pub(super) write_back: Option<u128>,
    /// Of a wait: its one verb, a READ, is repeated until this is met.
    poll: Option<Polling>,
}

/// A wait that polls. The executor repeats the READ; the client's future is not bothered until it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Polling {
    pub(crate) cond: Cond,
    pub(crate) or: Option<Cond>,
    /// Pause between an answer and the next READ.
    pub(crate) pace_ns: u64,
    /// No READ leaves after this, in true time.
    pub(crate) deadline_ns: u64,
    /// READs so far.
    pub(crate) polls: u32,
}

impl Polling {
    #[inline]
    fn met_by(&self, value: u128) -> bool {
        self.cond.holds(value) || self.or.is_some_and(|or| or.holds(value))
    }
}

/// A client at home that waits for a word to change.
#[derive(Debug)]
pub(super) struct LocalWait {
    pub(super) op: OpId,
    pub(super) addr: Addr,
    pub(super) width: Width,
    pub(super) cond: Cond,
    pub(super) or: Option<Cond>,
}

/// A batch that is being put together.
pub(crate) struct BatchBuilder<'a> {
    slot: &'a mut Operation,
    rare: &'a mut [RareFields],
    op: OpId,
}

impl BatchBuilder<'_> {
    /// Adds the next verb.
    #[inline(always)]
    pub(crate) fn add(&mut self, verb: RawVerb) {
        self.slot.verbs += 1;
        let place = if self.slot.verbs == 1 {
            &mut self.slot.verb
        } else {
            self.rare[self.op as usize].verbs.push_mut(NO_VERB)
        };
        *place = verb;
    }
}

impl Core {
    #[inline]
    pub(super) fn new_op(&mut self, client: u32) -> OpId {
        if let Some(op) = self.free_ops.pop() {
            let slot = &mut self.ops[op as usize];
            slot.client = client;
            slot.done = false;
            slot.abandoned = false;
            slot.error = None;
            slot.polls = false;
            return op;
        }
        self.one_more_op(client)
    }

    #[cold]
    fn one_more_op(&mut self, client: u32) -> OpId {
        self.ops.push(Operation {
            client,
            verbs: 0,
            answers: 0,
            done: false,
            abandoned: false,
            polls: false,
            at_home: false,
            way_ns: 0,
            return_ns: 0,
            error: None,
            pending: PendingObservations::default(),
            old: 0,
            verb: NO_VERB,
        });
        self.rare.push(RareFields::default());
        self.ops.len() as OpId - 1
    }

    #[inline]
    pub(crate) fn free_op(&mut self, op: OpId) {
        let slot = &mut self.ops[op as usize];
        if slot.verbs > 1 {
            let rare = &mut self.rare[op as usize];
            rare.verbs.clear();
            rare.olds.clear();
        }
        (slot.verbs, slot.answers) = (0, 0);
        if !slot.pending.is_empty() {
            self.observations.forget(&mut slot.pending);
        }
        self.free_ops.push(op);
    }

    /// The operation's verb number `at`.
    #[inline]
    pub(super) fn verb(&self, op: OpId, at: u32) -> &RawVerb {
        match at {
            0 => &self.ops[op as usize].verb,
            at => &self.rare[op as usize].verbs[at as usize - 1],
        }
    }

    /// What its verb number `at` found.
    #[inline]
    pub(crate) fn old(&self, op: OpId, at: u32) -> u128 {
        match at {
            0 => self.ops[op as usize].old,
            at => self.rare[op as usize].olds[at as usize - 1],
        }
    }

    /// The next verb found `old`.
    #[inline]
    pub(super) fn answer(&mut self, op: OpId, old: u128) {
        let slot = &mut self.ops[op as usize];
        if slot.answers == 0 {
            slot.old = old;
        } else {
            self.rare[op as usize].olds.push(old);
        }
        slot.answers += 1;
    }

    /// READs that a wait took so far.
    pub(crate) fn polls(&self, op: OpId) -> u32 {
        self.rare[op as usize].poll.filter(|_| self.ops[op as usize].polls).map_or(0, |poll| poll.polls)
    }

    #[inline]
    pub(crate) fn op(&self, op: OpId) -> &Operation {
        &self.ops[op as usize]
    }

    /// The future of `op` is gone. What is under way still takes effect.
    pub(crate) fn abandon(&mut self, op: OpId) {
        if let Some(place) = self.local_waits.iter().position(|wait| wait.op == op) {
            self.local_waits.remove(place);
            self.free_op(op);
        } else if self.ops[op as usize].done {
            self.free_op(op);
        } else {
            self.ops[op as usize].abandoned = true;
        }
    }

    /// Starts a batch, whose verbs `list` hands over. `None` if the client crashes before any of it leaves.
    #[inline]
    pub(crate) fn start_batch(
        &mut self,
        client: u32,
        list: impl FnOnce(&mut BatchBuilder<'_>),
    ) -> Option<OpId> {
        if self.clients[client as usize].crashed {
            return None;
        }
        let op = self.new_op(client);
        let slot = &mut self.ops[op as usize];
        list(&mut BatchBuilder { slot, rare: &mut self.rare, op });
        let count = slot.verbs;
        if count == 0 {
            slot.done = true;
            return Some(op);
        }
        let (leaves_ns, executed) = self.fate(client, count as usize);
        if executed == 0 {
            self.free_op(op);
            return None;
        }
        let executed = executed as u32;
        if executed < count {
            self.ops[op as usize].verbs = executed;
            self.rare[op as usize].verbs.truncate(executed as usize - 1);
        }
        let state = &mut self.clients[client as usize];
        let slot = &mut self.ops[op as usize];
        if !state.pending.is_empty() {
            slot.pending.take_from(&mut state.pending);
            (state.told_with, state.told) = (op, state.told.wrapping_add(1));
        }
        let first = slot.verb.addr;
        let others = || self.rare[op as usize].verbs.iter();
        debug_assert!(
            executed == 1 || others().all(|verb| verb.addr.node == first.node),
            "a batch goes to one node"
        );
        slot.at_home = state.home == Some(first.node);
        if slot.at_home {
            self.counters.local += u64::from(count);
            let cost_ns = self.model.cpu_access_ns * u64::from(count);
            self.push(leaves_ns + cost_ns, EventKind::Arrive(op));
        } else {
            self.memory.prefetch(first);
            let mut rtt_ns = self.model.rtt_ns(&slot.verb);
            self.counters.round_trip(&slot.verb);
            if executed > 1 {
                for verb in &self.rare[op as usize].verbs {
                    self.counters.verb(verb);
                    rtt_ns = rtt_ns.max(self.model.rtt_ns(verb));
                }
            }
            let mut way_ns = (rtt_ns + self.growth_ns) / 2;
            let return_ns = rtt_ns + self.growth_ns - way_ns;
            if self.model.slow_one_in > 0 {
                way_ns += slow_by_ns(&self.model, &mut self.network);
            }
            let jitter_ns = self.model.jitter_ns.min(way_ns);
            let shift_ns = if jitter_ns > 0 { self.network.below(2 * jitter_ns + 1) } else { 0 };
            (slot.way_ns, slot.return_ns) = (way_ns, return_ns);
            self.push(leaves_ns + way_ns + shift_ns - jitter_ns, EventKind::Arrive(op));
        }
        Some(op)
    }

    /// Starts a wait that polls `verb`, a READ over the network.
    pub(crate) fn start_poll(&mut self, client: u32, verb: RawVerb, polling: Polling) -> Option<OpId> {
        let op = self.start_batch(client, |verbs| verbs.add(verb))?;
        self.ops[op as usize].polls = true;
        self.rare[op as usize].poll = Some(Polling { polls: 1, ..polling });
        Some(op)
    }

    /// The answer of a polling READ will be home at `home_ns`. Is another one needed? Then it is under way.
    #[inline]
    pub(super) fn polls_again(&mut self, op: OpId, home_ns: u64) -> bool {
        self.ops[op as usize].polls && self.polls_again_if_not_met(op, home_ns)
    }

    fn polls_again_if_not_met(&mut self, op: OpId, home_ns: u64) -> bool {
        let slot = &self.ops[op as usize];
        let Some(poll) = &mut self.rare[op as usize].poll else { return false };
        if slot.abandoned || poll.met_by(slot.old) || home_ns >= poll.deadline_ns {
            return false;
        }
        // The last look is at the deadline.
        let again_ns = (home_ns + poll.pace_ns).min(poll.deadline_ns);
        poll.polls += 1;
        let (client, way_ns) = (slot.client, slot.way_ns);
        let delay_ns = again_ns - self.now_ns;
        let (leaves_ns, executed) = self.fate(client, 1);
        if executed == 0 || self.clients[client as usize].crashed {
            self.taken.push(client);
        }
        if executed == 0 {
            return false;
        }
        let slot = &mut self.ops[op as usize];
        slot.answers = 0;
        self.counters.round_trip(&slot.verb);
        self.push(leaves_ns + delay_ns + way_ns, EventKind::Arrive(op));
        true
    }

    /// Asks the faults about the next `count` steps of `client`: when do they leave, and how many of them?
    #[inline]
    pub(super) fn fate(&mut self, client: u32, count: usize) -> (u64, usize) {
        let state = &mut self.clients[client as usize];
        let leaves_ns = state.busy_until_ns.max(self.now_ns);
        let first = state.steps;
        state.steps += count as u64;
        if !self.faults.client_faults {
            return (leaves_ns, count);
        }
        for step in 0..count {
            match self.faults.at(client, first + step as u64) {
                StepFault::GoOn => {}
                StepFault::Crash { after } => {
                    self.crash(client);
                    return (leaves_ns, step + usize::from(after));
                }
                StepFault::Pause { after, ns } => {
                    let until_ns = leaves_ns + ns;
                    let state = &mut self.clients[client as usize];
                    (state.busy_until_ns, state.paused_until_ns) = (until_ns, until_ns);
                    self.counters.pauses += 1;
                    self.watcher.paused(client, until_ns);
                    self.note(client, TraceEvent::Fault("pauses"));
                    self.push(until_ns, EventKind::Resume(client));
                    return (if after { leaves_ns } else { until_ns }, count);
                }
            }
        }
        (leaves_ns, count)
    }

    pub(super) fn crash(&mut self, client: u32) {
        let state = &mut self.clients[client as usize];
        if state.crashed || state.done {
            return;
        }
        state.crashed = true;
        self.counters.crashes += 1;
        self.watcher.crashed(client);
        self.note(client, TraceEvent::Fault("crashes"));
        self.notify_roles_of_departure(client);
    }

    /// Completes after `ns` of true time.
    pub(crate) fn start_sleep(&mut self, client: u32, ns: u64) -> OpId {
        let op = self.new_op(client);
        let from_ns = self.clients[client as usize].busy_until_ns.max(self.now_ns);
        self.completes_at(op, from_ns.saturating_add(ns));
        op
    }

    /// Completes when the word at home meets a condition.
    pub(crate) fn start_local_wait(
        &mut self,
        client: u32,
        (addr, width): (Addr, Width),
        cond: Cond,
        or: Option<Cond>,
    ) -> OpId {
        let op = self.new_op(client);
        self.local_waits.push(LocalWait { op, addr, width, cond, or });
        self.wake_local_waits(addr);
        op
    }

    #[cold]
    pub(super) fn wake_local_waits(&mut self, changed: Addr) {
        let granule = |addr: Addr| Addr { offset: addr.offset & !15, ..addr };
        let mut at = 0;
        while at < self.local_waits.len() {
            let wait = &self.local_waits[at];
            let value = self.memory.read(wait.addr, wait.width);
            let met = granule(wait.addr) == granule(changed)
                && (wait.cond.holds(value) || wait.or.is_some_and(|or| or.holds(value)));
            if met {
                let op = self.local_waits.remove(at).op;
                self.answer(op, value);
                self.completes_at(op, self.now_ns + self.model.cpu_access_ns);
            } else {
                at += 1;
            }
        }
    }

    #[inline]
    pub(super) fn completes_at(&mut self, op: OpId, at_ns: u64) {
        self.push(at_ns, EventKind::Complete(op));
    }

    #[inline]
    pub(super) fn complete(&mut self, op: OpId) -> Option<u32> {
        let slot = &mut self.ops[op as usize];
        if slot.abandoned {
            self.free_op(op);
            return None;
        }
        slot.done = true;
        let client = slot.client;
        let state = &mut self.clients[client as usize];
        if state.first_answer_ns == 0 {
            state.first_answer_ns = self.now_ns;
        }
        self.may_go_on(client)
    }
}

/// By how much the next batch is slower than others, for no reason.
#[cold]
fn slow_by_ns(model: &NicModel, random: &mut Rng) -> u64 {
    let is_slow = random.below(model.slow_one_in) == 0;
    if is_slow { random.below(model.slow_ns + 1) } else { 0 }
}
