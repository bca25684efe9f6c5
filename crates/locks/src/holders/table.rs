//! The holder table: who holds and who waits, as one client writes and reads it.
//!
//! A look goes through the client directory, then through the records that a client has used, and reads of each its first
//! word; only what that does not settle is read as a whole, and the first word once more in the end. Whether a client is
//! alive is asked last, and only if one of its records matters: the records of the dead do not count.

use super::client::{DirectRecorder, Holding, Recorder};
use super::indexed::GateHold;
use super::listed::load_all;
use super::query::{BarsUpgrade, IsBlocked, IsHeld, IsUpgrading, IsWanted, Query, TooFew};
use super::range_changes::Barred;
use super::ranges::RangeRecorder;
use super::record::{
    ClientRecord, ClientWord, First, HolderRecord, Kind, RecordPlace, RecordWord, State, TableLayout,
    is_semaphore,
};
use super::space::{HolderSpace, Order, RangeSpace, RecordRules, bits};
use super::writer::RecordWriter;
use crate::protocol::{Denied, Reason};
use crate::shiftlock::Shipped;
use crate::shiftlock::layout::{Layout, Member};
use crate::shiftlock::lookup::{Fate, HolderLookup};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{FabricError, PeerId, Time, Word64};
use std::fmt::Debug;
use std::marker::PhantomData;

/// The table of space `S`, for locks with the entry `L`.
pub struct HolderTable<S, L, R = Shipped> {
    writer: RecordWriter<S, R>,
    entry: PhantomData<fn() -> L>,
}

impl<S: Debug, L, R> Debug for HolderTable<S, L, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HolderTable").finish_non_exhaustive()
    }
}

impl<S: Clone, L, R: Clone> Clone for HolderTable<S, L, R> {
    fn clone(&self) -> Self {
        Self { writer: self.writer.clone(), entry: PhantomData }
    }
}

/// How often a record is read again that changed meanwhile. Written faster than it can be read, it says nothing that lasts.
pub(super) const READS: usize = 16;

/// Reads the first word of a record that is not free, these of its other words, and the first word again. `None` if it
/// changed every time, or is free by now.
macro_rules! read_whole {
    ($space:expr, $at:expr, $first:expr, $words:expr, $rules:ident: $load:ident $(, .$await:tt)?) => {{
        let (space, at) = ($space, $at);
        let mut first = $first;
        let mut read = None;
        for _ in 0..READS {
            let mut values = [0; $words.len()];
            for (word, value) in $words.into_iter().zip(&mut values) {
                *value = space.$load(at.word(word))$(.$await?)?;
            }
            if !$rules::RECORDS_ARE_READ_TWICE {
                read = Some((first, values));
                break;
            }
            let again = First(space.$load(at.word(RecordWord::First))$(.$await?)?);
            if again == first {
                read = Some((first, values));
                break;
            }
            first = again;
            if first.state().is_none() {
                break;
            }
        }
        read
    }};
}

pub(super) use read_whole;

pub(super) const RANGE_WORDS: [RecordWord; 3] = [RecordWord::Start, RecordWord::End, RecordWord::Turn];
const OTHER_WORDS: [RecordWord; 5] =
    [RecordWord::Mark, RecordWord::Since, RecordWord::Start, RecordWord::End, RecordWord::Turn];

/// Whether a live client's record is what `query` looks for: the scan itself, word by word.
macro_rules! find_in_steps {
    ($space:expr, $layout:expr, $query:ident: $load:ident $is_alive:ident $(, .$await:tt)?) => {{
        let (space, layout) = ($space, $layout);
        for index in 0..layout.directory_words() {
            let slots = space.$load(layout.directory(index))$(.$await?)?;
            for slot in bits(slots).map(|bit| index * 64 + bit) {
                let Some(peer) = owner(space.$load(layout.owner(slot))$(.$await?)?) else { continue };
                let used = space.$load(layout.client(slot, ClientWord::Used))$(.$await?)?;
                for record in bits(used) {
                    let at = layout.record(slot, record);
                    let mut first = First(space.$load(at.word(RecordWord::First))$(.$await?)?);
                    if !$query.may_match(peer, record, first) {
                        continue;
                    }
                    let mut range = None;
                    if Q::READS_RANGE {
                        let start = space.$load(at.word(RecordWord::Start))$(.$await?)?;
                        let end = space.$load(at.word(RecordWord::End))$(.$await?)?;
                        // Most are apart, which takes no more than this to see.
                        if !$query.may_overlap(start, end) {
                            continue;
                        }
                        let read = read_whole!(space, at, first, RANGE_WORDS, R: $load $(, .$await)?);
                        let Some((seen, words)) = read else { continue };
                        if seen != first && !$query.may_match(peer, record, seen) {
                            continue;
                        }
                        (first, range) = (seen, Some(words));
                    }
                    if !$query.matches(first, range) {
                        continue;
                    }
                    if !space.$is_alive(peer)$(.$await?)? {
                        break; // the records of the dead do not count
                    }
                    if $query.settles(first, range) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }};
}

/// A space that is direct, with what loads its words at hand: looked up at every load, that would cost more than the load.
pub(super) struct Direct<'a, S, F> {
    pub(super) space: &'a S,
    pub(super) load: F,
}

impl<S: HolderSpace, F: Fn(Word64) -> u64> Direct<'_, S, F> {
    #[inline(always)]
    pub(super) fn load_now(&self, word: Word64) -> u64 {
        (self.load)(word)
    }

    fn is_alive_now(&self, peer: PeerId) -> bool {
        self.space.is_alive_now(peer)
    }
}

/// Whose a slot is.
#[inline(always)]
pub(super) fn owner(word: u64) -> Option<PeerId> {
    u32::try_from(word).ok().filter(|peer| *peer != 0).map(PeerId)
}

impl<S: HolderSpace, L: Layout, R: RecordRules> HolderTable<S, L, R> {
    /// The table of `space`.
    pub const fn new(space: S) -> Self {
        Self { writer: RecordWriter::new(space), entry: PhantomData }
    }

    /// What the space provides.
    #[inline(always)]
    pub const fn space(&self) -> &S {
        self.writer.space()
    }

    /// Writes this client's records.
    #[inline(always)]
    pub const fn writer(&self) -> &RecordWriter<S, R> {
        &self.writer
    }

    pub(super) async fn find<Q: Query>(&self, query: &mut Q) -> Result<bool, FabricError> {
        if S::IS_DIRECT {
            return self.find_now(query);
        }
        if S::LOADS > 1 {
            return self.find_in_batches(query).await;
        }
        find_in_steps!(self.space(), self.space().layout(), query: load is_alive, .await)
    }

    /// The same where a load is a round trip: as many words at a time as go out together.
    async fn find_in_batches<Q: Query>(&self, query: &mut Q) -> Result<bool, FabricError> {
        let (space, layout) = (self.space(), self.space().layout());
        let directory: Vec<_> = (0..layout.directory_words()).map(|index| layout.directory(index)).collect();
        let directory = load_all(space, &directory).await?;
        let slots = directory
            .into_iter()
            .zip(0_u64..)
            .flat_map(|(word, index)| bits(word).map(move |bit| index * 64 + bit));
        let slots: Vec<_> = slots.collect();
        let clients = |slot: &u64| [layout.owner(*slot), layout.client(*slot, ClientWord::Used)];
        let clients = load_all(space, &slots.iter().flat_map(clients).collect::<Vec<_>>()).await?;
        let mut records = Vec::new();
        for (slot, client) in slots.into_iter().zip(clients.chunks_exact(2)) {
            let Some(peer) = owner(client[0]) else { continue };
            records.extend(bits(client[1]).map(|record| (peer, record, layout.record(slot, record))));
        }
        let firsts: Vec<_> = records.iter().map(|(.., at)| at.word(RecordWord::First)).collect();
        let firsts = load_all(space, &firsts).await?;
        let mut dead = None;
        for ((peer, record, at), first) in records.into_iter().zip(firsts.into_iter().map(First)) {
            if Some(peer) == dead || !query.may_match(peer, record, first) {
                continue;
            }
            let found = match Q::READS_RANGE {
                true => self.read_range(at, first).await?,
                false => Some((first, None)),
            };
            let Some((first, range)) = found else { continue };
            if query.may_match(peer, record, first) && query.matches(first, range) {
                if !space.is_alive(peer).await? {
                    dead = Some(peer);
                } else if query.settles(first, range) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Range and turn of a record, in one round trip.
    async fn read_range(
        &self,
        at: RecordPlace,
        mut first: First,
    ) -> Result<Option<(First, Option<[u64; 3]>)>, FabricError> {
        let [start, end, turn] = RANGE_WORDS.map(|word| at.word(word));
        for _ in 0..READS {
            let read = self.space().load_all(&[start, end, turn, at.word(RecordWord::First)]).await?;
            let again = First(read[3]);
            if again == first || !R::RECORDS_ARE_READ_TWICE {
                return Ok(Some((first, Some([read[0], read[1], read[2]]))));
            }
            first = again;
        }
        Ok(None)
    }

    /// A record of `peer` as a whole; `None` if it is free.
    ///
    /// # Errors
    /// If the table's memory cannot be reached.
    pub async fn read(&self, peer: PeerId, record: u64) -> Result<Option<HolderRecord>, FabricError> {
        let layout = self.space().layout();
        let at = layout.record(layout.slot(peer), record);
        let first = First(self.space().load(at.word(RecordWord::First)).await?);
        if first.state().is_none() {
            return Ok(None);
        }
        let read = read_whole!(self.space(), at, first, OTHER_WORDS, R: load, .await);
        Ok(read.and_then(|read| decode(peer, record, read)))
    }
}

fn decode(peer: PeerId, record: u64, (first, words): (First, [u64; 5])) -> Option<HolderRecord> {
    let [mark, since, start, end, turn] = words;
    HolderRecord::decode(peer, record, [first.0, mark, since, start, end, turn])
}

/// Reads a table that this CPU reaches by itself, as `load` loads its words: for listings.
#[derive(Clone, Copy, Debug)]
pub struct TableReader<F> {
    layout: TableLayout,
    load: F,
}

impl<F: Fn(Word64) -> u64> TableReader<F> {
    /// A reader of the table at `layout`.
    pub const fn new(layout: TableLayout, load: F) -> Self {
        Self { layout, load }
    }

    /// The records of all clients that are in.
    pub fn clients(&self) -> impl Iterator<Item = ClientRecord> + '_ {
        let words = 0..self.layout.directory_words();
        let slots = words.flat_map(|index| {
            bits((self.load)(self.layout.directory(index))).map(move |bit| index * 64 + bit)
        });
        slots.filter_map(|slot| self.client(owner((self.load)(self.layout.owner(slot)))?))
    }

    /// The record of `peer`, if it is in.
    pub fn client(&self, peer: PeerId) -> Option<ClientRecord> {
        let slot = self.layout.slot(peer);
        let word = |word| (self.load)(self.layout.client(slot, word));
        let record = ClientRecord {
            peer,
            heartbeat: Time(word(ClientWord::Heartbeat)),
            lease_ns: word(ClientWord::Lease),
            used: word(ClientWord::Used),
            dependent: (word(ClientWord::DependentPid), word(ClientWord::DependentStart)),
            liveness: super::liveness::Liveness(word(ClientWord::Liveness)),
        };
        // Looked at last: what was read before is this client's.
        (owner((self.load)(self.layout.owner(slot))) == Some(peer)).then_some(record)
    }

    /// The holder records of a client that are in use.
    pub fn records(&self, client: &ClientRecord) -> impl Iterator<Item = HolderRecord> + '_ {
        let peer = client.peer;
        bits(client.used).filter_map(move |record| self.record(peer, record))
    }

    fn record(&self, peer: PeerId, record: u64) -> Option<HolderRecord> {
        let at = self.layout.record(self.layout.slot(peer), record);
        let first = First((self.load)(at.word(RecordWord::First)));
        first.state()?;
        let read = read_whole!(self, at, first, OTHER_WORDS, Shipped: load_now);
        read.and_then(|read| decode(peer, record, read))
    }

    fn load_now(&self, word: Word64) -> u64 {
        (self.load)(word)
    }
}

impl<S: HolderSpace, L: Layout, R: RecordRules> HolderTable<S, L, R> {
    #[inline(always)]
    pub(super) fn find_now<Q: Query>(&self, query: &mut Q) -> Result<bool, FabricError> {
        let direct = Direct { space: self.space(), load: self.space().loader() };
        find_in_steps!(&direct, self.space().layout(), query: load_now is_alive_now)
    }

    /// Whether clients that are alive have a record for a keyed lock, but for the queue member that asks, and no client that is
    /// dead has one: after the look that found no holder, for nothing but patience rests on this.
    fn is_left_to_the_living(&self, lock: u64, except: Member) -> bool {
        let reader = self.reader();
        let is_for = |record: &HolderRecord| {
            let asks = IsHeld::<L, R> { lock, except, of: PhantomData }.asks(record.peer, record.record);
            record.first.is_for(Kind::Keyed, lock) && !asks
        };
        let mut wanted = false;
        for client in reader.clients().filter(|client| reader.records(client).any(|record| is_for(&record))) {
            if !self.space().is_alive_now(client.peer) {
                return false;
            }
            wanted = true;
        }
        wanted
    }

    /// Whether a live client holds or wants `lock`, keyed or a range of it.
    pub fn is_wanted_now(&self, lock: u64) -> bool {
        self.find_now(&mut IsWanted(lock)).unwrap_or(true)
    }

    /// All records.
    pub fn reader(&self) -> TableReader<impl Fn(Word64) -> u64 + '_> {
        TableReader::new(*self.space().layout(), self.space().loader())
    }
}

impl<S: HolderSpace, L: Layout, R: RecordRules> HolderLookup for HolderTable<S, L, R> {
    async fn fate(&self, lock: u64, except: Member) -> Result<Fate, FabricError> {
        const { assert!(S::IS_DIRECT || !S::WAITERS_ARE_GIVEN_TIME, "who waits is read without waiting") };
        Ok(match self.is_held(lock, except).await? {
            true => Fate::Held,
            false if S::WAITERS_ARE_GIVEN_TIME && self.is_left_to_the_living(lock, except) => Fate::Wanted,
            false => Fate::Dead,
        })
    }

    async fn is_held(&self, lock: u64, except: Member) -> Result<bool, FabricError> {
        self.find(&mut IsHeld::<L, R> { lock, except, of: PhantomData }).await
    }

    async fn is_upgrading(&self, lock: u64, except: Member) -> Result<bool, FabricError> {
        self.find(&mut IsUpgrading(IsHeld::<L, R> { lock, except, of: PhantomData })).await
    }
}

impl<S: HolderSpace, L: Layout, R: RecordRules> Recorder for HolderTable<S, L, R> {
    async fn write(&self, record: u8, holding: Option<Holding>) -> Result<(), FabricError> {
        match holding {
            Some(holding) => self.writer.fill(record, Kind::Keyed, &holding).await,
            None => self.writer.clear(record).await,
        }
    }

    async fn granted(&self, record: u8, mark: u64) -> Result<(), FabricError> {
        self.writer.mark(record, mark).await?;
        self.space().confirm(record).await
    }

    async fn restate(&self, record: u8, state: State, claim: Claim) -> Result<(), FabricError> {
        self.writer.restate(record, state, &claim).await
    }

    fn spins(&self) -> u32 {
        self.space().spins()
    }
}

impl<S: HolderSpace, L: Layout, R: RecordRules> DirectRecorder for HolderTable<S, L, R> {
    #[inline(always)]
    fn write_now(&self, record: u8, holding: Option<Holding>) -> Result<(), FabricError> {
        match holding {
            Some(holding) => self.writer.fill_now(record, Kind::Keyed, &holding),
            None => self.writer.clear_now(record),
        }
    }

    #[inline(always)]
    fn granted_now(&self, record: u8, mark: u64) -> Result<(), FabricError> {
        self.writer.mark_now(record, mark)?;
        self.space().confirm_now(record)
    }
}

impl<S: RangeSpace, L: Layout, R: RecordRules> RangeRecorder for HolderTable<S, L, R> {
    async fn write_range(&self, record: u8, holding: Option<Holding>) -> Result<(), FabricError> {
        match holding {
            Some(holding) => self.writer.fill(record, Kind::Range, &holding).await,
            None => self.writer.clear(record).await,
        }
    }

    async fn is_range_held(&self, record: u8, claim: Claim) -> Result<bool, FabricError> {
        let word = self.writer.place(record).word(RecordWord::First);
        let first = First(self.space().load(word).await?);
        let held = matches!(first.state(), Some(State::Held | State::Upgrading));
        Ok(held && first.is_for(Kind::Range, claim.lock))
    }

    async fn bars_upgrade(&self, record: u8, claim: Claim, inside: GateHold) -> Result<Barred, FabricError> {
        let mine = (self.space().me(), u64::from(record));
        let mut bars = BarsUpgrade { mine, claim, upgrading: false };
        if !self.find_range(&mut bars, record, claim, inside).await? {
            return Ok(Barred::No);
        }
        bars.upgrading = true;
        let upgrading = self.find_range(&mut bars, record, claim, inside).await?;
        Ok(if upgrading { Barred::ByAnUpgrade } else { Barred::ByReaders })
    }

    async fn swap_range(
        &self,
        record: u8,
        from: (State, Mode),
        to: (State, Mode),
    ) -> Result<bool, FabricError> {
        let word = self.writer.place(record).word(RecordWord::First);
        let first = First(self.space().load(word).await?);
        if (first.state(), first.mode()) != (Some(from.0), from.1) {
            return Ok(false);
        }
        self.space().swap(word, first.0, first.in_state(to.0).in_mode(to.1).0).await
    }

    async fn narrow_range(&self, record: u8, to: Claim) -> Result<(), FabricError> {
        let at = self.writer.place(record);
        // One of them is what it was.
        let words = [(at.word(RecordWord::Start), to.start), (at.word(RecordWord::End), to.end)];
        self.space().store(record, words, Order::Messages).await
    }

    async fn is_blocked(
        &self,
        record: u8,
        claim: Claim,
        turn: u64,
        inside: GateHold,
    ) -> Result<bool, Denied> {
        let mine = (self.space().me(), u64::from(record));
        if !is_semaphore(claim.lock) {
            let mut query = IsBlocked { mine, claim, turn };
            return Ok(self.find_range(&mut query, record, claim, inside).await?);
        }
        let mut query = TooFew { mine, claim, turn, held: 0, other_limit: false };
        let blocked = self.find(&mut query).await?;
        match query.other_limit {
            true => Err(Denied::BadRequest(&Reason("others use this semaphore with another limit"))),
            false => Ok(blocked),
        }
    }

    async fn enter(&self, record: u8, claim: Claim, inside: GateHold) -> Result<(), FabricError> {
        self.enter_index(record, claim, inside)
    }

    fn entered_elsewhere(&self, record: u8, lock: u64) -> Option<u64> {
        self.indexed_elsewhere(record, lock)
    }

    async fn take_out(&self, record: u8, lock: u64, inside: GateHold) -> Result<(), FabricError> {
        self.leave_index(record, lock, inside)
    }

    fn gate(&self, lock: u64) -> u64 {
        self.space().gate(lock)
    }

    fn changes(&self, lock: u64) -> Word64 {
        self.space().changes(lock)
    }

    fn patience_ns(&self, looked: u32) -> Option<u64> {
        self.space().patience_ns(looked)
    }
}
