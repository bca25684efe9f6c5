//! The directory's table, under its lock: chains of names, chains of uses, free lists.

use super::super::error::SpaceError;
use super::super::file::{read_bytes, write_bytes};
use super::super::layout::{
    AT_CREATED, AT_NAMES_FREE, AT_NAMES_LIVE, AT_NAMES_USED, AT_REFS_FREE, AT_REFS_USED, AT_TOKEN_FLOOR,
    ENTRY_BYTES, REF_BYTES, Section,
};
use super::super::process;
use super::super::shared::Shared;
use super::{NAME_MAX, NameInfo, NamedLock};
use crate::addr::PeerId;
use crate::random::mix;
use crate::wait::Time;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

// Fields of a name.
const HASH: u64 = 0;
pub(super) const NEXT: u64 = 8;
pub(super) const FIRST_USE: u64 = 12;
pub(super) const STATE: u64 = 16;
const LEN: u64 = 20;
const BASE: u64 = 24;
/// Flag in the creation time of a free name: the rest is the last own token of its lock.
const COUNTED: u64 = 1 << 63;
const MADE: u64 = 32;
const NAME: u64 = 40;
const _: () = assert!(NAME as usize + NAME_MAX.next_multiple_of(8) <= ENTRY_BYTES as usize);

// Fields of a use.
pub(super) const PEER: u64 = 0;
const OF: u64 = 4;
pub(super) const NEXT_USE: u64 = 8;
const COUNT: u64 = 12;

pub(super) const LIVE: u32 = 1;
/// Names and uses for which memory is allocated at a time.
const CHUNK: u64 = 64;

/// The table, locked as long as this lives.
#[derive(Debug)]
pub(super) struct Table<'a> {
    shared: &'a Shared,
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        self.unlock();
    }
}

impl<'a> Table<'a> {
    /// The caller has just taken the lock.
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self { shared }
    }

    pub(super) fn shared(&self) -> &'a Shared {
        self.shared
    }

    fn name_at(&self, id: u64) -> u64 {
        self.shared.layout.start(Section::Names) + id * ENTRY_BYTES
    }

    fn use_at(&self, index: u64) -> u64 {
        self.shared.layout.start(Section::Refs) + index * REF_BYTES
    }

    /// A 4-byte field of a name.
    pub(super) fn link(&self, id: u64, field: u64) -> &'a AtomicU32 {
        self.shared.map.u32(self.name_at(id) + field)
    }

    /// A 4-byte field of a use.
    pub(super) fn use_link(&self, index: u64, field: u64) -> &'a AtomicU32 {
        self.shared.map.u32(self.use_at(index) + field)
    }

    pub(super) fn word(&self, at: u64) -> &'a AtomicU64 {
        self.shared.map.u64(at)
    }

    /// The head of the chain for `hash`.
    fn chain(&self, hash: u64) -> &'a AtomicU32 {
        self.shared.map.u32(self.chain_at(hash))
    }

    fn chain_at(&self, hash: u64) -> u64 {
        self.shared.layout.start(Section::NameIndex) + 4 * (hash & (self.shared.layout.index() - 1))
    }

    /// Names ever used.
    pub(super) fn used(&self) -> u64 {
        self.word(AT_NAMES_USED).load(SeqCst).min(self.shared.layout.shape.names)
    }

    pub(super) fn is_live(&self, id: u64) -> bool {
        id < self.used() && self.link(id, STATE).load(SeqCst) == LIVE
    }

    /// Seeded per space, so that colliding names cannot be prepared. Part of the file format: all processes must agree.
    pub(super) fn hash(&self, name: &[u8]) -> u64 {
        let seed = mix(self.word(AT_CREATED).load(SeqCst));
        let words = name.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        words.fold(seed ^ name.len() as u64, |hash, word| mix(hash ^ word))
    }

    /// The links of a chain of names from `head`, each with the name it points at.
    fn names_from(&self, head: &'a AtomicU32) -> impl Iterator<Item = (&'a AtomicU32, u64)> {
        let next = |link: &'a AtomicU32| Some((link, u64::from(link.load(SeqCst).checked_sub(1)?)));
        std::iter::successors(next(head), move |(_, id)| next(self.link(*id, NEXT)))
    }

    /// The links of a name's uses.
    pub(super) fn uses_of(&self, id: u64) -> impl Iterator<Item = (&'a AtomicU32, u64)> {
        let next = |link: &'a AtomicU32| Some((link, u64::from(link.load(SeqCst).checked_sub(1)?)));
        std::iter::successors(next(self.link(id, FIRST_USE)), move |(_, index)| {
            next(self.use_link(*index, NEXT_USE))
        })
    }

    pub(super) fn find(&self, hash: u64, name: &[u8]) -> Result<Option<u64>, SpaceError> {
        self.shared.map.allocate(self.chain_at(hash), 4)?;
        let is =
            |id: &u64| self.word(self.name_at(*id) + HASH).load(SeqCst) == hash && self.name(*id) == name;
        Ok(self.names_from(self.chain(hash)).map(|(_, id)| id).find(is))
    }

    /// Whether a live name is in its chain: not if its creator was killed just before the last store.
    pub(super) fn is_reachable(&self, id: u64) -> bool {
        let hash = self.word(self.name_at(id) + HASH).load(SeqCst);
        self.names_from(self.chain(hash)).any(|(_, other)| other == id)
    }

    fn name(&self, id: u64) -> Vec<u8> {
        let len = self.link(id, LEN).load(SeqCst) as usize;
        read_bytes(&self.shared.map, self.name_at(id) + NAME, len.min(NAME_MAX))
    }

    pub(super) fn lock_of(&self, id: u64) -> NamedLock {
        NamedLock { id, token_base: self.word(self.name_at(id) + BASE).load(SeqCst) }
    }

    pub(super) fn info(&self, id: u64) -> NameInfo {
        let users = self.uses_of(id).map(|(_, index)| PeerId(self.use_link(index, PEER).load(SeqCst)));
        NameInfo {
            name: self.name(id),
            lock: self.lock_of(id),
            created: Time(self.word(self.name_at(id) + MADE).load(SeqCst) & !COUNTED),
            users: users.collect(),
        }
    }

    /// Creates a name that was not [found](Self::find), after `prepare` has made its lock ready.
    pub(super) fn insert(
        &self,
        hash: u64,
        name: &[u8],
        prepare: impl FnOnce(u64) -> Result<(), SpaceError>,
    ) -> Result<u64, SpaceError> {
        let max = self.shared.layout.shape.names;
        let id =
            self.allocate(AT_NAMES_FREE, AT_NAMES_USED, max, |id| (self.name_at(id), self.link(id, NEXT)))?;
        let id = id.ok_or(SpaceError::TooManyNames(max))?;
        if let Err(error) = prepare(id) {
            self.free_name(id);
            return Err(error);
        }
        let at = self.name_at(id);
        let chain = self.chain(hash);
        self.word(at + HASH).store(hash, SeqCst);
        // Base and own token together continue right above all tokens so far.
        let counted = self.word(at + MADE).load(SeqCst);
        let counted = if counted & COUNTED == 0 { 0 } else { counted & !COUNTED };
        let floor = self.word(AT_TOKEN_FLOOR).load(SeqCst);
        self.word(at + BASE).store(floor.saturating_sub(counted), SeqCst);
        self.word(at + MADE).store(process::now().0, SeqCst);
        self.link(id, FIRST_USE).store(0, SeqCst);
        self.link(id, LEN).store(name.len() as u32, SeqCst);
        write_bytes(&self.shared.map, at + NAME, name);
        self.link(id, NEXT).store(chain.load(SeqCst), SeqCst);
        self.link(id, STATE).store(LIVE, SeqCst);
        self.word(AT_NAMES_LIVE).fetch_add(1, SeqCst);
        // Now it is visible.
        chain.store(id as u32 + 1, SeqCst);
        Ok(id)
    }

    /// Records the last own token of an unused name's lock, for the next name with this id.
    pub(super) fn note_tokens(&self, id: u64, counted: u64) {
        self.word(self.name_at(id) + MADE).store(COUNTED | counted, SeqCst);
    }

    /// Removes an unused name.
    pub(super) fn remove(&self, id: u64) {
        self.remove_from_chain(id);
        self.word(AT_NAMES_LIVE).fetch_sub(1, SeqCst);
        self.free_name(id);
    }

    /// Unlinks a name from its chain; whether it was linked.
    pub(super) fn remove_from_chain(&self, id: u64) -> bool {
        let hash = self.word(self.name_at(id) + HASH).load(SeqCst);
        let found = self.names_from(self.chain(hash)).find(|(_, other)| *other == id);
        if let Some((link, _)) = found {
            link.store(self.link(id, NEXT).load(SeqCst), SeqCst);
        }
        found.is_some()
    }

    pub(super) fn free_name(&self, id: u64) {
        self.link(id, STATE).store(0, SeqCst);
        let free = self.word(AT_NAMES_FREE);
        self.link(id, NEXT).store(free.load(SeqCst) as u32, SeqCst);
        free.store(id + 1, SeqCst);
    }

    /// Counts a use of a name by `peer`.
    pub(super) fn add_use(&self, id: u64, peer: PeerId, slot: u64) -> Result<(), SpaceError> {
        let mine = |index: &u64| self.use_link(*index, PEER).load(SeqCst) == peer.0;
        if let Some(index) = self.uses_of(id).map(|(_, index)| index).find(mine) {
            self.use_link(index, COUNT).fetch_add(1, SeqCst);
            return Ok(());
        }
        let max = self.shared.layout.shape.refs;
        let place = |index| (self.use_at(index), self.use_link(index, NEXT_USE));
        let index = self.allocate(AT_REFS_FREE, AT_REFS_USED, max, place)?;
        let index = index.ok_or(SpaceError::TooManyRefs(max))?;
        let first = self.link(id, FIRST_USE);
        self.use_link(index, PEER).store(peer.0, SeqCst);
        self.use_link(index, OF).store(id as u32 + 1, SeqCst);
        self.use_link(index, COUNT).store(1, SeqCst);
        self.use_link(index, NEXT_USE).store(first.load(SeqCst), SeqCst);
        // Counted before it is linked: if this process dies in between, the repair recounts before it is reaped.
        self.shared.refs_of(slot).fetch_add(1, SeqCst);
        first.store(index as u32 + 1, SeqCst);
        Ok(())
    }

    /// Undoes one use of a name by `peer`; `false` if there is none.
    pub(super) fn end_use(&self, id: u64, peer: PeerId) -> bool {
        let found = self.uses_of(id).find(|(_, index)| self.use_link(*index, PEER).load(SeqCst) == peer.0);
        let Some((link, index)) = found else { return false };
        let count = self.use_link(index, COUNT);
        if count.load(SeqCst) > 1 {
            count.fetch_sub(1, SeqCst);
            return true;
        }
        link.store(self.use_link(index, NEXT_USE).load(SeqCst), SeqCst);
        self.free_use(index);
        if let Some((slot, _)) = self.shared.find(peer) {
            self.shared.refs_of(slot).fetch_sub(1, SeqCst);
        }
        true
    }

    pub(super) fn free_use(&self, index: u64) {
        let free = self.word(AT_REFS_FREE);
        self.use_link(index, PEER).store(0, SeqCst);
        self.use_link(index, NEXT_USE).store(free.load(SeqCst) as u32, SeqCst);
        free.store(index + 1, SeqCst);
    }

    /// What `peer` has open.
    pub(super) fn names_of(&self, peer: PeerId) -> Vec<u64> {
        let used = self.word(AT_REFS_USED).load(SeqCst).min(self.shared.layout.shape.refs);
        let uses = (0..used).filter(|index| self.use_link(*index, PEER).load(SeqCst) == peer.0);
        uses.map(|index| u64::from(self.use_link(index, OF).load(SeqCst)) - 1).collect()
    }

    /// Takes an entry from a free list, or one never used; `None` if there is none.
    fn allocate(
        &self,
        free: u64,
        used: u64,
        max: u64,
        place: impl Fn(u64) -> (u64, &'a AtomicU32),
    ) -> Result<Option<u64>, SpaceError> {
        let (free, used) = (self.word(free), self.word(used));
        if let Some(index) = free.load(SeqCst).checked_sub(1) {
            free.store(place(index).1.load(SeqCst).into(), SeqCst);
            return Ok(Some(index));
        }
        let index = used.load(SeqCst);
        if index >= max {
            return Ok(None);
        }
        if index.is_multiple_of(CHUNK) {
            let (start, end) = (place(index).0, place((index + CHUNK).min(max) - 1).0);
            self.shared.map.allocate(start, end + ENTRY_BYTES.min(place(1).0 - place(0).0) - start)?;
        }
        used.store(index + 1, SeqCst);
        Ok(Some(index))
    }
}
