//! Readers at internal nodes (`citron-rw`, handshake mode; ours).
//!
//! A reader adds itself to R and is in, unless a client has a ticket at the node: then it takes itself back and queues with a
//! ticket like a writer, so that a stream of writers cannot hold it off. When its turn comes, one verb adds it to R and
//! passes the turn on, so that readers next to each other in the queue share the node. Writers in turn are not held off by a
//! stream of readers: from their ticket on, new readers queue behind them.
//!
//! Readers yield to tickets above them, not to readers; they wait for writers below them, not for readers.

use super::acquire::Request;
use super::attempt::{Attempt, Obstacle, Piece};
use super::ending::Generations;
use super::recover::End;
use super::release::Verbs;
use super::shape::Node;
use super::tokens::Proof;
use super::words::{self, has_many_readers};
use super::{CitronClient, Rules};
use lockwright_fabric::{Endpoint, FabricError};

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// One attempt to read at `node`.
    pub(super) async fn read_internal(&self, request: &Request, node: Node) -> Result<Attempt, FabricError> {
        let word = request.tree.word(node);
        let (plan, entered_at, window) = self.plan_internal(request, node, words::enter(word).raw());
        let (posted, olds) = self.post(request, &plan).await?;
        let before = olds[entered_at] as u64;
        let begun = self.begun_at(&plan, request, &olds, before);
        let above = plan.occupied::<R>(request, &olds, 0);
        let has_queue = request.words.has_queue(before);
        if has_queue || above.is_some() || has_many_readers(before) {
            let more = [u64::from(has_queue), above.map_or(0, Node::index), 0, 0];
            self.mark_begun("citron: leave", request, &[begun], more);
            self.leave(request, node, &begun).await?;
            return match above {
                Some(above) => Ok(Attempt::Blocked(Obstacle::Node(above))),
                None if !has_queue => Ok(Attempt::TooManyReaders),
                None if request.may_queue() => self.queue_to_read(request, node).await,
                None => Ok(Attempt::Blocked(Obstacle::Node(node))),
            };
        }
        let below = self.seen_below(request, node, before, window, &olds);
        let mut proof = None;
        if plan.with_proof && below.is_quiet() {
            proof = Some(self.proof_from(&request.tree, request.units, &olds, posted).await?);
        }
        let quiet = self.wait_for_all_below(request, node, window, &below).await?;
        self.finish_reading(request, node, begun, proof, quiet).await
    }

    /// A reader's way in past writers: a ticket, and its turn.
    async fn queue_to_read(&self, request: &Request, node: Node) -> Result<Attempt, FabricError> {
        let (word, words) = (request.tree.word(node), request.words);
        let (plan, ticket_at, window) = self.plan_internal(request, node, words.ticket(word).raw());
        let (_, olds) = self.post(request, &plan).await?;
        let before = olds[ticket_at] as u64;
        let begun = self.begun_at(&plan, request, &olds, before);
        let (ticket, at_once) = (words.ticket_of(before), !words.has_queue(before));
        if let Some(above) = plan.occupied::<R>(request, &olds, 0) {
            let more = [above.index(), u64::from(at_once), ticket as u64, 0];
            self.mark_begun("citron: yield", request, &[begun], more);
            self.yield_turn(request, node, &begun, (!at_once).then_some((ticket, before)), Some(above))
                .await?;
            return Ok(Attempt::Blocked(Obstacle::Node(above)));
        }
        if !at_once && self.wait_for_turn(request.queue(node), ticket, before, begun.here).await?.is_none() {
            return self.is_renewed(request, node, &begun).await;
        }
        let enter = words::enter_and_pass(word, begun.here, self.guards);
        let entered = self.ep.go([enter.verb].as_slice()).await?[0];
        if !enter.was_due(entered) {
            return self.is_renewed(request, node, &begun).await;
        }
        if has_many_readers(entered as u64) {
            self.leave(request, node, &begun).await?;
            return Ok(Attempt::TooManyReaders);
        }
        let below = self.seen_below(request, node, before, window, &olds);
        let quiet = self.wait_for_all_below(request, node, window, &below).await?;
        self.finish_reading(request, node, begun, None, quiet).await
    }

    async fn finish_reading(
        &self,
        request: &Request,
        node: Node,
        begun: Generations,
        proof: Option<Proof>,
        quiet: End,
    ) -> Result<Attempt, FabricError> {
        if quiet != End::Met {
            self.leave(request, node, &begun).await?;
            let dead = matches!(quiet, End::Dead(_));
            return Ok(if dead { Attempt::Stuck(node) } else { Attempt::GaveUp });
        }
        let piece = Piece { node, mask: 0, with_leaves: false, is_followed: false, begun };
        Ok(Attempt::Locked(std::iter::once(piece).collect(), proof))
    }

    /// Takes a reader and its notes back.
    async fn leave(&self, request: &Request, node: Node, begun: &Generations) -> Result<(), FabricError> {
        let mut undo = Verbs::new(self, &request.tree, request.words);
        undo.push(words::leave(request.tree.word(node), begun.here, self.guards)).await?;
        self.undo_notes(request, node, begun, &mut undo).await?;
        undo.finish().await.map(drop)
    }
}
