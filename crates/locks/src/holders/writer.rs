//! Writing down what a client does: the order of the words.
//!
//! A record is filled in from behind: range, turn, mark, time, and the first word last. Who reads the first word before and
//! after the others, and finds it in use and unchanged, has read what was written together. A record is cleared by its first
//! word alone. That the record as a whole comes before the lock's own verb is `client`'s business.

use super::client::Holding;
use super::record::{First, Kind, RecordPlace, RecordWord, State};
use super::space::{HolderSpace, Order, RecordRules};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{FabricError, Time, Word64};
use std::marker::PhantomData;

/// Writes the records of one client.
#[derive(Clone, Debug)]
pub struct RecordWriter<S, R> {
    space: S,
    rules: PhantomData<R>,
}

/// The words of a keyed lock's record, in the order in which they are written.
#[inline(always)]
fn keyed<R: RecordRules>(at: RecordPlace, since: Time, first: First) -> [(Word64, u64); 3] {
    ordered::<R, 3>(at, [(RecordWord::Mark, 0), (RecordWord::Since, since.0), (RecordWord::First, first.0)])
}

/// The words of a range's record, likewise.
#[inline(always)]
fn range<R: RecordRules>(
    at: RecordPlace,
    holding: &Holding,
    since: Time,
    first: First,
) -> [(Word64, u64); 6] {
    let words = [
        (RecordWord::Start, holding.claim.start),
        (RecordWord::End, holding.claim.end),
        (RecordWord::Turn, holding.turn),
        (RecordWord::Mark, 0),
        (RecordWord::Since, since.0),
        (RecordWord::First, first.0),
    ];
    ordered::<R, 6>(at, words)
}

/// `words` in their order, or in a mutant's.
#[inline(always)]
fn ordered<R: RecordRules, const N: usize>(
    at: RecordPlace,
    mut words: [(RecordWord, u64); N],
) -> [(Word64, u64); N] {
    if !R::FIRST_WORD_IS_LAST {
        words.rotate_right(1);
    }
    if !R::MARKS_ARE_WIPED_FIRST {
        words.sort_by_key(|(word, _)| *word == RecordWord::Mark);
    }
    words.map(|(word, value)| (at.word(word), value))
}

impl<S: HolderSpace, R: RecordRules> RecordWriter<S, R> {
    /// Writes the records of `space`'s client.
    pub const fn new(space: S) -> Self {
        Self { space, rules: PhantomData }
    }

    /// The space.
    #[inline(always)]
    pub const fn space(&self) -> &S {
        &self.space
    }

    #[inline(always)]
    pub(super) fn place(&self, record: u8) -> RecordPlace {
        let layout = self.space.layout();
        layout.record(layout.slot(self.space.me()), u64::from(record))
    }

    #[inline(always)]
    fn filled(&self, kind: Kind, holding: &Holding, before: First) -> First {
        let version = self.space.layout().next_version(before);
        First::new(holding.state, kind, &holding.claim, version)
    }

    /// Fills a record in, which is free or about the same lock.
    ///
    /// # Errors
    /// If this client was evicted.
    pub async fn fill(&self, record: u8, kind: Kind, holding: &Holding) -> Result<(), FabricError> {
        let space = &self.space;
        let first = self.filled(kind, holding, space.own_first(record).await?);
        let (at, since) = (self.place(record), space.recent().await);
        match kind {
            Kind::Keyed => space.store(record, keyed::<R>(at, since, first), Order::Verbs).await,
            // A range is held without a verb on its word: what follows may be a message.
            Kind::Range => space.store(record, range::<R>(at, holding, since, first), Order::Messages).await,
        }
    }

    /// Changes state and mode of a keyed lock's record, which is in use. What names the grant stays.
    ///
    /// # Errors
    /// If this client was evicted.
    pub async fn restate(&self, record: u8, state: State, claim: &Claim) -> Result<(), FabricError> {
        let version = self.space.own_first(record).await?.version();
        let first = First::new(state, Kind::Keyed, claim, version);
        self.space.store(record, [(self.place(record).word(RecordWord::First), first.0)], Order::Verbs).await
    }

    /// Clears a record.
    ///
    /// # Errors
    /// If this client was evicted.
    pub async fn clear(&self, record: u8) -> Result<(), FabricError> {
        let freed = self.space.own_first(record).await?.freed();
        let word = self.place(record).word(RecordWord::First);
        self.space.store(record, [(word, freed.0)], Order::Verbs).await
    }

    /// Adds to a record what names its grant.
    ///
    /// # Errors
    /// If this client was evicted.
    pub async fn mark(&self, record: u8, mark: u64) -> Result<(), FabricError> {
        let word = self.place(record).word(RecordWord::Mark);
        self.space.store(record, [(word, mark)], Order::Verbs).await
    }

    /// [`fill`](Self::fill), where the space is direct.
    ///
    /// # Errors
    /// If this client was evicted.
    #[inline(always)]
    pub fn fill_now(&self, record: u8, kind: Kind, holding: &Holding) -> Result<(), FabricError> {
        let space = &self.space;
        let first = self.filled(kind, holding, space.own_first_now(record));
        let (at, since) = (self.place(record), space.recent_now());
        match kind {
            Kind::Keyed => space.store_now(record, keyed::<R>(at, since, first)),
            Kind::Range => space.store_now(record, range::<R>(at, holding, since, first)),
        }
    }

    /// [`clear`](Self::clear), likewise.
    ///
    /// # Errors
    /// If this client was evicted.
    #[inline(always)]
    pub fn clear_now(&self, record: u8) -> Result<(), FabricError> {
        let freed = self.space.own_first_now(record).freed();
        self.space.store_now(record, [(self.place(record).word(RecordWord::First), freed.0)])
    }

    /// [`mark`](Self::mark), likewise.
    ///
    /// # Errors
    /// If this client was evicted.
    #[inline(always)]
    pub fn mark_now(&self, record: u8, mark: u64) -> Result<(), FabricError> {
        let word = self.place(record).word(RecordWord::Mark);
        self.space.store_now(record, [(word, mark)])
    }
}
