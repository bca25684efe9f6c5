//! Handshake mode at leaves: units by masked CAS, and everything else in the same batch (`handshake`). Under contention the
//! units first, alone.
//!
//! What lies to the left of a failure stays locked, so that nodes are held in ascending order; the rest is undone.

use super::acquire::Request;
use super::attempt::{Attempt, Obstacle, Piece};
use super::ending::Generations;
use super::handshake::Plan;
use super::release::Verbs;
use super::shape::Node;
use super::{CitronClient, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH};

/// What came of taking the first leaf alone.
enum First {
    /// A client has units of it.
    Taken(Obstacle),
    /// It was taken; what was there before.
    Had(u64),
    /// It goes with the others.
    Later,
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// All of the next leaves, as far as a batch goes.
    pub(super) async fn take_leaves(&self, request: &Request) -> Result<Attempt, FabricError> {
        let words = request.words;
        let first = match self.take_first(request).await? {
            First::Taken(obstacle) => return Ok(Attempt::Blocked(obstacle)),
            First::Had(old) => Some(old),
            First::Later => None,
        };
        let (plan, mut pieces) = self.plan_leaves(request, first.is_some());
        let (posted, olds) = self.post(request, &plan).await?;
        let leaf = |cas: Option<usize>| cas.map_or(first.unwrap_or(0), |place| olds[place] as u64);
        if self.recovers() || self.shape.grows() {
            for (i, (piece, cas)) in pieces.iter_mut().enumerate() {
                piece.begun = plan.begun(words, &olds, i, self.leaf_generation.get(leaf(*cas).into()));
            }
        }
        let is_taken = |piece: &Piece, cas| words.units_taken(leaf(cas), piece.mask);
        let is_marked = |piece: &Piece, cas| words.marks_anyway() || !is_taken(piece, cas);
        let mut obstacle = None;
        if self.shape.grows()
            && (plan.is_another(request, &olds) || pieces.iter().any(|(piece, _)| piece.begun.late))
        {
            obstacle = Some((0, Obstacle::Grown));
        }
        for (i, (piece, cas)) in pieces.iter().enumerate() {
            if obstacle.is_some() {
                break;
            }
            if is_taken(piece, *cas) {
                obstacle = Some((i, Obstacle::Units(piece.node, piece.mask)));
            } else if words.has_many_readers_of(leaf(*cas), piece.mask) {
                obstacle = Some((i, Obstacle::Readers(piece.node)));
            } else if let Some(above) = plan.occupied::<R>(request, &olds, i) {
                obstacle = Some((i, Obstacle::Node(above)));
            }
        }
        let Some((failed, obstacle)) = obstacle else {
            let proof = if plan.with_proof {
                Some(self.proof_from(&request.tree, request.units, &olds, posted).await?)
            } else {
                None
            };
            return Ok(Attempt::Locked(pieces.into_iter().map(|(piece, _)| piece).collect(), proof));
        };
        let freed = pieces[failed..].iter().rev();
        let freed = freed.fold(0, |bits, (piece, cas)| bits << 1 | u64::from(is_marked(piece, *cas)));
        let begun: ArrayVec<Generations, { super::MAX_K }> =
            pieces.iter().map(|(piece, _)| piece.begun).collect();
        let more = [failed as u64, freed, obstacle.local(), pieces.len() as u64];
        self.mark_begun("citron: undo leaves", request, &begun, more);
        // What lies to the left of the failure stays locked; the rest is undone, whether it was had or not, so that
        // nodes are held in ascending order.
        let mut undo = Verbs::new(self, &request.tree, request.words);
        for (piece, cas) in &pieces[failed..] {
            if is_marked(piece, *cas) {
                self.free(&request.tree, request.words, piece, &mut undo).await?;
            }
            self.undo_notes(request, piece.node, &piece.begun, &mut undo).await?;
        }
        undo.finish().await?;
        if matches!(obstacle, Obstacle::Grown) {
            return Ok(Attempt::Grown);
        }
        if failed == 0 && matches!(obstacle, Obstacle::Readers(_)) {
            return Ok(Attempt::TooManyReaders);
        }
        if failed > 0 {
            return Ok(Attempt::Locked(pieces[..failed].iter().map(|(piece, _)| *piece).collect(), None));
        }
        Ok(Attempt::Blocked(obstacle))
    }

    /// Under contention, the next leaf alone, before any other node is notified: an attempt that fails leaves nothing to
    /// undo.
    async fn take_first(&self, request: &Request) -> Result<First, FabricError> {
        let (node, words) = (request.todo[0], request.words);
        if !request.is_careful || words.marks_anyway() {
            return Ok(First::Later);
        }
        let mask = self.mask(node, request.units);
        let mut plan = self.begin_plan(request);
        let at = plan.verbs.len();
        plan.verbs.push(words.take_units(request.tree.word(node), mask).raw());
        let (_, olds) = self.post(request, &plan).await?;
        let old = olds[at] as u64;
        let taken = words.units_taken(old, mask);
        Ok(if taken { First::Taken(Obstacle::Units(node, mask)) } else { First::Had(old) })
    }

    /// The batch for as many of the next leaves as fit, and where each one's CAS is in it: the first's is not if that is
    /// had already.
    fn plan_leaves(
        &self,
        request: &Request,
        has_first: bool,
    ) -> (Plan, ArrayVec<(Piece, Option<usize>), { super::MAX_K }>) {
        let tree = &request.tree;
        let mut plan = if has_first { Plan::default() } else { self.begin_plan(request) };
        let mut pieces = ArrayVec::<(Piece, Option<usize>), { super::MAX_K }>::new();
        let mut reads = ArrayVec::<(usize, Node), MAX_BATCH>::new();
        if !R::LOOKS_AFTER_NOTIFYING {
            self.look_first(request, request.todo[0], &mut plan);
        }
        for node in request.todo.iter().take_while(|node| self.shape.is_leaf(**node)) {
            // Every ancestor is notified or read, so a leaf takes at most as many verbs as there are levels.
            let room = MAX_BATCH - plan.verbs.len() - reads.len();
            if room < self.shape.levels as usize {
                break;
            }
            let mine = pieces.len();
            let is_common = |above: Node| {
                request.is_common::<R>(above)
                    || R::SPARES_COMMON_ANCESTORS && pieces.iter().any(|(piece, _)| above.covers(piece.node))
            };
            let mask = self.mask(*node, request.units);
            let piece = Piece {
                node: *node,
                mask,
                with_leaves: false,
                is_followed: false,
                begun: Generations::default(),
            };
            let cas = (mine > 0 || !has_first).then_some(plan.verbs.len());
            if cas.is_some() {
                plan.verbs.push(request.words.take_units(tree.word(*node), piece.mask).raw());
            }
            for above in tree.above(*node) {
                if node.notifies(above.level, tree.root().level, tree.view.m) {
                    if R::LOOKS_AFTER_NOTIFYING && !is_common(above) {
                        plan.looks.push((plan.verbs.len(), mine, above));
                    }
                    plan.notes.push((plan.verbs.len(), mine));
                    plan.verbs.push(request.words.note(tree.word(above)).raw());
                } else if R::LOOKS_AFTER_NOTIFYING && !is_common(above) {
                    reads.push((mine, above));
                }
            }
            pieces.push((piece, cas));
        }
        for (of, above) in reads {
            plan.looks.push((plan.verbs.len(), of, above));
            plan.verbs.push(tree.word(above).read().raw());
        }
        self.plan_proof(request, pieces.len(), &mut plan);
        (plan, pieces)
    }
}
