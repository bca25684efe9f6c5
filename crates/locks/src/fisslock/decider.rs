//! The decider: what a switch does with packets (Fig. 8). The pipeline decides, behind the stages that make a packet
//! count once; here packets become headers, and decisions become packets.
//!
//! What it must not do: keep anything about a lock outside of the pipeline.

use super::packet::{Flags, Kind, Packet};
use super::pipeline::{self, Age, Decision, Header, Once, Pipeline, Switch, Verdict};
use super::{Params, Rules};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Message, Outbox, PeerId, Role, Time};

/// Bits of a token that count grants which an agent gave without the decider.
pub(super) const LOCAL_BITS: u32 = 16;

/// A decider in the network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decider<R> {
    pipeline: Pipeline<R>,
    once: Once,
    /// Locks that are in the switch; those above are on machines, for good (§6 "Lock scales").
    locks: u64,
    /// Deciders among which lock ids are dealt out, round robin.
    racks: u64,
    machines: u64,
    lanes: u32,
    tokens: bool,
}

impl<R: Rules> Decider<R> {
    /// A decider for its share of `locks` locks, for `machines` machines.
    pub fn new(locks: u64, machines: u16, params: &Params) -> Self {
        let in_switch = locks.min(params.switch_locks);
        let racks = u64::from(params.racks);
        Self {
            pipeline: Pipeline::new(in_switch.div_ceil(racks) as usize, Switch::TOFINO, params.preference),
            once: Once::new(usize::from(machines) * params.lanes as usize),
            locks: in_switch,
            racks,
            machines: u64::from(machines),
            lanes: params.lanes,
            tokens: params.tokens,
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

    /// What becomes of `packet`, and the token of whoever is granted something; nothing if it is too old to matter.
    fn decide(&mut self, packet: &Packet) -> Option<(Decision, u64)> {
        let lane = usize::from(packet.number.origin - 1) * self.lanes as usize + packet.number.lane as usize;
        let counted = self.once.arrive(lane, packet.number.seq);
        let now = match counted.age {
            _ if !R::NUMBERS_ARE_CHECKED => Some(self.process(packet)),
            Age::New => Some(self.process(packet)),
            Age::Again => None,
            Age::Old if R::ONE_AT_A_TIME => return None,
            // As printed: not larger, so it was here before, and the registers stay as they are.
            Age::Old => Some(self.forward(packet)),
        };
        let stamps = self.tokens && now.is_some_and(|now| grants(packet, now.verdict));
        let (decision, stamp) = self.once.leave(counted, now, stamps);
        Some((decision?, if self.tokens { stamp << LOCAL_BITS } else { 0 }))
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
            bar: packet.flags.bar,
        })
    }

    /// Where a packet goes that changes nothing: locks beyond the switch have their agents on machines.
    fn forward(&self, packet: &Packet) -> Decision {
        let agent = if packet.lid >= self.locks {
            super::resident(packet.lid, self.machines)
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
    fn on_message(&mut self, _: Time, _: PeerId, message: &Message, out: &mut Outbox) {
        let Some(packet) = Packet::decode(message) else { return };
        let Some((Decision { verdict, agent }, token)) = self.decide(&packet) else { return };
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
                let flags = Flags { counted: true, granted: true, twin: true, ..Flags::default() };
                to(agent, &Packet { flags, ..packet });
            }
            (Kind::Acquire, _) => {
                let flags = Flags { counted: verdict == Verdict::Barred, ..Flags::default() };
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
}
