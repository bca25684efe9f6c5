//! Acquiring a range (Citron Alg. 2): split it, lock the nodes from left to right, and get out of the way of a client that
//! came first.
//!
//! Three rules keep k > 1 nodes free of deadlock; the printed algorithm has only the first (see
//! `docs/protocols/citron.md`, and the mutants that leave the others out):
//! 1. Nodes are locked in ascending order (Alg. 2 line 6).
//! 2. A request at an ancestor of a node we already hold waits for us, so we do not wait for it: *common ancestors*
//!    are notified, but not looked at. Nobody can have been granted one meanwhile.
//! 3. A client that has to wait for an ancestor does not keep its turn at its own node: a client behind it in that queue may
//!    be the one the ancestor waits for.

use super::attempt::{Attempt, Obstacle, Piece, Pieces};
use super::ending::{Generations, LOCALS};
use super::params::Synchrony;
use super::recover::{End, Queue};
use super::shape::Node;
use super::spill::Spill;
use super::split::{Cover, split};
use super::tokens::Proof;
use super::tree::Tree;
use super::wait_mode::Pace;
use super::words::Words;
use super::{CitronClient, CitronGrant, Rules};
use crate::protocol::{Denied, Patience, Reason, Want};
use arrayvec::ArrayVec;
use lockwright_fabric::observe::{Claim, Observation};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError};
use std::cell::Cell;

/// An acquire under way.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) tree: Tree,
    pub(super) claim: Claim,
    /// The units asked for, and those of them that are on the tree.
    pub(super) units: (u64, u64),
    pub(super) on_tree: Option<(u64, u64)>,
    pub(super) patience: Patience,
    /// Which words, and who asks.
    pub(super) words: Words,
    /// Locked already, from left to right.
    pub(super) held: Pieces,
    /// Still to be locked, from left to right.
    pub(super) todo: Cover,
    /// The era in which the first of what is held was taken, the spillover mutex left aside.
    pub(super) era: Cell<u64>,
    /// The spillover mutex, if the range ends past the tree.
    pub(super) spill: Option<Spill>,
    /// Units were taken when they were asked for last: contention, so that the next attempt takes them before it notifies
    /// other nodes (§3.8 batches only where there is little).
    pub(super) is_careful: bool,
}

/// What came of a request for units on the tree.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would allocate on the path of every lock")]
pub(super) enum OnTree {
    /// They are granted.
    Granted(CitronGrant),
    /// The tree is another by now; nothing is left.
    Grown,
    /// A recovery began, perhaps the spillover mutex; nothing else is left.
    Renewed,
}

impl Request {
    /// The queue at `node`.
    pub(super) fn queue(&self, node: Node) -> Queue<'_> {
        Queue { tree: &self.tree, word: self.tree.word(node), words: self.words, claim: self.claim }
    }

    /// Whether nobody has begun to take anything away since the first of what is held was taken.
    fn is_in_time<R: Rules>(&self, proof: &Proof) -> bool {
        match self.spill {
            Some(spill) if R::SPILL_HAS_AN_ERA => proof.era == spill.era,
            _ => proof.era == self.era.get() || self.held.is_empty(),
        }
    }

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
    /// ACQUIRELOCKONTREE, for those of the units that are on the tree, with the spillover mutex if there are others. What
    /// is not granted leaves that mutex to the caller.
    pub(super) async fn acquire_on_tree(
        &self,
        want: Want,
        tree: Tree,
        units: (u64, u64),
        on_tree: Option<(u64, u64)>,
        spill: Option<Spill>,
    ) -> Result<OnTree, Denied> {
        let mut request = Request {
            tree,
            claim: want.claim,
            units,
            on_tree,
            patience: want.patience,
            words: Words::new(R::READERS, want.claim.mode),
            held: Pieces::new(),
            todo: self.cover(on_tree), // line 5
            era: Cell::new(0),
            spill,
            is_careful: false,
        };
        let (mut failures, mut proof) = (0_u32, None);
        loop {
            let Some(next) = request.todo.first().copied() else {
                let proof = match proof.take() {
                    Some(proof) => proof,
                    None => self.draw_proof(&tree, request.units).await?,
                };
                if self.recovers() && R::ERA_IS_CHECKED && !request.is_in_time::<R>(&proof) {
                    self.start_again(&mut request).await?;
                    if request.spill.is_some() {
                        return Ok(OnTree::Renewed);
                    }
                    continue;
                }
                self.mark("citron: granted", &request, &[proof.token.unwrap_or(0)]);
                return Ok(OnTree::Granted(self.grant(request, proof)));
            };
            // lines 6, 7
            self.mark("citron: next node", &request, &[failures.into(), request.is_careful.into()]);
            match self.attempt(&request).await? {
                Attempt::Locked(pieces, drawn) => {
                    request.todo.drain(..pieces.len());
                    request.held.extend(pieces);
                    (failures, proof) = (0, drawn);
                    request.is_careful = false;
                }
                Attempt::GaveUp => return Err(self.give_up(&request).await?),
                Attempt::TooManyReaders => {
                    self.release_on_tree(&tree, request.words, &request.held).await?;
                    return Err(Denied::Unsupported(&Reason("this part of the range has too many readers")));
                }
                Attempt::Aborted => self.ep.observe(Observation::Aborted(want.claim)),
                Attempt::Renewed => self.ep.observe(Observation::Retried(want.claim)),
                Attempt::Grown => {
                    self.start_again(&mut request).await?;
                    return Ok(OnTree::Grown);
                }
                Attempt::Stuck(node) => {
                    self.start_again(&mut request).await?;
                    // Seldom, and as large as everything else here together: it does not weigh down every acquire.
                    Box::pin(self.clean_up(&request, node)).await?;
                }
                Attempt::Blocked(obstacle) => {
                    self.ep.observe(Observation::Retried(want.claim));
                    request.is_careful = matches!(obstacle, Obstacle::Units(..));
                    match self.wait_for(&request, obstacle).await? {
                        End::Met | End::Renewed => {}
                        End::GaveUp => return Err(self.give_up(&request).await?),
                        End::Dead(_) => {
                            self.start_again(&mut request).await?;
                            Box::pin(self.clean_up(&request, obstacle.suspect(next))).await?;
                            continue;
                        }
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
    }

    /// One attempt at the next node, or the next few.
    pub(super) async fn attempt(&self, request: &Request) -> Result<Attempt, FabricError> {
        match self.params.synchrony {
            Synchrony::Handshake => self.handshake(request).await,
            Synchrony::Wait(timing) => {
                let pace = Pace { limit_ns: timing.limit_ns(), wait_ns: timing.t_wait_ns };
                self.lock_node_in_time(request, pace).await
            }
        }
    }

    fn grant(&self, request: Request, proof: Proof) -> CitronGrant {
        let goes_by_clock = self.recovers() && !self.is_zombie_proof();
        let expires = goes_by_clock.then(|| proof.posted.plus(self.params.lease_ns));
        let Request { claim, words, held, tree, .. } = request;
        let (token, view) = (proof.token, tree.view);
        CitronGrant { lock: claim.lock, words, pieces: held, token, expires, view, spill: None }
    }

    async fn give_up(&self, request: &Request) -> Result<Denied, FabricError> {
        self.release_on_tree(&request.tree, request.words, &request.held).await?;
        Ok(request.out_of_patience())
    }

    /// Gives back what is held; the request is as it was in the beginning.
    async fn start_again(&self, request: &mut Request) -> Result<(), FabricError> {
        self.ep.observe(Observation::Retried(request.claim));
        self.release_on_tree(&request.tree, request.words, &request.held).await?;
        request.held.clear();
        request.todo = self.cover(request.on_tree);
        request.is_careful = false;
        Ok(())
    }

    fn cover(&self, on_tree: Option<(u64, u64)>) -> Cover {
        on_tree.map_or(Cover::new(), |(start, end)| split(&self.shape, start, end, self.params.k as usize))
    }

    /// Starvation avoidance (line 24): locks a larger node instead, one that has a queue. For a leaf that is always
    /// taken, its parent; for an ancestor that is always occupied, that ancestor. Nodes below it that are held already
    /// are given back first: they are part of it, and it would wait for them.
    async fn escalate(&self, request: &mut Request, obstacle: Obstacle) -> Result<(), FabricError> {
        let larger = match obstacle {
            Obstacle::Node(node) if node != request.todo[0] => node,
            Obstacle::Units(leaf, _) => match leaf.parent() {
                Some(parent) if leaf != request.tree.root() => parent,
                _ => return Ok(()),
            },
            Obstacle::Node(_) | Obstacle::Readers(_) | Obstacle::Grown => return Ok(()),
        };
        let below: Pieces = request.held.iter().filter(|piece| larger.covers(piece.node)).copied().collect();
        self.release_on_tree(&request.tree, request.words, &below).await?;
        request.held.retain(|piece: &mut Piece| !larger.covers(piece.node));
        request.todo.retain(|node: &mut Node| !larger.covers(*node));
        request.todo.insert(0, larger);
        request.is_careful = false;
        Ok(())
    }

    /// Of everything that happened, only what is held, what is still to do and `more` matters.
    #[inline]
    pub(super) fn mark(&self, label: &'static str, request: &Request, more: &[u64]) {
        let mut locals = ArrayVec::<u64, { (2 * LOCALS + 2) * super::MAX_K + 24 }>::new();
        for piece in &request.held {
            let flags = u64::from(piece.is_followed) << 2 | u64::from(piece.with_leaves) << 1;
            locals.push(piece.node.index() << 3 | flags);
            if self.recovers() || self.shape.grows() {
                locals.extend(piece.begun.locals());
            }
        }
        locals.extend(request.todo.iter().map(|node| node.index() << 3 | 1));
        locals.extend([request.era.get(), request.tree.view.config]);
        locals.extend(request.spill.into_iter().flat_map(Spill::locals));
        locals.extend(more.iter().copied());
        self.ep.mark(label, &locals);
    }

    /// A mark inside an attempt, where `begun` matters, too.
    pub(super) fn mark_begun(
        &self,
        label: &'static str,
        request: &Request,
        begun: &[Generations],
        more: [u64; 4],
    ) {
        let mut locals: ArrayVec<u64, { LOCALS * super::MAX_K + 4 }> = more.into_iter().collect();
        if self.recovers() || self.shape.grows() {
            locals.extend(begun.iter().flat_map(Generations::locals));
        }
        self.mark(label, request, &locals);
    }
}
