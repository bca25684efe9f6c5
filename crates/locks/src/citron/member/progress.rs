//! What a record says of its request's nodes, for repairs: the record's last word.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–6 | occupied | so many nodes of the cover are occupied and their ancestors notified, from the left |
//! | 7 | changing | the client is about to change words of the tree, or just did: any part of the request may be there |
//! | 8–63 | sequence | one more with every change of this word |
//!
//! The cover is not written down: it follows from lock, mode and range, which the record has. They are written before
//! *changing* is, and stay until nothing is occupied.

use super::{MemberRules, TreeClient, TreeSpace};
use crate::holders::record::{First, Kind, RecordPlace, RecordWord, State};
use crate::holders::space::Order;
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, Field, PeerId};
use std::sync::atomic::Ordering::SeqCst;

const OCCUPIED: Field = Field { shift: 0, bits: 7 };
const CHANGING: Field = Field { shift: 7, bits: 1 };
const SEQUENCE: Field = Field { shift: 8, bits: Progress::SEQUENCE_BITS };

const _: () = assert!(Field::fill(&[OCCUPIED, CHANGING, SEQUENCE], 64), "no overlap and no gap");
const _: () = assert!(crate::citron::MAX_K as u128 <= OCCUPIED.max());

/// The last word of a range's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress(pub u64);

impl Progress {
    /// Bits of the sequence.
    pub const SEQUENCE_BITS: u32 = 56;

    /// Nodes that are occupied, if the client is not changing that.
    pub const fn occupied(self) -> usize {
        OCCUPIED.get(self.0 as u128) as usize
    }

    /// Whether the client is changing words.
    pub const fn is_changing(self) -> bool {
        CHANGING.get(self.0 as u128) != 0
    }

    /// Whether words of the tree may have something of this request.
    pub const fn may_have_left(self) -> bool {
        self.is_changing() || self.occupied() > 0
    }

    /// The same, being changed.
    #[must_use]
    pub(super) const fn in_change(self) -> Self {
        Self(self.0 | CHANGING.mask() as u64)
    }

    const fn next(self, occupied: usize, changing: bool, bits: u32) -> Self {
        let sequence = (SEQUENCE.get(self.0 as u128) + 1) & ((1 << bits) - 1);
        let word = OCCUPIED.put(occupied as u128) | CHANGING.put(changing as u128) | SEQUENCE.put(sequence);
        Self(word as u64)
    }
}

impl<E: Endpoint, S: TreeSpace, R: MemberRules> TreeClient<E, S, R> {
    /// What was last written.
    pub fn progress(&self, record: u8) -> Progress {
        Progress(self.written[usize::from(record)].load(SeqCst))
    }

    fn next(&self, record: u8, occupied: usize, changing: bool) -> u64 {
        let next = self.progress(record).next(occupied, changing, self.space.sequence_bits());
        self.written[usize::from(record)].store(next.0, SeqCst);
        next.0
    }

    pub(super) fn record(&self, peer: PeerId, record: u8) -> RecordPlace {
        let layout = self.space.layout();
        layout.record(layout.slot(peer), u64::from(record))
    }

    fn own(&self, record: u8) -> RecordPlace {
        self.record(self.space.me(), record)
    }

    /// Writes down what is asked for, and that words are about to change.
    pub(super) async fn announce(&self, record: u8, claim: &Claim) -> Result<(), FabricError> {
        let (at, since) = (self.own(record), self.space.recent().await);
        let version = self.space.layout().next_version(self.space.own_first(record).await?);
        let first = First::new(State::Taking, Kind::Range, claim, version);
        let words = [
            (at.word(RecordWord::Start), claim.start),
            (at.word(RecordWord::End), claim.end),
            (at.word(RecordWord::Mark), 0),
            (at.word(RecordWord::Since), since.0),
            // Others go by these two: lock and mode are there before anything is changing.
            (at.word(RecordWord::First), first.0),
            (at.word(RecordWord::PROGRESS), self.next(record, 0, true)),
        ];
        self.space.store(record, words, Order::Verbs).await
    }

    /// Words are about to change again.
    pub(super) async fn begin_change(&self, record: u8, occupied: usize) -> Result<(), FabricError> {
        let word = self.own(record).word(RecordWord::PROGRESS);
        self.space.store(record, [(word, self.next(record, occupied, true))], Order::Verbs).await
    }

    /// So many nodes are occupied, and that stays so for now.
    pub(super) async fn settle(&self, record: u8, occupied: usize) -> Result<(), FabricError> {
        let word = self.own(record).word(RecordWord::PROGRESS);
        self.space.store(record, [(word, self.next(record, occupied, false))], Order::Verbs).await
    }

    /// All of them are, and the range is granted with `token`.
    pub(super) async fn settle_granted(
        &self,
        record: u8,
        occupied: usize,
        token: u64,
    ) -> Result<(), FabricError> {
        let at = self.own(record);
        let words = [
            (at.word(RecordWord::PROGRESS), self.next(record, occupied, false)),
            (at.word(RecordWord::Mark), token),
        ];
        self.space.store(record, words, Order::Verbs).await
    }

    /// The range has another token from now on.
    pub(super) async fn write_token(&self, record: u8, token: u64) -> Result<(), FabricError> {
        self.space.store(record, [(self.own(record).word(RecordWord::Mark), token)], Order::Verbs).await
    }

    /// The range is held in another mode from now on.
    pub(super) async fn settle_as(
        &self,
        record: u8,
        occupied: usize,
        claim: &Claim,
    ) -> Result<(), FabricError> {
        let at = self.own(record);
        let version = self.space.own_first(record).await?.version();
        let first = First::new(State::Taking, Kind::Range, claim, version);
        let words = [
            (at.word(RecordWord::First), first.0),
            (at.word(RecordWord::PROGRESS), self.next(record, occupied, false)),
        ];
        self.space.store(record, words, Order::Verbs).await
    }

    /// Nothing is occupied any more, and the record is free.
    pub(super) async fn clear(&self, record: u8) -> Result<(), FabricError> {
        let (at, freed) = (self.own(record), self.space.own_first(record).await?.freed());
        let words = [
            (at.word(RecordWord::PROGRESS), self.next(record, 0, false)),
            (at.word(RecordWord::First), freed.0),
        ];
        self.space.store(record, words, Order::Verbs).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_another_word() {
        let mut seen = vec![Progress(0)];
        for (occupied, changing) in [(0, true), (2, false), (2, true), (0, false), (0, true), (2, false)] {
            let next = seen[seen.len() - 1].next(occupied, changing, Progress::SEQUENCE_BITS);
            assert!(!seen.contains(&next));
            assert_eq!((next.occupied(), next.is_changing()), (occupied, changing));
            seen.push(next);
        }
        let last = Progress(u64::MAX).next(1, false, Progress::SEQUENCE_BITS);
        assert_eq!((last.occupied(), last.0 >> 8), (1, 0), "it wraps alone");
    }
}
