//! The tree of one lock, as one client sees it: which word is where, and whom a request there tells.

use super::shape::{Node, Shape};
use crate::protocol::Space;
use lockwright_fabric::{Addr, Word64};

/// The tree of one lock, as one client sees it.
///
/// | words | |
/// |---|---|
/// | 0 | the era (`tokens`), if locks are recovered or grow |
/// | 1, 2, 3 | how far the tree has grown, the spillover mutex, the maximizer (`grow`, `spill`), if locks grow |
/// | from there | tokens |
/// | from there | nodes, by level order |
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    pub(crate) shape: Shape,
    base: Addr,
    lock: u64,
    pub(crate) view: View,
}

/// The size of a tree that may grow and shrink while its locks are in use, and what goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// How often the tree has grown.
    pub(crate) grown: u32,
    /// The configuration that says so.
    pub(crate) config: u64,
    /// The meet-in-the-middle distance.
    pub(crate) m: u32,
}

impl Tree {
    pub(crate) fn of(lock: u64, space: &Space, shape: Shape, view: View) -> Self {
        Self { shape, base: space.place(lock, shape.bytes()), lock, view }
    }

    /// Whose tree it is.
    pub(crate) const fn lock(&self) -> u64 {
        self.lock
    }

    /// The same tree after it has grown so often.
    pub(crate) fn after(mut self, grown: u32) -> Self {
        self.view.grown = grown;
        self
    }

    /// The root.
    pub(crate) const fn root(&self) -> Node {
        Node { level: self.shape.top(self.view.grown), place: 0 }
    }

    /// The ancestors of `node`, the parent first.
    pub(crate) fn above(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        let top = self.root().level;
        node.ancestors().take_while(move |above| above.level >= top)
    }

    /// The ancestors that a request at `node` tells of itself, the parent first.
    pub(crate) fn notified(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        let (top, m) = (self.root().level, self.view.m);
        self.above(node).filter(move |above| node.notifies(above.level, top, m))
    }

    /// The internal descendants of `node` where requests below leave their notes, itself left out.
    pub(crate) fn window(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        self.shape.window(node, self.view.m)
    }

    /// The nodes of the top levels, the root first: in each of them every request below has exactly one note.
    pub(crate) fn top_nodes(&self) -> impl Iterator<Item = Node> + use<> {
        std::iter::once(self.root()).chain(self.shape.window(self.root(), self.shape.step))
    }

    /// How far the tree has grown.
    pub(crate) fn config_word(&self) -> Word64 {
        Word64::at(self.base.plus(8))
    }

    /// The mutex for everything past the end of the tree.
    pub(crate) fn spill_word(&self) -> Word64 {
        Word64::at(self.base.plus(16))
    }

    /// How far requests past the end went.
    pub(crate) fn maximizer(&self) -> Word64 {
        Word64::at(self.base.plus(24))
    }

    /// The word of `node`.
    pub(crate) fn word(&self, node: Node) -> Word64 {
        Word64::at(self.base.plus(8 * (self.shape.words_before_tree() + node.index() - 1)))
    }

    /// The word of the era, where there is one: the first.
    pub(crate) fn era_word(&self) -> Word64 {
        assert!(self.shape.header > 0, "only trees that are recovered have an era");
        Word64::at(self.base)
    }

    /// The word of token segment `segment`.
    pub(crate) fn token_word(&self, segment: u64) -> Word64 {
        Word64::at(self.base.plus(8 * (self.shape.header + segment)))
    }
}
