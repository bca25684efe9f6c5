//! The holder table in the explorer's memory: every load and store of a record's word is a step, and clients are killed or
//! stopped between any two.
//!
//! Left out are words that no case can tell apart: the directory, since nobody joins or leaves, and those words of a
//! record that the protocol at hand never reads. A store of such a word is no step.

use super::evictable::Evictable;
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, PeerId, RegionId, Time, Word64};
use lockwright_locks::holders::index_layout::IndexLayout;
use lockwright_locks::holders::record::{ClientWord, First, RecordWord, name_of};
use lockwright_locks::holders::{HolderSpace, Order, RangeSpace, TableLayout};

/// Which part of a holder table a protocol needs, and where the explorer has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The table as it is shipped.
    pub(crate) layout: TableLayout,
    /// Words of a record that clients read.
    words: &'static [RecordWord],
    /// Where they begin.
    first: u64,
}

/// Of keyed locks others read whether they are held, and by which queue member.
pub(crate) const KEYED: &[RecordWord] = &[RecordWord::First];
/// Of tickets, also which.
pub(crate) const TICKETS: &[RecordWord] = &[RecordWord::First, RecordWord::Turn];
/// Of ranges, also which and since when.
pub(crate) const RANGES: &[RecordWord] =
    &[RecordWord::First, RecordWord::Start, RecordWord::End, RecordWord::Turn];

impl Part {
    /// A table of so many clients and records, at byte `first` of the explorer's memory.
    pub(crate) const fn new(
        first: u64,
        clients: u64,
        records: u64,
        version_bits: u32,
        words: &'static [RecordWord],
    ) -> Self {
        // Where the table would be, which is nowhere: addresses of it must not be taken for the explorer's.
        let base = Addr { offset: 0, node: NodeId(0), region: RegionId(9) };
        let layout = TableLayout::new(base, clients, records).with_version_bits(version_bits);
        Self { layout, words, first }
    }

    /// Bytes that it takes.
    pub(crate) const fn bytes(&self) -> u64 {
        8 * self.layout.clients() * self.layout.records() * self.words.len() as u64
    }

    /// Whether a record's first word is at byte `offset` of the explorer's memory.
    pub(crate) const fn is_first_word(&self, offset: u64) -> bool {
        let Some(offset) = offset.checked_sub(self.first) else { return false };
        offset < self.bytes() && offset.is_multiple_of(8 * self.words.len() as u64)
    }

    /// Where a word of the table is; `None` if it is left out.
    pub(crate) fn place(&self, word: Word64) -> Option<Word64> {
        let (slot, record, word) = self.layout.locate(word)?;
        let index = self.words.iter().position(|stored| *stored == word)? as u64;
        let record = slot * self.layout.records() + record;
        let offset = self.first + 8 * (record * self.words.len() as u64 + index);
        Some(Word64::at(Addr::new(NodeId(0), offset)))
    }

    /// What a word of the directory holds: all clients are in, and have used all of their records.
    pub(crate) fn constant(&self, word: Word64) -> u64 {
        let all = |count| u64::MAX >> (64 - count);
        let (clients, records) = (self.layout.clients(), self.layout.records());
        let directory =
            (0..self.layout.directory_words()).find(|index| word == self.layout.directory(*index));
        if let Some(index) = directory {
            return all((clients - 64 * index).min(64));
        }
        let owner = (0..clients).find(|slot| word == self.layout.owner(*slot));
        let used = (0..clients).any(|slot| word == self.layout.client(slot, ClientWord::Used));
        owner.map_or(if used { all(records) } else { 0 }, |slot| slot + 1)
    }

    pub(crate) async fn load(&self, ep: &impl Endpoint, word: Word64) -> Result<u64, FabricError> {
        match self.place(word) {
            Some(place) => ep.go(place.read()).await,
            None => Ok(self.constant(word)),
        }
    }

    /// Word by word, in order.
    pub(crate) async fn store<const N: usize>(
        &self,
        ep: &impl Endpoint,
        words: [(Word64, u64); N],
    ) -> Result<(), FabricError> {
        let places = words.into_iter().filter_map(|(word, value)| Some((self.place(word)?, value)));
        let verbs: Vec<_> = places.map(|(place, value)| place.write(value).raw()).collect();
        if verbs.is_empty() {
            return Ok(());
        }
        ep.go(&verbs[..]).await.map(drop)
    }
}

/// One client's access to it on a fabric where the dead do nothing any more: their connection is destroyed, or their process has
/// ended, before another client takes them for dead.
#[derive(Clone, Debug)]
pub struct Fenced<E, X> {
    pub(crate) ep: E,
    pub(crate) part: Part,
    /// Who was dead from the beginning.
    pub(crate) dead: Option<PeerId>,
    /// What else its protocol has to know.
    pub(crate) more: X,
}

impl<E, X> Fenced<E, X> {
    /// Where the explorer has a word that it has.
    pub(crate) fn stored(&self, word: Word64) -> Word64 {
        self.part.place(word).expect("a word of the records that is stored")
    }
}

impl<E: Endpoint, X> HolderSpace for Fenced<E, X> {
    fn layout(&self) -> &TableLayout {
        &self.part.layout
    }

    fn me(&self) -> PeerId {
        self.ep.me()
    }

    async fn load(&self, word: Word64) -> Result<u64, FabricError> {
        self.part.load(&self.ep, word).await
    }

    async fn store<const N: usize>(
        &self,
        _: u8,
        words: [(Word64, u64); N],
        _: Order,
    ) -> Result<(), FabricError> {
        self.part.store(&self.ep, words).await
    }

    async fn own_first(&self, _: u8) -> Result<First, FabricError> {
        Ok(First(0))
    }

    async fn is_alive(&self, peer: PeerId) -> Result<bool, FabricError> {
        Ok(Some(peer) != self.dead && !self.ep.suspects(peer).await)
    }

    async fn confirm(&self, _: u8) -> Result<(), FabricError> {
        Ok(())
    }

    async fn recent(&self) -> Time {
        Time(0)
    }
}

/// One client's access to it.
#[derive(Clone, Debug)]
pub struct Explored<E> {
    pub(crate) ep: Evictable<E>,
    pub(crate) part: Part,
    pub(crate) ranges: Option<Ranges>,
}

/// Where the counts of changes of range locks begin, and how often a waiter looks by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranges {
    pub(crate) changes: u64,
    pub(crate) looks: u32,
    pub(crate) index: Option<IndexLayout>,
}

impl<E: Endpoint> Explored<E> {
    /// Loads a word of the table, or of the index, which is where it says.
    pub(super) async fn load_by(&self, ep: &impl Endpoint, word: Word64) -> Result<u64, FabricError> {
        let index = self.ranges.and_then(|ranges| ranges.index);
        match index {
            Some(index) if word.addr().region == index.entries.region => ep.go(word.read()).await,
            _ => self.part.load(ep, word).await,
        }
    }
}

impl<E: Endpoint> HolderSpace for Explored<E> {
    fn layout(&self) -> &TableLayout {
        &self.part.layout
    }

    fn me(&self) -> PeerId {
        self.ep.me()
    }

    async fn load(&self, word: Word64) -> Result<u64, FabricError> {
        self.part.load(&self.ep, word).await
    }

    async fn store<const N: usize>(
        &self,
        _: u8,
        words: [(Word64, u64); N],
        _: Order,
    ) -> Result<(), FabricError> {
        self.part.store(&self.ep, words).await
    }

    async fn own_first(&self, record: u8) -> Result<First, FabricError> {
        let layout = self.layout();
        if !layout.has_versions() {
            return Ok(First(0));
        }
        let at = layout.record(layout.slot(self.me()), u64::from(record));
        self.load(at.word(RecordWord::First)).await.map(First)
    }

    async fn is_alive(&self, peer: PeerId) -> Result<bool, FabricError> {
        Ok(!self.ep.is_evicted(peer).await?)
    }

    async fn confirm(&self, _: u8) -> Result<(), FabricError> {
        self.ep.confirm().await
    }

    async fn recent(&self) -> Time {
        Time(0)
    }
}

/// As one-sided spaces read it: several words at a time.
#[derive(Clone, Debug)]
pub struct InBatches<E>(pub(crate) Explored<E>);

impl<E: Endpoint> HolderSpace for InBatches<E> {
    const LOADS: usize = 4;

    fn layout(&self) -> &TableLayout {
        self.0.layout()
    }

    fn me(&self) -> PeerId {
        self.0.me()
    }

    async fn load(&self, word: Word64) -> Result<u64, FabricError> {
        self.0.load(word).await
    }

    async fn store<const N: usize>(
        &self,
        record: u8,
        words: [(Word64, u64); N],
        order: Order,
    ) -> Result<(), FabricError> {
        self.0.store(record, words, order).await
    }

    async fn own_first(&self, record: u8) -> Result<First, FabricError> {
        self.0.own_first(record).await
    }

    async fn is_alive(&self, peer: PeerId) -> Result<bool, FabricError> {
        self.0.is_alive(peer).await
    }

    async fn confirm(&self, record: u8) -> Result<(), FabricError> {
        self.0.confirm(record).await
    }

    async fn recent(&self) -> Time {
        self.0.recent().await
    }
}

impl<E: Endpoint> RangeSpace for Explored<E> {
    fn gate(&self, lock: u64) -> u64 {
        name_of(lock)
    }

    fn changes(&self, lock: u64) -> Word64 {
        let first = self.ranges.map_or(0, |ranges| ranges.changes);
        Word64::at(Addr::new(NodeId(0), first + 8 * name_of(lock)))
    }

    async fn swap(&self, word: Word64, old: u64, new: u64) -> Result<bool, FabricError> {
        let word = self.part.place(word).expect("a word of the records that is stored");
        Ok(self.ep.go(word.cas(old, new)).await? == old)
    }

    fn patience_ns(&self, looked: u32) -> Option<u64> {
        const PATIENCE_NS: u64 = 1_000_000;
        self.ranges.is_some_and(|ranges| looked < ranges.looks).then_some(PATIENCE_NS)
    }
}
