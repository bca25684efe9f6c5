//! Giving a range back, or part of its rights: additions that are not waited for.

use super::acquire::Request;
use super::forest::MAX_LEVELS;
use super::words;
use super::{MemberRules, TreeClient, TreeGrant, TreeSpace};
use crate::citron::MAX_K;
use crate::protocol::Lost;
use arrayvec::ArrayVec;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Endpoint, FabricError, RawVerb};
use std::ops::Range;

/// The verbs that end a request: each node once, and its notified ancestors.
pub(super) type Endings = ArrayVec<RawVerb, { MAX_K * MAX_LEVELS }>;

impl<E: Endpoint, S: TreeSpace, R: MemberRules> TreeClient<E, S, R> {
    /// Gives the range back.
    ///
    /// # Errors
    /// If its memory cannot be reached.
    pub async fn give_back(&self, grant: TreeGrant) -> Result<(), Lost> {
        let TreeGrant { record, claim, cover, .. } = grant;
        let occupied = cover.len();
        let request = Request { record, claim, cover, occupied };
        self.begin_change(record, occupied).await?;
        Ok(self.leave(&request).await?)
    }

    /// From exclusive to shared, without letting go in between. Nothing happens to a range that is shared.
    ///
    /// # Errors
    /// If its memory cannot be reached.
    pub async fn downgrade(&self, grant: &mut TreeGrant) -> Result<(), Lost> {
        if grant.claim.mode == Mode::Shared {
            return Ok(());
        }
        self.post_downgrade(grant).await?;
        Ok(self.renew_token(grant).await?)
    }

    /// The first part of a [`downgrade`](Self::downgrade): the range is shared once what this posts was executed. Its old token
    /// is still larger than that of every grant it conflicts with.
    ///
    /// # Errors
    /// If its memory cannot be reached.
    pub async fn post_downgrade(&self, grant: &mut TreeGrant) -> Result<(), FabricError> {
        let (record, occupied) = (grant.record, grant.cover.len());
        let change = |of: fn(Mode) -> u64| of(Mode::Shared).wrapping_sub(of(Mode::Exclusive));
        let mut verbs = Endings::new();
        for node in &grant.cover {
            let word = |node| self.forest.word(grant.claim.lock, node);
            verbs.push(word(*node).fetch_add(change(words::mark)).raw());
            verbs.extend(
                self.forest.notified(*node).map(|above| word(above).fetch_add(change(words::note)).raw()),
            );
        }
        grant.claim.mode = Mode::Shared;
        self.begin_change(record, occupied).await?;
        self.space.post(&verbs).await?;
        self.settle_as(record, occupied, &grant.claim).await
    }

    /// The second part: it is a grant of its own, so its token is larger than the one it had.
    ///
    /// # Errors
    /// If its memory cannot be reached.
    pub async fn renew_token(&self, grant: &mut TreeGrant) -> Result<(), FabricError> {
        grant.token = self.ep.go(self.forest.tokens(grant.claim.lock).fetch_add(1)).await? + 1;
        self.write_token(grant.record, grant.token).await
    }

    /// Takes everything that is occupied back, and frees the record, which says that it is changing.
    pub(super) async fn leave(&self, request: &Request) -> Result<(), FabricError> {
        self.space.post(&self.endings(request, 0..request.occupied)).await?;
        self.clear(request.record).await
    }

    /// What takes these nodes of the cover back: all of them, then the notes.
    pub(super) fn endings(&self, request: &Request, which: Range<usize>) -> Endings {
        let mode = request.claim.mode;
        let word = |node| self.forest.word(request.claim.lock, node);
        let nodes = &request.cover[which];
        let marks = nodes.iter().map(|node| (*node, words::mark(mode)));
        let notes = nodes.iter().flat_map(|node| self.forest.notified(*node));
        let all = marks.chain(notes.map(|above| (above, words::note(mode))));
        all.map(|(node, added)| word(node).fetch_add(added.wrapping_neg()).raw()).collect()
    }
}
