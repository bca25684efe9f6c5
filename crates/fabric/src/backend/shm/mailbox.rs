//! Mailboxes: a ring of cells per client, written by any client, read by its owner.
//!
//! | cell, word | first cell of a message | further cells |
//! |---|---|---|
//! | 0 | state (below) | state |
//! | 1 | header: receiver (0..32), tail words from here on (32..47), 0, message number (48..64) | the same, with bit 47 set |
//! | 2 | lock | tail |
//! | 3..7 | words | tail |
//! | 7 | kind | tail |
//!
//! | state, bits | holds |
//! |---|---|
//! | 0..2 | 0 free, 1 being written, 2 full, 3 skipped |
//! | 2..34 | the sender |
//! | 34..64 | lap: how often the ring has wrapped around |
//!
//! A sender claims the cell at the tail (*free* to *being written*, with its own id), writes, and marks it *full*. If it is
//! killed in between, the reader sees a dead sender's id and steps over the cell: a killed sender cannot stop a mailbox. A
//! sender that was evicted may still write when it continues; its cell is *skipped*, and reused only when its process has
//! ended.
//!
//! A cell names its receiver. Messages to the slot's former owner are dropped when they are read.

use super::clients::{AT_HEAD, AT_TAIL, Membership};
use super::layout::{CELL_BYTES, Section};
use super::process::Process;
use super::shared::Shared;
use crate::addr::PeerId;
use crate::message::Message;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The longest tail of a message, in words.
pub const MAX_TAIL: usize = 4096;

const FREE: u64 = 0;
const WRITING: u64 = 1;
const FULL: u64 = 2;
const SKIPPED: u64 = 3;
const LAPS: u64 = (1 << 30) - 1;
const CONTINUED: u64 = 1 << 47;
/// Tail words in a further cell.
const PER_CELL: usize = 6;

/// A cell's words 1 to 7.
pub(super) type Payload = [u64; 7];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State(u64);

impl State {
    const fn new(kind: u64, peer: PeerId, lap: u64) -> Self {
        Self(kind | (peer.0 as u64) << 2 | (lap & LAPS) << 34)
    }

    const fn kind(self) -> u64 {
        self.0 & 3
    }

    const fn peer(self) -> PeerId {
        PeerId((self.0 >> 2) as u32)
    }

    const fn lap(self) -> u64 {
        self.0 >> 34
    }
}

const NOBODY: PeerId = PeerId(0);

/// Splits a message into cells. `number` tells apart the messages that a client's clones send at the same time.
pub(super) fn to_cells(to: PeerId, message: &Message, number: u16) -> impl Iterator<Item = Payload> {
    let len = message.tail.len();
    assert!(len <= MAX_TAIL, "a message's tail has at most {MAX_TAIL} words");
    let header = move |left: usize| u64::from(to.0) | (left as u64) << 32 | u64::from(number) << 48;
    let [a, b, c, d] = message.words;
    let first = [header(len), message.lock, a, b, c, d, u64::from(message.kind)];
    let rest = message.tail.chunks(PER_CELL).enumerate().map(move |(index, chunk)| {
        let mut cell = [0; 7];
        cell[0] = header(len - index * PER_CELL) | CONTINUED;
        cell[1..=chunk.len()].copy_from_slice(chunk);
        cell
    });
    std::iter::once(first).chain(rest)
}

/// The result of storing a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It is stored at this position. `waits`: earlier cells are unread.
    Stored { waits: bool, position: u64 },
    /// There is no room; the reader is at this position.
    Full { head: u64 },
}

impl Shared {
    pub(super) fn cell_at(&self, slot: u64, index: u64) -> u64 {
        self.layout.start(Section::Mailboxes) + (slot * self.layout.shape.cells + index) * CELL_BYTES
    }

    fn place(&self, slot: u64, position: u64) -> (u64, u64) {
        let cells = self.layout.shape.cells;
        (self.cell_at(slot, position % cells), (position / cells) & LAPS)
    }

    /// Whether the reader of `slot` is past `position`.
    pub(super) fn was_read(&self, slot: u64, position: u64) -> bool {
        self.map.u64(self.slot_at(slot) + AT_HEAD).load(SeqCst) > position
    }

    /// Stores one cell in the mailbox of `slot`.
    pub(super) fn push_cell(&self, slot: u64, from: PeerId, payload: &Payload) -> Pushed {
        let (tail, head) =
            (self.map.u64(self.slot_at(slot) + AT_TAIL), self.map.u64(self.slot_at(slot) + AT_HEAD));
        loop {
            let position = tail.load(SeqCst);
            let (at, lap) = self.place(slot, position);
            let word = self.map.u64(at);
            let state = State(word.load(SeqCst));
            let next = || {
                let _ = tail.compare_exchange(position, position + 1, SeqCst, SeqCst);
            };
            if state.kind() == SKIPPED || state.lap() == lap && state.kind() != FREE {
                // Claimed, but the tail has not moved yet: help.
                next();
            } else if state.lap() == lap {
                let mine = State::new(WRITING, from, lap);
                if word.compare_exchange(state.0, mine.0, SeqCst, SeqCst).is_err() {
                    continue;
                }
                next();
                for (offset, value) in (8..).step_by(8).zip(payload) {
                    self.map.u64(at + offset).store(*value, Relaxed);
                }
                // Sequentially consistent, because a read of the listeners follows. Fails only if this client was evicted in
                // between.
                let full = State::new(FULL, from, lap);
                let _ = word.compare_exchange(mine.0, full.0, SeqCst, SeqCst);
                return Pushed::Stored { waits: head.load(SeqCst) != position, position };
            } else if lap.wrapping_sub(state.lap()) & LAPS == 1 {
                return Pushed::Full { head: head.load(SeqCst) };
            } else {
                // The tail has moved on since it was read; or the reader is past it, over a cell that was skipped and is free again.
                next();
            }
        }
    }
}

/// The reader's side: its position in the ring, and the messages taken from it.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Messages in the order in which they were complete.
    pub(super) messages: VecDeque<(PeerId, Message)>,
    head: u64,
    partial: HashMap<(PeerId, u16), Message>,
}

/// What draining the ring found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drained {
    /// New messages.
    pub(super) messages: usize,
    /// The next cell is being written: its sender may die before it rings.
    pub(super) half_written: bool,
}

impl Inbox {
    pub(super) fn new(shared: &Shared, membership: &Membership) -> Self {
        let head = shared.map.u64(shared.slot_at(membership.slot) + AT_HEAD).load(SeqCst);
        Self { messages: VecDeque::new(), head, partial: HashMap::new() }
    }

    /// Whether the ring is empty, as far as two loads can tell.
    pub(super) fn ring_is_empty(shared: &Shared, slot: u64) -> bool {
        let at = shared.slot_at(slot);
        shared.map.u64(at + AT_HEAD).load(SeqCst) == shared.map.u64(at + AT_TAIL).load(SeqCst)
    }

    /// Takes all messages out of the ring. `thorough`, required before the reader sleeps, also checks whether the sender of a
    /// half-written cell is alive, which takes system calls.
    pub(super) fn drain(&mut self, shared: &Shared, membership: &Membership, thorough: bool) -> Drained {
        let mut drained = Drained::default();
        loop {
            let (at, lap) = shared.place(membership.slot, self.head);
            let word = shared.map.u64(at);
            let state = State(word.load(SeqCst));
            let free = State::new(FREE, NOBODY, lap + 1);
            match state.kind() {
                SKIPPED => {
                    if process_gone(shared, state.peer()) {
                        word.store(free.0, SeqCst);
                    }
                }
                // The slot's former owner read it and died before it moved the head.
                _ if state.lap() == lap.wrapping_add(1) & LAPS => {}
                FULL => {
                    let payload =
                        std::array::from_fn(|i| shared.map.u64(at + 8 + 8 * i as u64).load(Relaxed));
                    word.store(free.0, SeqCst);
                    drained.messages += usize::from(self.take(membership.peer, state.peer(), payload));
                }
                WRITING if !thorough || shared.is_alive(state.peer()) => {
                    drained.half_written = true;
                    return drained;
                }
                WRITING => {
                    let gone = process_gone(shared, state.peer());
                    let next = if gone { free } else { State::new(SKIPPED, state.peer(), lap) };
                    if word.compare_exchange(state.0, next.0, SeqCst, SeqCst).is_err() {
                        continue;
                    }
                }
                _ => return drained,
            }
            self.head += 1;
            shared.map.u64(shared.slot_at(membership.slot) + AT_HEAD).store(self.head, SeqCst);
        }
    }

    /// Adds a cell to its message; whether the message is complete.
    fn take(&mut self, me: PeerId, from: PeerId, payload: Payload) -> bool {
        let [header, rest @ ..] = payload;
        let (to, left, number) =
            (PeerId(header as u32), (header >> 32 & 0x7fff) as usize, (header >> 48) as u16);
        if to != me {
            return false;
        }
        if header & CONTINUED == 0 {
            let [lock, a, b, c, d, kind] = rest;
            let message =
                Message { lock, kind: kind as u32, words: [a, b, c, d], tail: Vec::with_capacity(left) };
            if left == 0 {
                self.messages.push_back((from, message));
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
        self.messages.push_back((from, message));
        true
    }
}

/// Whether the process of a dead peer has ended (and was not just evicted).
fn process_gone(shared: &Shared, peer: PeerId) -> bool {
    shared.process_of(peer).is_none_or(Process::has_ended)
}

#[cfg(test)]
mod tests {
    use super::super::client::Client;
    use super::super::scratch::Scratch;
    use super::*;

    fn message(lock: u64) -> Message {
        Message { lock, kind: 2, words: [lock; 4], tail: Vec::new() }
    }

    fn push(shared: &Shared, from: &Client, to: &Client, lock: u64) -> Pushed {
        let cell = to_cells(to.membership.peer, &message(lock), 0).next().expect("the first cell");
        shared.push_cell(to.membership.slot, from.membership.peer, &cell)
    }

    /// `from` has claimed the next cell of `to`, and has yet to fill it. Returns where the cell is, and what its state was.
    fn claim(shared: &Shared, from: &Client, to: &Client) -> (u64, State) {
        let Pushed::Stored { position, .. } = push(shared, from, to, 1) else { panic!("it has room") };
        let (at, lap) = shared.place(to.membership.slot, position);
        let claimed = State::new(WRITING, from.membership.peer, lap);
        shared.map.u64(at).store(claimed.0, SeqCst);
        (at, claimed)
    }

    fn drain(shared: &Shared, inbox: &mut Inbox, of: &Client) -> (Drained, Vec<u64>) {
        let drained = inbox.drain(shared, &of.membership, true);
        (drained, inbox.messages.drain(..).map(|(_, message)| message.lock).collect())
    }

    #[test]
    fn a_cell_that_a_living_sender_is_writing_is_waited_for() {
        let scratch = Scratch::new("half-written");
        let (shared, from, to) = (&scratch.0, scratch.client(), scratch.client());
        let mut inbox = Inbox::new(shared, &to.membership);
        let (at, claimed) = claim(shared, &from, &to);
        push(shared, &from, &to, 2);
        let half_written = Drained { messages: 0, half_written: true };
        assert_eq!(drain(shared, &mut inbox, &to), (half_written, vec![]));
        shared.map.u64(at).store(State::new(FULL, claimed.peer(), claimed.lap()).0, SeqCst);
        assert_eq!(drain(shared, &mut inbox, &to).1, [1, 2]);
    }

    #[test]
    fn a_cell_of_an_evicted_sender_is_passed_over_and_not_used_again_while_its_process_lives() {
        let scratch = Scratch::new("skipped");
        let (shared, from, to) = (&scratch.0, scratch.client(), scratch.client());
        let mut inbox = Inbox::new(shared, &to.membership);
        let (at, claimed) = claim(shared, &from, &to);
        push(shared, &to, &to, 2);
        assert!(shared.evict(from.membership.peer));
        assert_eq!(drain(shared, &mut inbox, &to).1, [2], "the sender stops nobody");
        // Twice around the ring: what the sender writes when it continues is in nobody's way.
        for lock in 0..2 * shared.layout.shape.cells {
            push(shared, &to, &to, lock);
            let state = State(shared.map.u64(at).load(SeqCst));
            assert_eq!((state.kind(), state.peer()), (SKIPPED, claimed.peer()));
            assert_eq!(drain(shared, &mut inbox, &to).1, [lock]);
        }
    }

    /// `client` was evicted, says that it is done, and its slot is free.
    fn ends(shared: &Shared, client: &Client) {
        shared.evict(client.membership.peer);
        shared.leave(&client.membership);
        assert!(shared.reap(client.membership.peer));
    }

    #[test]
    fn a_cell_of_a_sender_that_is_gone_is_used_again_whether_it_was_passed_over_or_not() {
        for passed_over in [false, true] {
            let scratch = Scratch::new("gone");
            let (shared, from, to) = (&scratch.0, scratch.client(), scratch.client());
            let mut inbox = Inbox::new(shared, &to.membership);
            let (at, _) = claim(shared, &from, &to);
            if passed_over {
                assert!(shared.evict(from.membership.peer));
                drain(shared, &mut inbox, &to);
            }
            ends(shared, &from);
            for lock in 0..shared.layout.shape.cells {
                push(shared, &to, &to, lock);
                assert_eq!(drain(shared, &mut inbox, &to).1, [lock]);
            }
            assert_ne!(State(shared.map.u64(at).load(SeqCst)).kind(), SKIPPED, "{passed_over}");
        }
    }

    #[test]
    fn a_cell_that_the_former_owner_has_read_is_not_in_the_way_though_it_died_before_it_said_so() {
        let scratch = Scratch::new("read");
        let (shared, from, to) = (&scratch.0, scratch.client(), scratch.client());
        let mut inbox = Inbox::new(shared, &to.membership);
        let Pushed::Stored { position, .. } = push(shared, &from, &to, 1) else { panic!("it has room") };
        let (at, lap) = shared.place(to.membership.slot, position);
        shared.map.u64(at).store(State::new(FREE, NOBODY, lap + 1).0, SeqCst);
        push(shared, &from, &to, 2);
        assert_eq!(drain(shared, &mut inbox, &to).1, [2]);
    }

    #[test]
    fn a_message_to_the_slots_former_owner_is_not_the_next_ones() {
        let scratch = Scratch::new("former");
        let (shared, from, former) = (&scratch.0, scratch.client(), scratch.client());
        let (peer, slot) = (former.membership.peer, former.membership.slot);
        push(shared, &from, &former, 1);
        shared.leave(&former.membership);
        let next = scratch.client();
        assert!(next.membership.slot == slot && next.membership.peer != peer);
        let mut inbox = Inbox::new(shared, &next.membership);
        push(shared, &from, &next, 2);
        assert_eq!(drain(shared, &mut inbox, &next).1, [2]);
    }

    #[test]
    fn a_state_keeps_its_fields_apart() {
        let state = State::new(FULL, PeerId(u32::MAX), LAPS + 3);
        assert_eq!((state.kind(), state.peer(), state.lap()), (FULL, PeerId(u32::MAX), 2));
    }

    #[test]
    fn a_message_fits_its_cells() {
        let message = Message { lock: 1, kind: 2, words: [3, 4, 5, 6], tail: (0..13).collect() };
        let cells: Vec<_> = to_cells(PeerId(9), &message, 7).collect();
        assert_eq!(cells.len(), 1 + 3);
        assert_eq!(cells[0][1..], [1, 3, 4, 5, 6, 2]);
        assert_eq!(cells[3][0], 9 | 1 << 32 | 7 << 48 | CONTINUED);
        assert_eq!(cells[3][1], 12);
    }
}
