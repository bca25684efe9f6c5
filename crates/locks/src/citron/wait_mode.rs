//! Wait mode: LOCKNODE of Citron Alg. 2, with the fast paths of §3.8.
//!
//! The order is the other way round than in a handshake: look at the ancestors (phase (b)), then take the node (c) and
//! tell the ancestors (d). Somebody above may have looked for notes in between, so time must help: a request at an
//! internal node waits T_wait between setting Occ and looking for notes, and a request whose notes took longer than
//! that since its own look aborts (Inequation 1). Safety rests on clocks that run at the same speed.
//!
//! Two things differ from print. Whoever finds an ancestor occupied starts over, so the look that counts is always one
//! round trip over all ancestors, and t₁ is when that one was posted. And the turn at the own node is not kept
//! meanwhile: see `acquire`, rule 3.

use super::acquire::Request;
use super::below::Below;
use super::layout::{D_MAX, NOT_OCC, OCC, T_CNT, add_one, is_occ};
use super::params::Timing;
use super::release::Verbs;
use super::tree::Node;
use super::{Attempt, CitronClient, Obstacle, Piece, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH, RawVerb, Time};

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// LOCKNODE for the next node.
    pub(super) async fn lock_node_in_time(
        &self,
        request: &Request,
        timing: Timing,
    ) -> Result<Attempt, FabricError> {
        let node = request.todo[0];
        if self.shape.is_leaf(node) {
            self.lock_leaf_in_time(request, node, timing).await
        } else {
            self.lock_internal_in_time(request, node, timing).await
        }
    }

    async fn lock_leaf_in_time(
        &self,
        request: &Request,
        node: Node,
        timing: Timing,
    ) -> Result<Attempt, FabricError> {
        let piece = self.piece(node, request.units.0, request.units.1);
        let looked = self.ep.now().await; // t₁
        if let Some(above) = self.occupied_above(request, node, None).await?.0 {
            return Ok(Attempt::Blocked(Obstacle::Node(above))); // phase (b)
        }
        // Phases (c) and (d) in one batch (§3.8): the notes are taken back if the CAS failed.
        let word = request.tree.word(node);
        let mut verbs = ArrayVec::<RawVerb, MAX_BATCH>::new();
        verbs.push(word.masked_cas(0, piece.mask, piece.mask, piece.mask).raw()); // line 22
        verbs.extend(self.told(node).map(|above| add_one(request.tree.word(above), D_MAX).raw())); // line 31
        let olds = self.ep.go(verbs.as_slice()).await?;
        if olds[0] as u64 & piece.mask != 0 {
            self.undo_in_time(request, node, &[]).await?;
            return Ok(Attempt::Blocked(Obstacle::Units(node, piece.mask)));
        }
        if self.is_late(looked, timing).await {
            self.undo_in_time(request, node, &[piece]).await?;
            return Ok(Attempt::Aborted);
        }
        Ok(Attempt::Locked(std::iter::once(piece).collect(), None))
    }

    async fn lock_internal_in_time(
        &self,
        request: &Request,
        node: Node,
        timing: Timing,
    ) -> Result<Attempt, FabricError> {
        let word = request.tree.word(node);
        let Some((looked, above)) = self.take_turn(request, node).await? else {
            return Ok(Attempt::Blocked(Obstacle::Node(node)));
        };
        if let Some(above) = above {
            self.ep.go(add_one(word, T_CNT)).await?;
            return Ok(Attempt::Blocked(Obstacle::Node(above)));
        }

        // Phases (c) and (d), and the leaves below if they are children (§3.8).
        let mut verbs = ArrayVec::<RawVerb, MAX_BATCH>::new();
        verbs.push(add_one(word, OCC).raw()); // line 28
        verbs.extend(self.told(node).map(|above| add_one(request.tree.word(above), D_MAX).raw())); // line 31
        let leaves_at = verbs.len();
        if self.has_leaves(node) {
            let full = self.shape.full_leaf();
            verbs.extend(
                (0..4).map(|i| request.tree.word(node.child(i)).masked_cas(0, full, full, full).raw()),
            );
        }
        let olds = self.ep.go(verbs.as_slice()).await?;
        let began = self.ep.now().await; // t₀; later than in line 29, which only makes the wait longer
        let mut piece = Piece { node, mask: 0, with_leaves: false };
        let taken = |i: usize| olds[leaves_at + i] == 0;
        piece.with_leaves = self.has_leaves(node) && (0..4).all(taken);
        if R::ABORTS_WHEN_LATE && began.since(looked) > timing.limit_ns() {
            self.give_leaves_back(request, node, piece.with_leaves, taken).await?;
            self.undo_in_time(request, node, &[piece]).await?; // line 32
            return Ok(Attempt::Aborted);
        }
        if piece.with_leaves {
            return Ok(Attempt::Locked(std::iter::once(piece).collect(), None));
        }
        self.give_leaves_back(request, node, false, taken).await?;

        let over = began.plus(timing.t_wait_ns);
        self.ep.sleep(over.since(self.ep.now().await)).await; // line 34
        let mut below = Below::default();
        below.note::<R>(request, node, self.ep.go(word.read()).await?);
        let quiet = self.wait_for_all(request, &below).await? && self.wait_for_window(request, node).await?;
        if !quiet {
            self.undo_in_time(request, node, &[piece]).await?;
            return Ok(Attempt::GaveUp);
        }
        Ok(Attempt::Locked(std::iter::once(piece).collect(), None))
    }

    /// Phases (a) and (b): the turn at `node`, when the ancestors were looked at, and which of them is occupied. `None`
    /// if the request may not queue and would have to.
    async fn take_turn(
        &self,
        request: &Request,
        node: Node,
    ) -> Result<Option<(Time, Option<Node>)>, FabricError> {
        let word = request.tree.word(node);
        if request.may_queue() {
            // Both phases in one batch, in the hope that the turn comes at once (§3.8).
            let mut looked = self.ep.now().await;
            let (mut above, ticket) =
                self.occupied_above(request, node, Some(request.words.ticket(word).raw())).await?;
            if request.words.has_queue(ticket) {
                self.ep
                    .wait_until(word.until(request.words.turn_of(request.words.ticket_of(ticket))))
                    .await?; // line 11
                looked = self.ep.now().await;
                above = self.occupied_above(request, node, None).await?.0;
            }
            while let Some(node) = above.filter(|_| !R::PASSES_TURN) {
                // As printed: lines 13–19 with the turn in hand.
                self.ep.wait_until(request.tree.word(node).until(NOT_OCC)).await?;
                looked = self.ep.now().await;
                above = self.occupied_above(request, request.todo[0], None).await?.0;
            }
            return Ok(Some((looked, above)));
        }
        let seen = self.ep.go(word.read()).await?;
        if request.words.has_queue(seen) {
            return Ok(None);
        }
        let looked = self.ep.now().await;
        let (above, before) =
            self.occupied_above(request, node, Some(request.words.ticket_if_free(word, seen).raw())).await?;
        let had = request.words.same_queue(before, seen);
        Ok(had.then_some((looked, above)))
    }

    /// Phase (b): the lowest ancestor with Occ set, and what `first` returned, which goes ahead in the same batch.
    async fn occupied_above(
        &self,
        request: &Request,
        node: Node,
        first: Option<RawVerb>,
    ) -> Result<(Option<Node>, u64), FabricError> {
        let above: ArrayVec<Node, MAX_BATCH> =
            node.ancestors().filter(|above| !request.is_common::<R>(*above)).collect();
        let verbs: ArrayVec<RawVerb, MAX_BATCH> =
            first.into_iter().chain(above.iter().map(|node| request.tree.word(*node).read().raw())).collect();
        let olds = self.ep.go(verbs.as_slice()).await?;
        let skip = usize::from(first.is_some());
        let lowest = above.iter().zip(&olds[skip..]).find(|(_, old)| is_occ(**old as u64));
        Ok((lowest.map(|(node, _)| *node), if skip == 1 { olds[0] as u64 } else { 0 }))
    }

    /// Inequation 1: whether the notes took too long.
    async fn is_late(&self, looked: Time, timing: Timing) -> bool {
        let told = self.ep.now().await; // t₂
        R::ABORTS_WHEN_LATE && told.since(looked) > timing.limit_ns()
    }

    /// Whether the children of `node` are leaves, all four of them.
    fn has_leaves(&self, node: Node) -> bool {
        node.level + 1 == self.shape.levels && self.shape.is_whole(node)
    }

    /// Clears the leaves that were taken, unless all were and stay so.
    async fn give_leaves_back(
        &self,
        request: &Request,
        node: Node,
        keep: bool,
        taken: impl Fn(usize) -> bool,
    ) -> Result<(), FabricError> {
        if keep || !self.has_leaves(node) {
            return Ok(());
        }
        let mut verbs = Verbs::new(&self.ep);
        for i in (0..4).filter(|i| taken(*i)) {
            self.clear_leaf(&request.tree, node.child(i as u64), &mut verbs).await?;
        }
        verbs.finish().await
    }

    /// Frees `pieces` of an attempt at `node`, and takes its notes back.
    async fn undo_in_time(&self, request: &Request, node: Node, pieces: &[Piece]) -> Result<(), FabricError> {
        let mut verbs = Verbs::new(&self.ep);
        for piece in pieces {
            self.free(&request.tree, request.words, piece, &mut verbs).await?;
        }
        if R::UNDO_COUNTS {
            self.take_notes_back(&request.tree, request.words, node, &mut verbs).await?;
        }
        verbs.finish().await
    }
}
