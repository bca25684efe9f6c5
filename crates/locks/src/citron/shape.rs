//! The shape of a lock tree: nodes, their ranges, their places in memory, and who tells whom (Citron §3.3, §3.5.5).
//!
//! A perfectly balanced quaternary tree over the units of one lock. Levels count from the root, which is level 1; the
//! leaves are the last level and have one bit per unit. Nodes lie in one array by level order, so navigation is
//! arithmetic: with the root at index 1, `child(x, i) = 4x − 2 + i` and `parent(x) = ⌊(x + 2) / 4⌋`.
//!
//! Nothing here touches lock memory.

use super::params::Params;
use crate::protocol::Space;

/// Children of an internal node, as a power of two.
const FANOUT_BITS: u32 = 2;

/// A node of the tree: its level (root = 1) and its place within the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Levels from the root, which is 1.
    pub level: u32,
    /// Nodes of this level to the left of it.
    pub place: u64,
}

impl Node {
    /// The root.
    pub const ROOT: Self = Self { level: 1, place: 0 };

    /// The index in level order, the root's being 1.
    pub const fn index(self) -> u64 {
        1 + before_level(self.level) + self.place
    }

    /// The ancestor at `level`, or the node itself.
    ///
    /// # Panics
    /// If `level` is below the node.
    pub(crate) const fn at_level(self, level: u32) -> Self {
        assert!(level >= 1 && level <= self.level, "ancestors are above");
        Self { level, place: self.place >> (FANOUT_BITS * (self.level - level)) }
    }

    /// The parent, if this is not the root.
    pub const fn parent(self) -> Option<Self> {
        if self.level == 1 { None } else { Some(self.at_level(self.level - 1)) }
    }

    /// The `i`-th child.
    pub const fn child(self, i: u64) -> Self {
        Self { level: self.level + 1, place: (self.place << FANOUT_BITS) + i }
    }

    /// Which child of its parent it is.
    pub(crate) const fn which_child(self) -> u64 {
        self.place & ((1 << FANOUT_BITS) - 1)
    }

    /// All ancestors, the parent first.
    pub fn ancestors(self) -> impl Iterator<Item = Self> {
        (1..self.level).rev().map(move |level| self.at_level(level))
    }

    /// Whether `other` is this node or below it.
    pub const fn covers(self, other: Self) -> bool {
        other.level >= self.level && other.at_level(self.level).place == self.place
    }

    /// Whether a request at this node notifies its ancestor at `level`, in a tree whose root is at level `top`: every
    /// m-th, from the parent up; of the m − 1 top levels none but a parent, and the m-th in their place (§3.5.5).
    pub(crate) const fn notifies(self, level: u32, top: u32, m: u32) -> bool {
        let (parent, mth) = (self.level - 1, top + m - 1);
        level == parent || level == mth || (level > mth && (parent - level).is_multiple_of(m))
    }
}

/// Nodes on all levels above `level`.
const fn before_level(level: u32) -> u64 {
    ((1 << (FANOUT_BITS * (level - 1))) - 1) / ((1 << FANOUT_BITS) - 1)
}

/// The level of the root of the smallest tree for `units` that can grow by steps to the whole one; 1 if it is the whole
/// one. It has a level above its leaves.
fn start_top(levels: u32, leaf_bits: u32, units: u64, step: u32) -> u32 {
    if units == 0 {
        return 1;
    }
    let covers = |top: u32| 1_u64 << (leaf_bits + FANOUT_BITS * (levels - top)) >= units;
    let tops = (1..levels).step_by(step as usize);
    tops.take_while(|top| covers(*top)).last().unwrap_or(1)
}

/// The shape of every tree of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Units that can be locked.
    pub units: u64,
    /// Levels, the leaves included.
    pub levels: u32,
    leaf_bits: u32,
    leaves: u64,
    token_level: u32,
    /// Words before everything else: see [`Tree`](super::tree::Tree).
    pub(super) header: u64,
    /// The level of the root in the beginning, and how many levels are added whenever the tree grows.
    start_top: u32,
    pub(super) step: u32,
}

impl Shape {
    /// The shape that `space` and `params` ask for. Parameters out of their bounds are brought into them: a client
    /// with such parameters refuses every request anyway.
    pub fn new(space: &Space, params: &Params) -> Self {
        let leaf_bits = params.leaf_units.clamp(1, 64).ilog2();
        let leaves = space.units.clamp(1, super::MAX_UNITS).div_ceil(1 << leaf_bits);
        let below_root = (u64::BITS - (leaves - 1).leading_zeros()).div_ceil(FANOUT_BITS);
        // A leaf is recovered by a client that has locked its parent, so there must be one.
        let levels = if params.lease_ns > 0 { below_root.max(1) + 1 } else { below_root + 1 };
        let token_level = params.token_level.min(levels);
        let step = params.m.clamp(1, super::MAX_M);
        let start_top = start_top(levels, leaf_bits, params.start_units, step);
        let header = if start_top > 1 {
            4
        } else if params.lease_ns > 0 {
            1
        } else {
            0
        };
        Self { units: space.units, levels, leaf_bits, leaves, token_level, header, start_top, step }
    }

    /// Whether the tree grows.
    pub const fn grows(&self) -> bool {
        self.start_top > 1
    }

    /// How often it can.
    pub(crate) const fn growths(&self) -> u32 {
        (self.start_top - 1) / self.step
    }

    /// The level of the root after it has grown so often.
    pub const fn top(&self, grown: u32) -> u32 {
        self.start_top - grown * self.step
    }

    /// How often a tree has grown in whose top levels, where growing leaves its marks, this level is. None below all.
    pub(crate) const fn grown_at(&self, level: u32) -> Option<u32> {
        let past = self.start_top + self.step;
        if level >= past { None } else { Some((past - 1 - level) / self.step) }
    }

    /// Whether `node` is the root of some tree that this one can be.
    pub(crate) const fn is_a_root(&self, node: Node) -> bool {
        let (level, top) = (node.level, self.start_top);
        node.place == 0 && level <= top && (top - level).is_multiple_of(self.step)
    }

    /// Units of the tree after it has grown so often.
    pub(crate) const fn units_of(&self, grown: u32) -> u64 {
        let whole = 1 << self.width_bits(self.top(grown));
        if whole < self.units { whole } else { self.units }
    }

    /// Bytes of one lock: header, token words, then the tree. Levels above the leaves are complete; leaves end where
    /// units do.
    pub const fn bytes(&self) -> u64 {
        8 * (self.words_before_tree() + before_level(self.levels) + self.leaves)
    }

    /// Words before the root.
    pub(crate) const fn words_before_tree(&self) -> u64 {
        self.header + self.token_words()
    }

    /// Token words of a lock: one for every node of the token level, none without tokens.
    pub(crate) const fn token_words(&self) -> u64 {
        if self.token_level == 0 { 0 } else { 1 << (FANOUT_BITS * (self.token_level - 1)) }
    }

    /// Units that a node of `level` covers, as a power of two.
    const fn width_bits(&self, level: u32) -> u32 {
        self.leaf_bits + FANOUT_BITS * (self.levels - level)
    }

    /// The node of `level` that covers `unit`.
    pub(crate) const fn node_over(&self, unit: u64, level: u32) -> Node {
        Node { level, place: unit >> self.width_bits(level) }
    }

    /// First unit of `node`, and one past its last.
    pub const fn range(&self, node: Node) -> (u64, u64) {
        let bits = self.width_bits(node.level);
        (node.place << bits, (node.place + 1) << bits)
    }

    /// Units of a leaf.
    pub const fn leaf_units(&self) -> u32 {
        1 << self.leaf_bits
    }

    /// Whether `node` is a leaf.
    pub const fn is_leaf(&self, node: Node) -> bool {
        node.level == self.levels
    }

    /// The children of `node` that are leaves; of the last leaves of a tree some may not exist.
    pub(crate) fn leaves_below(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        let leaves = if node.level + 1 == self.levels { self.leaves } else { 0 };
        (0..1 << FANOUT_BITS).map(move |i| node.child(i)).filter(move |leaf| leaf.place < leaves)
    }

    /// Whether all leaves below `node` exist: the last ones may be left out.
    pub(crate) const fn is_whole(&self, node: Node) -> bool {
        (node.place + 1) << (FANOUT_BITS * (self.levels - node.level)) <= self.leaves
    }

    /// The bits of `leaf` that are units of `start..end`.
    pub(crate) const fn leaf_mask(&self, leaf: Node, start: u64, end: u64) -> u64 {
        let (first, past) = self.range(leaf);
        let from = start.saturating_sub(first);
        let to = if end < past { end - first } else { past - first };
        let bits = to - from;
        let ones = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        ones << from
    }

    /// All bits of a leaf that has all its units.
    pub(crate) const fn full_leaf(&self) -> u64 {
        if self.leaf_bits == 6 { u64::MAX } else { (1 << (1 << self.leaf_bits)) - 1 }
    }

    /// The levels whose nodes a request at internal `node` looks at: its own, and m − 1 more that are not leaves.
    pub(crate) fn window_levels(&self, node: Node, m: u32) -> std::ops::Range<u32> {
        node.level..(node.level + m).min(self.levels)
    }

    /// The internal descendants of `node` within m levels, itself left out: where requests below leave their notes.
    pub fn window(&self, node: Node, m: u32) -> impl Iterator<Item = Node> + use<> {
        self.window_levels(node, m).skip(1).flat_map(move |level| {
            let bits = FANOUT_BITS * (level - node.level);
            let first = node.place << bits;
            (first..first + (1 << bits)).map(move |place| Node { level, place })
        })
    }

    /// The token words that the units `start..end` belong to.
    pub(crate) const fn token_segments(&self, start: u64, end: u64) -> std::ops::Range<u64> {
        if self.token_level == 0 {
            return 0..0;
        }
        let bits = self.width_bits(self.token_level);
        (start >> bits)..((end - 1) >> bits) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(units: u64) -> Shape {
        Shape::new(&Space::of(1).units(units), &Params::default())
    }

    #[test]
    fn a_tree_that_is_recovered_has_a_level_above_its_leaves() {
        let without = Params { lease_ns: 0, ..Params::default() };
        assert_eq!(Shape::new(&Space::of(1).units(64), &without).levels, 1);
        assert_eq!(shape(64).levels, 2);
        assert_eq!(shape(64).leaves_below(Node::ROOT).count(), 1);
    }

    #[test]
    fn indices_are_the_papers() {
        // §3.3: CHILD(x, i) = 4x − 2 + i, PARENT(x) = ⌊(x + 2) / 4⌋.
        assert_eq!(Node::ROOT.index(), 1);
        for node in [Node::ROOT, Node { level: 2, place: 3 }, Node { level: 5, place: 77 }] {
            for i in 0..4 {
                let child = node.child(i);
                assert_eq!(child.index(), 4 * node.index() - 2 + i);
                assert_eq!(child.parent(), Some(node));
                assert_eq!((child.index() + 2) / 4, node.index());
                assert_eq!(child.which_child(), i);
            }
        }
        assert_eq!(Node::ROOT.parent(), None);
    }

    #[test]
    fn a_terabyte_of_pages_takes_at_most_43_mib() {
        // §4.1: N = 2²⁸, 5.6 million nodes, 42.7 MB.
        let shape = shape(1 << 28);
        assert_eq!(shape.levels, 12);
        assert!(shape.bytes() <= 43 << 20, "{}", shape.bytes());
    }

    #[test]
    fn leaves_end_where_units_do() {
        assert_eq!(shape(65).levels, 2);
        assert_eq!(shape(64 * 5).levels, 3);
        let words = shape(64 * 5).bytes() / 8 - shape(64 * 5).words_before_tree();
        assert_eq!(words, 1 + 4 + 5);
    }

    #[test]
    fn a_request_above_looks_where_a_request_below_leaves_its_note() {
        // Meet in the middle: for every distance and every pair of levels.
        for m in 1..=6 {
            for below in 2..=14 {
                let node = Node { level: below, place: 0 };
                for above in 1..below {
                    let window = above..(above + m).min(below);
                    let met = window.clone().any(|level| node.notifies(level, 1, m));
                    assert!(met, "m = {m}, from {below} to {above}");
                }
            }
        }
    }

    #[test]
    fn every_level_is_on_top_of_one_tree_alone() {
        let params = Params { start_units: 64, m: 2, leaf_units: 1, ..Params::default() };
        let shape = Shape::new(&Space::of(1).units(1 << 14), &params);
        assert_eq!((shape.start_top, shape.growths()), (5, 2));
        let grown: Vec<_> = (1..=8).map(|level| shape.grown_at(level)).collect();
        assert_eq!(grown, [Some(2), Some(2), Some(1), Some(1), Some(0), Some(0), None, None]);
        let roots: Vec<_> =
            (1..=8).filter(|level| shape.is_a_root(Node { level: *level, place: 0 })).collect();
        assert_eq!(roots, [1, 3, 5]);
    }

    #[test]
    fn the_top_levels_are_spared() {
        let leaf = Node { level: 12, place: 0 };
        let notified: Vec<_> = (1..12).filter(|level| leaf.notifies(*level, 1, 4)).collect();
        assert_eq!(notified, [4, 7, 11]);
    }

    #[test]
    fn a_leaf_mask_has_the_units_and_no_others() {
        let shape = shape(1024);
        let leaf = shape.node_over(70, 3);
        assert_eq!(leaf.place, 1);
        assert_eq!(shape.leaf_mask(leaf, 70, 72), 0b11 << 6);
        assert_eq!(shape.leaf_mask(leaf, 0, 1000), u64::MAX);
        assert_eq!(shape.leaf_mask(leaf, 127, 400), 1 << 63);
    }
}
