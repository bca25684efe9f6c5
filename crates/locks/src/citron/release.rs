//! Giving nodes back (Citron Alg. 3), one batch for all of them; and undoing attempts, which is the same (§3.5.5).
//!
//! Units and turns are given back before notes are taken back, always: a client that sees no note at the parent of a leaf may
//! take units that are still set there for a dead client's (`recover`).

use super::attempt::Piece;
use super::ending::{Ending, Generations, Span};
use super::layout::is_swept;
use super::params::Synchrony;
use super::shape::Node;
use super::tree::Tree;
use super::words::{self, Gap, Words};
use super::{CitronClient, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH, RawVerb};

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// Alg. 3: free every node, then take the notes back. A request above that sees a note gone may enter at once,
    /// and by then the client has given up all of its nodes. Says whether all of it was still this client's.
    pub(super) async fn release_on_tree(
        &self,
        tree: &Tree,
        words: Words,
        pieces: &[Piece],
    ) -> Result<bool, FabricError> {
        let mut verbs = Verbs::new(self, tree, words);
        for piece in pieces {
            self.free(tree, words, piece, &mut verbs).await?;
        }
        for piece in pieces {
            self.take_notes_back(tree, words, piece.node, &piece.begun, &mut verbs).await?;
        }
        verbs.finish().await
    }

    /// Lines 3–7: clear the bits, or pass the turn on.
    pub(super) async fn free(
        &self,
        tree: &Tree,
        words: Words,
        piece: &Piece,
        verbs: &mut Verbs<'_, E, R>,
    ) -> Result<(), FabricError> {
        let (word, here) = (tree.word(piece.node), piece.begun.here);
        if tree.shape.is_leaf(piece.node) {
            let generation = (self.leaf_generation, here);
            return verbs.push(words.free_units(word, piece.mask, generation, self.guards)).await;
        }
        if piece.with_leaves {
            for i in 0..4 {
                self.free_leaf(tree, piece.node.child(i), piece.begun.at_leaf(i as usize), verbs).await?;
            }
        }
        let leave = match self.params.synchrony {
            Synchrony::Handshake if words.is_reader() => words::leave(word, here, self.guards),
            Synchrony::Handshake => {
                let gap = if piece.is_followed { Gap::Open } else { Gap::Leave };
                self.pass(tree, words, piece.node, gap, &piece.begun)
            }
            Synchrony::Wait(_) => {
                let vacate = words::vacate(word, here, self.guards);
                self.spanning_here(tree, vacate, piece.node, &piece.begun)
            }
        };
        verbs.push(leave).await
    }

    /// Passes the turn at `node` on.
    pub(super) fn pass(
        &self,
        tree: &Tree,
        words: Words,
        node: Node,
        gap: Gap,
        begun: &Generations,
    ) -> Ending {
        let pass = words.pass(tree.word(node), gap, begun.here, self.guards);
        self.spanning_here(tree, pass, node, begun)
    }

    /// The end of a turn at `node`; if that was the root, the tree may have grown past it.
    fn spanning_here(&self, tree: &Tree, end: Ending, node: Node, begun: &Generations) -> Ending {
        let was_root = if R::EVERY_NOTE_SPANS { self.shape.is_a_root(node) } else { node == tree.root() };
        end.spanning((self.shape.grows() && was_root).then_some(Span::Root(node)), begun.was_swept_here())
    }

    /// All bits of a leaf that was locked as a whole (§3.8).
    pub(super) async fn free_leaf(
        &self,
        tree: &Tree,
        leaf: Node,
        generation: u32,
        verbs: &mut Verbs<'_, E, R>,
    ) -> Result<(), FabricError> {
        let (word, generation) = (tree.word(leaf), (self.leaf_generation, generation));
        let free = Words::Exclusive.free_units(word, tree.shape.full_leaf(), generation, self.guards);
        verbs.push(free).await
    }

    /// Lines 8, 9: one more request below is over.
    pub(super) async fn take_notes_back(
        &self,
        tree: &Tree,
        words: Words,
        node: Node,
        begun: &Generations,
        verbs: &mut Verbs<'_, E, R>,
    ) -> Result<(), FabricError> {
        let highest = if R::EVERY_NOTE_SPANS { None } else { tree.notified(node).last() };
        let spans = |above: Node| self.shape.grows() && highest.is_none_or(|highest| above == highest);
        for (place, above) in tree.notified(node).enumerate() {
            let unnote = words.unnote(tree.word(above), begun.at_notified(place), self.guards);
            let span = spans(above).then_some(Span::Note(above));
            verbs.push(unnote.spanning(span, begun.was_swept_at_told(place))).await?;
        }
        Ok(())
    }
}

/// Verbs that end something, in as few batches as they fit into.
pub(super) struct Verbs<'a, E, R> {
    client: &'a CitronClient<E, R>,
    tree: Tree,
    words: Words,
    list: ArrayVec<Ending, MAX_BATCH>,
    were_due: bool,
    /// What the tree has grown past meanwhile.
    spans: Vec<Span>,
}

impl<'a, E: Endpoint, R: Rules> Verbs<'a, E, R> {
    pub(super) const fn new(client: &'a CitronClient<E, R>, tree: &Tree, words: Words) -> Self {
        Self { client, tree: *tree, words, list: ArrayVec::new_const(), were_due: true, spans: Vec::new() }
    }

    pub(super) async fn push(&mut self, ending: Ending) -> Result<(), FabricError> {
        if self.list.is_full() {
            self.flush().await?;
        }
        self.list.push(ending);
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), FabricError> {
        let verbs: ArrayVec<RawVerb, MAX_BATCH> = self.list.iter().map(|ending| ending.verb).collect();
        let olds = self.client.ep.go(verbs.as_slice()).await?;
        for (ending, old) in self.list.drain(..).zip(&olds) {
            let was_due = ending.was_due(*old);
            self.were_due &= was_due;
            if let Some((span, swept)) = ending.span
                && was_due
                && swept != is_swept(*old as u64)
            {
                self.spans.push(span);
            }
        }
        Ok(())
    }

    /// Says whether everything that was to be ended was still there.
    pub(super) async fn finish(mut self) -> Result<bool, FabricError> {
        if !self.list.is_empty() {
            self.flush().await?;
        }
        for span in std::mem::take(&mut self.spans) {
            self.client.end_further_up(&self.tree, self.words, span).await?;
        }
        Ok(self.were_due)
    }
}
