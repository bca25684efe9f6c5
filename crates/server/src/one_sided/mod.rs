//! A one-sided space: who is in it, what names stand for, and what the dead leave behind.
//!
//! Clients take the locks by verbs of their own, and this file hears nothing of it. The CPU only loads words here, and stores
//! those of the directory and of the records of clients that are gone; the words of locks belong to verbs. `lockwright::one_sided` has the rest.

mod local;
pub(super) mod reaper;
pub(super) mod sessions;

use self::local::LocalSpace;
use self::reaper::Reaper;
use super::ServeError;
use super::durable::TOKENS_PER_SECOND;
use lockwright::LockName;
use lockwright::inspect::{Entry, EntryState};
#[cfg(feature = "rdma")]
use lockwright::internal::asymmetric;
use lockwright::internal::layout::{self, NUMBERS, Ranges, TABLE};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint};
use lockwright_fabric::backend::tcp::{HostError, Inbox, SessionEnd};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{
    Addr, Deadline, Endpoint, FabricError, Message, NodeId, PeerId, RawVerb, RawWait, Time, Wait, Width,
    Word64,
};
use lockwright_locks::citron::member::Forest;
use lockwright_locks::holders::record::RecordWord;
use lockwright_locks::holders::space::bits;
use lockwright_locks::holders::{HolderRecord, Kind, TableReader};
use lockwright_locks::shiftlock::layout::{Entry as Word, Layout};
use lockwright_locks::shiftlock::versioned_portable::VersionedPortable;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

/// By what verbs the words are changed: by one of them only, since they do not exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerbExecutor {
    /// This server's CPU executes them.
    Cpu,
    /// The NIC does.
    #[cfg(feature = "rdma")]
    Nic,
}

/// Between two looks at a word that processes of this host may change.
const LOOK_NS: u64 = 200_000;

/// A one-sided space.
#[derive(Debug)]
pub(crate) struct OneSidedSpace {
    /// As in addresses, without what comes before the name.
    pub(crate) name: String,
    pub(crate) by: VerbExecutor,
    pub(crate) memory: Arc<InProc>,
    ranges: Ranges,
    /// If ranges are on trees.
    forest: Option<Forest>,
    /// If processes of this host are in it, too: then it knows clients and names, and not `state`.
    local: Option<LocalSpace>,
    state: Mutex<SpaceState>,
    /// Once it is at work.
    reaper: OnceLock<Reaper>,
}

#[derive(Debug)]
struct SpaceState {
    /// By number; 0 is nobody's.
    slots: Vec<ClientSlot>,
    names: HashMap<LockName, Named>,
    next: u64,
    /// No token of this space is larger, among names that were given up.
    highest: u64,
}

#[derive(Debug)]
enum ClientSlot {
    Free,
    In(Arc<OneSidedClient>),
    Dead(Remains),
}

/// What a dead client may still stand in.
#[derive(Clone, Debug)]
struct Remains {
    /// The locks that it may stand in the queues of, and their generations then.
    keyed: Vec<(u64, u64)>,
    /// Whether there may be something of it in trees.
    on_trees: bool,
}

/// What clears away after the dead.
pub(crate) trait Resets {
    /// Frees a lock if none of those in it is alive, and says whether it is free.
    fn keyed(&self, lock: u64) -> bool;

    /// Takes what a client left out of the trees, and says whether nothing is left.
    fn on_trees(&self, peer: PeerId) -> bool;

    /// Passes over the tickets of the dead below `drawn` in the remote queue of an asymmetric lock, and says whether none is left.
    fn asymmetric(&self, lock: u64, drawn: u64) -> bool;
}

#[derive(Clone, Copy, Debug)]
struct Named {
    id: u64,
    token_base: u64,
    handles: u64,
}

/// A session's place in the space.
#[derive(Debug)]
pub(crate) struct OneSidedClient {
    space: Weak<OneSidedSpace>,
    number: u64,
    label: String,
    inbox: OnceLock<Inbox>,
    /// How large the regions of the space are.
    regions: [u64; 4],
    /// Whether processes of this host change its words, too.
    is_shared: bool,
    /// For verbs that the CPU executes.
    ep: Option<InProcEndpoint>,
    /// Whether it is still in: verbs are executed under this.
    is_in: RwLock<bool>,
}

impl OneSidedSpace {
    /// The same, or one that processes of this host are in, too: that one is there already, or is made.
    pub(crate) fn open(
        name: &str,
        by: VerbExecutor,
        epoch: u64,
        ranges: Ranges,
    ) -> Result<Arc<Self>, ServeError> {
        if !matches!(ranges, Ranges::None { .. }) {
            return Ok(Self::new(name, by, epoch, ranges));
        }
        let (local, memory) = LocalSpace::open(name, ranges)?;
        Ok(Self::with(name, by, epoch, ranges, memory, Some(local)))
    }

    /// A space of the run `epoch`, which is when it began, in nanoseconds: its tokens are above those of earlier runs, as a
    /// server's own are (`durable`).
    pub(crate) fn new(name: &str, by: VerbExecutor, epoch: u64, ranges: Ranges) -> Arc<Self> {
        let memory = Arc::new(InProc::with_regions(1, &ranges.regions()));
        ranges.settings().into_iter().for_each(|(word, value)| memory.poke(word, value));
        Self::with(name, by, epoch, ranges, memory, None)
    }

    fn with(
        name: &str,
        by: VerbExecutor,
        epoch: u64,
        ranges: Ranges,
        memory: Arc<InProc>,
        local: Option<LocalSpace>,
    ) -> Arc<Self> {
        let first_token = u128::from(epoch) * u128::from(TOKENS_PER_SECOND) / 1_000_000_000;
        let first_token = u64::try_from(first_token).unwrap_or(u64::MAX);
        let slots = (0..=NUMBERS).map(|_| ClientSlot::Free).collect();
        let state = SpaceState { slots, names: HashMap::new(), next: 0, highest: first_token };
        Arc::new(Self {
            name: name.to_owned(),
            by,
            memory,
            forest: ranges.forest(),
            local,
            ranges,
            state: Mutex::new(state),
            reaper: OnceLock::new(),
        })
    }

    /// The number of its memory, if processes of this host are in it.
    pub(crate) fn identity(&self) -> Option<u128> {
        self.local.as_ref()?.identity()
    }

    fn state(&self) -> MutexGuard<'_, SpaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trees of its ranges, if they are on trees.
    pub(crate) const fn forest(&self) -> Option<Forest> {
        self.forest
    }

    /// Whether processes of this host are in it, too.
    pub(crate) const fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Lets `reaper` clear away what the dead leave behind.
    pub(crate) fn employ(&self, reaper: Reaper) {
        let _ = self.reaper.set(reaper);
    }

    /// Admits a client. `None` if there is no room.
    pub(crate) fn join(self: &Arc<Self>, label: &str) -> Option<Arc<OneSidedClient>> {
        if let Some(local) = &self.local {
            let peer = local.join(label)?;
            return Some(self.client(peer.0.into(), label));
        }
        let mut state = self.state();
        let number = state.slots.iter().skip(1).position(|slot| matches!(slot, ClientSlot::Free))? as u64 + 1;
        let client = self.client(number, label);
        self.memory.poke(layout::used(layout::peer(number)), 0);
        self.list(number, true);
        state.slots[number as usize] = ClientSlot::In(Arc::clone(&client));
        Some(client)
    }

    fn client(self: &Arc<Self>, number: u64, label: &str) -> Arc<OneSidedClient> {
        let ep = (self.by == VerbExecutor::Cpu).then(|| self.memory.endpoint(layout::peer(number)));
        Arc::new(OneSidedClient {
            space: Arc::downgrade(self),
            number,
            label: label.to_owned(),
            inbox: OnceLock::new(),
            regions: self.ranges.regions(),
            is_shared: self.local.is_some(),
            ep,
            is_in: RwLock::new(true),
        })
    }

    /// What the fabric calls a client of this space, which is the one at `index`.
    #[cfg(feature = "rdma")]
    pub(crate) fn fabric_number(&self, index: usize, peer: PeerId) -> PeerId {
        let number = match self.local {
            Some(_) => 1 + asymmetric::TABLE.slot(peer) as u32,
            None => peer.0,
        };
        PeerId(index as u32 * layout::NEXT_SPACE + number)
    }

    /// Whether it has clients other than the server itself.
    pub(crate) fn is_in_use(&self) -> bool {
        let own = usize::from(self.reaper.get().is_some_and(Reaper::has_a_number));
        if let Some(local) = &self.local {
            return local.clients() > own;
        }
        self.state().slots.iter().filter(|slot| matches!(slot, ClientSlot::In(_))).count() > own
    }

    fn word(&self, lock: u64) -> Word<VersionedPortable> {
        Word::of(self.memory.peek(layout::entry(lock)))
    }

    /// Enters a client into the directory, or strikes it off: then it still owns its slot, until nothing is left of it. Under
    /// the lock of `state`.
    fn list(&self, number: u64, is_in: bool) {
        let (peer, slot) = (layout::peer(number), TABLE.slot(layout::peer(number)));
        let (word, bit) = (TABLE.directory(slot / 64), 1 << (slot % 64));
        let bits = self.memory.peek(word);
        self.memory.poke(TABLE.owner(slot), u64::from(peer.0));
        self.memory.poke(word, if is_in { bits | bit } else { bits & !bit });
    }

    /// The records of a client that are in use.
    fn records(&self, number: u64) -> Vec<HolderRecord> {
        let reader = TableReader::new(TABLE, |word| self.memory.peek(word));
        let client = reader.client(layout::peer(number));
        client.map(|client| reader.records(&client).collect()).unwrap_or_default()
    }

    /// A client is gone: nothing that it does takes effect any more.
    fn depart(&self, number: u64) {
        if let Some(local) = &self.local {
            local.depart(layout::peer(number));
            self.reaper.get().into_iter().for_each(Reaper::call);
            return;
        }
        // Read before it is struck off; it writes no more.
        let records = self.records(number);
        let mut state = self.state();
        self.list(number, false);
        let keyed = records.iter().filter(|record| record.kind == Kind::Keyed);
        let keyed = keyed.map(|record| (record.claim.lock, self.word(record.claim.lock).generation()));
        let left = Remains { keyed: keyed.collect(), on_trees: self.forest.is_some() };
        state.slots[number as usize] = ClientSlot::Dead(left);
        drop(state);
        if let Some(reaper) = self.reaper.get() {
            reaper.call();
        } else {
            self.reap(&Nobody);
        }
    }

    /// Clears away what the dead have left, and frees their slots where nothing is left. Says whether some remain.
    pub(crate) fn reap(&self, resets: &impl Resets) -> bool {
        if let Some(local) = &self.local {
            return local.reap(resets);
        }
        let dead = |(number, slot): (usize, &ClientSlot)| match slot {
            ClientSlot::Dead(left) => Some((number, left.clone())),
            _ => None,
        };
        let dead: Vec<_> = self.state().slots.iter().enumerate().filter_map(dead).collect();
        let mut some_left = false;
        for (number, mut left) in dead {
            let peer = layout::peer(number as u64);
            left.keyed.retain(|(lock, generation)| {
                let word = self.word(*lock);
                word.is_taken() && word.generation() == *generation && !resets.keyed(*lock)
            });
            left.on_trees = left.on_trees && !resets.on_trees(peer);
            if left.keyed.is_empty() && !left.on_trees {
                self.free(peer);
                self.state().slots[number] = ClientSlot::Free;
            } else {
                some_left = true;
                self.state().slots[number] = ClientSlot::Dead(left);
            }
        }
        some_left
    }

    /// Nothing is left of a client that is gone: its records and its slot are free.
    fn free(&self, peer: PeerId) {
        let slot = TABLE.slot(peer);
        bits(self.memory.peek(layout::used(peer))).for_each(|record| {
            self.memory.poke(TABLE.record(slot, record).word(RecordWord::First), 0);
        });
        self.memory.poke(TABLE.owner(slot), 0);
    }

    /// The lock called `name`, and what has to be added to its tokens. It keeps its id until it is closed as often as it was
    /// opened.
    pub(crate) fn open_name(&self, name: &LockName) -> Option<(u64, u64)> {
        if let Some(local) = &self.local {
            return local.open_name(name);
        }
        let mut state = self.state();
        let worn = |named: &Named| named.handles == 0 && self.is_free(named.id) && !self.has_room(named.id);
        if let Some(named) = state.names.get(name).copied().filter(worn) {
            state.highest = state.highest.max(self.highest_of(&named));
            state.names.remove(name);
        }
        if !state.names.contains_key(name) && state.next == self.ranges.names() {
            self.sweep(&mut state);
        }
        if let Some(named) = state.names.get_mut(name) {
            named.handles += 1;
            return Some((named.id, named.token_base));
        }
        let id = if state.next < self.ranges.names() {
            state.next += 1;
            state.next - 1
        } else {
            let taken: std::collections::HashSet<_> = state.names.values().map(|named| named.id).collect();
            (0..self.ranges.names())
                .find(|id| !taken.contains(id) && self.is_free(*id) && self.has_room(*id))?
        };
        let token_base = state.highest.saturating_sub(self.least_token(id));
        state.names.insert(name.clone(), Named { id, token_base, handles: 1 });
        Some((id, token_base))
    }

    pub(crate) fn close_name(&self, name: &LockName) {
        if let Some(local) = &self.local {
            return local.close_name(name);
        }
        if let Some(named) = self.state().names.get_mut(name) {
            named.handles = named.handles.saturating_sub(1);
        }
    }

    /// Gives names up that nobody uses.
    fn sweep(&self, state: &mut SpaceState) {
        let mut highest = state.highest;
        state.names.retain(|_, named| {
            let goes = named.handles == 0 && self.is_free(named.id);
            if goes {
                highest = highest.max(self.highest_of(named));
            }
            !goes
        });
        state.highest = highest;
    }

    /// Nobody is in the lock, nor in its gate. Of one that nobody has a handle for, that stays so.
    fn is_free(&self, id: u64) -> bool {
        let is_quiet = |forest: &Forest| forest.nodes(id).all(|word| self.memory.peek(word) == 0);
        [id, layout::gate(id)].iter().all(|lock| !self.word(*lock).is_taken())
            && self.forest.as_ref().is_none_or(is_quiet)
    }

    /// Grants of ranges on the tree of a lock.
    fn tree_tokens(&self, id: u64) -> Option<u64> {
        self.forest.map(|forest| self.memory.peek(forest.tokens(id)))
    }

    /// Whether it has given out less than half of its tokens. There are other ids.
    fn has_room(&self, id: u64) -> bool {
        [id, layout::gate(id)].iter().all(|lock| self.word(*lock).rel_cnt() < VersionedPortable::LIMIT / 2)
    }

    /// No token of the name is larger.
    fn highest_of(&self, named: &Named) -> u64 {
        named.token_base.saturating_add(self.last_token(named.id))
    }

    /// Every token that will be given out for it, by itself, is larger.
    fn least_token(&self, id: u64) -> u64 {
        let keyed = [id, layout::gate(id)].map(|lock| self.word(lock).rel_cnt());
        keyed.into_iter().chain(self.tree_tokens(id)).min().unwrap_or(0)
    }

    /// The largest token that was given out for it, by itself.
    fn last_token(&self, id: u64) -> u64 {
        let keyed = [id, layout::gate(id)].map(|lock| self.word(lock).stamp().token());
        keyed.into_iter().chain(self.tree_tokens(id)).max().unwrap_or(0)
    }

    /// All holders and waiters. `now` is the time by the clock that clients were given.
    pub(crate) fn entries(&self, now: Time) -> Vec<Entry> {
        if let Some(local) = &self.local {
            return local.entries();
        }
        let (clients, names): (Vec<_>, HashMap<_, _>) = {
            let state = self.state();
            let client = |slot: &ClientSlot| {
                if let ClientSlot::In(client) = slot { Some(Arc::clone(client)) } else { None }
            };
            let names = state.names.iter().map(|(name, named)| (named.id, (name.clone(), named.token_base)));
            (state.slots.iter().filter_map(client).collect(), names.collect())
        };
        let mut entries = Vec::new();
        for client in &clients {
            for record in self.records(client.number) {
                // Those who only look for a range are in its gate.
                let Some((name, base)) = names.get(&record.claim.lock) else { continue };
                let held = record.state.holds() && record.mark != 0;
                let state = if held { EntryState::Held } else { EntryState::Waiting };
                let mut entry = Entry::new(name.clone(), state);
                entry.shared = record.claim.mode == Mode::Shared;
                entry.range = (record.kind == Kind::Range).then_some(record.claim.start..record.claim.end);
                entry.token = held.then(|| record.token().saturating_add(*base));
                entry.age = std::time::Duration::from_nanos(now.since(record.since));
                entry.set_process(&client.label);
                entries.push(entry);
            }
        }
        entries
    }
}

/// There is nobody who could clear anything away.
struct Nobody;

impl Resets for Nobody {
    fn keyed(&self, _: u64) -> bool {
        false
    }

    fn on_trees(&self, _: PeerId) -> bool {
        false
    }

    fn asymmetric(&self, _: u64, _: u64) -> bool {
        false
    }
}

impl OneSidedClient {
    /// Its number in the space, as lock words know it.
    pub(crate) fn peer(&self) -> PeerId {
        layout::peer(self.number)
    }

    pub(crate) fn is_of(&self, space: &Arc<OneSidedSpace>) -> bool {
        Weak::as_ptr(&self.space) == Arc::as_ptr(space)
    }

    /// From now on letters for it go there.
    pub(crate) fn attach(&self, inbox: Inbox) {
        let _ = self.inbox.set(inbox);
    }

    /// Executes verbs, if that is not the NIC's business.
    pub(crate) fn execute(&self, verbs: &[RawVerb], olds: &mut Vec<u128>) -> Result<(), HostError> {
        for verb in verbs {
            self.check(verb.addr, verb.width)?;
        }
        let is_in = self.is_in.read().unwrap_or_else(PoisonError::into_inner);
        let ep = self.ep.as_ref().filter(|_| *is_in).ok_or(HostError::NodeLost(NodeId(0)))?;
        olds.extend(block_on(ep.go(verbs)).map_err(lost)?);
        Ok(())
    }

    pub(crate) async fn watch(&self, watch: RawWait) -> Result<u128, HostError> {
        let RawWait { addr, width, cond, or } = watch;
        self.check(addr, width)?;
        let ep = self.ep.as_ref().ok_or(HostError::NodeLost(NodeId(0)))?;
        let wait = Wait { or, ..Word64::at(addr).until(cond) };
        if !self.is_shared {
            return Ok(ep.wait_until(wait).await.map_err(lost)?.value.into());
        }
        // Processes that map the memory wake nobody here.
        loop {
            let look = ep.now().await.plus(LOOK_NS);
            let waited = ep.wait_until(wait.by(Deadline::At(look))).await.map_err(lost)?;
            if waited.met {
                return Ok(waited.value.into());
            }
        }
    }

    fn check(&self, addr: Addr, width: Width) -> Result<(), HostError> {
        let bytes = self.regions.get(usize::from(addr.region.0)).copied().unwrap_or(0);
        let state = addr.offset.checked_add(8).is_some_and(|end| end <= bytes);
        if addr.node == NodeId(0) && state && addr.offset.is_multiple_of(8) && width == Width::W64 {
            return Ok(());
        }
        Err(HostError::NoSuchWord { addr, width })
    }

    /// Sends a message to another client of the space; `false` if it is gone.
    pub(crate) fn send(&self, to: PeerId, message: Message) -> bool {
        let Some(space) = self.space.upgrade() else { return false };
        let other = match space.state().slots.get(to.0 as usize) {
            Some(ClientSlot::In(other)) => Arc::clone(other),
            _ => return false,
        };
        other.inbox.get().is_some_and(|inbox| inbox.deliver(self.peer(), message))
    }

    /// The session is over. What it still held or wanted is cleared away as what the dead leave behind.
    pub(crate) fn depart(&self, _: SessionEnd) {
        // Verbs under way are done first; there are none after this. A NIC's have been cut off before.
        *self.is_in.write().unwrap_or_else(PoisonError::into_inner) = false;
        if let Some(space) = self.space.upgrade() {
            space.depart(self.number);
        }
    }
}

fn lost(error: FabricError) -> HostError {
    match error {
        FabricError::NodeLost(node) => HostError::NodeLost(node),
        FabricError::PeerLost(_) | FabricError::Evicted => HostError::NodeLost(NodeId(0)),
    }
}

#[cfg(test)]
mod tests;
