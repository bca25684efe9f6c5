//! The coordinator: is told that a switch was restarted or a server lost, and has the locks put right (§5.3).
//! Reliable, as in the paper: it does not fail, and what it is told of failures is true. It also keeps the directory of sparse
//! lock ids, which must outlive any server.
//!
//! Holders and waiters of a lock are known on their own machines. Everything else about a lock, its agent, its registers
//! and the packets about it, can be made anew from that. So a recovery is:
//!
//! 1. **S1** `pause`: every surviving machine enters a new epoch, sends no packet of the paused racks any more, forgets
//!    those it has sent, and reports its tasks and agents. Its own tasks go on with agents that are there.
//! 2. **S2** `restore`: agents that survived hear who holds and waits elsewhere; where a lock has no agent, one is made on
//!    the machine of a holder, or of a waiter.
//! 3. **S3** `load`: the decider's registers are written from the agents, in the new epoch, with a new block of stamps.
//!    Then machines `resume`.
//!
//! A failure in the middle of it begins a new epoch, from S1. What it must not do: keep anything about locks for longer
//! than a recovery takes.

use super::directory::Directory;
use super::packet::{Waiter, call};
use super::report::{Entry, EntryKind};
use super::{FIRST_EPOCH, Params, Rules, decider};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Message, Outbox, PeerId, Role, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

/// Blocks of stamps that [`Coordinator::raise_stamps`] believes in: half of those that tokens have room for.
const MAX_SEEN_BLOCK: u64 = 1 << (u64::BITS - decider::LOCAL_BITS - decider::BLOCK_BITS - 1);

/// The coordinator of machines and deciders.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator<R> {
    machines: u16,
    params: Params,
    /// Recoveries, and one.
    epoch: u32,
    /// The last block of stamps that was given out.
    block: u64,
    lost: BTreeSet<u8>,
    /// Racks whose locks are being put right, bit by bit.
    racks: u64,
    phase: Phase,
    directory: Directory,
    rules: PhantomData<R>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Quiet,
    /// S1: what machines have reported.
    Gathering(BTreeMap<u8, Vec<Entry>>),
    /// S2: machines that have not put their agents right yet; what the registers will be.
    Restoring(BTreeSet<u8>, Vec<Entry>),
    /// S3: deciders that have not been loaded yet.
    Loading(BTreeSet<usize>),
}

/// What is known of a lock.
#[derive(Default)]
struct Known {
    agent: Option<Entry>,
    holders: Vec<Waiter>,
    waiters: Vec<Waiter>,
}

impl<R: Rules> Coordinator<R> {
    /// For `machines` machines.
    ///
    /// # Panics
    /// If there are more racks than it has bits for.
    pub fn new(machines: u16, params: &Params) -> Self {
        assert!(params.racks < 64, "at most 63 racks");
        Self {
            machines,
            params: params.clone(),
            epoch: FIRST_EPOCH,
            block: 0,
            lost: BTreeSet::new(),
            racks: 0,
            phase: Phase::Quiet,
            directory: Directory::default(),
            rules: PhantomData,
        }
    }

    /// With no machine there yet: they [join](Self::join). Epochs and blocks of stamps go on above those of an earlier run.
    pub fn vacant(machines: u16, params: &Params, epoch: u32, block: u64) -> Self {
        let lost = (1..=machines).map(|mid| mid as u8).collect();
        Self { epoch: epoch.max(FIRST_EPOCH), block, lost, ..Self::new(machines, params) }
    }

    /// Lets a machine in that has nothing and knows nothing, and says under which number and in which epoch. `None` while
    /// something is put right, or if all numbers are in use. A number that was given back has had its recovery by then, so
    /// that whatever is still under way of its last owner is of an older epoch.
    pub fn join(&mut self) -> Option<(u8, u32)> {
        if self.phase != Phase::Quiet {
            return None;
        }
        let mid = self.lost.pop_first()?;
        Some((mid, self.epoch))
    }

    /// Takes over from a coordinator that is gone, together with the deciders: these machines, which have been in epochs up
    /// to `epoch`, are still there. A recovery begins.
    pub fn take_over(&mut self, machines: impl IntoIterator<Item = u8>, epoch: u32, out: &mut Outbox) {
        for mid in machines {
            self.lost.remove(&mid);
        }
        self.epoch = self.epoch.max(epoch);
        self.failed(usize::from(self.machines), out);
    }

    /// How many machines are there.
    pub fn members(&self) -> usize {
        usize::from(self.machines) - self.lost.len()
    }

    /// The epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The last block of stamps that was given out.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Whether nothing is being put right.
    pub fn is_quiet(&self) -> bool {
        self.phase == Phase::Quiet
    }

    fn living(&self) -> impl Iterator<Item = u8> + '_ {
        (1..=self.machines).map(|mid| mid as u8).filter(|mid| !self.lost.contains(mid))
    }

    fn to_machines(&self, message: &Message, out: &mut Outbox) {
        for mid in self.living() {
            out.send(super::machine_of(mid), message.clone());
        }
    }

    /// Stamps of the block given out last begin here.
    ///
    /// # Panics
    /// If tokens have no room for that many blocks: after 65,535 recoveries and blocks that were used up.
    fn stamps(&self) -> u64 {
        assert!(self.block >> (u64::BITS - decider::LOCAL_BITS - decider::BLOCK_BITS) == 0, "out of stamps");
        self.block << decider::BLOCK_BITS
    }

    /// Gives out stamps above those of `token`, which a forgotten earlier run granted. Returns what the decider is to be told, if
    /// it has not come as far. Tokens that no run can have granted in many years are ignored.
    pub fn raise_stamps(&mut self, token: u64) -> Option<Message> {
        let block = token >> (decider::LOCAL_BITS + decider::BLOCK_BITS);
        if block < self.block || block >= MAX_SEEN_BLOCK {
            return None;
        }
        self.block = block + 1;
        Some(Message::new(0, call::STAMPS, &[self.stamps()]))
    }

    /// A switch was restarted, or a server is lost with all locks that it had to do with: which, is unknown, since its last
    /// packets may have changed the registers of any.
    fn failed(&mut self, role: usize, out: &mut Outbox) {
        let machines = usize::from(self.machines);
        if role < machines {
            self.lost.insert(role as u8 + 1);
            self.racks = (1 << self.params.racks) - 1;
        } else {
            self.racks |= 1 << (role - machines);
        }
        self.epoch += 1;
        self.block += u64::from(R::STAMPS_LEAP);
        self.phase = Phase::Gathering(BTreeMap::new());
        let mut pause = self.message(call::PAUSE);
        pause.tail = self.lost.iter().map(|mid| u64::from(*mid)).collect();
        self.to_machines(&pause, out);
        self.gathered(out);
    }

    fn message(&self, kind: u32) -> Message {
        Message::new(0, kind, &[u64::from(self.epoch), self.racks, self.stamps()])
    }

    /// S1 ends when every machine has reported.
    fn reported(&mut self, mid: u8, message: &Message, out: &mut Outbox) {
        let Phase::Gathering(reports) = &mut self.phase else { return };
        out.touch(message.tail.len() as u64 / 2);
        reports.insert(mid, Entry::decode(&message.tail));
        self.gathered(out);
    }

    fn gathered(&mut self, out: &mut Outbox) {
        let Phase::Gathering(reports) = &self.phase else { return };
        if self.living().all(|mid| reports.contains_key(&mid)) {
            let reports = reports.clone();
            self.restore(&reports, out);
        }
    }

    /// S2.
    fn restore(&mut self, reports: &BTreeMap<u8, Vec<Entry>>, out: &mut Outbox) {
        let mut locks: BTreeMap<u64, Known> = BTreeMap::new();
        for entry in reports.values().flatten() {
            let known = locks.entry(entry.lid).or_default();
            match entry.what {
                EntryKind::Agent => known.agent = Some(*entry),
                EntryKind::Holds if R::HOLDERS_ARE_GATHERED => known.holders.push(entry.waiter),
                EntryKind::Holds => {}
                EntryKind::Waits => known.waiters.push(entry.waiter),
            }
        }
        let (mut registers, mut restored) = (Vec::new(), BTreeMap::<u8, Vec<Entry>>::new());
        for (lid, known) in &locks {
            let agent = self.agent_entry(*lid, known);
            if *lid < self.params.switch_locks {
                registers.push(agent);
            }
            let entries = restored.entry(agent.waiter.ticket.mid).or_default();
            entries.push(agent);
            entries.extend(known.holders.iter().map(|holder| Entry::task(*lid, *holder, true)));
            entries.extend(known.waiters.iter().map(|waiter| Entry::task(*lid, *waiter, false)));
        }
        for mid in self.living() {
            let mut restore = self.message(call::RESTORE);
            restore.tail = Entry::encode(&restored.remove(&mid).unwrap_or_default());
            out.send(super::machine_of(mid), restore);
        }
        self.phase = Phase::Restoring(self.living().collect(), registers);
        self.load(out);
    }

    /// Where the lock's agent is, or will be: with a holder if there is one.
    fn agent_entry(&self, lid: u64, known: &Known) -> Entry {
        if let Some(agent) = known.agent {
            return agent;
        }
        let first = known.holders.first().or(known.waiters.first());
        let mid = match first {
            Some(first) if lid < self.params.switch_locks => first.ticket.mid,
            _ => super::resident(lid, self.machines, &self.lost),
        };
        // An agent without a holder yet: the lock goes to the first in its queue as from one writer to the next.
        let mode = known.holders.first().map_or(Mode::Exclusive, |holder| holder.mode);
        let writer_waits = known.waiters.iter().any(|waiter| waiter.mode == Mode::Exclusive);
        Entry::agent(lid, mid, mode, self.params.bars_at_once() && writer_waits)
    }

    fn restored(&mut self, mid: u8, out: &mut Outbox) {
        if let Phase::Restoring(missing, _) = &mut self.phase {
            missing.remove(&mid);
            self.load(out);
        }
    }

    /// S2 ends when all agents are right; S3.
    fn load(&mut self, out: &mut Outbox) {
        let Phase::Restoring(missing, registers) = &mut self.phase else { return };
        if !missing.is_empty() {
            return;
        }
        let registers = std::mem::take(registers);
        let racks: BTreeSet<usize> =
            (0..usize::from(self.params.racks)).filter(|rack| self.racks >> rack & 1 != 0).collect();
        for rack in &racks {
            let is_there = |entry: &&Entry| entry.lid % u64::from(self.params.racks) == *rack as u64;
            let entries: Vec<_> = registers.iter().filter(is_there).copied().collect();
            let lost = self.lost.len() as u64;
            let mut load = Message::new(0, call::LOAD, &[u64::from(self.epoch), self.stamps(), lost]);
            load.tail = self.lost.iter().map(|mid| u64::from(*mid)).collect();
            load.tail.extend(Entry::encode(&entries));
            out.send(PeerId::role(usize::from(self.machines) + rack), load);
        }
        self.phase = Phase::Loading(racks);
    }

    /// S3 ends when all deciders are back.
    fn loaded(&mut self, rack: usize, out: &mut Outbox) {
        let Phase::Loading(missing) = &mut self.phase else { return };
        missing.remove(&rack);
        if missing.is_empty() {
            let resume = self.message(call::RESUME);
            self.to_machines(&resume, out);
            (self.phase, self.racks) = (Phase::Quiet, 0);
        }
    }
}

impl<R: Rules> Role for Coordinator<R> {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        let (role, _) = from.index();
        let is_current = message.words[0] == u64::from(self.epoch);
        match message.kind {
            Message::DEPARTED => self.failed(role, out),
            call::REPORT if is_current => self.reported(role as u8 + 1, message, out),
            call::RESTORED if is_current => self.restored(role as u8 + 1, out),
            call::LOADED if is_current => self.loaded(role - usize::from(self.machines), out),
            call::STAMPS => {
                self.block += 1;
                out.send(from, Message::new(0, call::STAMPS, &[self.stamps()]));
            }
            call::RESOLVE => {
                let index = self.directory.index_of(message.lock);
                out.send(from, Message::new(message.lock, call::RESOLVED, &[index]));
            }
            _ => {}
        }
    }

    fn wants_role_departures(&self) -> bool {
        true
    }
}
