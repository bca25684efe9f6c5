//! What a record says of its acquisition: words of the holder table, as [`crate::holders::record`] has them.
//!
//! | acquisition | first word | turn | mark |
//! |---|---|---|---|
//! | about to draw a ticket, or just did | taking | 0 | 0 |
//! | waits | taking | 1 + its ticket | 0 |
//! | holds the lock alone | taking | 1 + its ticket | token |
//! | reads; out of the queue when its side serves a later ticket | held, shared | 1 + its ticket | token |
//!
//! From before a ticket is drawn until its side serves the next one, the first word names the lock, and the turn is 0 or the
//! ticket's. So a client that reads first word and turn meanwhile, in any order, finds the owner of the ticket.

use super::{MemberClient, MemberRules, MemberSpace};
use crate::holders::record::{First, Kind, RecordPlace, RecordWord, State};
use crate::holders::space::Order;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, FabricError, PeerId};

/// The turn of a record whose client may have drawn any ticket.
pub(super) const UNSETTLED: u64 = 0;

/// The turn of a record with this ticket.
pub(super) const fn turn(ticket: u64) -> u64 {
    ticket + 1
}

impl<E: Endpoint, S: MemberSpace, R: MemberRules> MemberClient<E, S, R> {
    pub(super) fn record_of(&self, peer: PeerId, record: u8) -> RecordPlace {
        let layout = self.space.layout();
        layout.record(layout.slot(peer), u64::from(record))
    }

    fn own(&self, record: u8) -> RecordPlace {
        self.record_of(self.space.me(), record)
    }

    /// Writes down what is asked for, before a ticket is drawn.
    #[inline(always)]
    pub(super) async fn announce(&self, record: u8, claim: &Claim) -> Result<(), FabricError> {
        let (at, since) = (self.own(record), self.space.recent().await);
        let version = self.space.layout().next_version(self.space.own_first(record).await?);
        let words = [
            (at.word(RecordWord::Turn), UNSETTLED),
            (at.word(RecordWord::Mark), 0),
            (at.word(RecordWord::Since), since.0),
            (at.word(RecordWord::First), First::new(State::Taking, Kind::Keyed, claim, version).0),
        ];
        self.space.store(record, words, Order::Verbs).await
    }

    /// Writes down which ticket was drawn.
    pub(super) async fn settle(&self, record: u8, ticket: u64) -> Result<(), FabricError> {
        let word = self.own(record).word(RecordWord::Turn);
        self.space.store(record, [(word, turn(ticket))], Order::Verbs).await
    }

    /// The same, and that the lock is held.
    #[inline(always)]
    pub(super) async fn settle_granted(
        &self,
        record: u8,
        ticket: u64,
        token: u64,
    ) -> Result<(), FabricError> {
        let at = self.own(record);
        let words = [(at.word(RecordWord::Turn), turn(ticket)), (at.word(RecordWord::Mark), token)];
        self.space.store(record, words, Order::Verbs).await
    }

    /// Says that the lock is read, which the next writer waits for.
    pub(super) async fn settle_reading(
        &self,
        record: u8,
        claim: &Claim,
        token: u64,
    ) -> Result<(), FabricError> {
        let (at, claim) = (self.own(record), Claim { mode: Mode::Shared, ..*claim });
        let version = self.space.own_first(record).await?.version();
        let words = [
            (at.word(RecordWord::Mark), token),
            (at.word(RecordWord::First), First::new(State::Held, Kind::Keyed, &claim, version).0),
        ];
        self.space.store(record, words, Order::Verbs).await
    }

    /// The record is free.
    #[inline(always)]
    pub(super) async fn clear(&self, record: u8) -> Result<(), FabricError> {
        let freed = self.space.own_first(record).await?.freed();
        let word = self.own(record).word(RecordWord::First);
        self.space.store(record, [(word, freed.0)], Order::Verbs).await
    }
}
