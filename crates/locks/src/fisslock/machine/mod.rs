//! A machine: the lock library of its tasks and its pool of agents, as one state machine (Fig. 6 and 7).
//!
//! Tasks call it (`calls`), packets arrive at it (`packets`), and agents are in it (`agents`): here, or about to leave.
//! Everything it sends to a decider goes through lanes. The paper's loops, in which a packet that finds no agent goes
//! back to the decider until it finds one, are cut short: a machine that knows an agent to be on its way lets the packet
//! wait, and asks the decider at most once if it does not know (§4.2 "out-of-order packets").
//!
//! What it must not do: decide a shared lock's fate without its agent, or forget a packet it has acknowledged.

mod agents;
mod calls;
mod packets;
mod recovery;

use super::agent::Agent;
use super::lane::Lane;
use super::packet::{Kind, Packet, Ticket, Waiter, call};
use super::{FIRST_EPOCH, Params, Rules};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Message, Outbox, PeerId, Role, Time};
use recovery::{Rack, rack_of};
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

/// A machine with tasks and agents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine<R> {
    me: u8,
    machines: u16,
    params: Params,
    tasks: BTreeMap<u32, Task>,
    last_tid: u32,
    agents: BTreeMap<u64, AgentState>,
    /// What waits for agents that are on their way here.
    parked: BTreeMap<u64, Vec<Parked>>,
    lanes: BTreeMap<u32, Lane>,
    /// The last number seen of every machine's lane; grants apart.
    seen: BTreeMap<(u8, u32, bool), u32>,
    /// By number.
    racks: Vec<Rack>,
    /// Machines that are gone for good.
    lost: BTreeSet<u8>,
    /// Grants that nobody wants any more. Empty between two events.
    unwanted: Vec<(u64, Ticket)>,
    /// Grants of locks whose agents never leave this machine: their tokens.
    stamp: u64,
    rules: PhantomData<R>,
}

/// An acquisition of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Task {
    client: PeerId,
    /// The client's own number for it.
    slot: u64,
    lid: u64,
    mode: Mode,
    priority: u8,
    tries: bool,
    held: bool,
    /// Its client has given up: it is released when it is granted.
    abandoned: bool,
}

/// Where an agent is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AgentState {
    Here(Agent),
    /// A shared lock's agent has asked to leave and may be refused. (An exclusive lock's cannot be.)
    Leaving {
        agent: Agent,
        next: Option<Waiter>,
        parked: Vec<Parked>,
    },
}

/// What cannot be dealt with before an agent has come, or left, or stayed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Parked {
    /// A request, which is in this machine's care now.
    Asked(Waiter),
    /// A task of this machine let go. If the agent stays, it will hear of that task yet; if it has left, the task had
    /// the lock from wherever the agent is now.
    Released(Ticket),
    /// A packet that belongs to the agent's incarnation: not acknowledged, so that there is never more than one of any
    /// machine.
    Packet(Packet),
}

impl<R: Rules> Machine<R> {
    /// Machine number `me`, counted from 1.
    ///
    /// # Panics
    /// If there are more machines than eight bits can name.
    pub fn new(me: u16, machines: u16, params: &Params) -> Self {
        assert!(machines <= u16::from(u8::MAX), "at most 255 machines");
        Self {
            me: me as u8,
            machines,
            params: params.clone(),
            tasks: BTreeMap::new(),
            last_tid: 0,
            agents: BTreeMap::new(),
            parked: BTreeMap::new(),
            lanes: BTreeMap::new(),
            seen: BTreeMap::new(),
            racks: vec![Rack { epoch: FIRST_EPOCH, paused: false }; usize::from(params.racks)],
            lost: BTreeSet::new(),
            unwanted: Vec::new(),
            stamp: 0,
            rules: PhantomData,
        }
    }

    /// A machine that comes later, in the epoch that the others are in, under a number that is new in it.
    pub fn joining(me: u8, machines: u16, params: &Params, epoch: u32) -> Self {
        let mut machine = Self::new(u16::from(me), machines, params);
        machine.racks.iter_mut().for_each(|rack| rack.epoch = epoch);
        machine
    }

    /// The epoch that it is in, by its first decider.
    pub fn epoch(&self) -> u32 {
        self.racks[0].epoch
    }

    /// Whether the agent of `lid` stays on one machine for good: `Some(here)` if it does.
    fn resident(&self, lid: u64) -> Option<bool> {
        (lid >= self.params.switch_locks).then(|| super::resident(lid, self.machines, &self.lost) == self.me)
    }

    // ---- lanes ----

    /// Packets of one lock stay in order. A GRANT without an agent changes nothing at the decider: it may go beside them.
    fn lane_of(&self, packet: &Packet) -> u32 {
        let lane = self.lane_of_lock(packet.lid);
        if packet.kind != Kind::Grant || packet.flags.agent {
            return lane;
        }
        let spread = 1 + packet.ticket.tid + 31 * u32::from(packet.ticket.mid);
        (lane + spread) % self.params.lanes
    }

    fn post(&mut self, packet: Packet, out: &mut Outbox) {
        let lane = self.lane_of(&packet);
        self.lanes.entry(lane).or_default().push(packet);
        self.transmit(lane, out);
    }

    fn transmit(&mut self, lane: u32, out: &mut Outbox) {
        let packets = self.lanes.entry(lane).or_default();
        let (racks, params) = (&self.racks, &self.params);
        let may_go = |packet: &Packet| !racks[rack_of(packet.lid, params)].paused;
        while let Some(packet) = packets.next(self.me, lane, R::ONE_AT_A_TIME, may_go) {
            send(params, self.machines, racks, packet, out);
        }
    }

    /// Part of what came of a packet of this machine has arrived.
    fn arrived(&mut self, lane: u32, seq: u32, grant: bool, twin: bool, out: &mut Outbox) -> Option<Packet> {
        let done = self.lanes.get_mut(&lane)?.arrived(seq, grant, twin)?;
        self.transmit(lane, out);
        Some(done)
    }

    /// The lane of packets that the registers of `lid` hear of.
    fn lane_of_lock(&self, lid: u64) -> u32 {
        (lid / u64::from(self.params.racks) % u64::from(self.params.lanes)) as u32
    }

    /// Whether an agent of `lid` is on its way out.
    fn departs(&self, lid: u64) -> bool {
        self.lanes.get(&self.lane_of_lock(lid)).is_some_and(|lane| lane.has_departure(lid))
    }

    /// Whether one is to leave after what was sent already.
    fn departs_later(&self, lid: u64) -> bool {
        self.lanes.get(&self.lane_of_lock(lid)).is_some_and(|lane| lane.has_later_departure(lid))
    }

    /// Grants to tasks that gave up are given back, which may grant others.
    fn give_back_unwanted(&mut self, out: &mut Outbox) {
        while let Some((lid, ticket)) = self.unwanted.pop() {
            self.tasks.remove(&ticket.tid);
            self.let_go(lid, ticket, out);
        }
    }
}

/// To the decider of its lock, and again after a while.
fn send(params: &Params, machines: u16, racks: &[Rack], mut packet: Packet, out: &mut Outbox) {
    let rack = rack_of(packet.lid, params);
    packet.epoch = racks[rack].epoch;
    out.send_datagram(PeerId::role(usize::from(machines) + rack), packet.encode());
    if params.retransmit_ns > 0 {
        let id = u64::from(packet.number.lane) << 32 | u64::from(packet.number.seq);
        out.arm(params.retransmit_ns, id);
    }
}

impl<R: Rules> Role for Machine<R> {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        match message.kind {
            call::LOCK => self.lock(from, message, out),
            call::UNLOCK => self.unlock(from, message.words[0], out),
            call::GIVE_UP => {
                self.give_up(from, message.words[0], out);
                out.send(from, Message::new(message.lock, call::GAVE_UP, &[message.words[0]]));
            }
            call::PAUSE => self.pause(from, message, out),
            call::RESTORE => self.restore(from, message, out),
            call::RESUME => self.resume(message, out),
            Message::DEPARTED => self.departed(from, out),
            _ => {
                if let Some(packet) = Packet::decode(message) {
                    self.packet(packet, out);
                }
            }
        }
        self.give_back_unwanted(out);
    }

    fn on_timer(&mut self, _: Time, id: u64, out: &mut Outbox) {
        let (lane, seq) = ((id >> 32) as u32, id as u32);
        if let Some(packet) = self.lanes.get(&lane).and_then(|lane| lane.unfinished(seq)) {
            send(&self.params, self.machines, &self.racks, packet.clone(), out);
        }
    }

    fn wants_departures(&self) -> bool {
        true
    }

    /// Requests of others are the agent pool's; calls, grants and acknowledgements are the application threads' (§7.1).
    fn thread_group(&self, message: &Message) -> usize {
        usize::from(message.kind != Kind::Acquire as u32 && message.kind != Kind::Release as u32)
    }
}
