//! Which word is where: the trees of a space, one per lock, all of one shape.
//!
//! | words | |
//! |---|---|
//! | 0 | the repair lock: whose turn it is to clear away after the dead; 0: nobody's |
//! | then, for each lock | |
//! | 0 | the count of grants, from which tokens come |
//! | 1 and up | the nodes, by level order |
//!
//! A leaf is one *unit*, a number of consecutive numbers of the user's (bytes, say). A range is covered by at most k nodes:
//! two ranges that have a unit or a covering node in common exclude each other even where they only touch.

use super::words;
use crate::citron::params::{MAX_K, Params};
use crate::citron::shape::{Node, Shape};
use crate::citron::split::{Cover, split};
use crate::protocol::{Reason, Space};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Word64};

/// The largest meet-in-the-middle distance: a request looks at the four nodes below it, in its one batch.
pub const MAX_DISTANCE: u32 = 2;
/// The most units of a tree.
pub const MAX_TREE_UNITS: u64 = 1 << 24;
/// Its levels: a request occupies or notifies at most one node on each, for every node of its cover.
pub(super) const MAX_LEVELS: usize = 13;
/// Words of a tree before its root.
const HEAD: u64 = 1;

/// The parameters of a space's trees, the same for all its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeParams {
    /// Trees, and therefore locks.
    pub locks: u64,
    /// Units of a lock.
    pub units: u64,
    /// Numbers of a unit: ranges that touch the same unit exclude each other.
    pub unit: u64,
    /// Nodes that a range is covered by, at most.
    pub k: u32,
    /// The meet-in-the-middle distance.
    pub m: u32,
}

impl Default for TreeParams {
    fn default() -> Self {
        Self { locks: 256, units: 4096, unit: 4096, k: 4, m: 2 }
    }
}

impl TreeParams {
    /// The first number past the last unit.
    pub const fn bound(&self) -> u64 {
        self.units.saturating_mul(self.unit)
    }

    /// What is wrong with them, if something is.
    ///
    /// # Errors
    /// In words.
    pub fn check(&self) -> Result<(), &'static Reason> {
        if self.units == 0 || self.unit == 0 || self.locks == 0 {
            return Err(&Reason("a tree has at least one unit, of at least one number"));
        }
        if self.units > MAX_TREE_UNITS
            || self.units.checked_mul(self.unit).is_none_or(|bound| bound > 1 << 63)
        {
            return Err(&Reason("a tree has at most 2^24 units and ends at 2^63"));
        }
        if self.k == 0 || self.k as usize > MAX_K || self.m == 0 || self.m > MAX_DISTANCE {
            return Err(&Reason("a cover has from 1 to 8 nodes, and the distance is 1 or 2"));
        }
        Ok(())
    }
}

/// The trees of a space, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forest {
    base: Addr,
    params: TreeParams,
    shape: Shape,
}

impl Forest {
    /// Trees with `params`, at `base`.
    pub fn new(base: Addr, params: TreeParams) -> Self {
        let plain =
            Params { leaf_units: 1, token_level: 0, lease_ns: 0, start_units: 0, ..Params::default() };
        Self { base, params, shape: Shape::new(&Space::of(1).units(params.units), &plain) }
    }

    /// The parameters.
    pub const fn params(&self) -> &TreeParams {
        &self.params
    }

    /// Bytes from `base` to the end.
    pub const fn bytes(&self) -> u64 {
        8 + self.params.locks * self.stride()
    }

    const fn stride(&self) -> u64 {
        8 * HEAD + self.shape.bytes()
    }

    /// Whose turn it is to repair.
    pub const fn repair_lock(&self) -> Word64 {
        Word64::at(self.base)
    }

    /// The count of grants of `lock`.
    pub const fn tokens(&self, lock: u64) -> Word64 {
        Word64::at(self.base.plus(8 + lock * self.stride()))
    }

    /// The word of `node` in the tree of `lock`.
    pub const fn word(&self, lock: u64, node: Node) -> Word64 {
        Word64::at(self.base.plus(8 + lock * self.stride() + 8 * (HEAD + node.index() - 1)))
    }

    /// All words of the nodes of `lock`: zero when nobody holds or wants anything of it.
    pub fn nodes(&self, lock: u64) -> impl Iterator<Item = Word64> + use<> {
        let first = self.base.plus(8 + lock * self.stride() + 8 * HEAD);
        (0..self.shape.bytes() / 8).map(move |index| Word64::at(first.plus(8 * index)))
    }

    /// Whether the word at `offset` bytes from the base belongs to a node.
    pub const fn is_node(&self, offset: u64) -> bool {
        offset >= 8 && (offset - 8) % self.stride() >= 8 * HEAD
    }

    /// The nodes that cover what `claim` asks for, from left to right.
    ///
    /// # Errors
    /// What is wrong with the claim.
    pub fn cover(&self, claim: &Claim) -> Result<Cover, &'static Reason> {
        let TreeParams { locks, unit, units, k, .. } = self.params;
        if claim.lock >= locks {
            return Err(&Reason("there is no such lock in this space"));
        }
        if claim.start >= claim.end {
            return Err(&Reason("the range is empty or reversed"));
        }
        // A range without an end is the rest of the tree.
        let end = if claim.end == u64::MAX { self.params.bound() } else { claim.end };
        if end > self.params.bound() || claim.start >= end {
            return Err(&Reason(
                "the range ends past the space's bound, which `serve` says when it starts: units of so many numbers",
            ));
        }
        Ok(split(&self.shape, claim.start / unit, end.div_ceil(unit).min(units), k as usize))
    }

    /// The ancestors of `node`, the parent first.
    pub(super) fn above(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        node.ancestors()
    }

    /// Whether a request at `node` notifies its ancestor `above`.
    pub(super) const fn notifies(&self, node: Node, above: Node) -> bool {
        node.notifies(above.level, 1, self.params.m)
    }

    /// The ancestors that a request at `node` notifies.
    pub(super) fn notified(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        let forest = *self;
        self.above(node).filter(move |above| forest.notifies(node, *above))
    }

    /// The internal descendants of `node` where requests below leave their notes, itself left out.
    pub(super) fn window(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        self.shape.window(node, self.params.m)
    }

    /// Every node that a request with this cover adds to, each once.
    pub(super) fn touched(&self, cover: &[Node]) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        for node in cover.iter().flat_map(|node| std::iter::once(*node).chain(self.notified(*node))) {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }

    /// What a request that holds `claim` has added, and to which words.
    pub fn left_by(&self, claim: &Claim) -> Vec<(Word64, u64)> {
        let Ok(cover) = self.cover(claim) else { return Vec::new() };
        let nodes = self.touched(&cover).into_iter();
        nodes.map(|node| (self.word(claim.lock, node), self.share(&cover, claim.mode, node))).collect()
    }

    /// What a request in `mode` that occupies `cover` has added to `node`.
    pub(super) fn share(&self, cover: &[Node], mode: Mode, node: Node) -> u64 {
        let of = |piece: &Node| {
            if *piece == node {
                words::mark(mode)
            } else if node.level < piece.level && node.covers(*piece) && self.notifies(*piece, node) {
                words::note(mode)
            } else {
                0
            }
        };
        cover.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::NodeId;

    fn forest() -> Forest {
        let params = TreeParams { locks: 2, units: 64, unit: 10, k: 2, m: 2 };
        Forest::new(Addr::new(NodeId(0), 0), params)
    }

    fn claim(start: u64, end: u64) -> Claim {
        Claim { lock: 1, mode: Mode::Exclusive, start, end }
    }

    #[test]
    fn no_two_words_are_in_the_same_place_and_all_are_inside() {
        let forest = forest();
        let mut words: Vec<_> = (0..2).flat_map(|lock| forest.nodes(lock)).map(|word| word.addr()).collect();
        assert!(words.iter().all(|addr| forest.is_node(addr.offset)));
        let others = [forest.repair_lock(), forest.tokens(0), forest.tokens(1)].map(|word| word.addr());
        assert!(others.iter().all(|addr| !forest.is_node(addr.offset)));
        words.extend(others);
        words.sort();
        assert_eq!(words.last().map(|addr| addr.offset + 8), Some(forest.bytes()));
        words.dedup();
        assert_eq!(words.len() as u64 * 8, forest.bytes());
    }

    #[test]
    fn ranges_that_touch_share_a_node_only_if_they_share_a_unit() {
        let forest = forest();
        let cover = |start, end| forest.cover(&claim(start, end)).unwrap();
        assert_ne!(cover(0, 10), cover(10, 20));
        assert_eq!(cover(0, 9), cover(9, 10), "both are in the first unit");
        assert_eq!(cover(0, u64::MAX).as_slice(), [Node::ROOT]);
    }

    #[test]
    fn a_range_that_the_tree_does_not_have_is_refused() {
        let forest = forest();
        for (start, end) in [(5, 5), (6, 5), (0, 641), (640, u64::MAX), (700, 710)] {
            assert!(forest.cover(&claim(start, end)).is_err(), "{start}..{end}");
        }
        assert!(forest.cover(&Claim { lock: 2, ..claim(0, 1) }).is_err());
        assert!(TreeParams { units: 0, ..TreeParams::default() }.check().is_err());
        assert!(TreeParams { unit: 1 << 60, ..TreeParams::default() }.check().is_err());
        assert!(TreeParams::default().check().is_ok());
    }

    #[test]
    fn a_range_past_the_bound_is_refused_in_words_that_lead_to_the_bound() {
        let Err(Reason(why)) = forest().cover(&claim(0, 641)) else { panic!("640 is the bound") };
        assert!(why.contains("`serve`"), "only the server says what it lends: {why}");
    }

    #[test]
    fn shares_add_up_to_what_was_added() {
        let forest = forest();
        let cover = forest.cover(&claim(150, 170)).unwrap();
        assert_eq!(cover.len(), 2, "one on each side of the middle");
        let at_parents: u64 = cover
            .iter()
            .filter_map(|node| node.parent())
            .map(|above| forest.share(&cover, Mode::Shared, above))
            .sum();
        assert_eq!(at_parents, 2 * words::note(Mode::Shared));
        let touched = forest.touched(&cover);
        let sum: u64 = touched.iter().map(|node| forest.share(&cover, Mode::Shared, *node)).sum();
        let notes = cover.iter().flat_map(|node| forest.notified(*node)).count() as u64;
        assert_eq!(sum, 2 * words::mark(Mode::Shared) + notes * words::note(Mode::Shared));
    }
}
