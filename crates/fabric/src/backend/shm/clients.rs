//! The client table: which clients are members of the space, and which are dead.
//!
//! | slot, byte | holds |
//! |---|---|
//! | 0 | state word: phase (bits 0..4), generation (4..32), pid (32..64) |
//! | 8 | start time of the process |
//! | 16 | when it joined |
//! | 24 | names it uses (4 bytes) |
//! | 64 | doorbell: rings (4 bytes, futex), listeners (4 bytes) |
//! | 128 | mailbox: tail, where the next message goes |
//! | 192 | mailbox: head, where the reader is |
//! | 200..256 | label: host and program |
//!
//! | phase | meaning | next |
//! |---|---|---|
//! | 0 free | no client | 1 when a client takes it |
//! | 1 joining | taken, not reachable yet | 2; 3 if the process ends |
//! | 2 alive | a member | 0 when it leaves; 4 if it leaves names behind; 3 if its process ends or it is evicted |
//! | 3 dead | not a member; lock words may still name it | 4 when an evicted process drops its endpoint; 0 when reaped |
//! | 4 gone | as 3, and its process will not touch the slot any more | 0 when reaped |
//!
//! A slot is not reused while the process of an evicted client may still touch its memory.
//!
//! Every change is one compare-and-swap of the state word, and every return to 0 bumps the generation. So a member's state
//! word is a value that never comes back: the client compares it before every verb and knows that it is still a member.
//! A peer id is made of slot and generation, and is reused only after the generations have wrapped around.

use super::error::SpaceError;
use super::file::{read_bytes, write_bytes};
use super::layout::{AT_CURSOR, SLOT_BYTES, Section};
use super::process::{self, Process, ProcessState};
use super::shared::Shared;
use crate::addr::PeerId;
use crate::wait::Time;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

const FREE: u64 = 0;
const JOINING: u64 = 1;
const ALIVE: u64 = 2;
const DEAD: u64 = 3;
const GONE: u64 = 4;

const AT_START: u64 = 8;
const AT_JOINED: u64 = 16;
const AT_REFS: u64 = 24;
pub(super) const AT_RINGS: u64 = 64;
pub(super) const AT_LISTENERS: u64 = 68;
pub(super) const AT_TAIL: u64 = 128;
pub(super) const AT_HEAD: u64 = 192;
const AT_LABEL: u64 = 200;
const LABEL_MAX: usize = 56;

/// A slot's state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotState(pub(super) u64);

impl SlotState {
    const fn new(phase: u64, generation: u64, pid: u32) -> Self {
        Self(phase | (generation & 0xfff_ffff) << 4 | (pid as u64) << 32)
    }

    const fn phase(self) -> u64 {
        self.0 & 0xf
    }

    const fn generation(self) -> u64 {
        self.0 >> 4 & 0xfff_ffff
    }

    const fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    const fn with(self, phase: u64) -> Self {
        Self(self.0 & !0xf | phase)
    }

    const fn freed(self) -> Self {
        Self::new(FREE, self.generation() + 1, 0)
    }
}

/// A client's membership in the space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Membership {
    pub(super) slot: u64,
    pub(super) peer: PeerId,
    /// The slot's state word while the client is a member.
    pub(super) state: SlotState,
}

/// A client, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its id.
    pub peer: PeerId,
    /// The pid of its process.
    pub pid: u32,
    /// Host and program, cut to 56 bytes.
    pub label: String,
    /// When it joined.
    pub joined: Time,
    /// Whether it is a member. If not, it waits to be reaped.
    pub alive: bool,
    /// Names it uses.
    pub names: u32,
}

/// How many clients a space has, and how many fit in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Slots that nobody has.
    pub free: u64,
    /// Slots that clients of this process have.
    pub own: u64,
}

impl Shared {
    pub(super) fn slot_at(&self, slot: u64) -> u64 {
        self.layout.start(Section::Clients) + slot * SLOT_BYTES
    }

    fn state(&self, slot: u64) -> SlotState {
        SlotState(self.map.u64(self.slot_at(slot)).load(SeqCst))
    }

    fn change(&self, slot: u64, from: SlotState, to: SlotState) -> bool {
        self.map.u64(self.slot_at(slot)).compare_exchange(from.0, to.0, SeqCst, SeqCst).is_ok()
    }

    fn slots(&self) -> u64 {
        self.layout.shape.clients
    }

    fn generations(&self) -> u64 {
        ((1 << (self.layout.shape.peer_bits - u64::from(self.slots().trailing_zeros()))) - 1).max(1)
    }

    fn peer_of(&self, slot: u64, state: SlotState) -> PeerId {
        PeerId(((state.generation() % self.generations()) * self.slots() + slot + 1) as u32)
    }

    /// The slot of `peer` and its state word, if it is still that peer's.
    pub(super) fn find(&self, peer: PeerId) -> Option<(u64, SlotState)> {
        let (_, false) = peer.index() else { return None };
        let number = u64::from(peer.0.checked_sub(1)?);
        let slot = number & (self.slots() - 1);
        let state = self.state(slot);
        (state.phase() != FREE && self.peer_of(slot, state) == peer).then_some((slot, state))
    }

    /// The slot of `peer` if it is marked alive.
    pub(super) fn find_alive(&self, peer: PeerId) -> Option<u64> {
        self.find(peer).filter(|(_, state)| state.phase() == ALIVE).map(|(slot, _)| slot)
    }

    /// Joins the space: takes a free slot, reaping dead clients if there is none.
    pub(super) fn join(&self, label: &str) -> Result<Membership, SpaceError> {
        for reclaim in [false, true] {
            if reclaim {
                self.reap_unused();
            }
            let first = self.map.u64(AT_CURSOR).fetch_add(1, SeqCst);
            for slot in (first..).take(self.slots() as usize).map(|slot| slot & (self.slots() - 1)) {
                let state = self.state(slot);
                let joining = SlotState::new(JOINING, state.generation(), self.own.pid);
                if state.phase() == FREE && self.change(slot, state, joining) {
                    return self.init_slot(slot, joining, label);
                }
            }
        }
        Err(SpaceError::TooManyClients(self.slots()))
    }

    /// What slots are free or this process's, after dead clients have been reaped if few are free.
    pub(super) fn room(&self) -> Room {
        let count = || {
            let states = (0..self.slots()).map(|slot| self.state(slot));
            states.fold(Room { free: 0, own: 0 }, |room, state| Room {
                free: room.free + u64::from(state.phase() == FREE),
                own: room.own + u64::from(state.phase() != FREE && state.pid() == self.own.pid),
            })
        };
        let room = count();
        if room.free > self.slots() / 4 {
            return room;
        }
        self.reap_unused();
        count()
    }

    fn init_slot(&self, slot: u64, joining: SlotState, label: &str) -> Result<Membership, SpaceError> {
        let at = self.slot_at(slot);
        let cells = self.layout.shape.cells;
        let mailbox = self.cell_at(slot, 0);
        let memory = [(at, SLOT_BYTES), (mailbox, self.cell_at(slot, cells) - mailbox)];
        for (start, bytes) in memory {
            if let Err(error) = self.map.allocate(start, bytes) {
                self.change(slot, joining, joining.freed());
                return Err(error);
            }
        }
        self.map.u64(at + AT_START).store(self.own.start, SeqCst);
        self.map.u64(at + AT_JOINED).store(process::now().0, SeqCst);
        self.map.u32(at + AT_REFS).store(0, SeqCst);
        self.map.u32(at + AT_LISTENERS).store(0, SeqCst);
        let mut label = label.as_bytes().to_vec();
        label.resize(LABEL_MAX, 0);
        write_bytes(&self.map, at + AT_LABEL, &label);
        let state = joining.with(ALIVE);
        if !self.change(slot, joining, state) {
            return Err(SpaceError::Evicted);
        }
        Ok(Membership { slot, peer: self.peer_of(slot, state), state })
    }

    /// Frees the slot; a client that leaves names behind has to be reaped.
    pub(super) fn leave(&self, membership: &Membership) {
        let names = self.refs_of(membership.slot).load(SeqCst);
        let next = if names == 0 { membership.state.freed() } else { membership.state.with(GONE) };
        if !self.change(membership.slot, membership.state, next) {
            // Evicted before: now its process will not touch the slot any more.
            self.change(membership.slot, membership.state.with(DEAD), membership.state.with(GONE));
        }
    }

    /// The number of names that a slot's client uses. Changed under the directory's lock.
    pub(super) fn refs_of(&self, slot: u64) -> &std::sync::atomic::AtomicU32 {
        self.map.u32(self.slot_at(slot) + AT_REFS)
    }

    /// Sets the number of names of every client.
    pub(super) fn recount_names(&self, counts: &HashMap<PeerId, u32>) {
        for slot in 0..self.slots() {
            let state = self.state(slot);
            if state.phase() != FREE {
                let count = counts.get(&self.peer_of(slot, state)).copied().unwrap_or(0);
                self.refs_of(slot).store(count, SeqCst);
            }
        }
    }

    /// The process of a slot whose state word is `state`; `None` if it has changed since.
    fn process(&self, slot: u64, state: SlotState) -> Option<Process> {
        let start = self.map.u64(self.slot_at(slot) + AT_START).load(SeqCst);
        (self.state(slot) == state).then_some(Process { pid: state.pid(), start })
    }

    /// The process of `peer`.
    pub(super) fn process_of(&self, peer: PeerId) -> Option<Process> {
        let (slot, state) = self.find(peer)?;
        self.process(slot, state)
    }

    /// Whether the client in `slot` is alive. Marks it dead if its process has ended.
    fn probe(&self, slot: u64, state: SlotState) -> bool {
        self.probe_by(slot, state, Process::has_ended)
    }

    /// The same, by what `has_ended` says of its process.
    fn probe_by(&self, slot: u64, state: SlotState, has_ended: impl FnOnce(Process) -> bool) -> bool {
        let ended = match state.phase() {
            // A slot whose state word has changed is not that client's any more.
            ALIVE => self.process(slot, state).is_none_or(has_ended),
            // It may not have written its start time yet.
            JOINING => process::state_of_pid(state.pid()) == ProcessState::Ended,
            _ => true,
        };
        if ended {
            self.mark_dead(slot, state);
        }
        !ended
    }

    fn mark_dead(&self, slot: u64, state: SlotState) -> bool {
        let lives = matches!(state.phase(), ALIVE | JOINING);
        let marked = lives && self.change(slot, state, state.with(DEAD));
        if marked {
            // A sleeping client learns of its eviction now, a stopped one when it continues.
            self.ring_always(slot);
        }
        marked
    }

    /// Whether `peer` is a member and its process not known to have ended.
    pub(super) fn is_alive(&self, peer: PeerId) -> bool {
        match self.find(peer) {
            Some((slot, state)) if state.phase() == ALIVE => self.probe(slot, state),
            _ => false,
        }
    }

    pub(super) fn evict(&self, peer: PeerId) -> bool {
        let alive = self.find(peer).filter(|(_, state)| state.phase() == ALIVE);
        alive.is_some_and(|(slot, state)| self.mark_dead(slot, state))
    }

    /// Frees the slot of a dead peer, unless it still uses names or its process may still touch the slot.
    pub(super) fn reap(&self, peer: PeerId) -> bool {
        let Some((slot, state)) = self.find(peer) else { return true };
        let untouched = match state.phase() {
            GONE => true,
            DEAD => self.process(slot, state).is_some_and(Process::has_ended),
            _ => false,
        };
        untouched && self.refs_of(slot).load(SeqCst) == 0 && self.change(slot, state, state.freed())
    }

    /// Reaps the dead clients that use no names.
    fn reap_unused(&self) {
        for slot in 0..self.slots() {
            let state = self.state(slot);
            if state.phase() != FREE && !self.probe(slot, state) {
                self.reap(self.peer_of(slot, state));
            }
        }
    }

    /// All members and all dead clients not reaped yet; checks their processes.
    pub(super) fn clients(&self) -> Vec<ClientInfo> {
        self.list(|_| true)
    }

    /// The dead clients that are not reaped yet.
    pub(super) fn dead_clients(&self) -> Vec<ClientInfo> {
        self.list(|alive| !alive)
    }

    fn list(&self, is_listed: impl Fn(bool) -> bool) -> Vec<ClientInfo> {
        let mut clients = Vec::new();
        // A process can have many clients, and asking about it takes system calls.
        let mut ended = HashMap::from([((self.own.pid, self.own.start), false)]);
        let mut has_ended = |process: Process| {
            *ended.entry((process.pid, process.start)).or_insert_with(|| process.has_ended())
        };
        for slot in 0..self.slots() {
            let state = self.state(slot);
            if !matches!(state.phase(), ALIVE | DEAD | GONE) {
                continue;
            }
            let alive = state.phase() == ALIVE && self.probe_by(slot, state, &mut has_ended);
            if !is_listed(alive) {
                continue;
            }
            let at = self.slot_at(slot);
            let label = read_bytes(&self.map, at + AT_LABEL, LABEL_MAX);
            clients.push(ClientInfo {
                peer: self.peer_of(slot, state),
                pid: state.pid(),
                label: String::from_utf8_lossy(&label).trim_end_matches('\0').to_owned(),
                joined: Time(self.map.u64(at + AT_JOINED).load(SeqCst)),
                alive,
                names: self.refs_of(slot).load(SeqCst),
            });
        }
        clients
    }

    /// Whether the client has neither left nor been evicted.
    pub(super) fn is_member(&self, membership: &Membership) -> bool {
        self.map.u64(self.slot_at(membership.slot)).load(Relaxed) == membership.state.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_word_keeps_its_fields_apart_and_its_generation_wraps() {
        let state = SlotState::new(ALIVE, 0xabc_def0, 4_194_303);
        assert_eq!((state.phase(), state.generation(), state.pid()), (ALIVE, 0xabc_def0, 4_194_303));
        assert_eq!(state.with(DEAD).phase(), DEAD);
        assert_eq!(state.with(DEAD).generation(), 0xabc_def0);
        let last = SlotState::new(DEAD, 0xfff_ffff, 7);
        assert_eq!((last.freed().generation(), last.freed().pid(), last.freed().phase()), (0, 0, FREE));
    }
}
