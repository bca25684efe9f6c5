//! Packets between machines and deciders (Table 2), and how they travel as messages of the fabric.
//!
//! Every packet that a machine sends to a decider is numbered: `origin` (the machine), `lane`, `seq`. Whatever comes of
//! it carries the same three, so that receivers know a copy when they see one and can say to whom it may concern that it
//! arrived.
//!
//! | word | bits | meaning |
//! |---|---|---|
//! | 0 | 0–7 | `mid`: machine of the task asked for, granted, released |
//! | 0 | 8–31 | `tid`: the task on it |
//! | 0 | 32–39 | priority of an ACQUIRE |
//! | 0 | 40–47 | `inca` |
//! | 0 | 48… | flags, see [`Flags`] |
//! | 1 | 0–7, 8–31, 32–63 | origin, lane, seq |
//! | 2 | | fencing token of a GRANT |
//! | 3 | 0–31 | epoch: recoveries of the lock's decider and machines so far |
//! | tail | one word per waiter | `mid`, `tid`, priority as above, bit 48: shared, bit 49: tries |

use lockwright_fabric::Message;
use lockwright_fabric::observe::Mode;

/// A task on a machine: who waits and holds. Machines are numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Ticket {
    pub(super) mid: u8,
    pub(super) tid: u32,
}

/// A ticket in a wait queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) mode: Mode,
    pub(super) priority: u8,
    /// It does not wait: what is not granted is denied, and it is in no queue.
    pub(super) tries: bool,
}

impl Waiter {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.ticket.mid)
            | u64::from(self.ticket.tid) << 8
            | u64::from(self.priority) << 32
            | u64::from(self.mode == Mode::Shared) << 48
            | u64::from(self.tries) << 49
    }

    pub(super) fn unpack(word: u64) -> Self {
        let ticket = Ticket { mid: word as u8, tid: (word >> 8) as u32 & TID_MASK };
        let tries = word >> 49 & 1 != 0;
        Self { ticket, mode: mode(word >> 48 & 1 != 0), priority: (word >> 32) as u8, tries }
    }
}

/// Bits of a task's number.
pub(super) const TID_BITS: u32 = 24;
const TID_MASK: u32 = (1 << TID_BITS) - 1;

fn mode(shared: bool) -> Mode {
    if shared { Mode::Shared } else { Mode::Exclusive }
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(super) enum Kind {
    Acquire = 1,
    Release,
    Free,
    Grant,
    Bar,
    Ack,
}

/// Kinds of messages between a client and the library on its own machine: calls, not packets.
pub(super) mod call {
    pub(in super::super) const LOCK: u32 = 16;
    pub(in super::super) const UNLOCK: u32 = 17;
    pub(in super::super) const GIVE_UP: u32 = 18;
    pub(in super::super) const LOCKED: u32 = 19;
    pub(in super::super) const GAVE_UP: u32 = 20;
    pub(in super::super) const RESOLVE: u32 = 21;
    pub(in super::super) const RESOLVED: u32 = 22;
    // Between the coordinator, machines and deciders (§5.3).
    pub(in super::super) const PAUSE: u32 = 23;
    pub(in super::super) const REPORT: u32 = 24;
    pub(in super::super) const RESTORE: u32 = 25;
    pub(in super::super) const RESTORED: u32 = 26;
    pub(in super::super) const LOAD: u32 = 27;
    pub(in super::super) const LOADED: u32 = 28;
    pub(in super::super) const RESUME: u32 = 29;
    pub(in super::super) const STAMPS: u32 = 30;
    pub(in super::super) const DENIED: u32 = 31;
}

/// Whether a message of this kind is the coordinator's, for a machine.
pub const fn is_from_coordinator(kind: u32) -> bool {
    matches!(kind, call::PAUSE | call::RESTORE | call::RESUME)
}

/// Whether a message of this kind is a machine's, for the coordinator.
pub const fn is_from_machine(kind: u32) -> bool {
    matches!(kind, call::REPORT | call::RESTORED)
}

/// What a kind is called in traces.
pub(super) fn name(kind: u32) -> &'static str {
    match kind {
        1 => "ACQUIRE",
        2 => "RELEASE",
        3 => "FREE",
        4 => "GRANT",
        5 => "BAR",
        6 => "ACK",
        call::LOCK => "lock",
        call::UNLOCK => "unlock",
        call::GIVE_UP => "give up",
        call::LOCKED => "locked",
        call::GAVE_UP => "gave up",
        call::RESOLVE => "resolve",
        call::RESOLVED => "resolved",
        call::PAUSE => "pause",
        call::REPORT => "report",
        call::RESTORE => "restore",
        call::RESTORED => "restored",
        call::LOAD => "load",
        call::LOADED => "loaded",
        call::RESUME => "resume",
        call::STAMPS => "stamps",
        call::DENIED => "denied",
        Message::DEPARTED => "departed",
        _ => "message",
    }
}

/// What else a packet says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Flags {
    /// GRANT: the agent comes with it.
    pub(super) agent: bool,
    /// GRANT: the decider's own, workflows 1 and 2.
    pub(super) fresh: bool,
    /// GRANT: readers stay out, because writers wait in the queue.
    pub(super) bar: bool,
    /// ACQUIRE, at the agent: the decider counted it in the incarnation that the agent lives in.
    pub(super) counted: bool,
    /// ACQUIRE, at the agent: the decider granted it.
    pub(super) granted: bool,
    /// The decider sent two packets for one: both must arrive.
    pub(super) twin: bool,
    /// FREE, GRANT, BAR: comes back to the sender.
    pub(super) echo: bool,
    /// FREE, GRANT that come back: refused. GRANT without an agent: denied.
    pub(super) refused: bool,
    /// ACK: for a GRANT, not for what went to an agent.
    pub(super) of_grant: bool,
    /// ACQUIRE: does not wait.
    pub(super) tries: bool,
}

impl Flags {
    fn pack(self) -> u64 {
        let bits = [
            self.agent,
            self.fresh,
            self.bar,
            self.counted,
            self.granted,
            self.twin,
            self.echo,
            self.refused,
            self.of_grant,
            self.tries,
        ];
        bits.iter().enumerate().fold(0, |word, (bit, set)| word | u64::from(*set) << bit)
    }

    fn unpack(word: u64) -> Self {
        let bit = |at: u32| word >> at & 1 != 0;
        Self {
            agent: bit(0),
            fresh: bit(1),
            bar: bit(2),
            counted: bit(3),
            granted: bit(4),
            twin: bit(5),
            echo: bit(6),
            refused: bit(7),
            of_grant: bit(8),
            tries: bit(9),
        }
    }
}

/// The number of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Number {
    /// The machine that sent it to the decider.
    pub(super) origin: u8,
    /// That machine's lane.
    pub(super) lane: u32,
    /// Counts up in the lane.
    pub(super) seq: u32,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Packet {
    pub(super) kind: Kind,
    pub(super) lid: u64,
    pub(super) ticket: Ticket,
    /// The mode asked for, or the next holder's.
    pub(super) mode: Mode,
    /// FREE and GRANT: the mode the lock has.
    pub(super) held: Mode,
    pub(super) priority: u8,
    pub(super) inca: u8,
    pub(super) flags: Flags,
    pub(super) number: Number,
    pub(super) token: u64,
    /// Set when it is sent.
    pub(super) epoch: u32,
    pub(super) queue: Vec<Waiter>,
}

impl Packet {
    /// A packet about `ticket`, with nothing else in it.
    pub(super) fn new(kind: Kind, lid: u64, ticket: Ticket, mode: Mode) -> Self {
        Self {
            kind,
            lid,
            ticket,
            mode,
            held: mode,
            priority: 0,
            inca: 0,
            flags: Flags::default(),
            number: Number::default(),
            token: 0,
            epoch: 0,
            queue: Vec::new(),
        }
    }

    /// An ACQUIRE for `waiter`.
    pub(super) fn acquire(lid: u64, waiter: Waiter) -> Self {
        let flags = Flags { tries: waiter.tries, ..Flags::default() };
        Self { priority: waiter.priority, flags, ..Self::new(Kind::Acquire, lid, waiter.ticket, waiter.mode) }
    }

    /// Whom an ACQUIRE is for.
    pub(super) fn waiter(&self) -> Waiter {
        let tries = self.flags.tries;
        Waiter { ticket: self.ticket, mode: self.mode, priority: self.priority, tries }
    }

    /// Whether the agent leaves with it.
    pub(super) fn is_departure(&self) -> bool {
        self.kind == Kind::Free || (self.kind == Kind::Grant && self.flags.agent)
    }

    /// As it travels.
    pub(super) fn encode(&self) -> Message {
        let first = self.waiter().pack() & ((1 << 40) - 1) | u64::from(self.inca) << 40;
        let modes = u64::from(self.mode == Mode::Shared) | u64::from(self.held == Mode::Shared) << 1;
        let flags = self.flags.pack() << 48 | modes << 60;
        let Number { origin, lane, seq } = self.number;
        let number = u64::from(origin) | u64::from(lane) << 8 | u64::from(seq) << 32;
        let words = [first | flags, number, self.token, u64::from(self.epoch)];
        let mut message = Message::new(self.lid, self.kind as u32, &words);
        message.tail.extend(self.queue.iter().map(|waiter| waiter.pack()));
        message
    }

    /// What travelled, if it is a packet.
    pub(super) fn decode(message: &Message) -> Option<Self> {
        let kind = match message.kind {
            1 => Kind::Acquire,
            2 => Kind::Release,
            3 => Kind::Free,
            4 => Kind::Grant,
            5 => Kind::Bar,
            6 => Kind::Ack,
            _ => return None,
        };
        let [first, number, token, epoch] = message.words;
        let Waiter { ticket, priority, .. } = Waiter::unpack(first);
        Some(Self {
            kind,
            lid: message.lock,
            ticket,
            mode: mode(first >> 60 & 1 != 0),
            held: mode(first >> 61 & 1 != 0),
            priority,
            inca: (first >> 40) as u8,
            flags: Flags::unpack(first >> 48),
            number: Number {
                origin: number as u8,
                lane: (number >> 8) as u32 & TID_MASK,
                seq: (number >> 32) as u32,
            },
            token,
            epoch: epoch as u32,
            queue: message.tail.iter().map(|word| Waiter::unpack(*word)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_comes_out_as_it_went_in() {
        let ticket = Ticket { mid: 255, tid: TID_MASK };
        let waiter =
            Waiter { ticket: Ticket { mid: 7, tid: 300 }, mode: Mode::Shared, priority: 9, tries: true };
        for bit in 0..10 {
            let packet = Packet {
                kind: Kind::Grant,
                lid: u64::MAX,
                ticket,
                mode: mode(bit % 2 == 0),
                held: mode(bit % 3 == 0),
                priority: 255,
                inca: 200 + bit,
                flags: Flags::unpack(1 << bit),
                number: Number { origin: 254, lane: TID_MASK, seq: u32::MAX - u32::from(bit) },
                token: u64::MAX,
                epoch: u32::MAX,
                queue: vec![waiter; usize::from(bit)],
            };
            assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }
        assert_eq!(Packet::decode(&Message::new(0, call::LOCK, &[])), None);
    }
}
