//! Acquiring a range (Citron Alg. 2): split it, lock the nodes from left to right, and get out of the way of whoever
//! came first.
//!
//! Three rules keep k > 1 nodes free of deadlock; the printed algorithm has only the first (see
//! `docs/protocols/citron.md`, and the mutants that leave the others out):
//! 1. Nodes are locked in ascending order (Alg. 2 line 6).
//! 2. A request at an ancestor of a node we already hold waits for us, so we do not wait for it: *common ancestors*
//!    are told, but not looked at. Nobody can have been granted one meanwhile.
//! 3. Whoever has to wait for an ancestor does not keep its turn at its own node: somebody behind it in that queue may
//!    be the one the ancestor waits for.

use super::layout::NOT_OCC;
use super::params::Synchrony;
use super::split::{Cover, split};
use super::tree::{Node, Tree};
use super::words::{NO_READERS, Words};
use super::{Attempt, CitronClient, CitronGrant, Obstacle, Piece, Pieces, Rules};
use crate::protocol::{Denied, Patience, Reason, Want};
use arrayvec::ArrayVec;
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError};

/// An acquire under way.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) tree: Tree,
    /// The units asked for.
    pub(super) units: (u64, u64),
    pub(super) patience: Patience,
    /// Which words, and who asks.
    pub(super) words: Words,
    /// Locked already, from left to right.
    pub(super) held: Pieces,
    /// Still to be locked, from left to right.
    pub(super) todo: Cover,
}

impl Request {
    /// Whether `node` is above something that is held already (rule 2).
    pub(super) fn is_common<R: Rules>(&self, node: Node) -> bool {
        R::SPARES_COMMON_ANCESTORS && self.held.iter().any(|piece| node.covers(piece.node))
    }

    /// Whether a request at an ancestor with this word is in the way.
    pub(super) fn is_occupied<R: Rules>(&self, above: u64) -> bool {
        self.words.is_occupied(above) && (R::YIELDS_TO_READERS || self.words.has_queue(above))
    }

    /// Nobody below is in the way.
    pub(super) fn quiet_below<R: Rules>(&self) -> Cond {
        if R::WAITS_FOR_READERS_BELOW { self.words.quiet_below() } else { Words::Reader.quiet_below() }
    }

    /// How long the request is ready to wait.
    pub(super) const fn deadline(&self) -> Deadline {
        match self.patience {
            Patience::Forever => Deadline::Never,
            Patience::Try => Deadline::Now,
            Patience::Until(time) => Deadline::At(time),
        }
    }

    /// Why the request is denied if it is not ready to wait any longer.
    const fn out_of_patience(&self) -> Denied {
        match self.patience {
            Patience::Try => Denied::Busy,
            Patience::Forever | Patience::Until(_) => Denied::TimedOut,
        }
    }

    /// Whether the client may take a ticket that it cannot give back before its turn comes.
    pub(super) const fn may_queue(&self) -> bool {
        matches!(self.patience, Patience::Forever)
    }
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// ACQUIRELOCKONTREE.
    pub(super) async fn acquire_on_tree(
        &self,
        want: Want,
        start: u64,
        end: u64,
    ) -> Result<CitronGrant, Denied> {
        let tree = Tree::of(want.claim.lock, &self.space, self.shape);
        let todo = split(&self.shape, start, end, self.params.k as usize); // line 5
        let words = Words::new(R::READERS, want.claim.mode);
        let units = (start, end);
        let mut request = Request { tree, units, patience: want.patience, words, held: Pieces::new(), todo };
        let (mut failures, mut token) = (0_u32, None);
        while !request.todo.is_empty() {
            // lines 6, 7
            self.mark("citron: next node", &request, &[failures.into()]);
            let attempt = match self.params.synchrony {
                Synchrony::Handshake => self.shake_hands(&request).await?,
                Synchrony::Wait(timing) => self.lock_node_in_time(&request, timing).await?,
            };
            match attempt {
                Attempt::Locked(pieces, drawn) => {
                    request.todo.drain(..pieces.len());
                    request.held.extend(pieces);
                    (failures, token) = (0, drawn);
                }
                Attempt::GaveUp => {
                    self.release_on_tree(&tree, words, &request.held).await?;
                    return Err(request.out_of_patience());
                }
                Attempt::TooManyReaders => {
                    self.release_on_tree(&tree, words, &request.held).await?;
                    return Err(Denied::Unsupported(&Reason("this part of the range has too many readers")));
                }
                Attempt::Aborted => self.ep.observe(Observation::Aborted(want.claim)),
                Attempt::Blocked(obstacle) => {
                    self.ep.observe(Observation::Retried(want.claim));
                    if !self.wait_for(&request, obstacle).await? {
                        self.release_on_tree(&tree, words, &request.held).await?;
                        return Err(request.out_of_patience());
                    }
                    if self.params.escalate_after > 0 && request.may_queue() {
                        failures += 1;
                        if failures >= self.params.escalate_after {
                            self.escalate(&mut request, obstacle).await?;
                            failures = 0;
                        }
                    }
                }
            }
        }
        if token.is_none() {
            token = self.draw_token(&tree, request.units).await?;
        }
        self.mark("citron: granted", &request, &[token.unwrap_or(0)]);
        Ok(CitronGrant { lock: want.claim.lock, words, pieces: request.held, token })
    }

    /// Waits until the obstacle is gone, as long as the request is ready to. Says whether it is.
    async fn wait_for(&self, request: &Request, obstacle: Obstacle) -> Result<bool, FabricError> {
        let words = request.words;
        let (node, cond) = match (obstacle, self.params.synchrony) {
            (Obstacle::Readers(_), _) => unreachable!("too many readers are an error, not a wait"),
            (Obstacle::Units(leaf, units), _) => (leaf, words.units_free(units)),
            (Obstacle::Node(node), Synchrony::Wait(_)) if request.todo[0] != node => (node, NOT_OCC),
            (Obstacle::Node(node), _) => (node, words.queue_empty()),
        };
        if matches!(request.patience, Patience::Try) {
            return Ok(false);
        }
        let wait = request.tree.word(node).until(cond).by(request.deadline());
        let mut met = self.ep.wait_until(wait).await?.met;
        if met && words == Words::Writer && matches!(obstacle, Obstacle::Node(_)) {
            let wait = request.tree.word(node).until(NO_READERS).by(request.deadline());
            met = self.ep.wait_until(wait).await?.met;
        }
        Ok(met)
    }

    /// Starvation avoidance (line 24): locks a larger node instead, one that has a queue. For a leaf that is always
    /// taken, its parent; for an ancestor that is always occupied, that ancestor. Nodes below it that are held already
    /// are given back first: they are part of it, and it would wait for them.
    async fn escalate(&self, request: &mut Request, obstacle: Obstacle) -> Result<(), FabricError> {
        let larger = match obstacle {
            Obstacle::Node(node) if node != request.todo[0] => node,
            Obstacle::Units(leaf, _) => match leaf.parent() {
                Some(parent) => parent,
                None => return Ok(()),
            },
            Obstacle::Node(_) | Obstacle::Readers(_) => return Ok(()),
        };
        let below: Pieces = request.held.iter().filter(|piece| larger.covers(piece.node)).copied().collect();
        self.release_on_tree(&request.tree, request.words, &below).await?;
        request.held.retain(|piece: &mut Piece| !larger.covers(piece.node));
        request.todo.retain(|node: &mut Node| !larger.covers(*node));
        request.todo.insert(0, larger);
        Ok(())
    }

    /// Of everything that happened, only what is held, what is still to do and `more` matters.
    #[inline]
    pub(super) fn mark(&self, label: &'static str, request: &Request, more: &[u64]) {
        let mut locals = ArrayVec::<u64, { 4 * super::MAX_K }>::new();
        let held =
            request.held.iter().map(|piece| piece.node.index() << 2 | u64::from(piece.with_leaves) << 1);
        locals.extend(held.chain(request.todo.iter().map(|node| node.index() << 2 | 1)));
        locals.extend(more.iter().copied());
        self.ep.mark(label, &locals);
    }
}
