//! The client table: who is in the space, and who is no longer.
//!
//! | slot, byte | holds |
//! |---|---|
//! | 0 | standing: state (bits 0..4), generation (4..32), pid (32..64) |
//! | 8 | start time of the process |
//! | 16 | when it joined |
//! | 24 | names it uses (4 bytes) |
//! | 64 | doorbell: rings (4 bytes, futex), listeners (4 bytes) |
//! | 128 | mailbox: where the next message goes |
//! | 192 | mailbox: where the reader is |
//! | 200..256 | label: host and program |
//!
//! | state | meaning | next |
//! |---|---|---|
//! | 0 free | nobody's | 1, by whoever takes it |
//! | 1 joining | taken, not yet reachable | 2; 3 if the process ends |
//! | 2 alive | a client | 0 when it leaves; 4 if it leaves names behind; 3 if it ends or is declared dead |
//! | 3 dead | out, and perhaps still named by lock words | 4 if its process lives and lets go; 0 when it is buried |
//! | 4 gone | the same, and nobody will touch the slot any more | 0 when it is buried |
//!
//! A slot is not used again while a process that was only declared dead may still touch what belongs to it.
//!
//! Every change is one compare-and-swap of the standing, and every way back to 0 raises the generation, so a client's
//! standing is a value that never comes back: the client compares it before every verb and knows that it is still in.
//! A peer's number is made of slot and generation, and is not used again before the generations have gone round.

use super::error::SpaceError;
use super::file::{read_bytes, write_bytes};
use super::layout::{AT_CURSOR, AT_DEATHS, AT_EVENTS, SLOT_BYTES, Section};
use super::process::{self, Process, ProcessState};
use super::shared::Shared;
use crate::addr::PeerId;
use crate::wait::Time;
use rustix::thread::futex;
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

/// A slot's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing(pub(super) u64);

impl Standing {
    const fn new(state: u64, generation: u64, pid: u32) -> Self {
        Self(state | (generation & 0xfff_ffff) << 4 | (pid as u64) << 32)
    }

    const fn state(self) -> u64 {
        self.0 & 0xf
    }

    const fn generation(self) -> u64 {
        self.0 >> 4 & 0xfff_ffff
    }

    const fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    const fn with(self, state: u64) -> Self {
        Self(self.0 & !0xf | state)
    }

    const fn freed(self) -> Self {
        Self::new(FREE, self.generation() + 1, 0)
    }
}

/// A client that has joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    pub(super) slot: u64,
    pub(super) peer: PeerId,
    /// What the slot's first word holds as long as the client is in.
    pub(super) standing: Standing,
}

/// A client, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Who.
    pub peer: PeerId,
    /// Its process.
    pub pid: u32,
    /// The host's name and the program's, as far as they fit into 56 bytes.
    pub label: String,
    /// When it joined.
    pub joined: Time,
    /// Whether it is still in. If not, it waits to be buried.
    pub alive: bool,
    /// Names it uses.
    pub names: u32,
}

impl Shared {
    pub(super) fn slot_at(&self, slot: u64) -> u64 {
        self.layout.start(Section::Clients) + slot * SLOT_BYTES
    }

    fn standing(&self, slot: u64) -> Standing {
        Standing(self.map.u64(self.slot_at(slot)).load(SeqCst))
    }

    fn change(&self, slot: u64, from: Standing, to: Standing) -> bool {
        self.map.u64(self.slot_at(slot)).compare_exchange(from.0, to.0, SeqCst, SeqCst).is_ok()
    }

    fn slots(&self) -> u64 {
        self.layout.shape.clients
    }

    fn generations(&self) -> u64 {
        ((1 << (self.layout.shape.peer_bits - u64::from(self.slots().trailing_zeros()))) - 1).max(1)
    }

    fn peer_of(&self, slot: u64, standing: Standing) -> PeerId {
        PeerId(((standing.generation() % self.generations()) * self.slots() + slot + 1) as u32)
    }

    /// The slot of `peer` and what stands in it, if it is still that peer's.
    pub(super) fn find(&self, peer: PeerId) -> Option<(u64, Standing)> {
        let (_, false) = peer.index() else { return None };
        let number = u64::from(peer.0.checked_sub(1)?);
        let slot = number & (self.slots() - 1);
        let standing = self.standing(slot);
        (standing.state() != FREE && self.peer_of(slot, standing) == peer).then_some((slot, standing))
    }

    /// The slot of `peer` if nobody has seen it dead.
    pub(super) fn find_alive(&self, peer: PeerId) -> Option<u64> {
        self.find(peer).filter(|(_, standing)| standing.state() == ALIVE).map(|(slot, _)| slot)
    }

    /// Takes a slot.
    pub(super) fn join(&self) -> Result<Joined, SpaceError> {
        for reclaim in [false, true] {
            if reclaim {
                self.reclaim();
            }
            let first = self.map.u64(AT_CURSOR).fetch_add(1, SeqCst);
            for slot in (first..).take(self.slots() as usize).map(|slot| slot & (self.slots() - 1)) {
                let standing = self.standing(slot);
                let joining = Standing::new(JOINING, standing.generation(), self.own.pid);
                if standing.state() == FREE && self.change(slot, standing, joining) {
                    return self.move_in(slot, joining);
                }
            }
        }
        Err(SpaceError::TooManyClients(self.slots()))
    }

    fn move_in(&self, slot: u64, joining: Standing) -> Result<Joined, SpaceError> {
        let at = self.slot_at(slot);
        let cells = self.layout.shape.cells;
        let mailbox = self.cell_at(slot, 0);
        let memory = [(at, SLOT_BYTES), (mailbox, self.cell_at(slot, cells) - mailbox)];
        for (start, bytes) in memory {
            if let Err(error) = self.map.provide(start, bytes) {
                self.change(slot, joining, joining.freed());
                return Err(error);
            }
        }
        self.map.u64(at + AT_START).store(self.own.start, SeqCst);
        self.map.u64(at + AT_JOINED).store(process::now().0, SeqCst);
        self.map.u32(at + AT_REFS).store(0, SeqCst);
        self.map.u32(at + AT_LISTENERS).store(0, SeqCst);
        let mut label = process::label().into_bytes();
        label.resize(LABEL_MAX, 0);
        write_bytes(&self.map, at + AT_LABEL, &label);
        let standing = joining.with(ALIVE);
        if !self.change(slot, joining, standing) {
            return Err(SpaceError::Evicted);
        }
        self.event();
        Ok(Joined { slot, peer: self.peer_of(slot, standing), standing })
    }

    /// Gives a slot back; one that leaves names behind must be buried by somebody.
    pub(super) fn leave(&self, joined: &Joined) {
        let names = self.refs_of(joined.slot).load(SeqCst);
        let next = if names == 0 { joined.standing.freed() } else { joined.standing.with(GONE) };
        if self.change(joined.slot, joined.standing, next) {
            self.death();
        } else {
            // Declared dead, and now it lets go.
            self.change(joined.slot, joined.standing.with(DEAD), joined.standing.with(GONE));
        }
    }

    /// How many names a slot's client uses. Changed under the directory's lock.
    pub(super) fn refs_of(&self, slot: u64) -> &std::sync::atomic::AtomicU32 {
        self.map.u32(self.slot_at(slot) + AT_REFS)
    }

    /// Sets how many names every client uses.
    pub(super) fn count_names_anew(&self, counts: &HashMap<PeerId, u32>) {
        for slot in 0..self.slots() {
            let standing = self.standing(slot);
            if standing.state() != FREE {
                let count = counts.get(&self.peer_of(slot, standing)).copied().unwrap_or(0);
                self.refs_of(slot).store(count, SeqCst);
            }
        }
    }

    /// The process of a slot whose standing is `standing`; `None` if the slot has changed since.
    fn process(&self, slot: u64, standing: Standing) -> Option<Process> {
        let start = self.map.u64(self.slot_at(slot) + AT_START).load(SeqCst);
        (self.standing(slot) == standing).then_some(Process { pid: standing.pid(), start })
    }

    /// The process of `peer`.
    pub(super) fn process_of(&self, peer: PeerId) -> Option<Process> {
        let (slot, standing) = self.find(peer)?;
        self.process(slot, standing)
    }

    /// Whether the client in `slot` is alive; marks it dead if its process is known to have ended.
    fn look(&self, slot: u64, standing: Standing) -> bool {
        let ended = match standing.state() {
            // A slot whose standing has changed since is not that client's any more.
            ALIVE => self.process(slot, standing).is_none_or(Process::has_ended),
            // It may not have written its start time yet.
            JOINING => process::state_of_pid(standing.pid()) == ProcessState::Ended,
            _ => true,
        };
        if ended {
            self.mark_dead(slot, standing);
        }
        !ended
    }

    fn mark_dead(&self, slot: u64, standing: Standing) -> bool {
        let lives = matches!(standing.state(), ALIVE | JOINING);
        let marked = lives && self.change(slot, standing, standing.with(DEAD));
        if marked {
            self.death();
            // A stopped process learns on waking that it is out, a waiting one at once.
            self.ring_always(slot);
        }
        marked
    }

    /// Whether `peer` is in the space and its process not known to have ended.
    pub(super) fn is_alive(&self, peer: PeerId) -> bool {
        match self.find(peer) {
            Some((slot, standing)) if standing.state() == ALIVE => self.look(slot, standing),
            _ => false,
        }
    }

    pub(super) fn evict(&self, peer: PeerId) -> bool {
        let alive = self.find(peer).filter(|(_, standing)| standing.state() == ALIVE);
        alive.is_some_and(|(slot, standing)| self.mark_dead(slot, standing))
    }

    /// Lets the number of a dead peer be used again, unless it still uses names or may still touch its slot.
    pub(super) fn reap(&self, peer: PeerId) -> bool {
        let Some((slot, standing)) = self.find(peer) else { return true };
        let untouched = match standing.state() {
            GONE => true,
            DEAD => self.process(slot, standing).is_some_and(Process::has_ended),
            _ => false,
        };
        untouched && self.refs_of(slot).load(SeqCst) == 0 && self.change(slot, standing, standing.freed())
    }

    /// Frees the slots of dead clients that use no names.
    fn reclaim(&self) {
        for slot in 0..self.slots() {
            let standing = self.standing(slot);
            if standing.state() != FREE && !self.look(slot, standing) {
                self.reap(self.peer_of(slot, standing));
            }
        }
    }

    /// Everybody who is in, or dead and not yet buried; with a look at their processes.
    pub(super) fn clients(&self) -> Vec<ClientInfo> {
        let mut clients = Vec::new();
        for slot in 0..self.slots() {
            let standing = self.standing(slot);
            if !matches!(standing.state(), ALIVE | DEAD | GONE) {
                continue;
            }
            let at = self.slot_at(slot);
            let label = read_bytes(&self.map, at + AT_LABEL, LABEL_MAX);
            clients.push(ClientInfo {
                peer: self.peer_of(slot, standing),
                pid: standing.pid(),
                label: String::from_utf8_lossy(&label).trim_end_matches('\0').to_owned(),
                joined: Time(self.map.u64(at + AT_JOINED).load(SeqCst)),
                alive: standing.state() == ALIVE && self.look(slot, standing),
                names: self.refs_of(slot).load(SeqCst),
            });
        }
        clients
    }

    /// The peers that are marked alive, with their processes: no system call.
    pub(super) fn marked_alive(&self) -> Vec<(PeerId, Process)> {
        let alive = |slot| {
            let standing = self.standing(slot);
            let process = (standing.state() == ALIVE).then(|| self.process(slot, standing)).flatten()?;
            Some((self.peer_of(slot, standing), process))
        };
        (0..self.slots()).filter_map(alive).collect()
    }

    /// How many events there have been.
    pub(super) fn events(&self) -> u32 {
        self.map.u32(AT_EVENTS).load(SeqCst)
    }

    /// Somebody joined, left or died: tells those who watch.
    pub(super) fn event(&self) {
        let events = self.map.u32(AT_EVENTS);
        events.fetch_add(1, SeqCst);
        let _ = futex::wake(events, futex::Flags::empty(), u32::MAX >> 1);
    }

    fn death(&self) {
        self.map.u64(AT_DEATHS).fetch_add(1, SeqCst);
        self.event();
    }

    /// How many clients have left or died.
    pub(super) fn deaths(&self) -> u64 {
        self.map.u64(AT_DEATHS).load(SeqCst)
    }

    /// Sleeps until there is an event after the first `seen`.
    pub(super) fn await_event(&self, seen: u32) {
        let _ = futex::wait(self.map.u32(AT_EVENTS), futex::Flags::empty(), seen, None);
    }

    /// The word a client compares with its standing before every verb.
    pub(super) fn is_member(&self, joined: &Joined) -> bool {
        self.map.u64(self.slot_at(joined.slot)).load(Relaxed) == joined.standing.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_keeps_its_fields_apart_and_its_generation_wraps() {
        let standing = Standing::new(ALIVE, 0xabc_def0, 4_194_303);
        assert_eq!((standing.state(), standing.generation(), standing.pid()), (ALIVE, 0xabc_def0, 4_194_303));
        assert_eq!(standing.with(DEAD).state(), DEAD);
        assert_eq!(standing.with(DEAD).generation(), 0xabc_def0);
        let last = Standing::new(DEAD, 0xfff_ffff, 7);
        assert_eq!((last.freed().generation(), last.freed().pid(), last.freed().state()), (0, 0, FREE));
    }
}
