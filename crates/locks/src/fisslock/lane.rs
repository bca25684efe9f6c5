//! A lane: packets from one machine to a decider, one at a time, each sent until everything that came of it has arrived.
//!
//! All packets about one lock take the same lane, so a decider sees them in order. That makes the paper's rule (a number
//! that is not larger is a duplicate, §4.2) right, which it is not where several packets share a count: there a packet
//! that was lost and is sent again passes for a duplicate of itself. And it bounds what an incarnation of eight bits
//! must tell apart: of every machine at most one ACQUIRE of a lock is on its way.

use super::packet::{Number, Packet, Waiter};
use std::collections::VecDeque;

/// One lane of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    /// The last number given.
    seq: u32,
    /// What was sent and is not done with: at most one, where packets go one at a time.
    sent: VecDeque<Sent>,
    waiting: VecDeque<Packet>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sent {
    packet: Packet,
    grant_arrived: bool,
    rest_arrived: bool,
}

impl Lane {
    /// Takes `packet` in.
    pub(super) fn push(&mut self, packet: Packet) {
        self.waiting.push_back(packet);
    }

    /// The packet to send now, with its number, if one may be sent: of those that may, the first.
    pub(super) fn next(
        &mut self,
        origin: u8,
        lane: u32,
        one_at_a_time: bool,
        may_go: impl Fn(&Packet) -> bool,
    ) -> Option<Packet> {
        if one_at_a_time && !self.sent.is_empty() {
            return None;
        }
        let place = self.waiting.iter().position(may_go)?;
        let mut packet = self.waiting.remove(place)?;
        self.seq += 1;
        packet.number = Number { origin, lane, seq: self.seq };
        self.sent.push_back(Sent { packet: packet.clone(), grant_arrived: false, rest_arrived: false });
        Some(packet)
    }

    /// The packet with this number, if it is still to be sent again.
    pub(super) fn unfinished(&self, seq: u32) -> Option<&Packet> {
        self.sent.iter().map(|sent| &sent.packet).find(|packet| packet.number.seq == seq)
    }

    /// One part of what came of packet `seq` has arrived: the grant, or the rest. Returns the packet if that was all.
    pub(super) fn arrived(&mut self, seq: u32, grant: bool, twin: bool) -> Option<Packet> {
        let place = self.sent.iter().position(|sent| sent.packet.number.seq == seq)?;
        let sent = &mut self.sent[place];
        sent.grant_arrived |= grant;
        sent.rest_arrived |= !grant;
        if twin && !(sent.grant_arrived && sent.rest_arrived) {
            return None;
        }
        self.sent.remove(place).map(|sent| sent.packet)
    }

    /// Whether the agent of `lid` is to leave by this lane.
    pub(super) fn has_departure(&self, lid: u64) -> bool {
        self.sent
            .iter()
            .map(|sent| &sent.packet)
            .chain(&self.waiting)
            .any(|packet| packet.lid == lid && packet.is_departure())
    }

    /// Whether it is to leave behind what was sent.
    pub(super) fn has_later_departure(&self, lid: u64) -> bool {
        self.waiting.iter().any(|packet| packet.lid == lid && packet.is_departure())
    }

    /// Forgets packets, sent or not. Numbers go on: one that was given is never given again.
    pub(super) fn forget(&mut self, is_void: impl Fn(&Packet) -> bool) {
        self.sent.retain(|sent| !is_void(&sent.packet));
        self.waiting.retain(|packet| !is_void(packet));
    }

    /// Takes back a departure of `lid` that has not been sent, and returns the waiters that did not fit into it and were to
    /// ask again behind it.
    pub(super) fn recall(&mut self, lid: u64) -> Option<Vec<Waiter>> {
        let place = self.waiting.iter().position(|packet| packet.lid == lid && packet.is_departure())?;
        let (rest, behind) =
            self.waiting.drain(place..).skip(1).partition::<Vec<_>, _>(|packet| packet.lid != lid);
        self.waiting.extend(rest);
        Some(behind.iter().map(Packet::waiter).collect())
    }
}
