//! The stages that make a packet count once (§4.2; "stages for supporting retransmissions", §5.2 footnote 1), and the
//! one that stamps grants.
//!
//! A machine sends one packet per lane at a time and sends it again until everything that came of it has arrived. So of
//! a lane's last packet the switch keeps the number (4 bytes), the verdict and the agent's place (1 byte each):
//!
//! - a larger number is new and goes through the pipeline;
//! - the same number is the last packet again: it has had its effect, and **the same verdict goes out again**, also to
//!   where the agent was then. By today's registers it could be granted twice, or routed past where it was lost;
//! - a smaller number has long been acknowledged and is dropped.
//!
//! A packet of another epoch than the switch's is dropped before anything else: it was sent before a failure, and what it
//! says was gathered from machines that survived. A switch that was restarted is in epoch 0, in which nobody sends.
//!
//! `stamp`, one register of eight bytes for all locks, counts grants: fencing tokens rise with it, though 18 bits per
//! lock have no room for them.

use super::register::{CellArray, CellOp, Place, Port, Predicate, Update};
use super::{Decision, Verdict};

macro_rules! arrays {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name;
    )+};
}

arrays! {
    /// The epoch.
    Epoch;
    /// The number of the lane's last packet.
    Seq;
    /// Its verdict.
    Decided;
    /// Where the agent was then.
    Agent;
    /// How many grants there were.
    Stamp;
}

/// What the switch keeps of every lane of every machine, and the stamp.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Once {
    epoch: CellArray<Epoch, u32>,
    seq: CellArray<Seq, u32>,
    decided: CellArray<Decided, u8>,
    agent: CellArray<Agent, u8>,
    stamp: CellArray<Stamp, u64>,
}

/// The registers of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRegisters {
    /// The number of its last packet.
    pub seq: u32,
    /// The number of that one's verdict.
    pub decided: u8,
    /// Where the agent was then.
    pub agent: u8,
}

/// How a packet's number stands to its lane's last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Not seen before.
    New,
    /// The last one again.
    Again,
    /// Older than the last.
    Old,
}

/// A packet between the first of these stages and the last.
#[derive(Debug)]
pub struct Counted {
    place: Place,
    /// How old it is.
    pub age: Age,
    decided: Port<Decided>,
    agent: Port<Agent>,
    stamp: Port<Stamp>,
}

const ONLY: Place = Place { mau: 0, offset: 0 };

impl Once {
    /// For so many lanes of all machines together, in `epoch`, with stamps above `stamp`.
    pub fn new(lanes: usize, epoch: u32, stamp: u64) -> Self {
        let mut once = Self {
            epoch: CellArray::new(1, 1),
            seq: CellArray::new(lanes, lanes),
            decided: CellArray::new(lanes, lanes),
            agent: CellArray::new(lanes, lanes),
            stamp: CellArray::new(1, 1),
        };
        once.epoch.poke(ONLY, epoch);
        once.stamp.poke(ONLY, stamp);
        once
    }

    /// The epoch, as the control plane reads it.
    pub fn epoch(&self) -> u32 {
        self.epoch.peek(ONLY)
    }

    /// What is kept of a lane.
    pub fn lane(&self, lane: usize) -> LaneRegisters {
        let place = Place { mau: 0, offset: lane };
        LaneRegisters {
            seq: self.seq.peek(place),
            decided: self.decided.peek(place),
            agent: self.agent.peek(place),
        }
    }

    /// How many grants there were, as the control plane reads it.
    pub fn stamp(&self) -> u64 {
        self.stamp.peek(ONLY)
    }

    /// Stamps go on above `stamp`, if they are not there yet.
    pub fn raise_stamp(&mut self, stamp: u64) {
        let now = self.stamp.peek(ONLY);
        self.stamp.poke(ONLY, now.max(stamp));
    }

    /// Whether a packet of `epoch` is to be dealt with.
    pub fn is_current(&mut self, epoch: u32) -> bool {
        self.epoch.access(Port::new(), ONLY, CellOp::READ) == epoch
    }

    /// Bits of register memory.
    pub fn bits(&self) -> u64 {
        self.epoch.bits() + self.seq.bits() + self.decided.bits() + self.agent.bits() + self.stamp.bits()
    }

    /// A packet comes in.
    pub fn arrive(&mut self, lane: usize, seq: u32) -> Counted {
        let place = Place { mau: 0, offset: lane };
        let newer = CellOp { when: Predicate::Below(seq), then: Update::Set(seq) };
        let last = self.seq.access(Port::new(), place, newer);
        let age = match seq.cmp(&last) {
            std::cmp::Ordering::Greater => Age::New,
            std::cmp::Ordering::Equal => Age::Again,
            std::cmp::Ordering::Less => Age::Old,
        };
        Counted { place, age, decided: Port::new(), agent: Port::new(), stamp: Port::new() }
    }

    /// It goes out: with what was decided now, or else with what was decided then, and with the stamp.
    pub fn leave(
        &mut self,
        counted: Counted,
        now: Option<Decision>,
        stamps: bool,
    ) -> (Option<Decision>, u64) {
        let (decided, agent) = match now {
            Some(Decision { verdict, agent }) => (CellOp::set(verdict as u8), CellOp::set(agent)),
            None => (CellOp::READ, CellOp::READ),
        };
        let decided = self.decided.access(counted.decided, counted.place, decided);
        let agent = self.agent.access(counted.agent, counted.place, agent);
        let stamp = if stamps {
            self.stamp.access(counted.stamp, ONLY, CellOp::COUNT) + 1
        } else {
            self.stamp.access(counted.stamp, ONLY, CellOp::READ)
        };
        let then = Verdict::from_number(decided).map(|verdict| Decision { verdict, agent });
        (now.or(then), stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_packet_again_has_the_verdict_it_had() {
        let mut once = Once::new(4, 1, 0);
        let first = Decision { verdict: Verdict::Suspended, agent: 7 };
        let packet = once.arrive(2, 1);
        assert_eq!(packet.age, Age::New);
        assert_eq!(once.leave(packet, Some(first), true), (Some(first), 1));
        let again = once.arrive(2, 1);
        assert_eq!(again.age, Age::Again);
        assert_eq!(once.leave(again, None, false), (Some(first), 1));
        assert_eq!(once.arrive(2, 5).age, Age::New);
        assert_eq!(once.arrive(2, 4).age, Age::Old);
        assert_eq!(once.arrive(3, 1).age, Age::New);
    }
}
