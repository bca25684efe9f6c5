//! Giving nodes back (Citron Alg. 3), one batch for all of them; and undoing attempts, which is the same (§3.5.5).

use super::layout::{OCC, T_CNT, add};
use super::params::Synchrony;
use super::tree::{Node, Tree};
use super::words::{self, Words};
use super::{CitronClient, Piece, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH, RawVerb};

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// Alg. 3: free every node, then take the notes back. A request above that sees a note gone may enter at once,
    /// and by then the client has given up all of its nodes.
    pub(super) async fn release_on_tree(
        &self,
        tree: &Tree,
        words: Words,
        pieces: &[Piece],
    ) -> Result<(), FabricError> {
        let mut verbs = Verbs::new(&self.ep);
        for piece in pieces {
            self.free(tree, words, piece, &mut verbs).await?;
        }
        for piece in pieces {
            self.take_notes_back(tree, words, piece.node, &mut verbs).await?;
        }
        verbs.finish().await
    }

    /// Lines 3–7: clear the bits, or pass the turn on.
    pub(super) async fn free(
        &self,
        tree: &Tree,
        words: Words,
        piece: &Piece,
        verbs: &mut Verbs<'_, E>,
    ) -> Result<(), FabricError> {
        if tree.shape.is_leaf(piece.node) {
            return verbs.push(words.free_units(tree.word(piece.node), piece.mask).raw()).await;
        }
        if piece.with_leaves {
            for i in 0..4 {
                self.clear_leaf(tree, piece.node.child(i), verbs).await?;
            }
        }
        let word = tree.word(piece.node);
        let leave = match self.params.synchrony {
            Synchrony::Handshake if words.is_reader() => words::leave(word),
            Synchrony::Handshake => words.pass(word),
            Synchrony::Wait(_) => add(word, &[(OCC, OCC.max()), (T_CNT, 1)]),
        };
        verbs.push(leave.raw()).await
    }

    /// All bits of a leaf that was locked as a whole (§3.8).
    pub(super) async fn clear_leaf(
        &self,
        tree: &Tree,
        leaf: Node,
        verbs: &mut Verbs<'_, E>,
    ) -> Result<(), FabricError> {
        let full = tree.shape.full_leaf();
        verbs.push(tree.word(leaf).masked_cas(full, full, 0, full).raw()).await
    }

    /// Lines 8, 9: one more request below is over.
    pub(super) async fn take_notes_back(
        &self,
        tree: &Tree,
        words: Words,
        node: Node,
        verbs: &mut Verbs<'_, E>,
    ) -> Result<(), FabricError> {
        for above in self.told(node) {
            verbs.push(words.unnote(tree.word(above)).raw()).await?;
        }
        Ok(())
    }
}

/// Verbs whose answers nobody needs, in as few batches as they fit into.
pub(super) struct Verbs<'a, E> {
    ep: &'a E,
    list: ArrayVec<RawVerb, MAX_BATCH>,
}

impl<'a, E: Endpoint> Verbs<'a, E> {
    pub(super) const fn new(ep: &'a E) -> Self {
        Self { ep, list: ArrayVec::new_const() }
    }

    pub(super) async fn push(&mut self, verb: RawVerb) -> Result<(), FabricError> {
        if self.list.is_full() {
            self.ep.go(self.list.as_slice()).await?;
            self.list.clear();
        }
        self.list.push(verb);
        Ok(())
    }

    pub(super) async fn finish(self) -> Result<(), FabricError> {
        if !self.list.is_empty() {
            self.ep.go(self.list.as_slice()).await?;
        }
        Ok(())
    }
}
