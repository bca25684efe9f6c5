//! A one-sided space as processes of its host have it: a space in shared memory whose regions the server registers for its NIC.
//!
//! Locks are taken by instructions of this CPU and waited for by looking, since what a NIC writes wakes nobody. Dead processes
//! are known by their pidfds. A process that is stopped keeps its locks until it goes on or ends: nothing can keep it from
//! writing, so nobody takes them away.
//!
//! Clients that come by verbs have a slot of the same client table, which the server keeps for them as long as their queue pair
//! exists. If the server dies, its queue pairs are gone before it is: so are those clients.
//!
//! Striking a client off is one compare-and-swap of its owner word, which no NIC writes. Bits of the directory are only ever
//! set.

use super::asymmetric::{LOCKS, NAMES, REGIONS, SLOTS, TABLE};
use super::layout::{self, Ranges};
use crate::backend::slots::SlotPool;
use crate::error::{LockError, OpenError};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Reclaim, ShmEndpoint, ShmSpace, SpaceError, SpaceOptions, WordSlice};
use lockwright_fabric::{
    Addr, Batch, Deadline, Endpoint, FabricError, NodeId, PeerId, RegionId, Time, Value, Wait, Waited,
    Word64, delegate,
};
use lockwright_locks::holders::record::{ClientWord, First, MAX_RECORDS, RecordWord};
use lockwright_locks::holders::{HolderSpace, TableLayout, TableReader};
use lockwright_locks::qplock::member::{MemberClient, MemberSpace, Side};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, SeqCst},
};

/// What such a space is called; raised when the meaning of its memory changes.
const TAG: &str = "lockwright 1, asymmetric locks with holder records";
/// What its address begins with.
pub(crate) const SCHEME: &str = layout::SCHEME;
/// What the name of its file begins with, after that of the user.
pub(crate) const FILE_PREFIX: &str = "lent.";
/// Bits of a peer's number.
const PEER_BITS: u32 = 24;
/// How long a waiter waits before it looks whether those it waits for are alive.
const PATIENCE_NS: u64 = 1_000_000;
/// The first and the longest pause between two looks at a word that a NIC may write.
const LOOK_NS: (u64, u64) = (20_000, 500_000);

/// The file of the one-sided space called `name`.
///
/// # Errors
/// If no file can be called like that.
pub fn path_of(name: &str) -> Result<PathBuf, SpaceError> {
    let name = if name.is_empty() { "default" } else { name };
    lockwright_fabric::backend::shm::space_path(&format!("{FILE_PREFIX}{name}"))
}

/// Opens the space at `path`, which only a server makes.
///
/// # Errors
/// In words.
pub fn open(path: &Path, create: bool, program: Option<&str>) -> Result<ShmSpace, OpenError> {
    let refuse = |why: String| OpenError::Failed { space: path.display().to_string(), why };
    let options = SpaceOptions::default()
        .clients(SLOTS)
        .peer_bits(PEER_BITS)
        .names(NAMES)
        .memory(1, &REGIONS)
        .tag(TAG)
        .program(program)
        .create(create);
    let space = ShmSpace::open(path, &options).map_err(|error| match error {
        SpaceError::Missing(path) => refuse(format!(
            "there is no {}; `lockwright serve --rdma --lend NAME --local` makes it",
            path.display()
        )),
        error => refuse(error.to_string()),
    })?;
    if space.tag() != TAG {
        let found = space.tag();
        return Err(refuse(format!("it is a space of another kind ({found:?}), not {TAG:?}")));
    }
    if create {
        for (region, bytes) in (0..).zip(REGIONS) {
            let addr = Addr { offset: 0, node: NodeId(0), region: RegionId(region) };
            space.allocate(addr, bytes).map_err(|error| refuse(error.to_string()))?;
        }
    }
    Ok(space)
}

/// The budget that the server gave `space`.
pub(crate) fn budget(space: &ShmSpace) -> Option<u16> {
    let values = std::array::from_fn(|index| space.peek(layout::setting(index)));
    match Ranges::from_settings(values)? {
        Ranges::None { budget } => Some(budget),
        _ => None,
    }
}

/// An endpoint that looks at words again and again while it waits.
#[derive(Clone, Debug)]
pub struct LocalEndpoint(ShmEndpoint);

impl Endpoint for LocalEndpoint {
    const IS_IMMEDIATE: bool = true;

    delegate!(0: me home capabilities go send send_datagram recv_by);
    delegate!(0: now passed alarm is_gone sleep suspects random mark checkpoint observe);

    #[inline(always)]
    fn try_go<B: Batch>(&self, batch: B) -> Result<Result<B::Old, FabricError>, B> {
        self.0.try_go(batch)
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let (mut pause_ns, longest_ns) = LOOK_NS;
        loop {
            let look = self.0.now().await.plus(pause_ns);
            let until = match wait.deadline {
                Deadline::Never => look,
                Deadline::Now => return self.0.wait_until(wait).await,
                Deadline::At(time) if time <= look => return self.0.wait_until(wait).await,
                Deadline::At(_) => look,
            };
            let waited = self.0.wait_until(wait.by(Deadline::At(until))).await?;
            if waited.met {
                return Ok(waited);
            }
            pause_ns = longest_ns.min(pause_ns * 2);
        }
    }
}

/// A client's slot of the holder table: of a process of this host, or of a remote client for which this process keeps it.
#[derive(Clone, Debug)]
pub struct LocalHolders {
    space: ShmSpace,
    ep: ShmEndpoint,
    words: WordSlice,
    /// The time, as it was not long ago.
    recent: Arc<AtomicU64>,
}

#[inline(always)]
const fn index(word: Word64) -> u64 {
    word.addr().offset / 8
}

fn words(space: &ShmSpace) -> WordSlice {
    space.word_slice(TABLE.directory(0), TABLE.bytes() / 8)
}

/// Reads all records.
pub(crate) fn reader(space: &ShmSpace) -> TableReader<impl Fn(Word64) -> u64 + use<>> {
    let words = words(space);
    TableReader::new(TABLE, move |word| words.read(index(word)))
}

impl LocalHolders {
    /// Takes over the slot of `ep`. `elsewhere`: the pid of a client that comes by verbs, on its own host.
    ///
    /// # Errors
    /// If it was evicted already.
    pub fn join(space: &ShmSpace, ep: ShmEndpoint, elsewhere: Option<u32>) -> Result<Self, FabricError> {
        let (words, slot) = (words(space), TABLE.slot(ep.me()));
        let go = |verb| block_on(ep.go(verb));
        go(TABLE.owner(slot).write(0))?;
        for record in 0..MAX_RECORDS {
            let first = index(TABLE.record(slot, record).word(RecordWord::First));
            words.write(first, First(words.read(first)).freed().0);
        }
        words.write(index(TABLE.client(slot, ClientWord::Used)), 0);
        let elsewhere = elsewhere.map_or(0, |pid| 1 + u64::from(pid));
        words.write(index(TABLE.client(slot, ClientWord::Elsewhere)), elsewhere);
        let (bits, bit) = (TABLE.directory(slot / 64), 1 << (slot % 64));
        if go(bits.read())? & bit == 0 {
            // The slot is this client's alone, and so is its bit.
            go(bits.fetch_add(bit))?;
        }
        go(TABLE.owner(slot).write(u64::from(ep.me().0)))?;
        let recent = Arc::new(AtomicU64::new(space.now().0));
        Ok(Self { space: space.clone(), ep, words, recent })
    }

    /// Who this is.
    pub fn peer(&self) -> PeerId {
        self.ep.me()
    }

    /// Strikes this client off.
    pub fn leave(&self) {
        strike_off(&self.space, self.peer());
    }

    pub(crate) fn beat(&self) {
        self.recent.store(self.space.now().0, Relaxed);
    }

    fn own(&self, word: ClientWord) -> u64 {
        index(TABLE.client(TABLE.slot(self.peer()), word))
    }
}

/// Nothing that stands in the records of `peer` counts any more. It must be dead, or this process its keeper.
fn strike_off(space: &ShmSpace, peer: PeerId) {
    let owner = index(TABLE.owner(TABLE.slot(peer)));
    let words = words(space);
    let _ = words.words()[owner as usize].compare_exchange(u64::from(peer.0), 0, SeqCst, SeqCst);
}

/// The locks that `peer` has records for.
pub fn locks_of(space: &ShmSpace, peer: PeerId) -> Vec<u64> {
    let reader = reader(space);
    let client = reader.client(peer);
    let locks: HashSet<_> =
        client.iter().flat_map(|client| reader.records(client)).map(|record| record.claim.lock).collect();
    locks.into_iter().collect()
}

impl HolderSpace for LocalHolders {
    const IS_DIRECT: bool = true;

    #[inline(always)]
    fn layout(&self) -> &TableLayout {
        &TABLE
    }

    #[inline(always)]
    fn me(&self) -> PeerId {
        self.ep.me()
    }

    #[inline(always)]
    fn loader(&self) -> impl Fn(Word64) -> u64 + Copy {
        let words = self.words.words();
        move |word| words[index(word) as usize].load(Acquire)
    }

    #[inline(always)]
    fn store_now<const N: usize>(&self, _: u8, words: [(Word64, u64); N]) -> Result<(), FabricError> {
        if !self.ep.is_member() {
            return Err(FabricError::Evicted);
        }
        for (word, value) in words {
            self.words.write(index(word), value);
        }
        Ok(())
    }

    #[inline(always)]
    fn own_first_now(&self, record: u8) -> First {
        First(self.load_now(TABLE.record(TABLE.slot(self.me()), record.into()).word(RecordWord::First)))
    }

    fn is_alive_now(&self, peer: PeerId) -> bool {
        self.space.is_alive(peer)
    }

    #[inline(always)]
    fn confirm_now(&self, _: u8) -> Result<(), FabricError> {
        if self.ep.is_member_seq_cst() { Ok(()) } else { Err(FabricError::Evicted) }
    }

    #[inline(always)]
    fn recent_now(&self) -> Time {
        Time(self.recent.load(Relaxed))
    }
}

impl MemberSpace for LocalHolders {
    async fn side(&self, peer: PeerId) -> Result<Side, FabricError> {
        Ok(side(self.load_now(TABLE.client(TABLE.slot(peer), ClientWord::Elsewhere))))
    }

    fn patience_ns(&self) -> u64 {
        PATIENCE_NS
    }
}

/// The side of a client whose word [`ClientWord::Elsewhere`] is this.
pub(super) const fn side(elsewhere: u64) -> Side {
    if elsewhere == 0 { Side::Local } else { Side::Remote }
}

/// One membership of this process.
pub struct LocalMember {
    pub(super) client: MemberClient<LocalEndpoint, LocalHolders>,
    pub(super) slots: SlotPool,
    /// Bit n: record n has been in use.
    used: AtomicU64,
    space: ShmSpace,
}

impl LocalMember {
    /// Joins `space`.
    ///
    /// # Errors
    /// If it has no room, or no server has ever opened it.
    pub fn join(space: &ShmSpace) -> Result<Self, LockError> {
        let unused = || LockError::Disconnected("its server has not opened it yet".to_owned());
        let budget = budget(space).ok_or_else(unused)?;
        let ep = space.endpoint().map_err(|error| LockError::TooManyClients(error.to_string()))?;
        let holders = LocalHolders::join(space, ep.clone(), None).map_err(LockError::from_fabric)?;
        let client = MemberClient::new(LocalEndpoint(ep), holders, LOCKS, Side::Local, budget);
        Ok(Self { client, slots: SlotPool::new(), used: AtomicU64::new(0), space: space.clone() })
    }

    #[inline(always)]
    pub(super) fn holders(&self) -> &LocalHolders {
        self.client.space()
    }

    /// Grants that a side may have in a row while the other waits.
    pub(super) fn budget(&self) -> u16 {
        budget(&self.space).unwrap_or_default()
    }

    /// Who this is.
    pub fn peer(&self) -> PeerId {
        self.holders().peer()
    }

    #[inline(always)]
    pub(super) fn is_in(&self) -> bool {
        self.holders().ep.is_member()
    }

    /// The directory of names.
    pub fn names(&self) -> lockwright_fabric::backend::shm::Names {
        self.holders().ep.names()
    }

    /// A free record.
    #[inline(always)]
    pub(super) fn claim(&self) -> Option<u8> {
        let record = self.slots.claim_own().or_else(|| self.slots.claim_shared())?;
        if self.used.load(Relaxed) >> record & 1 == 0 {
            self.use_first(record);
        }
        Some(record)
    }

    /// Says that `record` is in use from now on. An addition, since threads may do this at once.
    #[cold]
    fn use_first(&self, record: u8) {
        if self.used.fetch_or(1 << record, SeqCst) >> record & 1 == 0 {
            let word = self.holders().own(ClientWord::Used) as usize;
            self.holders().words.words()[word].fetch_add(1 << record, SeqCst);
        }
    }

    /// Whether a name that nobody has open can go: nobody holds or wants its lock.
    pub fn reclaim(&self, id: u64, token_base: u64) -> Reclaim {
        match block_on(self.client.last_token(id)) {
            Ok(Some(own_token)) => {
                Reclaim::Reuse { highest_token: own_token.saturating_add(token_base), own_token }
            }
            _ => Reclaim::Keep,
        }
    }

    /// Passes over the tickets below `ticket` that the dead of this side left at a lock; whether none is left.
    pub fn recover_below(&self, lock: u64, ticket: u64) -> bool {
        block_on(self.client.recover_below(lock, ticket)).unwrap_or(true)
    }

    /// Tickets that this side has given out.
    pub fn drawn(&self, lock: u64) -> u64 {
        block_on(self.client.drawn(lock)).unwrap_or(0)
    }

    /// Clears away after processes of this host that have died, and after clients of a server that has. Returns the locks of
    /// this side that they were at, each with the tickets given out.
    pub fn reap(&self) -> Vec<(u64, u64)> {
        let mut left = Vec::new();
        for dead in self.space.dead_clients() {
            let locks = locks_of(&self.space, dead.peer);
            strike_off(&self.space, dead.peer);
            for lock in locks {
                let drawn = self.drawn(lock);
                if !self.recover_below(lock, drawn) {
                    left.push((lock, drawn));
                }
            }
            let bases = |id| self.names().info(id).ok().flatten().map(|info| info.lock.token_base);
            let Ok(ids) = self.names().names_of(dead.peer) else { continue };
            let bases: Vec<_> = ids.into_iter().filter_map(|id| Some((id, bases(id)?))).collect();
            let settle = |id| {
                let base = bases.iter().find(|(of, _)| *of == id);
                base.map_or(Reclaim::Keep, |(_, base)| self.reclaim(id, *base))
            };
            if self.names().drop_all_of(dead.peer, settle).is_ok() {
                self.space.reap(dead.peer);
            }
        }
        left
    }
}

impl std::fmt::Debug for LocalMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalMember").field("peer", &self.peer()).finish_non_exhaustive()
    }
}

impl Drop for LocalMember {
    fn drop(&mut self) {
        if self.is_in() {
            self.holders().leave();
        }
    }
}
