//! Handshake mode: tell the ancestors, *then* look at them, and yield to whoever is there. Ours, not the paper's.
//!
//! One ordered batch does it all:
//! 1. take the node: a leaf's bits by masked CAS, an internal node's next ticket by FAA;
//! 2. leave a note (DMax) at every m-th ancestor;
//! 3. look at all ancestors (the notes' old values are a look already);
//! 4. at an internal node, look for notes (DCnt ≠ DMax) at the descendants within m levels;
//! 5. draw a token.
//!
//! An internal node is *occupied* from the first ticket to the last turn: TCnt ≠ TMax. Of a request below and one
//! above, either the lower one leaves its note before the upper one looks, and the upper one waits; or its look at the
//! ancestor comes after the upper one's ticket, and it yields. When both see each other, the lower one yields, and the
//! upper one sees its note gone. So one round trip is enough, no clock is asked, and nothing ever aborts.
//!
//! Whoever took a ticket and saw no ancestor occupied needs no second look when its turn comes: from its note on, any
//! request above waits for it. Nor does it look twice for notes below: its ticket holds off everybody new.

use super::acquire::Request;
use super::below::Below;
use super::layout::{D_MAX, T_CNT, T_MAX, add_one, get, has_queue, ticket_if_free, turn_of};
use super::release::Verbs;
use super::tree::Node;
use super::{Attempt, CitronClient, Obstacle, Piece, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH, Olds, RawVerb};

/// A batch under construction, and where in it ancestors are looked at.
#[derive(Default)]
struct Plan {
    verbs: ArrayVec<RawVerb, MAX_BATCH>,
    /// Place in the batch, which piece looks, and at what.
    looks: ArrayVec<(usize, usize, Node), MAX_BATCH>,
    with_token: bool,
}

impl Plan {
    /// Of the ancestors that piece `piece` looked at, the lowest that is occupied.
    fn occupied(&self, olds: &Olds, piece: usize) -> Option<Node> {
        let looks = self.looks.iter().filter(|(place, of, _)| *of == piece && has_queue(olds[*place] as u64));
        looks.map(|(.., node)| *node).max_by_key(|node| node.level)
    }
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// One attempt at the next node; at all of the next leaves, as far as a batch goes.
    pub(super) async fn shake_hands(&self, request: &Request) -> Result<Attempt, FabricError> {
        if self.shape.is_leaf(request.todo[0]) {
            self.take_leaves(request).await
        } else {
            self.take_internal(request, request.todo[0]).await
        }
    }

    async fn take_leaves(&self, request: &Request) -> Result<Attempt, FabricError> {
        let (plan, pieces) = self.plan_leaves(request);
        let olds = self.ep.go(plan.verbs.as_slice()).await?;
        let is_taken = |piece: &Piece, cas: usize| olds[cas] as u64 & piece.mask != 0;
        let mut obstacle = None;
        for (i, (piece, cas)) in pieces.iter().enumerate() {
            if is_taken(piece, *cas) {
                obstacle = Some((i, Obstacle::Units(piece.node, piece.mask)));
            } else if let Some(above) = plan.occupied(&olds, i) {
                obstacle = Some((i, Obstacle::Node(above)));
            }
            if obstacle.is_some() {
                break;
            }
        }
        let Some((failed, obstacle)) = obstacle else {
            let token = if plan.with_token {
                self.token_from(&request.tree, request.units, &olds).await?
            } else {
                None
            };
            return Ok(Attempt::Locked(pieces.into_iter().map(|(piece, _)| piece).collect(), token));
        };
        let freed = pieces[failed..].iter().rev();
        let freed = freed.fold(0, |bits, (piece, cas)| bits << 1 | u64::from(!is_taken(piece, *cas)));
        self.mark(
            "citron: undo leaves",
            request,
            &[failed as u64, freed, obstacle.local(), pieces.len() as u64],
        );
        // What lies to the left of the failure stays locked; the rest is undone, whether it was had or not, so that
        // nodes are held in ascending order.
        let mut undo = Verbs::new(&self.ep);
        for (piece, cas) in &pieces[failed..] {
            if !is_taken(piece, *cas) {
                self.free(&request.tree, piece, &mut undo).await?;
            }
            self.undo_notes(request, piece.node, &mut undo).await?;
        }
        undo.finish().await?;
        if failed > 0 {
            return Ok(Attempt::Locked(pieces[..failed].iter().map(|(piece, _)| *piece).collect(), None));
        }
        Ok(Attempt::Blocked(obstacle))
    }

    /// The batch for as many of the next leaves as fit, and where each one's CAS is in it.
    fn plan_leaves(&self, request: &Request) -> (Plan, ArrayVec<(Piece, usize), { super::MAX_K }>) {
        let tree = &request.tree;
        let mut plan = Plan::default();
        let mut pieces = ArrayVec::<(Piece, usize), { super::MAX_K }>::new();
        let mut reads = ArrayVec::<(usize, Node), MAX_BATCH>::new();
        if !R::LOOKS_AFTER_TELLING {
            self.look_first(request, request.todo[0], &mut plan);
        }
        for node in request.todo.iter().take_while(|node| self.shape.is_leaf(**node)) {
            // Every ancestor is told or read, so a leaf takes at most as many verbs as there are levels.
            let room = MAX_BATCH - plan.verbs.len() - reads.len();
            if room < self.shape.levels as usize {
                break;
            }
            let mine = pieces.len();
            let is_common = |above: Node| {
                request.is_common::<R>(above)
                    || R::SPARES_COMMON_ANCESTORS && pieces.iter().any(|(piece, _)| above.covers(piece.node))
            };
            let piece = self.piece(*node, request.units.0, request.units.1);
            let cas = plan.verbs.len();
            plan.verbs.push(tree.word(*node).masked_cas(0, piece.mask, piece.mask, piece.mask).raw());
            for above in node.ancestors() {
                if node.notifies(above.level, self.params.m) {
                    if R::LOOKS_AFTER_TELLING && !is_common(above) {
                        plan.looks.push((plan.verbs.len(), mine, above));
                    }
                    plan.verbs.push(add_one(tree.word(above), D_MAX).raw());
                } else if R::LOOKS_AFTER_TELLING && !is_common(above) {
                    reads.push((mine, above));
                }
            }
            pieces.push((piece, cas));
        }
        for (of, above) in reads {
            plan.looks.push((plan.verbs.len(), of, above));
            plan.verbs.push(tree.word(above).read().raw());
        }
        self.plan_token(request, pieces.len(), &mut plan);
        (plan, pieces)
    }

    async fn take_internal(&self, request: &Request, node: Node) -> Result<Attempt, FabricError> {
        let (tree, word) = (&request.tree, request.tree.word(node));
        let blocked = Ok(Attempt::Blocked(Obstacle::Node(node)));
        let mut free = None;
        if !request.may_queue() {
            // A ticket cannot be given back before its turn, so whoever may give up takes none that has to wait.
            let seen = self.ep.go(word.read()).await?;
            if has_queue(seen) {
                return blocked;
            }
            free = Some(seen);
        }
        let (plan, ticket_at, window) = self.plan_internal(request, node, free);
        let olds = self.ep.go(plan.verbs.as_slice()).await?;
        let before = olds[ticket_at] as u64;
        if free.is_some_and(|seen| !same_queue(seen, before)) {
            // Somebody was faster, and no ticket was taken.
            let mut undo = Verbs::new(&self.ep);
            self.undo_notes(request, node, &mut undo).await?;
            undo.finish().await?;
            return blocked;
        }

        let (ticket, mut at_once) = (get(before, T_MAX), !has_queue(before));
        if let Some(above) = plan.occupied(&olds, 0) {
            self.mark("citron: yield", request, &[above.index(), u64::from(at_once), ticket as u64]);
            self.yield_turn(request, node, (!at_once).then_some(ticket)).await?;
            return Ok(Attempt::Blocked(Obstacle::Node(above)));
        }
        if !at_once {
            self.ep.wait_until(word.until(turn_of(ticket))).await?;
        }
        // Requests below that were there first.
        let mut below = Below::default();
        below.note(node, before);
        if let Some((from, count)) = window {
            let nodes = tree.shape.window(node, self.params.m);
            nodes.zip(&olds[from..from + count]).for_each(|(node, old)| below.note(node, *old as u64));
        }
        at_once &= below.is_quiet();
        let quiet = self.wait_for_all(request, &below).await?
            && (window.is_some() || self.wait_for_window(request, node).await?);
        if !quiet {
            self.yield_turn(request, node, None).await?;
            return Ok(Attempt::GaveUp);
        }
        let token = if plan.with_token && at_once {
            self.token_from(tree, request.units, &olds).await?
        } else {
            None
        };
        let piece = Piece { node, mask: 0, with_leaves: false };
        Ok(Attempt::Locked(std::iter::once(piece).collect(), token))
    }

    /// The batch for an internal node, where the ticket is in it, and where the window is, if it fits.
    fn plan_internal(
        &self,
        request: &Request,
        node: Node,
        free: Option<u64>,
    ) -> (Plan, usize, Option<(usize, usize)>) {
        let (tree, word) = (&request.tree, request.tree.word(node));
        let mut plan = Plan::default();
        if !R::LOOKS_AFTER_TELLING {
            self.look_first(request, node, &mut plan);
        }
        let ticket_at = plan.verbs.len();
        plan.verbs.push(free.map_or(add_one(word, T_MAX), |seen| ticket_if_free(word, seen)).raw());
        for above in self.told(node) {
            if R::LOOKS_AFTER_TELLING && !request.is_common::<R>(above) {
                plan.looks.push((plan.verbs.len(), 0, above));
            }
            plan.verbs.push(add_one(tree.word(above), D_MAX).raw());
        }
        if R::LOOKS_AFTER_TELLING {
            for above in node.ancestors().filter(|above| !node.notifies(above.level, self.params.m)) {
                if !request.is_common::<R>(above) {
                    plan.looks.push((plan.verbs.len(), 0, above));
                    plan.verbs.push(tree.word(above).read().raw());
                }
            }
        }
        let from = plan.verbs.len();
        let room = MAX_BATCH - from - super::tokens::IN_BATCH as usize;
        let nodes = tree.shape.window(node, self.params.m);
        plan.verbs.extend(nodes.take(room).map(|below| tree.word(below).read().raw()));
        let count = plan.verbs.len() - from;
        if tree.shape.window(node, self.params.m).nth(count).is_some() {
            // Too many for one batch: they get batches of their own.
            plan.verbs.truncate(from);
            return (plan, ticket_at, None);
        }
        self.plan_token(request, 1, &mut plan);
        (plan, ticket_at, Some((from, count)))
    }

    /// Draws the token at the end of the batch, if the batch can be the last one and has room.
    fn plan_token(&self, request: &Request, pieces: usize, plan: &mut Plan) {
        if pieces < request.todo.len() || plan.verbs.remaining_capacity() < super::tokens::IN_BATCH as usize {
            return;
        }
        if let Some(verbs) = Self::token_verbs(&request.tree, request.units) {
            plan.verbs.extend(verbs);
            plan.with_token = true;
        }
    }

    /// A mutant's look at the ancestors, before they are told.
    fn look_first(&self, request: &Request, node: Node, plan: &mut Plan) {
        for above in node.ancestors().filter(|above| !request.is_common::<R>(*above)) {
            plan.looks.push((plan.verbs.len(), 0, above));
            plan.verbs.push(request.tree.word(above).read().raw());
        }
    }

    /// Gets out of the way: the notes are taken back, and the turn is passed on when it has come.
    async fn yield_turn(
        &self,
        request: &Request,
        node: Node,
        waits_for: Option<u128>,
    ) -> Result<(), FabricError> {
        let mut undo = Verbs::new(&self.ep);
        if let Some(ticket) = waits_for {
            self.undo_notes(request, node, &mut undo).await?;
            undo.finish().await?;
            self.ep.wait_until(request.tree.word(node).until(turn_of(ticket))).await?;
            self.ep.go(add_one(request.tree.word(node), T_CNT)).await?;
            return Ok(());
        }
        self.free(&request.tree, &Piece { node, mask: 0, with_leaves: false }, &mut undo).await?;
        self.undo_notes(request, node, &mut undo).await?;
        undo.finish().await
    }

    /// Takes the notes of a failed attempt back.
    async fn undo_notes(
        &self,
        request: &Request,
        node: Node,
        undo: &mut Verbs<'_, E>,
    ) -> Result<(), FabricError> {
        if R::UNDO_COUNTS {
            self.take_notes_back(&request.tree, node, undo).await?;
        }
        Ok(())
    }
}

/// Whether two looks at a node show the same tickets.
fn same_queue(one: u64, other: u64) -> bool {
    get(one, T_CNT) == get(other, T_CNT) && get(one, T_MAX) == get(other, T_MAX)
}
