//! Mailboxes: a ring of cells per client, written by anybody, read by its owner.
//!
//! | cell, word | first cell of a message | further cells |
//! |---|---|---|
//! | 0 | state (below) | state |
//! | 1 | address line: to (0..32), tail words from here on (32..47), 0, number (48..64) | the same, with bit 47 set |
//! | 2 | lock | tail |
//! | 3..7 | words | tail |
//! | 7 | kind | tail |
//!
//! | state, bits | holds |
//! |---|---|
//! | 0..2 | 0 free, 1 being written, 2 full, 3 skipped |
//! | 2..34 | who writes or wrote |
//! | 34..64 | turn: how often the ring had gone round when this was its place |
//!
//! A sender takes the cell at the tail from *free* to *being written* in its own name, writes, and makes it *full*. Should
//! it be killed in between, the reader sees whose cell that is and that the sender is dead, and steps over it: nothing a
//! killed sender does can stop a mailbox. A sender that was only declared dead may still write when it wakes; its cell is
//! *skipped*, and used again only when the process has really ended.
//!
//! Cells name the peer they are for. What was sent to the slot's former owner is dropped when it is read.

use super::clients::{AT_HEAD, AT_TAIL, Joined};
use super::layout::{CELL_BYTES, Section};
use super::process::Process;
use super::shared::Shared;
use crate::addr::PeerId;
use crate::message::Message;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The longest tail a message can have here.
pub const MAX_TAIL: usize = 4096;

const FREE: u64 = 0;
const WRITING: u64 = 1;
const FULL: u64 = 2;
const SKIPPED: u64 = 3;
const TURNS: u64 = (1 << 30) - 1;
const CONTINUED: u64 = 1 << 47;
/// Tail words in a further cell.
const PER_CELL: usize = 6;

/// A cell's words 1 to 7.
pub(super) type Payload = [u64; 7];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State(u64);

impl State {
    const fn new(kind: u64, peer: PeerId, turn: u64) -> Self {
        Self(kind | (peer.0 as u64) << 2 | (turn & TURNS) << 34)
    }

    const fn kind(self) -> u64 {
        self.0 & 3
    }

    const fn peer(self) -> PeerId {
        PeerId((self.0 >> 2) as u32)
    }

    const fn turn(self) -> u64 {
        self.0 >> 34
    }
}

const NOBODY: PeerId = PeerId(0);

/// Cuts a message into cells. `number` tells apart the messages that a client's clones send at the same time.
pub(super) fn cut(to: PeerId, message: &Message, number: u16) -> impl Iterator<Item = Payload> {
    let len = message.tail.len();
    assert!(len <= MAX_TAIL, "a message's tail has at most {MAX_TAIL} words");
    let line = move |left: usize| u64::from(to.0) | (left as u64) << 32 | u64::from(number) << 48;
    let [a, b, c, d] = message.words;
    let first = [line(len), message.lock, a, b, c, d, u64::from(message.kind)];
    let rest = message.tail.chunks(PER_CELL).enumerate().map(move |(index, chunk)| {
        let mut cell = [0; 7];
        cell[0] = line(len - index * PER_CELL) | CONTINUED;
        cell[1..=chunk.len()].copy_from_slice(chunk);
        cell
    });
    std::iter::once(first).chain(rest)
}

/// How a cell was received by the mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// It is in, at this place. `waits` says that something was already there, unread.
    In { waits: bool, position: u64 },
    /// There is no room; the reader has come to this place.
    Full { head: u64 },
}

impl Shared {
    pub(super) fn cell_at(&self, slot: u64, index: u64) -> u64 {
        self.layout.start(Section::Mailboxes) + (slot * self.layout.shape.cells + index) * CELL_BYTES
    }

    fn place(&self, slot: u64, position: u64) -> (u64, u64) {
        let cells = self.layout.shape.cells;
        (self.cell_at(slot, position % cells), (position / cells) & TURNS)
    }

    /// Whether the cell at `position` has been taken out of the mailbox of `slot`.
    pub(super) fn was_read(&self, slot: u64, position: u64) -> bool {
        self.map.u64(self.slot_at(slot) + AT_HEAD).load(SeqCst) > position
    }

    /// Puts one cell into the mailbox of `slot`.
    pub(super) fn post(&self, slot: u64, from: PeerId, payload: &Payload) -> Posted {
        let (tail, head) =
            (self.map.u64(self.slot_at(slot) + AT_TAIL), self.map.u64(self.slot_at(slot) + AT_HEAD));
        loop {
            let position = tail.load(SeqCst);
            let (at, turn) = self.place(slot, position);
            let word = self.map.u64(at);
            let state = State(word.load(SeqCst));
            let next = || {
                let _ = tail.compare_exchange(position, position + 1, SeqCst, SeqCst);
            };
            if state.kind() == SKIPPED || state.turn() == turn && state.kind() != FREE {
                // Somebody has it, and has not come to say so: help along.
                next();
            } else if state.turn() == turn {
                let mine = State::new(WRITING, from, turn);
                if word.compare_exchange(state.0, mine.0, SeqCst, SeqCst).is_err() {
                    continue;
                }
                next();
                for (offset, value) in (8..).step_by(8).zip(payload) {
                    self.map.u64(at + offset).store(*value, Relaxed);
                }
                // A swap, and sequentially consistent, because a look at the listeners follows. It fails only if this
                // client was declared dead in between.
                let full = State::new(FULL, from, turn);
                let _ = word.compare_exchange(mine.0, full.0, SeqCst, SeqCst);
                return Posted::In { waits: head.load(SeqCst) != position, position };
            } else if turn.wrapping_sub(state.turn()) & TURNS == 1 {
                return Posted::Full { head: head.load(SeqCst) };
            }
            // Else the tail has moved on since it was read.
        }
    }
}

/// The reader's side: where it is in the ring, and what it has taken out of it.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Letters in the order in which they were complete.
    pub(super) letters: VecDeque<(PeerId, Message)>,
    head: u64,
    partial: HashMap<(PeerId, u16), Message>,
}

/// What a look into the ring found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pumped {
    /// Letters that came in.
    pub(super) letters: usize,
    /// The next cell is being written: its writer may die before it rings.
    pub(super) half_written: bool,
}

impl Inbox {
    pub(super) fn new(shared: &Shared, joined: &Joined) -> Self {
        let head = shared.map.u64(shared.slot_at(joined.slot) + AT_HEAD).load(SeqCst);
        Self { letters: VecDeque::new(), head, partial: HashMap::new() }
    }

    /// Whether there is nothing to be had, as far as one load can tell.
    pub(super) fn ring_is_empty(shared: &Shared, slot: u64) -> bool {
        let at = shared.slot_at(slot);
        shared.map.u64(at + AT_HEAD).load(SeqCst) == shared.map.u64(at + AT_TAIL).load(SeqCst)
    }

    /// Takes everything out of the ring. Before its reader sleeps it must be `thorough` and look whether the writer of
    /// a half-written cell is still alive, which takes system calls.
    pub(super) fn pump(&mut self, shared: &Shared, joined: &Joined, thorough: bool) -> Pumped {
        let mut pumped = Pumped::default();
        loop {
            let (at, turn) = shared.place(joined.slot, self.head);
            let word = shared.map.u64(at);
            let state = State(word.load(SeqCst));
            let free = State::new(FREE, NOBODY, turn + 1);
            match state.kind() {
                SKIPPED => {
                    if process_gone(shared, state.peer()) {
                        word.store(free.0, SeqCst);
                    }
                }
                // An earlier owner of the slot had read it, and died before it could say so.
                _ if state.turn() == turn.wrapping_add(1) & TURNS => {}
                FULL => {
                    let payload =
                        std::array::from_fn(|i| shared.map.u64(at + 8 + 8 * i as u64).load(Relaxed));
                    word.store(free.0, SeqCst);
                    pumped.letters += usize::from(self.take(joined.peer, state.peer(), payload));
                }
                WRITING if !thorough || shared.is_alive(state.peer()) => {
                    pumped.half_written = true;
                    return pumped;
                }
                WRITING => {
                    let gone = process_gone(shared, state.peer());
                    let next = if gone { free } else { State::new(SKIPPED, state.peer(), turn) };
                    if word.compare_exchange(state.0, next.0, SeqCst, SeqCst).is_err() {
                        continue;
                    }
                }
                _ => return pumped,
            }
            self.head += 1;
            shared.map.u64(shared.slot_at(joined.slot) + AT_HEAD).store(self.head, SeqCst);
        }
    }

    /// Puts a cell where it belongs; whether that completed a letter.
    fn take(&mut self, me: PeerId, from: PeerId, payload: Payload) -> bool {
        let [line, rest @ ..] = payload;
        let (to, left, number) = (PeerId(line as u32), (line >> 32 & 0x7fff) as usize, (line >> 48) as u16);
        if to != me {
            return false;
        }
        if line & CONTINUED == 0 {
            let [lock, a, b, c, d, kind] = rest;
            let message =
                Message { lock, kind: kind as u32, words: [a, b, c, d], tail: Vec::with_capacity(left) };
            if left == 0 {
                self.letters.push_back((from, message));
                return true;
            }
            self.partial.insert((from, number), message);
            return false;
        }
        let Some(message) = self.partial.get_mut(&(from, number)) else { return false };
        message.tail.extend(&rest[..left.min(PER_CELL)]);
        if left > PER_CELL {
            return false;
        }
        let message = self.partial.remove(&(from, number)).expect("it was there a moment ago");
        self.letters.push_back((from, message));
        true
    }
}

/// Whether the process of a peer that is out has ended, too.
fn process_gone(shared: &Shared, peer: PeerId) -> bool {
    shared.process_of(peer).is_none_or(Process::has_ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_keeps_its_fields_apart() {
        let state = State::new(FULL, PeerId(u32::MAX), TURNS + 3);
        assert_eq!((state.kind(), state.peer(), state.turn()), (FULL, PeerId(u32::MAX), 2));
    }

    #[test]
    fn a_message_fits_its_cells() {
        let message = Message { lock: 1, kind: 2, words: [3, 4, 5, 6], tail: (0..13).collect() };
        let cells: Vec<_> = cut(PeerId(9), &message, 7).collect();
        assert_eq!(cells.len(), 1 + 3);
        assert_eq!(cells[0][1..], [1, 3, 4, 5, 6, 2]);
        assert_eq!(cells[3][0], 9 | 1 << 32 | 7 << 48 | CONTINUED);
        assert_eq!(cells[3][1], 12);
    }
}
