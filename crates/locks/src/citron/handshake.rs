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
use super::release::Verbs;
use super::tree::Node;
use super::words::{NO_READERS, has_readers};
use super::{Attempt, CitronClient, Obstacle, Piece, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH, Olds, RawVerb};

/// Where in a batch the window is, and how many nodes it has; `None` if it did not fit.
pub(super) type Window = Option<(usize, usize)>;

/// A batch under construction, and where in it ancestors are looked at.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) verbs: ArrayVec<RawVerb, MAX_BATCH>,
    /// Place in the batch, which piece looks, and at what.
    pub(super) looks: ArrayVec<(usize, usize, Node), MAX_BATCH>,
    pub(super) with_token: bool,
}

impl Plan {
    /// Of the ancestors that piece `piece` looked at, the lowest that is occupied.
    pub(super) fn occupied<R: Rules>(&self, request: &Request, olds: &Olds, piece: usize) -> Option<Node> {
        let looks = self.looks.iter();
        let looks =
            looks.filter(|(place, of, _)| *of == piece && request.is_occupied::<R>(olds[*place] as u64));
        looks.map(|(.., node)| *node).max_by_key(|node| node.level)
    }
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// One attempt at the next node; at all of the next leaves, as far as a batch goes.
    pub(super) async fn shake_hands(&self, request: &Request) -> Result<Attempt, FabricError> {
        if self.shape.is_leaf(request.todo[0]) {
            self.take_leaves(request).await
        } else if request.words.is_reader() {
            self.read_internal(request, request.todo[0]).await
        } else {
            self.take_internal(request, request.todo[0]).await
        }
    }

    async fn take_leaves(&self, request: &Request) -> Result<Attempt, FabricError> {
        let (plan, pieces) = self.plan_leaves(request);
        let olds = self.ep.go(plan.verbs.as_slice()).await?;
        let is_taken = |piece: &Piece, cas: usize| request.words.units_taken(olds[cas] as u64, piece.mask);
        let is_marked = |piece: &Piece, cas: usize| request.words.marks_anyway() || !is_taken(piece, cas);
        let mut obstacle = None;
        for (i, (piece, cas)) in pieces.iter().enumerate() {
            if is_taken(piece, *cas) {
                obstacle = Some((i, Obstacle::Units(piece.node, piece.mask)));
            } else if request.words.has_many_readers(olds[*cas] as u64, piece.mask) {
                obstacle = Some((i, Obstacle::Readers(piece.node)));
            } else if let Some(above) = plan.occupied::<R>(request, &olds, i) {
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
        let freed = freed.fold(0, |bits, (piece, cas)| bits << 1 | u64::from(is_marked(piece, *cas)));
        self.mark(
            "citron: undo leaves",
            request,
            &[failed as u64, freed, obstacle.local(), pieces.len() as u64],
        );
        // What lies to the left of the failure stays locked; the rest is undone, whether it was had or not, so that
        // nodes are held in ascending order.
        let mut undo = Verbs::new(&self.ep);
        for (piece, cas) in &pieces[failed..] {
            if is_marked(piece, *cas) {
                self.free(&request.tree, request.words, piece, &mut undo).await?;
            }
            self.undo_notes(request, piece.node, &mut undo).await?;
        }
        undo.finish().await?;
        if failed == 0 && matches!(obstacle, Obstacle::Readers(_)) {
            return Ok(Attempt::TooManyReaders);
        }
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
            plan.verbs.push(request.words.take_units(tree.word(*node), piece.mask).raw());
            for above in node.ancestors() {
                if node.notifies(above.level, self.params.m) {
                    if R::LOOKS_AFTER_TELLING && !is_common(above) {
                        plan.looks.push((plan.verbs.len(), mine, above));
                    }
                    plan.verbs.push(request.words.note(tree.word(above)).raw());
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
        let word = request.tree.word(node);
        let blocked = Ok(Attempt::Blocked(Obstacle::Node(node)));
        let mut free = None;
        if !request.may_queue() {
            // A ticket cannot be given back before its turn, so whoever may give up takes none that has to wait.
            let seen = self.ep.go(word.read()).await?;
            if request.words.has_queue(seen) {
                return blocked;
            }
            free = Some(seen);
        }
        let words = request.words;
        let take = free.map_or(words.ticket(word), |seen| words.ticket_if_free(word, seen));
        let (plan, ticket_at, window) = self.plan_internal(request, node, take.raw());
        let olds = self.ep.go(plan.verbs.as_slice()).await?;
        let before = olds[ticket_at] as u64;
        if free.is_some_and(|seen| !request.words.same_queue(seen, before)) {
            // Somebody was faster, and no ticket was taken.
            let mut undo = Verbs::new(&self.ep);
            self.undo_notes(request, node, &mut undo).await?;
            undo.finish().await?;
            return blocked;
        }

        let (ticket, mut at_once) = (words.ticket_of(before), !words.has_queue(before));
        if let Some(above) = plan.occupied::<R>(request, &olds, 0) {
            self.mark("citron: yield", request, &[above.index(), u64::from(at_once), ticket as u64]);
            self.yield_turn(request, node, (!at_once).then_some(ticket), Some(above)).await?;
            return Ok(Attempt::Blocked(Obstacle::Node(above)));
        }
        if !at_once {
            self.ep.wait_until(word.until(words.turn_of(ticket))).await?;
        }
        if R::READERS && (!at_once || has_readers(before)) {
            // New readers see the ticket and queue, so these are the last ones; some were ahead in the queue.
            at_once = false;
            if !self.ep.wait_until(word.until(NO_READERS).by(request.deadline())).await?.met {
                self.yield_turn(request, node, None, None).await?;
                return Ok(Attempt::GaveUp);
            }
        }
        // Requests below that were there first.
        let below = self.seen_below(request, node, before, window, &olds);
        at_once &= below.is_quiet();
        if !self.wait_for_everybody_below(request, node, window, &below).await? {
            self.yield_turn(request, node, None, None).await?;
            return Ok(Attempt::GaveUp);
        }
        let token = if plan.with_token && at_once {
            self.token_from(&request.tree, request.units, &olds).await?
        } else {
            None
        };
        let piece = Piece { node, mask: 0, with_leaves: false };
        Ok(Attempt::Locked(std::iter::once(piece).collect(), token))
    }

    /// The batch for an internal node that begins with `take`, where that is in it, and where the window is.
    pub(super) fn plan_internal(
        &self,
        request: &Request,
        node: Node,
        take: RawVerb,
    ) -> (Plan, usize, Window) {
        let tree = &request.tree;
        let mut plan = Plan::default();
        if !R::LOOKS_AFTER_TELLING {
            self.look_first(request, node, &mut plan);
        }
        let taken_at = plan.verbs.len();
        plan.verbs.push(take);
        for above in self.told(node) {
            if R::LOOKS_AFTER_TELLING && !request.is_common::<R>(above) {
                plan.looks.push((plan.verbs.len(), 0, above));
            }
            plan.verbs.push(request.words.note(tree.word(above)).raw());
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
            return (plan, taken_at, None);
        }
        self.plan_token(request, 1, &mut plan);
        (plan, taken_at, Some((from, count)))
    }

    /// Where the batch saw notes.
    pub(super) fn seen_below(
        &self,
        request: &Request,
        node: Node,
        before: u64,
        window: Window,
        olds: &Olds,
    ) -> Below {
        let mut below = Below::default();
        below.note::<R>(request, node, before);
        if let Some((from, count)) = window {
            for (node, old) in request.tree.shape.window(node, self.params.m).zip(&olds[from..from + count]) {
                below.note::<R>(request, node, *old as u64);
            }
        }
        below
    }

    /// Waits until those notes are gone, and those of a window that was not in the batch.
    pub(super) async fn wait_for_everybody_below(
        &self,
        request: &Request,
        node: Node,
        window: Window,
        below: &Below,
    ) -> Result<bool, FabricError> {
        Ok(self.wait_for_all(request, below).await?
            && (window.is_some() || self.wait_for_window(request, node).await?))
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
    pub(super) async fn yield_turn(
        &self,
        request: &Request,
        node: Node,
        waits_for: Option<u128>,
        above: Option<Node>,
    ) -> Result<(), FabricError> {
        let mut undo = Verbs::new(&self.ep);
        if let Some(above) = above.filter(|_| !R::PASSES_TURN) {
            // A mutant: the turn is kept until the ancestor is free.
            self.undo_notes(request, node, &mut undo).await?;
            undo.finish().await?;
            self.ep.wait_until(request.tree.word(above).until(request.words.queue_empty())).await?;
            if let Some(ticket) = waits_for {
                self.ep.wait_until(request.tree.word(node).until(request.words.turn_of(ticket))).await?;
            }
            self.ep.go(request.words.pass(request.tree.word(node))).await?;
            return Ok(());
        }
        if let Some(ticket) = waits_for {
            self.undo_notes(request, node, &mut undo).await?;
            undo.finish().await?;
            self.ep.wait_until(request.tree.word(node).until(request.words.turn_of(ticket))).await?;
            self.ep.go(request.words.pass(request.tree.word(node))).await?;
            return Ok(());
        }
        undo.push(request.words.pass(request.tree.word(node)).raw()).await?;
        self.undo_notes(request, node, &mut undo).await?;
        undo.finish().await
    }

    /// Takes the notes of a failed attempt back.
    pub(super) async fn undo_notes(
        &self,
        request: &Request,
        node: Node,
        undo: &mut Verbs<'_, E>,
    ) -> Result<(), FabricError> {
        if R::UNDO_COUNTS {
            self.take_notes_back(&request.tree, request.words, node, undo).await?;
        }
        Ok(())
    }
}
