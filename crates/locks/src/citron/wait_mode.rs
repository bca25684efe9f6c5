//! Wait mode: LOCKNODE of Citron Alg. 2, with the fast paths of §3.8.
//!
//! The order is the other way round than in a handshake: look at the ancestors (phase (b)), then take the node (c) and tell
//! the ancestors (d). A request above may have looked for notes in between, so time must help: a request at an internal node
//! waits T_wait between setting Occ and looking for notes, and a request whose notes took longer than that since its own look
//! aborts (Inequation 1). Safety rests on clocks that run at the same speed.
//!
//! Two things differ from print. A client that finds an ancestor occupied starts over, so the look that counts is always one
//! round trip over all ancestors, and t₁ is when that one was posted. And the turn at the own node is not kept
//! meanwhile: see `acquire`, rule 3.

use super::acquire::Request;
use super::attempt::{Attempt, Obstacle, Piece};
use super::below::Below;
use super::ending::Generations;
use super::layout::{NOT_OCC, has_grown, is_another, is_occ, is_swept};
use super::recover::End;
use super::release::Verbs;
use super::shape::Node;
use super::words::{self, Gap};
use super::{CitronClient, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH, RawVerb, Time};

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// LOCKNODE for the next node.
    pub(super) async fn lock_node_in_time(
        &self,
        request: &Request,
        pace: Pace,
    ) -> Result<Attempt, FabricError> {
        let node = request.todo[0];
        if self.shape.is_leaf(node) {
            self.lock_leaf_in_time(request, node, pace).await
        } else {
            self.lock_internal_in_time(request, node, pace).await
        }
    }

    async fn lock_leaf_in_time(
        &self,
        request: &Request,
        node: Node,
        pace: Pace,
    ) -> Result<Attempt, FabricError> {
        let (words, tree) = (request.words, &request.tree);
        let mask = self.mask(node, request.units);
        let looked = self.ep.now().await; // t₁
        let look = self.look_above(request, node, None).await?; // phase (b)
        if look.is_another {
            return Ok(Attempt::Grown); // line 15
        }
        if let Some(above) = look.occupied {
            return Ok(Attempt::Blocked(Obstacle::Node(above)));
        }
        // Phases (c) and (d) in one batch (§3.8): the notes are taken back if the CAS failed. Where it is likely to, one
        // after the other.
        let take = words.take_units(tree.word(node), mask).raw(); // line 22
        let notes = request.tree.notified(node).map(|above| words.note(tree.word(above)).raw()); // line 31
        let olds = if self.params.fast_path && !request.is_careful {
            let verbs: ArrayVec<RawVerb, MAX_BATCH> = std::iter::once(take).chain(notes).collect();
            let olds = self.ep.go(verbs.as_slice()).await?;
            if words.units_taken(olds[0] as u64, mask) {
                let begun = Generations::at(self.leaf_generation.get(olds[0]));
                let begun = self.begun_in_time(request, &olds[1..], begun);
                self.undo_in_time(request, node, &begun, &[]).await?;
                return Ok(Attempt::Blocked(Obstacle::Units(node, mask)));
            }
            olds
        } else {
            let old = self.ep.go([take].as_slice()).await?;
            if words.units_taken(old[0] as u64, mask) {
                return Ok(Attempt::Blocked(Obstacle::Units(node, mask)));
            }
            let verbs: ArrayVec<RawVerb, MAX_BATCH> = notes.collect();
            let notified = self.ep.go(verbs.as_slice()).await?;
            old.into_iter().chain(notified).collect()
        };
        let begun = Generations::at(self.leaf_generation.get(olds[0]));
        let begun = self.begun_in_time(request, &olds[1..], begun);
        let piece = Piece { node, mask, with_leaves: false, is_followed: false, begun };
        if self.is_outgrown(&begun) {
            self.undo_in_time(request, node, &begun, &[piece]).await?;
            return Ok(Attempt::Grown); // line 33
        }
        if self.is_late(looked, pace).await {
            self.undo_in_time(request, node, &begun, &[piece]).await?;
            return Ok(Attempt::Aborted);
        }
        Ok(Attempt::Locked(std::iter::once(piece).collect(), None))
    }

    async fn lock_internal_in_time(
        &self,
        request: &Request,
        node: Node,
        pace: Pace,
    ) -> Result<Attempt, FabricError> {
        let (words, tree) = (request.words, &request.tree);
        let word = tree.word(node);
        let Turn { looked, look, begun } = match self.take_turn(request, node).await? {
            Phase::Turn(turn) => turn,
            Phase::Busy => return Ok(Attempt::Blocked(Obstacle::Node(node))),
            Phase::Renewed => return Ok(Attempt::Renewed),
        };
        if look.is_another || look.occupied.is_some() {
            let mut undo = Verbs::new(self, tree, words);
            undo.push(self.pass(tree, words, node, Gap::Leave, &begun)).await?;
            undo.finish().await?;
            let occupied = look.occupied.filter(|_| !look.is_another);
            return Ok(occupied.map_or(Attempt::Grown, |above| Attempt::Blocked(Obstacle::Node(above))));
        }
        let here = begun.here;

        // Phases (c) and (d), and the leaves below if they are children (§3.8).
        let mut verbs = ArrayVec::<RawVerb, MAX_BATCH>::new();
        let occupy = words::occupy(word, here, self.guards);
        verbs.push(occupy.verb); // line 28
        verbs.extend(request.tree.notified(node).map(|above| words.note(tree.word(above)).raw())); // line 31
        let leaves_at = verbs.len();
        if self.has_leaves(node) {
            let full = self.shape.full_leaf();
            verbs.extend((0..4).map(|i| words.take_units(tree.word(node.child(i)), full).raw()));
        }
        let olds = if self.params.fast_path {
            self.ep.go(verbs.as_slice()).await?
        } else {
            let occupied = self.ep.go(&verbs[..1]).await?;
            occupied.into_iter().chain(self.ep.go(&verbs[1..]).await?).collect()
        };
        let began = self.ep.now().await; // t₀; later than in line 29, which only makes the wait longer
        let mut begun = self.begun_in_time(request, &olds[1..leaves_at], begun);
        for (i, old) in olds[leaves_at..].iter().enumerate() {
            begun.leaf(i, self.leaf_generation.get(*old) as u32);
        }
        let taken = |i: usize| !words.units_taken(olds[leaves_at + i] as u64, self.shape.full_leaf());
        let with_leaves = self.has_leaves(node) && (0..4).all(taken);
        let piece = Piece { node, mask: 0, with_leaves, is_followed: false, begun };
        if !occupy.was_due(olds[0]) {
            self.give_leaves_back(request, &piece, false, taken).await?;
            self.undo_in_time(request, node, &begun, &[]).await?;
            return Ok(Attempt::Renewed);
        }
        if self.is_outgrown(&begun) {
            self.give_leaves_back(request, &piece, with_leaves, taken).await?;
            self.undo_in_time(request, node, &begun, &[piece]).await?;
            return Ok(Attempt::Grown); // line 33
        }
        if R::ABORTS_WHEN_LATE && began.since(looked) >= pace.limit_ns {
            self.give_leaves_back(request, &piece, with_leaves, taken).await?;
            self.undo_in_time(request, node, &begun, &[piece]).await?; // line 32
            return Ok(Attempt::Aborted);
        }
        if with_leaves {
            return Ok(Attempt::Locked(std::iter::once(piece).collect(), None));
        }
        self.give_leaves_back(request, &piece, false, taken).await?;

        let over = began.plus(pace.wait_ns);
        self.ep.sleep(over.since(self.ep.now().await)).await; // line 34
        let mut below = Below::default();
        below.note::<R>(request, node, self.ep.go(word.read()).await?);
        let mut end = self.wait_for_all(request, &below).await?;
        if end == End::Met {
            end = self.wait_for_window(request, node).await?;
        }
        if end != End::Met {
            self.undo_in_time(request, node, &begun, &[piece]).await?;
            return Ok(Attempt::GaveUp);
        }
        Ok(Attempt::Locked(std::iter::once(piece).collect(), None))
    }

    /// The generations of the notes with these old words, beside what is known of the node itself.
    fn begun_in_time(&self, request: &Request, notes: &[u128], mut begun: Generations) -> Generations {
        for (place, old) in notes.iter().enumerate() {
            begun.notified(place, request.words.generation_below().get(*old) as u32);
            begun.swept_at_notified(place, is_swept(*old as u64));
            // The last one is the highest.
            begun.late = has_grown(*old as u64);
        }
        begun
    }

    /// Line 33: whether the tree had grown past the highest note already when that was left.
    fn is_outgrown(&self, begun: &Generations) -> bool {
        self.shape.grows() && R::NOTES_SEE_GROWTH && begun.late
    }

    /// Phases (a) and (b): the turn at `node`, and what the ancestors looked like then. A ticket at the root has nobody to
    /// look at: if it was taken before the tree grew past the root, growing has counted it, and it stays.
    async fn take_turn(&self, request: &Request, node: Node) -> Result<Phase, FabricError> {
        let words = request.words;
        let word = request.tree.word(node);
        let begun_at = |old: u64| {
            let mut begun = Generations::at(words.generation_here().get(old.into()));
            begun.swept_here(is_swept(old));
            begun
        };
        let is_another = |old: u64| self.shape.grows() && node == request.tree.root() && is_another(old);
        if request.may_queue() {
            // Both phases in one batch, in the hope that the turn comes at once (§3.8).
            let mut looked = self.ep.now().await;
            let ticket = words.ticket(word).raw();
            let mut look;
            let before;
            if self.params.fast_path {
                look = self.look_above(request, node, Some(ticket)).await?;
                before = look.first;
            } else {
                before = self.ep.go([ticket].as_slice()).await?[0] as u64;
                looked = self.ep.now().await;
                look = self.look_above(request, node, None).await?;
            }
            let begun = begun_at(before);
            if words.has_queue(before) {
                let ticket = words.ticket_of(before);
                if self.wait_for_turn(request.queue(node), ticket, before, begun.here).await?.is_none() {
                    return Ok(Phase::Renewed); // line 11
                }
                looked = self.ep.now().await;
                look = self.look_again(request, node).await?;
            }
            while let Some(node) = look.occupied.filter(|_| !R::PASSES_TURN) {
                // As printed: lines 13–19 with the turn in hand.
                self.ep.wait_until(request.tree.word(node).until(NOT_OCC)).await?;
                looked = self.ep.now().await;
                look = self.look_again(request, request.todo[0]).await?;
            }
            look.is_another |= is_another(before);
            return Ok(Phase::Turn(Turn { looked, look, begun }));
        }
        let seen = self.ep.go(word.read()).await?;
        if words.has_queue(seen) {
            return Ok(Phase::Busy);
        }
        let looked = self.ep.now().await;
        let mut look = self.look_above(request, node, Some(words.ticket_if_free(word, seen).raw())).await?;
        let before = look.first;
        if !words.same_queue(before, seen) {
            return Ok(Phase::Busy);
        }
        look.is_another |= is_another(before);
        Ok(Phase::Turn(Turn { looked, look, begun: begun_at(before) }))
    }

    /// Phase (b): a look at the ancestors. `first` goes ahead in the same batch, behind the era.
    async fn look_above(
        &self,
        request: &Request,
        node: Node,
        first: Option<RawVerb>,
    ) -> Result<Look, FabricError> {
        let above: ArrayVec<Node, MAX_BATCH> =
            request.tree.above(node).filter(|above| !request.is_common::<R>(*above)).collect();
        let era = self.era_verb(&request.tree).filter(|_| request.held.is_empty());
        let reads = above.iter().map(|node| request.tree.word(*node).read().raw());
        let verbs: ArrayVec<RawVerb, MAX_BATCH> = era.into_iter().chain(first).chain(reads).collect();
        let olds = self.ep.go(verbs.as_slice()).await?;
        let mut olds = olds.as_slice();
        if era.is_some() {
            request.era.set(olds[0] as u64);
            olds = &olds[1..];
        }
        let mut look = Look::default();
        if first.is_some() {
            look.first = olds[0] as u64;
            olds = &olds[1..];
        }
        let root = request.tree.root();
        let mut seen = above.iter().zip(olds).map(|(node, old)| (*node, *old as u64));
        look.is_another =
            self.shape.grows() && seen.clone().any(|(node, old)| node == root && is_another(old));
        look.occupied = seen.find(|(_, old)| is_occ(*old)).map(|(node, _)| node);
        Ok(look)
    }

    /// Another look at the ancestors, of a request that has left a trace already: the era stays.
    async fn look_again(&self, request: &Request, node: Node) -> Result<Look, FabricError> {
        let era = request.era.get();
        let look = self.look_above(request, node, None).await?;
        request.era.set(era);
        Ok(look)
    }

    /// Inequation 1: whether the notes took too long. Strictly less is asked for: clocks tick, and two readings of one that
    /// are a time apart may be a tick more than that apart.
    async fn is_late(&self, looked: Time, pace: Pace) -> bool {
        let notified = self.ep.now().await; // t₂
        R::ABORTS_WHEN_LATE && notified.since(looked) >= pace.limit_ns
    }

    /// Whether the children of `node` are leaves, all four of them, and are to be locked explicitly.
    fn has_leaves(&self, node: Node) -> bool {
        self.params.fast_path && node.level + 1 == self.shape.levels && self.shape.is_whole(node)
    }

    /// Clears the leaves that were taken, unless all were and stay so.
    async fn give_leaves_back(
        &self,
        request: &Request,
        piece: &Piece,
        keep: bool,
        taken: impl Fn(usize) -> bool,
    ) -> Result<(), FabricError> {
        if keep || !self.has_leaves(piece.node) {
            return Ok(());
        }
        let mut verbs = Verbs::new(self, &request.tree, request.words);
        for i in (0..4).filter(|i| taken(*i)) {
            let leaf = piece.node.child(i as u64);
            self.free_leaf(&request.tree, leaf, piece.begun.at_leaf(i), &mut verbs).await?;
        }
        verbs.finish().await.map(drop)
    }

    /// Frees `pieces` of an attempt at `node`, and takes its notes back.
    async fn undo_in_time(
        &self,
        request: &Request,
        node: Node,
        begun: &Generations,
        pieces: &[Piece],
    ) -> Result<(), FabricError> {
        let mut verbs = Verbs::new(self, &request.tree, request.words);
        for piece in pieces {
            self.free(&request.tree, request.words, piece, &mut verbs).await?;
        }
        self.undo_notes(request, node, begun, &mut verbs).await?;
        verbs.finish().await.map(drop)
    }
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// From the look at the ancestors to the notes there (Inequation 1).
    pub(super) limit_ns: u64,
    /// T_wait.
    pub(super) wait_ns: u64,
}

/// What came of phases (a) and (b).
enum Phase {
    /// The turn came.
    Turn(Turn),
    /// The request may not queue and would have to.
    Busy,
    /// The tickets were recovered meanwhile.
    Renewed,
}

/// A turn at a node.
struct Turn {
    /// When the ancestors were looked at (t₁).
    looked: Time,
    /// What was seen of them.
    look: Look,
    /// The generation of the ticket.
    begun: Generations,
}

/// What a look at the ancestors showed.
#[derive(Default)]
struct Look {
    /// The lowest that is occupied.
    occupied: Option<Node>,
    /// The root says that the tree is another by now (line 15).
    is_another: bool,
    /// What the verb returned that went ahead.
    first: u64,
}
