//! What clients and the control plane of a decider say to each other, beside packets: messages of the tcp fabric.
//!
//! | field | holds |
//! |---|---|
//! | `kind` | which; the recovery's own kinds are the protocol's, below 64 |
//! | `lock` | of a client's message: its number in the session, from 1; of an answer: how many were taken |
//! | `words` | see [`Request`] and [`Answer`] |
//! | `tail` | what is longer; more than [`PIECE`] words come in several messages of kind [`PART`] before it |
//!
//! The fabric carries answers once and in order. In the other direction what was under way when a connection broke may be
//! lost, so the client says again what was not taken ([`Unacked`]), and the other side takes only the next number ([`Taken`]).

use crate::wire::codec::{pack, unpack};
use lockwright_fabric::Message;
use lockwright_fabric::backend::tcp::MAX_TAIL;
use lockwright_locks::fisslock::datagram::Key;
use lockwright_locks::fisslock::{is_from_coordinator, is_from_machine};
use std::collections::VecDeque;

/// A part of a longer message.
pub const PART: u32 = 127;
/// Words per message.
const PIECE: usize = MAX_TAIL;
/// The longest message, in words: a report of half a million locks.
const LONGEST: usize = 1 << 20;

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// It wants to be a machine, and has nothing. `seen` is the largest token that it knows of.
    Join { seen: u64 },
    /// It was machine `mid` of the decider `id`, which was restarted, and still is.
    Rejoin { mid: u8, epoch: u32, id: u128, key: Key, seen: u64 },
    /// After that: it uses this lock.
    Claim { lid: u64, name: Vec<u8> },
    /// After that: these were all.
    Claimed,
    /// Which lock is this? `id` comes back with the answer.
    Name { id: u64, name: Vec<u8> },
    /// It has no more use for a lock.
    Unname { lid: u64 },
    /// What its tasks hold and wait for: a listing's lines.
    Listed { id: u64, bytes: Vec<u8> },
    /// Who holds and waits in this space?
    List { id: u64, space: Vec<u8> },
    /// How is the decider?
    Status { id: u64 },
    /// The machine's packets are not answered: it wants another key, under which it says HELLO from where it is now.
    Renew,
    /// A machine's message to the coordinator.
    Protocol(Message),
}

/// What the control plane says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// So many messages were taken; nothing else.
    Taken,
    /// The client is a machine.
    Welcome(Welcome),
    /// The name's lock.
    Named { id: u64, lid: u64 },
    /// No, for this reason. `id` 0: the client cannot be a machine.
    Refused { id: u64, why: String },
    /// What do its tasks in this space hold and wait for?
    Survey { id: u64, space: Vec<u8> },
    /// The answer to List or Status.
    Bytes { id: u64, bytes: Vec<u8> },
    /// The coordinator's message to a machine.
    Protocol(Message),
}

/// What a client must know to be a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub mid: u8,
    pub epoch: u32,
    /// Whether it is still the machine that it was.
    pub resumed: bool,
    pub locks: u64,
    pub lanes: u32,
    /// The decider, across restarts.
    pub id: u128,
    pub key: Key,
}

fn message(kind: u32, words: [u64; 4], tail: Vec<u64>) -> Message {
    Message { lock: 0, kind, words, tail }
}

fn halves(id: u128) -> [u64; 2] {
    [id as u64, (id >> 64) as u64]
}

fn whole(low: u64, high: u64) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

impl Request {
    pub fn encode(&self) -> Message {
        let only = |kind, word| message(kind, [word, 0, 0, 0], Vec::new());
        let named = |kind, word, bytes: &[u8]| message(kind, [word, 0, 0, 0], pack(bytes));
        match self {
            Self::Join { seen } => only(64, *seen),
            Self::Rejoin { mid, epoch, id, key: Key([first, second]), seen } => {
                let [low, high] = halves(*id);
                message(65, [u64::from(*mid), u64::from(*epoch), *first, *second], vec![low, high, *seen])
            }
            Self::Claim { lid, name } => named(66, *lid, name),
            Self::Claimed => only(67, 0),
            Self::Name { id, name } => named(68, *id, name),
            Self::Unname { lid } => only(69, *lid),
            Self::Listed { id, bytes } => named(70, *id, bytes),
            Self::List { id, space } => named(71, *id, space),
            Self::Status { id } => only(72, *id),
            Self::Renew => only(73, 0),
            Self::Protocol(message) => message.clone(),
        }
    }

    pub fn decode(message: &Message) -> Option<Self> {
        let [word, epoch, first, second] = message.words;
        let bytes = || unpack(&message.tail);
        Some(match message.kind {
            64 => Self::Join { seen: word },
            65 => {
                let [low, high, seen] = message.tail[..] else { return None };
                let mid = u8::try_from(word).ok().filter(|mid| *mid != 0)?;
                let (epoch, id) = (u32::try_from(epoch).ok()?, whole(low, high));
                Self::Rejoin { mid, epoch, id, key: Key([first, second]), seen }
            }
            66 => Self::Claim { lid: word, name: bytes()? },
            67 => Self::Claimed,
            68 => Self::Name { id: word, name: bytes()? },
            69 => Self::Unname { lid: word },
            70 => Self::Listed { id: word, bytes: bytes()? },
            71 => Self::List { id: word, space: bytes()? },
            72 => Self::Status { id: word },
            73 => Self::Renew,
            kind if is_from_machine(kind) => Self::Protocol(Message { lock: 0, ..message.clone() }),
            _ => return None,
        })
    }
}

impl Answer {
    pub fn encode(&self) -> Message {
        let named = |kind, word, bytes: &[u8]| message(kind, [word, 0, 0, 0], pack(bytes));
        match self {
            Self::Taken => message(96, [0; 4], Vec::new()),
            Self::Welcome(welcome) => {
                let Welcome { mid, epoch, resumed, locks, lanes, id, key } = *welcome;
                let [low, high] = halves(id);
                let first = u64::from(mid) | u64::from(resumed) << 8;
                let words = [first, u64::from(epoch), locks, u64::from(lanes)];
                message(97, words, vec![low, high, key.0[0], key.0[1]])
            }
            Self::Named { id, lid } => message(98, [*id, *lid, 0, 0], Vec::new()),
            Self::Refused { id, why } => named(99, *id, why.as_bytes()),
            Self::Survey { id, space } => named(100, *id, space),
            Self::Bytes { id, bytes } => named(101, *id, bytes),
            Self::Protocol(message) => message.clone(),
        }
    }

    pub fn decode(message: &Message) -> Option<Self> {
        let [word, second, third, fourth] = message.words;
        let bytes = || unpack(&message.tail);
        Some(match message.kind {
            96 => Self::Taken,
            97 => {
                let [low, high, first_key, second_key] = message.tail[..] else { return None };
                Self::Welcome(Welcome {
                    mid: (word as u8 != 0).then_some(word as u8)?,
                    epoch: u32::try_from(second).ok()?,
                    resumed: word >> 8 & 1 != 0,
                    locks: third,
                    lanes: u32::try_from(fourth).ok()?,
                    id: whole(low, high),
                    key: Key([first_key, second_key]),
                })
            }
            98 => Self::Named { id: word, lid: second },
            99 => Self::Refused { id: word, why: String::from_utf8_lossy(&bytes()?).into_owned() },
            100 => Self::Survey { id: word, space: bytes()? },
            101 => Self::Bytes { id: word, bytes: bytes()? },
            kind if is_from_coordinator(kind) => Self::Protocol(Message { lock: 0, ..message.clone() }),
            _ => return None,
        })
    }
}

/// A lock's name with its space, as directories keep it: no two are alike unless both parts are.
pub fn full_name(space: &[u8], name: &[u8]) -> Vec<u8> {
    let mut full = vec![space.len() as u8];
    full.extend_from_slice(space);
    full.extend_from_slice(name);
    full
}

/// The name's space and the rest of it.
pub fn split_name(full: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = full.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// The messages that `message` travels as, in order.
pub fn pieces(mut message: Message) -> Vec<Message> {
    let mut pieces = Vec::new();
    while message.tail.len() > PIECE {
        let rest = message.tail.split_off(PIECE);
        let tail = std::mem::replace(&mut message.tail, rest);
        pieces.push(Message { tail, ..Message::new(0, PART, &[]) });
    }
    pieces.push(message);
    pieces
}

/// Puts pieces together.
#[derive(Clone, Debug, Default)]
pub struct Pieces(Vec<u64>);

impl Pieces {
    /// The whole message, if this was the last piece. What grows beyond all bounds is dropped.
    pub fn add(&mut self, mut message: Message) -> Option<Message> {
        if self.0.len() + message.tail.len() > LONGEST {
            self.0.clear();
            return None;
        }
        if message.kind == PART {
            self.0.append(&mut message.tail);
            return None;
        }
        if !self.0.is_empty() {
            let rest = std::mem::replace(&mut message.tail, std::mem::take(&mut self.0));
            message.tail.extend(rest);
        }
        Some(message)
    }
}

/// What a client has said and the other side has not been heard to take.
#[derive(Debug, Default)]
pub struct Unacked {
    said: u64,
    waiting: VecDeque<Message>,
}

impl Unacked {
    /// Numbers a request; these are its messages.
    pub fn say(&mut self, request: &Request) -> Vec<Message> {
        let mut pieces = pieces(request.encode());
        for piece in &mut pieces {
            self.said += 1;
            piece.lock = self.said;
            self.waiting.push_back(piece.clone());
        }
        pieces
    }

    /// The other side has taken messages up to this number.
    pub fn taken(&mut self, number: u64) {
        while self.waiting.front().is_some_and(|message| message.lock <= number) {
            self.waiting.pop_front();
        }
    }

    /// All that has to be said again.
    pub fn again(&self) -> impl Iterator<Item = &Message> {
        self.waiting.iter()
    }
}

/// The other side of it: what of a client's messages was taken.
#[derive(Debug, Default)]
pub struct Taken {
    number: u64,
    pieces: Pieces,
}

impl Taken {
    /// The whole message, if this completes one. One that is not the next is passed over.
    pub fn take(&mut self, message: Message) -> Option<Message> {
        if message.lock != self.number + 1 {
            return None;
        }
        self.number += 1;
        self.pieces.add(message)
    }

    /// How many were taken.
    pub fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_come_out_as_they_went_in() {
        let key = Key([5, 6]);
        let report = Message { tail: vec![7; 9], ..Message::new(0, 24, &[3]) };
        for request in [
            Request::Join { seen: 1 << 60 },
            Request::Rejoin { mid: 255, epoch: u32::MAX, id: u128::MAX - 5, key, seen: 7 },
            Request::Claim { lid: 9, name: b"a\xff".to_vec() },
            Request::Claimed,
            Request::Name { id: 4, name: b"orders/42".to_vec() },
            Request::Unname { lid: 4 },
            Request::Listed { id: 1, bytes: vec![1; 100] },
            Request::List { id: 2, space: Vec::new() },
            Request::Status { id: 3 },
            Request::Renew,
            Request::Protocol(report),
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let welcome =
            Welcome { mid: 255, epoch: 7, resumed: true, locks: 1 << 20, lanes: 64, id: 1 << 100, key };
        for answer in [
            Answer::Taken,
            Answer::Welcome(welcome),
            Answer::Named { id: 1, lid: 2 },
            Answer::Refused { id: 0, why: "no".to_owned() },
            Answer::Survey { id: 8, space: b"s".to_vec() },
            Answer::Bytes { id: 8, bytes: vec![0; 17] },
            Answer::Protocol(Message::new(0, 23, &[1, 2, 3])),
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        assert_eq!(
            Request::decode(&Message::new(0, 23, &[])),
            None,
            "a coordinator's message is no client's"
        );
        assert_eq!(Answer::decode(&Message::new(0, 24, &[])), None);
    }

    #[test]
    fn long_messages_travel_in_pieces_and_what_was_taken_is_not_taken_twice() {
        let report = Message { tail: (0..3 * PIECE as u64 + 5).collect(), ..Message::new(0, 24, &[3]) };
        let (mut unacked, mut taken) = (Unacked::default(), Taken::default());
        let pieces = unacked.say(&Request::Protocol(report.clone()));
        assert_eq!(pieces.len(), 4);
        for piece in &pieces[..2] {
            assert_eq!(taken.take(piece.clone()), None);
        }
        unacked.taken(1);
        let again: Vec<_> = unacked.again().cloned().collect();
        assert_eq!((taken.take(again[0].clone()), taken.number()), (None, 2));
        assert_eq!((taken.take(again[1].clone()), taken.number()), (None, 3));
        let whole = taken.take(again[2].clone()).unwrap();
        assert_eq!((whole.tail, taken.number()), (report.tail, 4));
    }

    #[test]
    fn names_of_different_spaces_are_different() {
        assert_ne!(full_name(b"a", b"bc"), full_name(b"ab", b"c"));
        assert_eq!(split_name(&full_name(b"a", b"bc")), Some((&b"a"[..], &b"bc"[..])));
    }
}
