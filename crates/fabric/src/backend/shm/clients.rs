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
//! `slot` has what a slot goes through from one client to the next. A peer id is made of slot and generation, and is reused
//! only after the generations have wrapped around.

use super::error::SpaceError;
use super::file::{read_bytes, write_bytes};
use super::layout::{AT_CURSOR, SLOT_BYTES, Section};
use super::process::{self, Process, ProcessState};
use super::shared::Shared;
use super::slot::{self, Probed, SlotState, SlotTable};
use crate::addr::PeerId;
use crate::backend::block_on;
use crate::wait::Time;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

const AT_START: u64 = 8;
const AT_JOINED: u64 = 16;
const AT_REFS: u64 = 24;
pub(super) const AT_RINGS: u64 = 64;
pub(super) const AT_LISTENERS: u64 = 68;
pub(super) const AT_TAIL: u64 = 128;
pub(super) const AT_HEAD: u64 = 192;
const AT_LABEL: u64 = 200;
const LABEL_MAX: usize = 56;

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

    fn state_now(&self, slot: u64) -> SlotState {
        SlotState(self.map.u64(self.slot_at(slot)).load(SeqCst))
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
        let state = self.state_now(slot);
        (!state.is_free() && self.peer_of(slot, state) == peer).then_some((slot, state))
    }

    /// The slot of `peer` if it is marked alive.
    pub(super) fn find_alive(&self, peer: PeerId) -> Option<u64> {
        self.find(peer).filter(|(_, state)| state.is_alive()).map(|(slot, _)| slot)
    }

    /// Joins the space: takes a free slot, reaping dead clients if there is none.
    pub(super) fn join(&self, label: &str) -> Result<Membership, SpaceError> {
        for reclaim in [false, true] {
            if reclaim {
                self.reap_unused();
            }
            let first = self.map.u64(AT_CURSOR).fetch_add(1, SeqCst);
            for slot in (first..).take(self.slots() as usize).map(|slot| slot & (self.slots() - 1)) {
                if let Some(joining) = block_on(slot::take(self, slot, self.own.pid)) {
                    return self.init_slot(slot, joining, label);
                }
            }
        }
        Err(SpaceError::TooManyClients(self.slots()))
    }

    /// What slots are free or this process's, after dead clients have been reaped if few are free.
    pub(super) fn room(&self) -> Room {
        let count = || {
            let states = (0..self.slots()).map(|slot| self.state_now(slot));
            states.fold(Room { free: 0, own: 0 }, |room, state| Room {
                free: room.free + u64::from(state.is_free()),
                own: room.own + u64::from(!state.is_free() && state.pid() == self.own.pid),
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
                block_on(slot::abandon(self, slot, joining));
                return Err(error);
            }
        }
        self.map.u64(at + AT_JOINED).store(process::now().0, SeqCst);
        self.map.u32(at + AT_REFS).store(0, SeqCst);
        self.map.u32(at + AT_LISTENERS).store(0, SeqCst);
        let mut label = label.as_bytes().to_vec();
        label.resize(LABEL_MAX, 0);
        write_bytes(&self.map, at + AT_LABEL, &label);
        let state = block_on(slot::open(self, slot, joining, self.own.start)).ok_or(SpaceError::Evicted)?;
        Ok(Membership { slot, peer: self.peer_of(slot, state), state })
    }

    /// Frees the slot; a client that leaves names behind has to be reaped.
    pub(super) fn leave(&self, membership: &Membership) {
        block_on(slot::leave(self, membership.slot, membership.state));
    }

    /// The number of names that a slot's client uses. Changed under the directory's lock.
    pub(super) fn refs_of(&self, slot: u64) -> &std::sync::atomic::AtomicU32 {
        self.map.u32(self.slot_at(slot) + AT_REFS)
    }

    /// Sets the number of names of every client.
    pub(super) fn recount_names(&self, counts: &HashMap<PeerId, u32>) {
        for slot in 0..self.slots() {
            let state = self.state_now(slot);
            if !state.is_free() {
                let count = counts.get(&self.peer_of(slot, state)).copied().unwrap_or(0);
                self.refs_of(slot).store(count, SeqCst);
            }
        }
    }

    /// The process of `peer`.
    pub(super) fn process_of(&self, peer: PeerId) -> Option<Process> {
        let (slot, state) = self.find(peer)?;
        block_on(slot::process(self, slot, state))
    }

    /// Whether the client in `slot` is alive. Marks it dead if its process has ended.
    fn probe(&self, slot: u64, state: SlotState) -> bool {
        self.probe_by(slot, state, Process::has_ended)
    }

    /// The same, by what `has_ended` says of its process.
    fn probe_by(&self, slot: u64, state: SlotState, has_ended: impl FnOnce(Process) -> bool) -> bool {
        let Probed { lives, marked } =
            block_on(slot::probe(self, slot, state, async |process| has_ended(process)));
        self.tell_marked(slot, marked);
        lives
    }

    /// A sleeping client learns of its eviction now, a stopped one when it continues.
    fn tell_marked(&self, slot: u64, marked: bool) {
        if marked {
            self.ring_always(slot);
        }
    }

    /// Whether `peer` is a member and its process not known to have ended.
    pub(super) fn is_alive(&self, peer: PeerId) -> bool {
        match self.find(peer) {
            Some((slot, state)) if state.is_alive() => self.probe(slot, state),
            _ => false,
        }
    }

    pub(super) fn evict(&self, peer: PeerId) -> bool {
        let Some((slot, state)) = self.find(peer).filter(|(_, state)| state.is_alive()) else { return false };
        let marked = block_on(slot::evict(self, slot, state));
        self.tell_marked(slot, marked);
        marked
    }

    /// Frees the slot of a dead peer, unless it still uses names or its process may still touch the slot.
    pub(super) fn reap(&self, peer: PeerId) -> bool {
        let Some((slot, state)) = self.find(peer) else { return true };
        block_on(slot::reap(self, slot, state))
    }

    /// Reaps the dead clients that use no names.
    fn reap_unused(&self) {
        for slot in 0..self.slots() {
            let state = self.state_now(slot);
            if !state.is_free() && !self.probe(slot, state) {
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
            let state = self.state_now(slot);
            if !state.is_listed() {
                continue;
            }
            let alive = state.is_alive() && self.probe_by(slot, state, &mut has_ended);
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

impl SlotTable for Shared {
    async fn state(&self, slot: u64) -> SlotState {
        self.state_now(slot)
    }

    async fn swap(&self, slot: u64, from: SlotState, to: SlotState) -> bool {
        self.map.u64(self.slot_at(slot)).compare_exchange(from.0, to.0, SeqCst, SeqCst).is_ok()
    }

    async fn start(&self, slot: u64) -> u64 {
        self.map.u64(self.slot_at(slot) + AT_START).load(SeqCst)
    }

    async fn set_start(&self, slot: u64, start: u64) {
        self.map.u64(self.slot_at(slot) + AT_START).store(start, SeqCst);
    }

    async fn names(&self, slot: u64) -> u32 {
        self.refs_of(slot).load(SeqCst)
    }

    async fn has_pid_ended(&self, pid: u32) -> bool {
        process::state_of_pid(pid) == ProcessState::Ended
    }

    async fn has_ended(&self, process: Process) -> bool {
        process.has_ended()
    }
}
