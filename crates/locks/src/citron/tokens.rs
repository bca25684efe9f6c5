//! Fencing tokens, numbers that rise from every grant to every later conflicting one; and the era, which makes sure of
//! a grant.
//!
//! **Tokens.** A counter word for every node of one level of the tree (level 4 by default: 64 of them). A grant adds one to
//! the words its units belong to, at a moment when it already excludes all requests it conflicts with; so a client that
//! conflicts and comes later adds later, and reads more. Two grants that conflict share a unit, and with it a word. The
//! addition rides in the last batch of an uncontended acquire and costs no round trip. A range over several words takes the
//! largest of them, and raises the others to it before it is granted: that is one round trip more, for ranges that cross a
//! 64th of the space, and another one for each time that a reader beside it was first. An attempt that fails after its addition leaves a gap. Nothing ever sets a counter back, recoveries
//! included, so tokens rise across them, too.
//!
//! **The era** is one word per lock, where locks are recovered at all. Every recovery adds one to it before it takes
//! anything away (`recover`). A request reads it before its first verb that others can see, and again with its last:
//! if it is the same, nobody has begun to take anything away from it meanwhile, however long that was.

use super::tree::Tree;
use super::{CitronClient, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH, Olds, RawVerb, Time, Verb};

/// Words that are added to in the batch of an acquire; ranges over more of them take batches of their own.
pub(super) const IN_BATCH: u64 = 2;
/// Room that a batch needs for them, and for the era.
pub(super) const ROOM: usize = IN_BATCH as usize + 1;

/// What makes locked nodes a grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proof {
    pub(super) token: Option<u64>,
    /// The era as of the last verb.
    pub(super) era: u64,
    /// When that verb was posted, or earlier; for clients that go by their clock.
    pub(super) posted: Time,
}

/// One more grant in `segment`.
fn next(tree: &Tree, segment: u64) -> Verb<u64> {
    tree.token_word(segment).fetch_add(1)
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// A read of the era, for the end of a batch, where there is one.
    pub(super) fn era_verb(&self, tree: &Tree) -> Option<RawVerb> {
        self.recovers().then(|| tree.era_word().read().raw())
    }

    /// The time, for clients that go by their clock.
    pub(super) async fn time_of_posting(&self) -> Time {
        if self.recovers() && !self.is_zombie_proof() { self.ep.now().await } else { Time(0) }
    }

    /// The verbs that prove a grant of `start..end`, if they are few enough to ride along.
    pub(super) fn proof_verbs(
        &self,
        tree: &Tree,
        (start, end): (u64, u64),
    ) -> Option<impl Iterator<Item = RawVerb>> {
        let segments = tree.shape.token_segments(start, end);
        let few = segments.end - segments.start <= IN_BATCH;
        let era = self.era_verb(tree);
        few.then(|| {
            let tree = *tree;
            segments.map(move |segment| next(&tree, segment).raw()).chain(era)
        })
    }

    /// A proof for `start..end`, drawn now.
    pub(super) async fn draw_proof(
        &self,
        tree: &Tree,
        (start, end): (u64, u64),
    ) -> Result<Proof, FabricError> {
        let posted = self.time_of_posting().await;
        let segments = tree.shape.token_segments(start, end);
        let first = segments.start;
        let mut seen = Vec::new();
        let mut era = 0;
        let mut verbs =
            segments.map(|segment| next(tree, segment).raw()).chain(self.era_verb(tree)).peekable();
        while verbs.peek().is_some() {
            let batch: ArrayVec<RawVerb, MAX_BATCH> = verbs.by_ref().take(MAX_BATCH).collect();
            let olds = self.ep.go(batch.as_slice()).await?;
            seen.extend(olds.iter().map(|old| *old as u64));
        }
        if self.recovers() {
            era = seen.pop().unwrap_or(0);
        }
        self.level_tokens(tree, first, &seen, Proof { token: None, era, posted }).await
    }

    /// The proof from the last of what a batch returned, which was posted then.
    pub(super) async fn proof_from(
        &self,
        tree: &Tree,
        (start, end): (u64, u64),
        olds: &Olds,
        posted: Time,
    ) -> Result<Proof, FabricError> {
        let segments = tree.shape.token_segments(start, end);
        let count = (segments.end - segments.start) as usize;
        let mut olds = olds.as_slice();
        let mut era = 0;
        if self.recovers() {
            era = olds[olds.len() - 1] as u64;
            olds = &olds[..olds.len() - 1];
        }
        let mut seen = [0; IN_BATCH as usize];
        for (seen, old) in seen.iter_mut().zip(&olds[olds.len() - count..]) {
            *seen = *old as u64;
        }
        self.level_tokens(tree, segments.start, &seen[..count], Proof { token: None, era, posted }).await
    }

    /// Takes the largest of what was `seen` from segment `first` on, and raises the other words to it. Never above it: readers
    /// who did so side by side, each by what was missing, would raise each other's words in turn, by twice as much every time.
    async fn level_tokens(
        &self,
        tree: &Tree,
        first: u64,
        seen: &[u64],
        mut proof: Proof,
    ) -> Result<Proof, FabricError> {
        let Some(largest) = seen.iter().max().copied() else { return Ok(proof) };
        if R::LEVELS_TOKENS && seen.iter().any(|old| *old != largest) {
            let target = largest + 1;
            let mut lower: Vec<(u64, u64)> = (first..)
                .zip(seen)
                .filter(|(_, old)| **old != largest)
                .map(|(at, old)| (at, old + 1))
                .collect();
            while !lower.is_empty() {
                let raised: ArrayVec<(u64, u64), MAX_BATCH> =
                    lower.iter().copied().take(MAX_BATCH - 1).collect();
                let raises = raised.iter().map(|(at, now)| tree.token_word(*at).cas(*now, target).raw());
                let verbs: ArrayVec<RawVerb, MAX_BATCH> = raises.chain(self.era_verb(tree)).collect();
                let olds = self.ep.go(verbs.as_slice()).await?;
                // Every batch ends with the era.
                proof.era = olds[olds.len() - 1] as u64;
                let missed = raised.iter().zip(olds.iter()).filter_map(|((at, now), old)| {
                    let old = *old as u64;
                    (old != *now && old < target).then_some((*at, old))
                });
                let missed: Vec<_> = missed.collect();
                lower.splice(..raised.len(), missed);
            }
        }
        Ok(Proof { token: Some(largest + 1), ..proof })
    }
}
