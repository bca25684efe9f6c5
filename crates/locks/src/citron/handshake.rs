//! Handshake mode: tell the ancestors, *then* look at them, and yield to the client that is there. Ours, not the paper's.
//!
//! One ordered batch does it all:
//! 1. take the node: a leaf's bits by masked CAS, an internal node's next ticket by FAA;
//! 2. leave a note (DMax) at every m-th ancestor;
//! 3. look at all ancestors (the notes' old values are a look already);
//! 4. at an internal node, look for notes (DCnt ≠ DMax) at the descendants within m levels;
//! 5. draw a token.
//!
//! Where locks are recovered, the era is read before all of it and after all of it (`tokens`).
//!
//! An internal node is *occupied* from the first ticket to the last turn: TCnt ≠ TMax. Of a request below and one
//! above, either the lower one leaves its note before the upper one looks, and the upper one waits; or its look at the
//! ancestor comes after the upper one's ticket, and it yields. When both see each other, the lower one yields, and the
//! upper one sees its note gone. So one round trip is enough, no clock is asked, and nothing ever aborts.
//!
//! A client that took a ticket and saw no ancestor occupied needs no second look when its turn comes: from its note on, any
//! request above waits for it. Nor does it look twice for notes below: its ticket holds off all new requests, unless a gap
//! was left before its turn that lets them in; then it closes that first (`words`).

use super::acquire::Request;
use super::attempt::{Attempt, Obstacle, Piece};
use super::below::Below;
use super::ending::Generations;
use super::layout::{has_grown, is_another, is_swept};
use super::recover::End;
use super::release::Verbs;
use super::shape::Node;
use super::words::{self, Gap, NO_READERS, Words, has_readers};
use super::{CitronClient, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH, Olds, RawVerb, Time};

/// Where in a batch the window is, and how many nodes it has; `None` if it did not fit.
pub(super) type Window = Option<(usize, usize)>;

/// A batch under construction, and where in it ancestors are looked at.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) verbs: ArrayVec<RawVerb, MAX_BATCH>,
    /// Place in the batch, which piece looks, and at what.
    pub(super) looks: ArrayVec<(usize, usize, Node), MAX_BATCH>,
    /// Place in the batch, and whose note it is; the parent's first.
    pub(super) notes: ArrayVec<(usize, usize), MAX_BATCH>,
    /// Whether the batch begins with the era.
    reads_era: bool,
    /// Whether the batch ends with a proof.
    pub(super) with_proof: bool,
}

impl Plan {
    /// Of the ancestors that piece `piece` looked at, the lowest that is occupied.
    pub(super) fn occupied<R: Rules>(&self, request: &Request, olds: &Olds, piece: usize) -> Option<Node> {
        let looks = self.looks.iter();
        let looks =
            looks.filter(|(place, of, _)| *of == piece && request.is_occupied::<R>(olds[*place] as u64));
        looks.map(|(.., node)| *node).max_by_key(|node| node.level)
    }

    /// The generations in which piece `piece` began, if it began in `here`.
    pub(super) fn begun(&self, words: Words, olds: &Olds, piece: usize, here: u128) -> Generations {
        let mut begun = Generations::at(here);
        let notes = self.notes.iter().filter(|(_, of)| *of == piece);
        for (i, (place, _)) in notes.enumerate() {
            begun.notified(i, words.generation_below().get(olds[*place]) as u32);
            begun.swept_at_notified(i, is_swept(olds[*place] as u64));
            // The last one is the highest.
            begun.late = has_grown(olds[*place] as u64);
        }
        begun
    }

    /// Whether the tree is another by now, so that there are ancestors this batch knew nothing of, or fewer.
    pub(super) fn is_another(&self, request: &Request, olds: &Olds) -> bool {
        let root = request.tree.root();
        let mut looks = self.looks.iter();
        looks.any(|(place, _, node)| *node == root && is_another(olds[*place] as u64))
    }
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// One attempt at the next node; at all of the next leaves, as far as a batch goes.
    pub(super) async fn handshake(&self, request: &Request) -> Result<Attempt, FabricError> {
        if self.shape.is_leaf(request.todo[0]) {
            self.take_leaves(request).await
        } else if request.words.is_reader() {
            self.read_internal(request, request.todo[0]).await
        } else {
            self.take_internal(request, request.todo[0]).await
        }
    }

    /// A batch that nothing is in yet but the era, if the request has left no trace so far.
    pub(super) fn begin_plan(&self, request: &Request) -> Plan {
        let mut plan = Plan::default();
        if request.held.is_empty()
            && let Some(era) = self.era_verb(&request.tree)
        {
            plan.verbs.push(era);
            plan.reads_era = true;
        }
        plan
    }

    /// Posts a batch. Says when, if that matters, and what came back.
    pub(super) async fn post(&self, request: &Request, plan: &Plan) -> Result<(Time, Olds), FabricError> {
        let posted = self.time_of_posting().await;
        let olds = self.ep.go(plan.verbs.as_slice()).await?;
        if plan.reads_era {
            request.era.set(olds[0] as u64);
        }
        Ok((posted, olds))
    }

    async fn take_internal(&self, request: &Request, node: Node) -> Result<Attempt, FabricError> {
        let word = request.tree.word(node);
        let blocked = Ok(Attempt::Blocked(Obstacle::Node(node)));
        let mut free = None;
        if !request.may_queue() {
            // A ticket cannot be given back before its turn, so a client that may give up takes none that has to wait.
            let seen = self.ep.go(word.read()).await?;
            if request.words.has_queue(seen) {
                return blocked;
            }
            free = Some(seen);
        }
        let words = request.words;
        let take = free.map_or(words.ticket(word), |seen| words.ticket_if_free(word, seen));
        let (plan, ticket_at, window) = self.plan_internal(request, node, take.raw());
        let (posted, olds) = self.post(request, &plan).await?;
        let before = olds[ticket_at] as u64;
        let begun = self.begun_at(&plan, request, &olds, before);
        if free.is_some_and(|seen| !request.words.same_queue(seen, before)) {
            // Another client was faster, and no ticket was taken.
            let mut undo = Verbs::new(self, &request.tree, request.words);
            self.undo_notes(request, node, &begun, &mut undo).await?;
            undo.finish().await?;
            return blocked;
        }

        let (ticket, mut at_once) = (words.ticket_of(before), !words.has_queue(before));
        let waits_for = (!at_once).then_some((ticket, before));
        if self.shape.grows() && (begun.late || plan.is_another(request, &olds)) {
            self.yield_turn(request, node, &begun, waits_for, None).await?;
            return Ok(Attempt::Grown);
        }
        if let Some(above) = plan.occupied::<R>(request, &olds, 0) {
            let more = [above.index(), u64::from(at_once), ticket as u64, 0];
            self.mark_begun("citron: yield", request, &[begun], more);
            self.yield_turn(request, node, &begun, waits_for, Some(above)).await?;
            return Ok(Attempt::Blocked(Obstacle::Node(above)));
        }
        let mut turn = before;
        if !at_once {
            match self.wait_for_turn(request.queue(node), ticket, before, begun.here).await? {
                Some(word) => turn = word,
                None => return self.is_renewed(request, node, &begun).await,
            }
        }
        let is_followed = words == Words::Exclusive && words.is_followed(ticket, turn);
        if words.has_gap(turn) {
            return self.close_gap(request, node, begun, is_followed).await;
        }
        if R::READERS && (!at_once || has_readers(before)) {
            // New readers see the ticket and queue, so these are the last ones; some were ahead in the queue.
            at_once = false;
            match self.wait_here(request, node, NO_READERS, begun.here, request.deadline()).await? {
                End::Met => {}
                End::Renewed | End::Dead(_) => return self.is_renewed(request, node, &begun).await,
                End::GaveUp => {
                    self.yield_turn(request, node, &begun, None, None).await?;
                    return Ok(Attempt::GaveUp);
                }
            }
        }
        // Requests below that were there first.
        let below = self.seen_below(request, node, before, window, &olds);
        at_once &= below.is_quiet();
        if self.wait_for_all_below(request, node, window, &below).await? != End::Met {
            self.yield_turn(request, node, &begun, None, None).await?;
            return Ok(Attempt::GaveUp);
        }
        let proof = if plan.with_proof && at_once {
            Some(self.proof_from(&request.tree, request.units, &olds, posted).await?)
        } else {
            None
        };
        let piece = Piece { node, mask: 0, with_leaves: false, is_followed, begun };
        Ok(Attempt::Locked(std::iter::once(piece).collect(), proof))
    }

    /// The turn has come, with a gap before it that let requests below in: closes it, and only then looks for their notes.
    async fn close_gap(
        &self,
        request: &Request,
        node: Node,
        begun: Generations,
        is_followed: bool,
    ) -> Result<Attempt, FabricError> {
        let close = words::close_gap(request.tree.word(node), begun.here, self.guards);
        let mut plan = Plan::default();
        let closes_last = !R::CLOSES_GAP_FIRST;
        if !closes_last {
            plan.verbs.push(close.verb);
        }
        let window = self.plan_window(request, node, &mut plan);
        if closes_last {
            plan.verbs.push(close.verb);
        } else if window.is_some() {
            self.plan_proof(request, 1, &mut plan);
        }
        let (posted, olds) = self.post(request, &plan).await?;
        let before = olds[if closes_last { olds.len() - 1 } else { 0 }];
        if !close.was_due(before) {
            return self.is_renewed(request, node, &begun).await;
        }
        let below = self.seen_below(request, node, before as u64, window, &olds);
        if self.wait_for_all_below(request, node, window, &below).await? != End::Met {
            self.yield_turn(request, node, &begun, None, None).await?;
            return Ok(Attempt::GaveUp);
        }
        let mut proof = None;
        if plan.with_proof && below.is_quiet() {
            proof = Some(self.proof_from(&request.tree, request.units, &olds, posted).await?);
        }
        let piece = Piece { node, mask: 0, with_leaves: false, is_followed, begun };
        Ok(Attempt::Locked(std::iter::once(piece).collect(), proof))
    }

    /// The generations in which the only piece of a plan began at an internal node that was `before`.
    pub(super) fn begun_at(&self, plan: &Plan, request: &Request, olds: &Olds, before: u64) -> Generations {
        if !self.recovers() && !self.shape.grows() {
            return Generations::default();
        }
        let here = request.words.generation_here().get(before.into());
        let mut begun = plan.begun(request.words, olds, 0, here);
        begun.swept_here(is_swept(before));
        if plan.notes.is_empty() {
            begun.late = is_another(before); // at the root
        }
        begun
    }

    /// The tickets were recovered, ours with them: only notes are left to take back.
    pub(super) async fn is_renewed(
        &self,
        request: &Request,
        node: Node,
        begun: &Generations,
    ) -> Result<Attempt, FabricError> {
        let mut undo = Verbs::new(self, &request.tree, request.words);
        self.undo_notes(request, node, begun, &mut undo).await?;
        undo.finish().await?;
        Ok(Attempt::Renewed)
    }

    /// The batch for an internal node that begins with `take`, where that is in it, and where the window is.
    pub(super) fn plan_internal(
        &self,
        request: &Request,
        node: Node,
        take: RawVerb,
    ) -> (Plan, usize, Window) {
        let tree = &request.tree;
        let mut plan = self.begin_plan(request);
        if !R::LOOKS_AFTER_NOTIFYING {
            self.look_first(request, node, &mut plan);
        }
        let taken_at = plan.verbs.len();
        plan.verbs.push(take);
        for above in request.tree.notified(node) {
            if R::LOOKS_AFTER_NOTIFYING && !request.is_common::<R>(above) {
                plan.looks.push((plan.verbs.len(), 0, above));
            }
            plan.notes.push((plan.verbs.len(), 0));
            plan.verbs.push(request.words.note(tree.word(above)).raw());
        }
        if R::LOOKS_AFTER_NOTIFYING {
            let (top, m) = (tree.root().level, tree.view.m);
            for above in tree.above(node).filter(|above| !node.notifies(above.level, top, m)) {
                if !request.is_common::<R>(above) {
                    plan.looks.push((plan.verbs.len(), 0, above));
                    plan.verbs.push(tree.word(above).read().raw());
                }
            }
        }
        let window = self.plan_window(request, node, &mut plan);
        if window.is_some() {
            self.plan_proof(request, 1, &mut plan);
        }
        (plan, taken_at, window)
    }

    /// Looks for notes below `node`. None if they are too many for one batch: they get batches of their own.
    fn plan_window(&self, request: &Request, node: Node, plan: &mut Plan) -> Window {
        let tree = &request.tree;
        let from = plan.verbs.len();
        let room = (MAX_BATCH - from).saturating_sub(super::tokens::ROOM);
        plan.verbs.extend(tree.window(node).take(room).map(|below| tree.word(below).read().raw()));
        let count = plan.verbs.len() - from;
        if tree.window(node).nth(count).is_some() {
            plan.verbs.truncate(from);
            return None;
        }
        Some((from, count))
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
            for (node, old) in request.tree.window(node).zip(&olds[from..from + count]) {
                below.note::<R>(request, node, *old as u64);
            }
        }
        below
    }

    /// Waits until those notes are gone, and those of a window that was not in the batch.
    pub(super) async fn wait_for_all_below(
        &self,
        request: &Request,
        node: Node,
        window: Window,
        below: &Below,
    ) -> Result<End, FabricError> {
        let end = self.wait_for_all(request, below).await?;
        if end == End::Met && window.is_none() {
            return self.wait_for_window(request, node).await;
        }
        Ok(end)
    }

    /// Ends the batch with a proof, if the batch can be the last one and has room.
    pub(super) fn plan_proof(&self, request: &Request, pieces: usize, plan: &mut Plan) {
        if pieces < request.todo.len() || plan.verbs.remaining_capacity() < super::tokens::ROOM {
            return;
        }
        if let Some(verbs) = self.proof_verbs(&request.tree, request.units) {
            plan.verbs.extend(verbs);
            plan.with_proof = true;
        }
    }

    /// A mutant's look at the ancestors, before they are notified.
    pub(super) fn look_first(&self, request: &Request, node: Node, plan: &mut Plan) {
        for above in request.tree.above(node).filter(|above| !request.is_common::<R>(*above)) {
            plan.looks.push((plan.verbs.len(), 0, above));
            plan.verbs.push(request.tree.word(above).read().raw());
        }
    }

    /// Gets out of the way: the notes are taken back, and the turn is passed on when it has come.
    pub(super) async fn yield_turn(
        &self,
        request: &Request,
        node: Node,
        begun: &Generations,
        waits_for: Option<(u128, u64)>,
        above: Option<Node>,
    ) -> Result<(), FabricError> {
        let mut undo = Verbs::new(self, &request.tree, request.words);
        let pass = |gap| self.pass(&request.tree, request.words, node, gap, begun);
        let keeps_turn = above.filter(|_| !R::PASSES_TURN);
        if waits_for.is_none() && keeps_turn.is_none() {
            undo.push(pass(Gap::Leave)).await?;
            self.undo_notes(request, node, begun, &mut undo).await?;
            undo.finish().await?;
            return Ok(());
        }
        self.undo_notes(request, node, begun, &mut undo).await?;
        undo.finish().await?;
        if let Some(above) = keeps_turn {
            // A mutant: the turn is kept until the ancestor is free.
            self.ep.wait_until(request.tree.word(above).until(request.words.queue_empty())).await?;
        }
        let mut gap = Gap::Leave;
        if let Some((ticket, seen)) = waits_for {
            match self.wait_for_turn(request.queue(node), ticket, seen, begun.here).await? {
                Some(turn) if request.words.has_gap(turn) => gap = Gap::Close,
                Some(_) => {}
                None => return Ok(()),
            }
        }
        let mut undo = Verbs::new(self, &request.tree, request.words);
        undo.push(pass(gap)).await?;
        undo.finish().await.map(drop)
    }

    /// Takes the notes of a failed attempt back.
    pub(super) async fn undo_notes(
        &self,
        request: &Request,
        node: Node,
        begun: &Generations,
        undo: &mut Verbs<'_, E, R>,
    ) -> Result<(), FabricError> {
        if R::UNDO_COUNTS {
            self.take_notes_back(&request.tree, request.words, node, begun, undo).await?;
        }
        Ok(())
    }
}
