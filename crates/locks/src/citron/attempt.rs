//! What an attempt to lock nodes leaves: pieces that are locked, or a client that is in the way.

use super::MAX_K;
use super::ending::Generations;
use super::shape::Node;
use super::tokens::Proof;
use arrayvec::ArrayVec;

/// A node that is locked, and what has to be undone for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) node: Node,
    /// The bits, if the node is a leaf.
    pub(super) mask: u64,
    /// Whether the four leaves below are locked explicitly, too (§3.8).
    pub(super) with_leaves: bool,
    /// Whether another request waits for this node, so that its release leaves a gap for requests below.
    pub(super) is_followed: bool,
    /// The generations in which it was locked.
    pub(super) begun: Generations,
}

pub(super) type Pieces = ArrayVec<Piece, MAX_K>;

/// What came of an attempt at a node or a few.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would allocate on the path of every lock")]
pub(super) enum Attempt {
    /// They are locked. What makes them a grant, if it could be had along the way.
    Locked(Pieces, Option<Proof>),
    /// A holder is in the way; nothing of the attempt is left.
    Blocked(Obstacle),
    /// The request is not ready to wait as long as it would take; nothing of the attempt is left.
    GaveUp,
    /// There are as many readers as there may be; nothing of the attempt is left.
    TooManyReaders,
    /// Another client recovered the node meanwhile; nothing of the attempt is left.
    Renewed,
    /// The tree has grown; nothing of the attempt is left.
    Grown,
    /// A reader found that a client below this node is dead; nothing of the attempt is left.
    Stuck(Node),
    /// It took too long (wait mode); nothing of the attempt is left.
    Aborted,
}

/// Who is in the way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Obstacle {
    /// A client has units of this leaf.
    Units(Node, u64),
    /// A client has or wants this internal node.
    Node(Node),
    /// Units of this leaf have as many readers as they may have.
    Readers(Node),
    /// The tree is another by now.
    Grown,
}

impl Obstacle {
    /// The node to lock for a moment if nothing moves there. For `wanted`, something is in the way.
    pub(super) fn suspect(self, wanted: Node) -> Node {
        match self {
            Self::Units(leaf, _) | Self::Readers(leaf) => leaf.parent().unwrap_or(wanted),
            Self::Node(node) => node,
            Self::Grown => wanted,
        }
    }

    /// For marks.
    pub(super) fn local(self) -> u64 {
        match self {
            Self::Units(leaf, _) => leaf.index() << 1,
            Self::Node(node) => node.index() << 1 | 1,
            Self::Readers(leaf) => leaf.index() << 1 | 1 << 62,
            Self::Grown => u64::MAX,
        }
    }
}
