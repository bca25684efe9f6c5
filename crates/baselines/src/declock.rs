//! DecLock's cooperative queue-notify lock (Zhang, Cheng, Chen, Wei, Chen: "DecLock: A Case of Decoupled Locking for
//! Disaggregated Memory", arXiv 2505.17641): a queue at the memory node, kept by fetch-and-add, and grants by message from
//! client to client. Only 8-byte verbs.
//!
//! | offset | bits | field | meaning |
//! |---|---|---|---|
//! | 0 | 0–15 | size | clients in the queue: holders in front, waiters behind |
//! | 0 | 16–31 | writers | how many of them are exclusive |
//! | 0 | 32–63 | head | position of the first; rises for ever |
//! | 8 + 8·slot | 0–15 | lap | which time around this entry is of; an entry of another lap is not there |
//! | | 16–17 | mode | 1 shared, 2 exclusive |
//! | | 32–63 | peer | who waits at this position |
//!
//! | header | state |
//! |---|---|
//! | size = 0 | free |
//! | size > 0, writers = 0 | all in the queue hold it, shared |
//! | writers > 0 | the first holds it, and so do shared ones behind it, up to the first exclusive one |
//!
//! One fetch-and-add joins the queue and says whether the lock is granted; who must wait writes an entry. One fetch-and-add
//! leaves it; who leaves grants the lock to the next by message. Holders who never waited have no entries, so a reader that
//! leaves counts the writers' entries to tell an entry that is still being written from one that never will be.
//!
//! Not here: the reset of a lock whose queue overflows or whose client crashed, which needs an answer of every client (there is
//! room for every client, and no recovery); the queue of clients of one machine in front of this one, with its time stamps.
//! The published code reads the whole queue by one READ with the fetch-and-add that leaves; a verb of this fabric is a word, so
//! a writer reads the entry behind its own, which it knows, and a reader those it needs in a second batch.

use lockwright_fabric::observe::Mode;
use lockwright_fabric::{
    Addr, Cond, Endpoint, FabricError, MAX_BATCH, Message, Needs, PeerId, RawVerb, Wait, Word64,
};
use lockwright_locks::{
    Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use std::marker::PhantomData;

/// The queue-notify lock, with the rules of `R`: the paper's, or a mutant's.
#[derive(Debug)]
pub struct DecLock<R = AsShipped>(PhantomData<R>);

/// Where the mutants differ from it.
pub trait Rules: std::fmt::Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// A reader is granted the lock at once only if no writer holds or waits.
    const READER_SEES_WRITERS: bool = true;
    /// A writer that leaves waits until the client behind it has written its entry.
    const WRITER_WAITS_FOR_ENTRY: bool = true;
    /// A reader that leaves looks for as many writers' entries as there are writers.
    const READER_COUNTS_WRITERS: bool = true;
    /// An entry of an earlier lap is not there.
    const CHECKS_LAP: bool = true;
}

/// The rules that are shipped.
#[derive(Clone, Copy, Debug)]
pub struct AsShipped;

impl Rules for AsShipped {
    const NAME: &'static str = "declock";
}

/// Its tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecLockParams {
    /// Entries of a lock's queue, a power of two: the most clients there can be.
    pub capacity: u32,
}

impl Default for DecLockParams {
    fn default() -> Self {
        Self { capacity: 256 }
    }
}

impl DecLockParams {
    /// Bytes of a lock.
    fn stride(&self) -> u64 {
        8 + 8 * u64::from(self.capacity)
    }
}

impl<R: Rules> Protocol for DecLock<R> {
    type Params = DecLockParams;
    type Client<E: Endpoint> = DecLockClient<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "queue at the memory node, granted by message",
        source: "DecLock (arXiv 2505.17641)",
        offers: Offers { shared: true, ..Offers::NONE },
    };

    fn needs(_: &DecLockParams) -> Needs {
        Needs { messages: true, global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, params: &DecLockParams) -> u64 {
        space.table_bytes(params.stride())
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &DecLockParams) -> DecLockClient<E, R> {
        DecLockClient { ep, space: *space, params: params.clone(), rules: PhantomData }
    }

    fn most_clients(params: &DecLockParams) -> usize {
        params.capacity as usize
    }

    /// The head rises and entries stay where they are.
    fn quiet_mask(_: &Space, params: &DecLockParams, addr: Addr) -> u64 {
        if addr.offset.is_multiple_of(params.stride()) { ONE_PASSES - 1 } else { 0 }
    }

    fn tune(params: &mut DecLockParams, name: &str, value: u64) -> bool {
        match (name, u32::try_from(value)) {
            ("capacity", Ok(capacity)) if capacity.is_power_of_two() && capacity <= 1 << 15 => {
                params.capacity = capacity;
                true
            }
            _ => false,
        }
    }

    fn message_name(_: u32) -> &'static str {
        "Grant"
    }
}

/// One client more in the queue.
const ONE_JOINS: u64 = 1;
/// One of them exclusive.
const ONE_WRITES: u64 = 1 << 16;
/// The head is one further.
const ONE_PASSES: u64 = 1 << 32;

const SHARED: u64 = 1 << 16;
const EXCLUSIVE: u64 = 2 << 16;
const MODE: u64 = 3 << 16;
const LAP: u64 = 0xffff;

/// "It is yours", to a waiter.
const GRANT: u32 = 1;

/// A lock's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header(u64);

impl Header {
    fn size(self) -> u32 {
        (self.0 & 0xffff) as u32
    }

    fn writers(self) -> u32 {
        (self.0 >> 16 & 0xffff) as u32
    }

    fn head(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecLockGrant {
    lock: u64,
    mode: Mode,
    /// Its position in the queue. Of a writer, the head while it holds the lock.
    at: u32,
}

impl Grant for DecLockGrant {}

/// A client of the lock.
#[derive(Clone, Debug)]
pub struct DecLockClient<E, R> {
    ep: E,
    space: Space,
    params: DecLockParams,
    rules: PhantomData<R>,
}

impl<E: Endpoint, R: Rules> LockClient for DecLockClient<E, R> {
    type Grant = DecLockGrant;

    async fn acquire(&self, want: Want) -> Result<DecLockGrant, Denied> {
        if want.patience != Patience::Forever {
            return Err(Denied::Unsupported(&Reason(
                "a client that has joined DecLock's queue cannot give up",
            )));
        }
        let (lock, mode) = (want.claim.lock, want.claim.mode);
        let (joins, entry) = match mode {
            Mode::Shared => (ONE_JOINS, SHARED),
            Mode::Exclusive => (ONE_JOINS + ONE_WRITES, EXCLUSIVE),
        };
        let found = Header(self.ep.go(self.header(lock).fetch_add(joins)).await?);
        let at = found.head().wrapping_add(found.size());
        let among_readers = mode == Mode::Shared && (found.writers() == 0 || !R::READER_SEES_WRITERS);
        if found.size() > 0 && !among_readers {
            let entry = u64::from(self.lap(at)) | entry | u64::from(self.ep.me().0) << 32;
            self.ep.go(self.slot(lock, at).write(entry)).await?;
            let granted =
                |_, message: &Message| (message.lock == lock && message.kind == GRANT).then_some(());
            self.ep.recv(granted).await;
        }
        Ok(DecLockGrant { lock, mode, at })
    }

    async fn release(&self, grant: DecLockGrant) -> Result<(), Lost> {
        match grant.mode {
            Mode::Exclusive => self.writer_leaves(grant).await?,
            Mode::Shared => self.reader_leaves(grant.lock).await?,
        }
        Ok(())
    }
}

impl<E: Endpoint, R: Rules> DecLockClient<E, R> {
    /// Every client behind a writer waits, and has written an entry or will. The first is granted the lock, and if that is a
    /// reader, all readers up to the next writer.
    async fn writer_leaves(&self, DecLockGrant { lock, at, .. }: DecLockGrant) -> Result<(), FabricError> {
        let next = at.wrapping_add(1);
        let leaves = self.header(lock).fetch_add(ONE_PASSES.wrapping_sub(ONE_JOINS + ONE_WRITES));
        let (found, first) = self.ep.go((leaves, self.slot(lock, next).read())).await?;
        let waiting = Header(found).size() - 1;
        if waiting == 0 || (!R::WRITER_WAITS_FOR_ENTRY && !self.is_of(first, next)) {
            return Ok(());
        }
        let first = self.entry(lock, next, first).await?;
        self.grant(lock, first).await?;
        if first & MODE == EXCLUSIVE || waiting == 1 {
            return Ok(());
        }
        let behind = self.entries(lock, next.wrapping_add(1), waiting - 1).await?;
        for (place, entry) in behind.into_iter().enumerate() {
            let entry = self.entry(lock, next.wrapping_add(1 + place as u32), entry).await?;
            if entry & MODE == EXCLUSIVE {
                break;
            }
            self.grant(lock, entry).await?;
        }
        Ok(())
    }

    /// If a writer comes next, the lock is its. Next may also be a reader who holds the lock, with or without an entry.
    async fn reader_leaves(&self, lock: u64) -> Result<(), FabricError> {
        let leaves = self.header(lock).fetch_add(ONE_PASSES.wrapping_sub(ONE_JOINS));
        let found = Header(self.ep.go(leaves).await?);
        let (next, behind, writers) = (found.head().wrapping_add(1), found.size() - 1, found.writers());
        if writers == 0 {
            return Ok(());
        }
        loop {
            let locals = [lock, u64::from(next), u64::from(behind), u64::from(writers)];
            self.ep.mark("declock looks for writers", &locals);
            let entries = self.entries(lock, next, behind).await?;
            if self.is_of(entries[0], next) {
                return if entries[0] & MODE == EXCLUSIVE {
                    self.grant(lock, entries[0]).await
                } else {
                    Ok(())
                };
            }
            let places = || entries.iter().zip(0..).map(|(entry, place)| (*entry, next.wrapping_add(place)));
            // The queue went on past a position behind the next one: that was no writer, for only this client would have
            // granted it the lock.
            if places().any(|(entry, at)| self.is_later(entry, at)) {
                return Ok(());
            }
            let seen = places().filter(|(entry, at)| self.is_of(*entry, *at) && entry & MODE == EXCLUSIVE);
            if seen.count() as u32 == writers || !R::READER_COUNTS_WRITERS {
                return Ok(());
            }
        }
    }

    /// The entry at `at`, which was `seen` and is waited for if it is not there.
    async fn entry(&self, lock: u64, at: u32, seen: u64) -> Result<u64, FabricError> {
        if self.is_of(seen, at) {
            return Ok(seen);
        }
        let written = Cond::Eq { mask: u128::from(LAP), value: u128::from(self.lap(at)) };
        let wait: Wait<u64> = self.slot(lock, at).until(written);
        let waited = self.ep.wait_until(wait).await?;
        Ok(waited.value)
    }

    /// So many entries from `at`, as they are.
    async fn entries(&self, lock: u64, at: u32, count: u32) -> Result<Vec<u64>, FabricError> {
        let reads: Vec<RawVerb> =
            (0..count).map(|place| self.slot(lock, at.wrapping_add(place)).read().raw()).collect();
        let mut entries = Vec::with_capacity(reads.len());
        for batch in reads.chunks(MAX_BATCH) {
            let read = self.ep.go(batch).await?;
            entries.extend(read.iter().map(|entry| *entry as u64));
        }
        Ok(entries)
    }

    async fn grant(&self, lock: u64, entry: u64) -> Result<(), FabricError> {
        self.ep.send(PeerId((entry >> 32) as u32), Message::new(lock, GRANT, &[])).await
    }

    fn header(&self, lock: u64) -> Word64 {
        Word64::at(self.space.place(lock, self.params.stride()))
    }

    fn slot(&self, lock: u64, at: u32) -> Word64 {
        let slot = u64::from(at % self.params.capacity);
        Word64::at(self.space.place(lock, self.params.stride()).plus(8 + 8 * slot))
    }

    /// Which time around position `at` is. The first is 1: memory starts as zero.
    fn lap(&self, at: u32) -> u16 {
        (at / self.params.capacity) as u16 + 1
    }

    /// Whether `entry` was written for position `at`.
    fn is_of(&self, entry: u64, at: u32) -> bool {
        let lap = (entry & LAP) as u16;
        lap == self.lap(at) || (!R::CHECKS_LAP && entry != 0)
    }

    /// Whether `entry`, found where that of position `at` would be, is of a later lap.
    fn is_later(&self, entry: u64, at: u32) -> bool {
        let lap = (entry & LAP) as u16;
        (lap.wrapping_sub(self.lap(at)) as i16) > 0
    }
}
