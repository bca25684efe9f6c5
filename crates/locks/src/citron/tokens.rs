//! Fencing tokens: numbers that rise from every grant to every later conflicting one.
//!
//! A counter word for every node of one level of the tree (level 4 by default: 64 of them). A grant adds one to the
//! words its units belong to, at a moment when it already excludes everybody it conflicts with; so whoever conflicts
//! and comes later adds later, and reads more. Two grants that conflict share a unit, and with it a word. The addition
//! rides in the last batch of an uncontended acquire and costs no round trip.
//!
//! A range over several words takes the largest of them, and lifts the others to it before it is granted: that is one
//! round trip more, for ranges that cross a 64th of the space.
//!
//! An attempt that fails after its addition leaves a gap in the numbers. They rise all the same.

use super::tree::Tree;
use super::{CitronClient, Rules};
use lockwright_fabric::{Endpoint, FabricError, Olds, RawVerb, Verb};

/// Words that are added to in the batch of an acquire; ranges over more of them take batches of their own.
pub(super) const IN_BATCH: u64 = 2;

/// One more grant in `segment`.
fn next(tree: &Tree, segment: u64) -> Verb<u64> {
    tree.token_word(segment).fetch_add(1)
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// The verbs that draw a token for `start..end`, if they are few enough to ride along.
    pub(super) fn token_verbs(
        tree: &Tree,
        (start, end): (u64, u64),
    ) -> Option<impl Iterator<Item = RawVerb>> {
        let segments = tree.shape.token_segments(start, end);
        let few = segments.end - segments.start <= IN_BATCH;
        few.then(|| {
            let tree = *tree;
            segments.map(move |segment| next(&tree, segment).raw())
        })
    }

    /// A token for `start..end`, drawn now.
    pub(super) async fn draw_token(
        &self,
        tree: &Tree,
        (start, end): (u64, u64),
    ) -> Result<Option<u64>, FabricError> {
        let mut segments = tree.shape.token_segments(start, end);
        let first = segments.start;
        let mut seen = Vec::new();
        while !segments.is_empty() {
            let verbs: arrayvec::ArrayVec<RawVerb, { lockwright_fabric::MAX_BATCH }> = segments
                .by_ref()
                .take(lockwright_fabric::MAX_BATCH)
                .map(|segment| next(tree, segment).raw())
                .collect();
            let olds = self.ep.go(verbs.as_slice()).await?;
            seen.extend(olds.iter().map(|old| *old as u64));
        }
        self.level_tokens(tree, first, &seen).await
    }

    /// The token from what the words of the first `olds.len()` segments of the range held.
    pub(super) async fn token_from(
        &self,
        tree: &Tree,
        (start, end): (u64, u64),
        olds: &Olds,
    ) -> Result<Option<u64>, FabricError> {
        let segments = tree.shape.token_segments(start, end);
        let count = (segments.end - segments.start) as usize;
        let mut seen = [0; IN_BATCH as usize];
        for (seen, old) in seen.iter_mut().zip(&olds[olds.len() - count..]) {
            *seen = *old as u64;
        }
        self.level_tokens(tree, segments.start, &seen[..count]).await
    }

    /// Takes the largest of what was `seen` from segment `first` on, and lifts the other words to it.
    async fn level_tokens(&self, tree: &Tree, first: u64, seen: &[u64]) -> Result<Option<u64>, FabricError> {
        let Some(largest) = seen.iter().max().copied() else { return Ok(None) };
        if R::LEVELS_TOKENS && seen.iter().any(|old| *old != largest) {
            let mut verbs = super::release::Verbs::new(&self.ep);
            for (segment, old) in (first..).zip(seen) {
                if *old != largest {
                    verbs.push(tree.token_word(segment).fetch_add(largest - old).raw()).await?;
                }
            }
            verbs.finish().await?;
        }
        Ok(Some(largest + 1))
    }
}
