//! The holder table of a space in shared memory: who holds and who waits, written down in the space itself. `ls` shows it,
//! and a waiter looks at it before it takes a lock away from a holder (`lockwright_locks::holders` says why the order of
//! these writes is safe).
//!
//! The table is region 1 of the space, and this CPU loads and stores its words itself. A process that has died is seen by
//! its pidfd, at once. One that is stopped is suspected when all but the last quarter of its lease is over; if it shows no
//! life until the end, it is evicted (`lockwright_locks::holders::liveness`). A living one answers with its next heartbeat, of
//! which there is one per quarter.

use super::members::NAMES;
use super::ranges;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Process, ShmEndpoint, ShmSpace, SpaceError, WordSlice};
use lockwright_fabric::{Addr, Batch, Endpoint, FabricError, NodeId, PeerId, RegionId, Time, Word64};
use lockwright_locks::holders::index_layout::IndexLayout;
use lockwright_locks::holders::liveness::{self, Liveness};
use lockwright_locks::holders::membership;
use lockwright_locks::holders::record::{ClientWord, First, HEARTBEATS, MAX_RECORDS, RecordWord};
use lockwright_locks::holders::{
    ClientRecord, HolderRecord, HolderSpace, HolderTable, RangeSpace, State, TableLayout, TableReader,
};
use lockwright_locks::shiftlock::versioned::Versioned;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// Client slots of a space.
pub(crate) const SLOTS: u64 = 1024;
/// Records of a client.
pub(crate) const RECORDS: u64 = MAX_RECORDS;
/// The table.
pub(crate) const LAYOUT: TableLayout =
    TableLayout::new(Addr { offset: 0, node: NodeId(0), region: RegionId(1) }, SLOTS, RECORDS);
/// The index of ranges: entries behind the table, of each client's records on a page of its own, and roots beside the counts of
/// changes.
const INDEX: IndexLayout = IndexLayout {
    entries: LAYOUT.directory(0).addr().plus(LAYOUT.bytes().next_multiple_of(4096)),
    roots: ranges::root(0).addr(),
    stride: ranges::STRIDE,
    worth: 64,
    every: 8,
};
/// Bytes of the table and the index's entries.
pub(crate) const BYTES: u64 = LAYOUT.bytes().next_multiple_of(4096) + IndexLayout::bytes(&LAYOUT);
/// Looks at a lock that is taken before its waiter queues: a few microseconds.
const SPINS: u32 = 100;

/// The holder table, as one client of this process writes and reads it.
pub(crate) type ShmTable = HolderTable<ShmHolders, Versioned>;

/// One client's access to the table of a space.
#[derive(Clone, Debug)]
pub(crate) struct ShmHolders {
    pub(crate) space: ShmSpace,
    pub(crate) ep: ShmEndpoint,
    words: WordSlice,
    heartbeat: Arc<Heartbeat>,
}

/// When this client last wrote its heartbeat.
#[derive(Debug)]
struct Heartbeat {
    last: AtomicU64,
    lease_ns: u64,
}

/// The words of a space's table.
fn words(space: &ShmSpace) -> WordSlice {
    space.word_slice(LAYOUT.directory(0), BYTES / 8)
}

#[inline(always)]
const fn index(word: Word64) -> u64 {
    word.addr().offset / 8
}

/// Reads all records.
pub(crate) fn reader(space: &ShmSpace) -> TableReader<impl Fn(Word64) -> u64 + use<>> {
    let words = words(space);
    TableReader::new(LAYOUT, move |word| words.read(index(word)))
}

/// Allocates the part of the table that every client reads, and what is of the slot of `peer`.
pub(crate) fn allocate(space: &ShmSpace, peer: PeerId) -> Result<(), SpaceError> {
    const CLIENT: u64 = 64 * (1 + RECORDS);
    let common = LAYOUT.bytes() - SLOTS * CLIENT;
    space.allocate(LAYOUT.directory(0).addr(), common)?;
    let (entries, bytes) = INDEX.of_client(&LAYOUT, LAYOUT.slot(peer));
    space.allocate(entries, bytes)?;
    space.allocate(LAYOUT.directory(0).addr().plus(common + LAYOUT.slot(peer) * CLIENT), CLIENT)
}

impl ShmHolders {
    /// Takes over the slot of `ep`: all records are free. The slot is this client's alone, and so are its bit and its words.
    pub(crate) fn join(space: &ShmSpace, ep: ShmEndpoint, lease_ns: u64) -> Result<Self, FabricError> {
        let (words, now) = (words(space), space.now());
        block_on(membership::join(&ep, &LAYOUT, now, lease_ns))?;
        let heartbeat = Arc::new(Heartbeat { last: AtomicU64::new(now.0), lease_ns });
        Ok(Self { space: space.clone(), ep, words, heartbeat })
    }

    /// The slot is nobody's any more.
    pub(crate) fn leave(&self) -> Result<(), FabricError> {
        block_on(membership::leave(&self.ep, &LAYOUT))
    }

    fn own(&self, word: ClientWord) -> Word64 {
        LAYOUT.client(LAYOUT.slot(self.ep.me()), word)
    }

    /// Names the client's dependent process. Its start time comes first: a pid without it would be another process's.
    pub(crate) fn set_dependent(&self, process: Process) -> Result<(), FabricError> {
        let (pid, start) = (self.own(ClientWord::DependentPid), self.own(ClientWord::DependentStart));
        block_on(self.ep.go([pid.write(0), start.write(process.start), pid.write(process.pid.into())]))
            .map(drop)
    }

    /// Says, once for every record, that it is in use now and then. An addition, since threads may do this at once.
    pub(crate) fn use_record(&self, record: u8) -> Result<(), FabricError> {
        block_on(self.ep.go(self.own(ClientWord::Used).fetch_add(1 << record))).map(drop)
    }

    /// Shows that this client is alive, for which one thread of it is responsible. If that comes too late, it was evicted.
    pub(crate) fn beat(&self) -> Result<(), FabricError> {
        let now = self.space.now();
        self.words.write(index(self.own(ClientWord::Heartbeat)), now.0);
        self.heartbeat.last.store(now.0, Relaxed);
        self.confirm_now(0)
    }

    /// How long the client's heartbeats are apart, at most.
    pub(crate) fn is_late(&self, now: Time) -> bool {
        now.since(self.recent_now()) > self.heartbeat.lease_ns
    }

    #[cold]
    fn refute(&self, seen: Liveness) -> Result<(), FabricError> {
        let in_time = block_on(liveness::refute(&self.ep, self.own(ClientWord::Liveness), seen));
        if in_time.is_err() {
            self.space.evict(self.ep.me());
        }
        in_time?;
        if self.ep.is_member_seq_cst() { Ok(()) } else { Err(FabricError::Evicted) }
    }

    /// An error if this client was evicted.
    #[inline(always)]
    fn check(&self) -> Result<(), FabricError> {
        if self.ep.is_member() { Ok(()) } else { Err(FabricError::Evicted) }
    }

    /// Whether a client lives, by its process, its dependent process and its lease. One that has been silent for longer than
    /// its lease is evicted here; then its dependent process does not count any more, nor does it when others look later.
    pub(crate) fn lives(&self, client: &ClientRecord) -> bool {
        if !client.liveness.is_evicted() {
            if !self.space.is_alive(client.peer) {
                return has_dependent(client);
            }
            if !client.is_silent(None, self.space.now()) || !self.evict(client) {
                return true;
            }
        }
        self.space.evict(client.peer);
        false
    }

    #[cold]
    fn evict(&self, client: &ClientRecord) -> bool {
        let silent = async |client: &ClientRecord, since| client.is_silent(since, self.space.now());
        // A client that was evicted itself decides nothing about others.
        block_on(membership::evict(&self.ep, &LAYOUT, client, silent)).unwrap_or(false)
    }

    /// Reads all records.
    pub(crate) fn reader(&self) -> TableReader<impl Fn(Word64) -> u64 + '_> {
        TableReader::new(LAYOUT, self.loader())
    }

    /// Takes a range away from its holder, who finds its record revoked. `false` if it holds it no more.
    pub(crate) fn revoke(&self, record: &HolderRecord) -> Result<bool, FabricError> {
        let word = LAYOUT.record(LAYOUT.slot(record.peer), record.record).word(RecordWord::First);
        if !matches!(record.state, State::Held | State::Upgrading) {
            return Ok(false);
        }
        let (held, revoked) = (record.first.0, record.first.in_state(State::Revoked).0);
        Ok(block_on(self.ep.go(word.cas(held, revoked)))? == held)
    }
}

impl HolderSpace for ShmHolders {
    const IS_DIRECT: bool = true;
    const WAITERS_ARE_GIVEN_TIME: bool = true;

    #[inline(always)]
    fn layout(&self) -> &TableLayout {
        &LAYOUT
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
        self.check()?;
        for (word, value) in words {
            self.words.write(index(word), value);
        }
        Ok(())
    }

    #[inline(always)]
    fn own_first_now(&self, record: u8) -> First {
        let at = LAYOUT.record(LAYOUT.slot(self.ep.me()), u64::from(record));
        First(self.load_now(at.word(RecordWord::First)))
    }

    fn is_alive_now(&self, peer: PeerId) -> bool {
        self.reader().client(peer).is_some_and(|client| self.lives(&client))
    }

    #[inline(always)]
    fn confirm_now(&self, _: u8) -> Result<(), FabricError> {
        let liveness = Liveness(self.load_now(self.own(ClientWord::Liveness)));
        if liveness.is_alive() && self.ep.is_member_seq_cst() { Ok(()) } else { self.refute(liveness) }
    }

    #[inline(always)]
    fn recent_now(&self) -> Time {
        Time(self.heartbeat.last.load(Relaxed))
    }

    fn spins(&self) -> u32 {
        SPINS
    }
}

impl RangeSpace for ShmHolders {
    const HAS_INDEX: bool = true;

    #[inline(always)]
    fn index(&self) -> IndexLayout {
        INDEX
    }

    #[inline(always)]
    fn go_now<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        block_on(self.ep.go(batch))
    }

    fn gate(&self, lock: u64) -> u64 {
        ranges::gate(lock)
    }

    fn changes(&self, lock: u64) -> Word64 {
        ranges::changes(lock)
    }

    async fn swap(&self, word: Word64, old: u64, new: u64) -> Result<bool, FabricError> {
        Ok(self.ep.go(word.cas(old, new)).await? == old)
    }

    fn patience_ns(&self, _: u32) -> Option<u64> {
        Some(ranges::LOOK_NS)
    }
}

/// Between two heartbeats.
pub(crate) const fn period_ns(lease_ns: u64) -> u64 {
    lease_ns / HEARTBEATS as u64
}

/// Whether a client has a dependent process, one that works under its locks, which is not known to have ended.
pub(crate) fn has_dependent(client: &ClientRecord) -> bool {
    let (pid, start) = client.dependent;
    let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0);
    pid.is_some_and(|pid| !Process { pid, start }.has_ended())
}

const _: () = assert!(2 * NAMES <= 1 << 31, "a record has 31 bits for the lock");
