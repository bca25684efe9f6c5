//! The decider: what a switch does with packets (Fig. 8). The pipeline decides, behind the stages that make a packet
//! count once; here packets become headers, and decisions become packets.
//!
//! What it must not do: keep anything about a lock outside of the pipeline.

use super::packet::{Flags, Kind, Packet, call};
use super::pipeline::{self, Age, Decision, Header, Once, Pipeline, Switch, Verdict};
use super::report::Entry;
use super::{FIRST_EPOCH, Params, Rules};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Message, Outbox, PeerId, Role, Time};
use std::collections::BTreeSet;

/// Bits of a token that count grants which an agent gave without the decider.
pub(super) const LOCAL_BITS: u32 = 16;

/// Stamps that the coordinator gives out at a time: tokens rise across a restart because the next block is given then.
pub(super) const BLOCK_BITS: u32 = 24;

/// A decider in the network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decider<R> {
    pipeline: Pipeline<R>,
    once: Once,
    /// Locks that are in the switch; those above are on machines, for good (§6 "Lock scales").
    locks: u64,
    /// Deciders among which lock ids are dealt out, round robin.
    racks: u64,
    machines: u16,
    /// Machines that are lost: locks that they kept have moved on.
    lost: BTreeSet<u8>,
    params: Params,
}

impl<R: Rules> Decider<R> {
    /// A decider for its share of `locks` locks, for `machines` machines.
    pub fn new(locks: u64, machines: u16, params: &Params) -> Self {
        Self::in_epoch(FIRST_EPOCH, 0, locks.min(params.switch_locks), machines, params)
    }

    /// A decider that grants nothing before it is opened, or its registers are loaded.
    pub fn closed(locks: u64, machines: u16, params: &Params) -> Self {
        Self::in_epoch(0, 0, locks.min(params.switch_locks), machines, params)
    }

    /// Opens it with all locks free, where nobody can hold any: in `epoch`, with stamps of `block` and later.
    pub fn open(&mut self, epoch: u32, block: u64) {
        *self = Self::in_epoch(epoch, block << BLOCK_BITS, self.locks, self.machines, &self.params);
    }

    /// With empty registers, in `epoch`.
    fn in_epoch(epoch: u32, stamp: u64, locks: u64, machines: u16, params: &Params) -> Self {
        let racks = u64::from(params.racks);
        Self {
            pipeline: Pipeline::new(locks.div_ceil(racks) as usize, Switch::TOFINO, params.preference),
            once: Once::new(usize::from(machines) * params.lanes as usize, epoch, stamp),
            locks,
            racks,
            machines,
            lost: BTreeSet::new(),
            params: params.clone(),
        }
    }

    /// S3 of a recovery (§5.3): the control plane writes the registers of held locks, and the decider is back.
    fn load(&mut self, message: &Message) {
        let [epoch, stamp, lost, _] = message.words;
        if epoch <= u64::from(self.once.epoch()) {
            return;
        }
        *self = Self::in_epoch(epoch as u32, stamp, self.locks, self.machines, &self.params);
        let (lost, entries) = message.tail.split_at(lost as usize);
        self.lost = lost.iter().map(|mid| *mid as u8).collect();
        for entry in Entry::decode(entries) {
            let place = (entry.lid / self.racks) as usize;
            let (mid, mode) = (entry.waiter.ticket.mid, entry.waiter.mode);
            // Agents count anew, too.
            self.pipeline.poke(place, mode, mid, 0, entry.barred);
        }
    }

    /// Bits of register memory: for locks, and for what makes packets count once.
    pub fn bits(&self) -> (u64, u64) {
        (self.pipeline.bits(), self.once.bits())
    }

    /// What the registers say of a lock: its mode, `None` if it is free; the agent's machine; the incarnation.
    pub fn peek(&self, lid: u64) -> (Option<Mode>, u8, u8) {
        self.pipeline.peek((lid / self.racks) as usize)
    }

    /// The register arrays: to copy them into another switch, or to compare them with those of one.
    pub fn registers(&self) -> (&Pipeline<R>, &Once) {
        (&self.pipeline, &self.once)
    }

    /// A switch whose registers were copied from these has come to `stamp`. Past half a block the coordinator is asked for
    /// more, as by a packet.
    pub fn stamped(&mut self, stamp: u64, out: &mut Outbox) {
        let is_past = |stamp: u64| stamp & ((1 << BLOCK_BITS) - 1) >= 1 << (BLOCK_BITS - 1);
        let before = self.once.stamp();
        self.once.raise_stamp(stamp);
        if is_past(stamp) && !is_past(before) {
            out.send(super::coordinator_of(self.machines, &self.params), Message::new(0, call::STAMPS, &[]));
        }
    }

    /// What becomes of `packet`, and the token of the task that is granted something; nothing if it is too old to matter.
    fn decide(&mut self, packet: &Packet) -> Option<(Decision, u64)> {
        let is_checked = if self.once.epoch() == 0 { R::RESTARTED_IS_CLOSED } else { R::EPOCHS_ARE_CHECKED };
        if is_checked && !self.once.is_current(packet.epoch) {
            return None;
        }
        let lanes = self.params.lanes as usize;
        let lane = usize::from(packet.number.origin - 1) * lanes + packet.number.lane as usize;
        let counted = self.once.arrive(lane, packet.number.seq);
        let now = match counted.age {
            _ if !R::NUMBERS_ARE_CHECKED => Some(self.process(packet)),
            Age::New => Some(self.process(packet)),
            Age::Again => None,
            Age::Old if R::ONE_AT_A_TIME => return None,
            // As printed: not larger, so it was here before, and the registers stay as they are.
            Age::Old => Some(self.forward(packet)),
        };
        let stamps = self.params.tokens && now.is_some_and(|now| grants(packet, now.verdict));
        let (decision, stamp) = self.once.leave(counted, now, stamps);
        Some((decision?, if self.params.tokens { stamp << LOCAL_BITS } else { 0 }))
    }

    /// Half a block of stamps is used up: the coordinator has more, long before they end.
    fn wants_stamps(&self, token: u64) -> bool {
        self.params.tokens && token >> LOCAL_BITS & ((1 << BLOCK_BITS) - 1) == 1 << (BLOCK_BITS - 1)
    }

    fn process(&mut self, packet: &Packet) -> Decision {
        let kind = match packet.kind {
            _ if packet.lid >= self.locks => return self.forward(packet),
            Kind::Acquire => pipeline::Kind::Acquire,
            Kind::Release => pipeline::Kind::Release,
            Kind::Free => pipeline::Kind::Free,
            Kind::Grant if packet.flags.agent => pipeline::Kind::Transfer,
            Kind::Bar => pipeline::Kind::Bar,
            // Only forwarded (Fig. 8 line 19): nothing that the registers hear of.
            Kind::Grant | Kind::Ack => return Decision { verdict: Verdict::Done, agent: 0 },
        };
        self.pipeline.process(Header {
            kind,
            lid: (packet.lid / self.racks) as usize,
            mid: packet.ticket.mid,
            mode: packet.mode,
            held: packet.held,
            inca: packet.inca,
            bar: if packet.kind == Kind::Acquire { !packet.flags.tries } else { packet.flags.bar },
        })
    }

    /// Where a packet goes that changes nothing: locks beyond the switch have their agents on machines.
    fn forward(&self, packet: &Packet) -> Decision {
        let agent = if packet.lid >= self.locks {
            super::resident(packet.lid, self.machines, &self.lost)
        } else {
            self.peek(packet.lid).1
        };
        let verdict = match packet.kind {
            Kind::Acquire => Verdict::Suspended,
            Kind::Release => Verdict::ToAgent,
            _ => Verdict::Done,
        };
        Decision { verdict, agent }
    }
}

fn grants(packet: &Packet, verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Granted | Verdict::Joined)
        || (packet.kind == Kind::Grant && packet.flags.agent && verdict == Verdict::Done)
}

impl<R: Rules> Role for Decider<R> {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        match message.kind {
            call::LOAD => {
                self.load(message);
                out.send(from, Message::new(0, call::LOADED, &[message.words[0]]));
                return;
            }
            call::STAMPS => {
                self.once.raise_stamp(message.words[0]);
                return;
            }
            _ => {}
        }
        let Some(packet) = Packet::decode(message) else { return };
        let Some((Decision { verdict, agent }, token)) = self.decide(&packet) else { return };
        if self.wants_stamps(token) {
            let coordinator = super::coordinator_of(self.machines, &self.params);
            out.send(coordinator, Message::new(0, call::STAMPS, &[]));
        }
        let mut to = |mid: u8, packet: &Packet| {
            if mid != 0 {
                out.send_datagram(super::machine_of(mid), packet.encode());
            }
        };
        let requester = packet.ticket.mid;
        match (packet.kind, verdict) {
            (Kind::Acquire, Verdict::Granted) => {
                let flags = Flags { agent: true, fresh: true, ..Flags::default() };
                to(requester, &Packet { kind: Kind::Grant, flags, token, ..packet });
            }
            (Kind::Acquire, Verdict::Joined) => {
                let flags = Flags { fresh: true, twin: true, ..Flags::default() };
                to(requester, &Packet { kind: Kind::Grant, flags, token, ..packet.clone() });
                let tries = packet.flags.tries;
                let flags = Flags { counted: true, granted: true, twin: true, tries, ..Flags::default() };
                to(agent, &Packet { flags, ..packet });
            }
            (Kind::Acquire, _) => {
                let (counted, tries) = (verdict == Verdict::Barred, packet.flags.tries);
                let flags = Flags { counted, tries, ..Flags::default() };
                to(agent, &Packet { flags, ..packet });
            }
            (Kind::Release, _) => to(agent, &packet),
            (Kind::Grant, Verdict::Done) => {
                let token = if packet.flags.agent { token } else { packet.token };
                to(requester, &Packet { token, ..packet });
            }
            // FREE and BAR come back as their own acknowledgement; so does what is refused.
            (Kind::Grant | Kind::Free | Kind::Bar, _) => {
                let refused = verdict == Verdict::Refused;
                let flags = Flags { echo: true, refused, ..packet.flags };
                to(packet.number.origin, &Packet { flags, queue: Vec::new(), ..packet });
            }
            (Kind::Ack, _) => {}
        }
    }

    /// Every register is lost, and with the epoch every packet that comes before the registers are back.
    fn restart(&mut self) {
        *self = Self::in_epoch(0, 0, self.locks, self.machines, &self.params);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shipped;
    use super::super::packet::{Number, Ticket};
    use super::*;

    fn ask(decider: &mut Decider<Shipped>, epoch: u32, seq: u32) -> Outbox {
        let mut packet = Packet::new(Kind::Acquire, 0, Ticket { mid: 1, tid: 1 }, Mode::Exclusive);
        (packet.epoch, packet.number) = (epoch, Number { origin: 1, lane: 0, seq });
        let mut out = Outbox::default();
        decider.on_message(Time(0), PeerId::role(0), &packet.encode(), &mut out);
        out
    }

    fn loaded(epoch: u64, stamp: u64) -> Decider<Shipped> {
        let mut decider = Decider::new(4, 2, &Params::default());
        let load = Message::new(0, call::LOAD, &[epoch, stamp, 0]);
        decider.on_message(Time(0), PeerId::role(3), &load, &mut Outbox::default());
        decider
    }

    #[test]
    fn a_restarted_decider_answers_nobody_until_its_registers_are_back() {
        let mut decider = Decider::new(4, 2, &Params::default());
        decider.restart();
        assert!(ask(&mut decider, FIRST_EPOCH, 1).datagrams.is_empty());
        let load = Message::new(0, call::LOAD, &[2, 1 << BLOCK_BITS, 0]);
        decider.on_message(Time(0), PeerId::role(3), &load, &mut Outbox::default());
        assert!(ask(&mut decider, FIRST_EPOCH, 2).datagrams.is_empty(), "sent before the failure");
        let [(_, granted)] = &ask(&mut decider, 2, 3).datagrams[..] else { panic!("one grant") };
        assert!(Packet::decode(granted).unwrap().token > 1 << (BLOCK_BITS + LOCAL_BITS));
    }

    #[test]
    fn half_a_block_of_stamps_before_the_end_more_are_asked_for() {
        let half = 1 << (BLOCK_BITS - 1);
        assert!(ask(&mut loaded(2, half - 2), 2, 1).messages.is_empty());
        let mut decider = loaded(2, half - 1);
        let [(to, wanted)] = &ask(&mut decider, 2, 1).messages[..] else { panic!("one request") };
        assert_eq!((*to, wanted.kind), (PeerId::role(3), call::STAMPS));
        let given = Message::new(0, call::STAMPS, &[7 << BLOCK_BITS]);
        decider.on_message(Time(0), PeerId::role(3), &given, &mut Outbox::default());
        let mut copied = loaded(2, 0);
        let mut out = Outbox::default();
        copied.stamped(half - 1, &mut out);
        assert!(out.messages.is_empty());
        copied.stamped(half + 9, &mut out);
        copied.stamped(half + 10, &mut out);
        assert_eq!(out.messages.len(), 1, "once per block");
        assert_eq!(decider.once, {
            let mut once = decider.once.clone();
            once.raise_stamp(1);
            once
        });
    }
}
