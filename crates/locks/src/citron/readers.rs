//! Readers at internal nodes (`citron-rw`, handshake mode; ours).
//!
//! A reader adds itself to R and is in, unless somebody has a ticket at the node: then it takes itself back and queues
//! with a ticket like a writer, so that a stream of writers cannot hold it off. When its turn comes, one verb adds it
//! to R and passes the turn on, so that readers next to each other in the queue share the node. Writers in turn are not
//! held off by a stream of readers: from their ticket on, new readers queue behind them.
//!
//! Readers yield to tickets above them, not to readers; they wait for writers below them, not for readers.

use super::acquire::Request;
use super::release::Verbs;
use super::tree::Node;
use super::words::{self, has_many_readers};
use super::{Attempt, CitronClient, Obstacle, Piece, Rules};
use lockwright_fabric::{Endpoint, FabricError};

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// One attempt to read at `node`.
    pub(super) async fn read_internal(&self, request: &Request, node: Node) -> Result<Attempt, FabricError> {
        let word = request.tree.word(node);
        let (plan, entered_at, window) = self.plan_internal(request, node, words::enter(word).raw());
        let olds = self.ep.go(plan.verbs.as_slice()).await?;
        let before = olds[entered_at] as u64;
        let above = plan.occupied::<R>(request, &olds, 0);
        let has_queue = request.words.has_queue(before);
        if has_queue || above.is_some() || has_many_readers(before) {
            let above_index = above.map_or(0, Node::index);
            self.mark("citron: leave", request, &[u64::from(has_queue), above_index]);
            self.leave(request, node).await?;
            return match above {
                Some(above) => Ok(Attempt::Blocked(Obstacle::Node(above))),
                None if !has_queue => Ok(Attempt::TooManyReaders),
                None if request.may_queue() => self.queue_to_read(request, node).await,
                None => Ok(Attempt::Blocked(Obstacle::Node(node))),
            };
        }
        let below = self.seen_below(request, node, before, window, &olds);
        let mut token = None;
        if plan.with_token && below.is_quiet() {
            token = self.token_from(&request.tree, request.units, &olds).await?;
        }
        self.finish_reading(
            request,
            node,
            token,
            self.wait_for_everybody_below(request, node, window, &below).await?,
        )
        .await
    }

    /// A reader's way in past writers: a ticket, and its turn.
    async fn queue_to_read(&self, request: &Request, node: Node) -> Result<Attempt, FabricError> {
        let (word, words) = (request.tree.word(node), request.words);
        let (plan, ticket_at, window) = self.plan_internal(request, node, words.ticket(word).raw());
        let olds = self.ep.go(plan.verbs.as_slice()).await?;
        let before = olds[ticket_at] as u64;
        let (ticket, at_once) = (words.ticket_of(before), !words.has_queue(before));
        if let Some(above) = plan.occupied::<R>(request, &olds, 0) {
            self.mark("citron: yield", request, &[above.index(), u64::from(at_once), ticket as u64]);
            self.yield_turn(request, node, (!at_once).then_some(ticket), Some(above)).await?;
            return Ok(Attempt::Blocked(Obstacle::Node(above)));
        }
        if !at_once {
            self.ep.wait_until(word.until(words.turn_of(ticket))).await?;
        }
        if has_many_readers(self.ep.go(words::enter_and_pass(word)).await?) {
            self.leave(request, node).await?;
            return Ok(Attempt::TooManyReaders);
        }
        let below = self.seen_below(request, node, before, window, &olds);
        let quiet = self.wait_for_everybody_below(request, node, window, &below).await?;
        self.finish_reading(request, node, None, quiet).await
    }

    async fn finish_reading(
        &self,
        request: &Request,
        node: Node,
        token: Option<u64>,
        quiet: bool,
    ) -> Result<Attempt, FabricError> {
        if !quiet {
            self.leave(request, node).await?;
            return Ok(Attempt::GaveUp);
        }
        let piece = Piece { node, mask: 0, with_leaves: false };
        Ok(Attempt::Locked(std::iter::once(piece).collect(), token))
    }

    /// Takes a reader and its notes back.
    async fn leave(&self, request: &Request, node: Node) -> Result<(), FabricError> {
        let mut undo = Verbs::new(&self.ep);
        undo.push(words::leave(request.tree.word(node)).raw()).await?;
        self.undo_notes(request, node, &mut undo).await?;
        undo.finish().await
    }
}
