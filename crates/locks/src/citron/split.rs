//! Step 1 of an acquire: which nodes to lock (Citron §3.5.1).
//!
//! Of all covers of a range by at most k nodes, the one that locks the fewest units nobody asked for; of those, one
//! with the fewest nodes. Leaves lock single units, so they waste nothing.
//!
//! The paper solves a tree knapsack in O(k² log N). This is the same optimum, found with less work: below the lowest
//! node that covers the whole range there are only two boundaries. On each, a cover follows the path down to the
//! boundary's leaf and stops somewhere; the later it stops, the more nodes it takes (the siblings on the inner side)
//! and the less it wastes. So each boundary is one walk down, and what is left is to share k between the two.

use super::params::MAX_K;
use super::shape::{Node, Shape};
use arrayvec::ArrayVec;

/// The nodes of a cover, from left to right.
pub type Cover = ArrayVec<Node, MAX_K>;

/// The best cover of `start..end` by at most `k` nodes.
///
/// ```
/// use lockwright_locks::citron::{Params, Shape, split};
/// use lockwright_locks::Space;
/// let shape = Shape::new(&Space::of(1).units(1 << 28), &Params::default());
/// // Across the middle of the tree: one node would be the root, two are two leaves.
/// let cover = split(&shape, (1 << 27) - 1, (1 << 27) + 1, 2);
/// assert!(cover.len() == 2 && cover.iter().all(|node| shape.is_leaf(*node)));
/// ```
///
/// # Panics
/// If the range is empty, or `k` is 0 or above [`MAX_K`].
pub fn split(shape: &Shape, start: u64, end: u64, k: usize) -> Cover {
    assert!(start < end && (1..=MAX_K).contains(&k), "checked by the caller");
    let top = lowest_over(shape, start, end);
    let mut cover = Cover::new();
    if shape.is_leaf(top) {
        cover.push(top);
        return cover;
    }
    let (first, past) = shape.range(top);
    let mut best = Choice { waste: (start - first) + (past - end), nodes: 1, stops: None };
    let (left, right) = (shape.node_over(start, top.level + 1), shape.node_over(end - 1, top.level + 1));
    let between = (right.place - left.place - 1) as usize;
    if let Some(sides) = k.checked_sub(between).filter(|sides| *sides >= 2) {
        let lefts = stops::<Left>(shape, left, start, sides - 1);
        let rights = stops::<Right>(shape, right, end, sides - 1);
        for l in &lefts {
            for r in rights.iter().filter(|r| l.nodes + r.nodes <= sides) {
                let choice = Choice {
                    waste: l.waste + r.waste,
                    nodes: l.nodes + between + r.nodes,
                    stops: Some((l.level, r.level)),
                };
                if (choice.waste, choice.nodes) < (best.waste, best.nodes) {
                    best = choice;
                }
            }
        }
    }
    match best.stops {
        None => cover.push(top),
        Some((left_level, right_level)) => {
            // The left path from its stop upwards is from left to right already.
            for level in (left.level..=left_level).rev() {
                let node = shape.node_over(start, level);
                if level == left_level {
                    cover.push(node);
                }
                if level > left.level {
                    cover.extend(siblings(node, node.which_child() + 1..4));
                }
            }
            cover.extend(siblings(left, left.which_child() + 1..right.which_child()));
            for level in right.level..=right_level {
                let node = shape.node_over(end - 1, level);
                if level > right.level {
                    cover.extend(siblings(node, 0..node.which_child()));
                }
                if level == right_level {
                    cover.push(node);
                }
            }
        }
    }
    cover
}

fn siblings(node: Node, which: std::ops::Range<u64>) -> impl Iterator<Item = Node> {
    let first = node.place - node.which_child();
    which.map(move |i| Node { level: node.level, place: first + i })
}

/// The lowest node that covers the whole range.
fn lowest_over(shape: &Shape, start: u64, end: u64) -> Node {
    let (first, last) = (shape.node_over(start, shape.levels), shape.node_over(end - 1, shape.levels));
    // Two bits per level in which the leaves' places differ.
    let differing = (u64::BITS - (first.place ^ last.place).leading_zeros()).div_ceil(2);
    first.at_level(shape.levels - differing)
}

struct Choice {
    waste: u64,
    nodes: usize,
    stops: Option<(u32, u32)>,
}

/// Where the walk down a boundary may stop: at `level`, with so many nodes and so much waste.
struct Stop {
    level: u32,
    nodes: usize,
    waste: u64,
}

/// One of the two boundaries.
trait Side {
    /// Units of `node` outside the boundary.
    fn waste(shape: &Shape, node: Node, boundary: u64) -> u64;
    /// The child the boundary runs through, and how many of its siblings lie inside.
    fn down(shape: &Shape, node: Node, boundary: u64) -> (Node, usize);
}

struct Left;
struct Right;

impl Side for Left {
    fn waste(shape: &Shape, node: Node, boundary: u64) -> u64 {
        boundary - shape.range(node).0
    }
    fn down(shape: &Shape, node: Node, boundary: u64) -> (Node, usize) {
        let child = shape.node_over(boundary, node.level + 1);
        (child, 3 - child.which_child() as usize)
    }
}

impl Side for Right {
    fn waste(shape: &Shape, node: Node, boundary: u64) -> u64 {
        shape.range(node).1 - boundary
    }
    fn down(shape: &Shape, node: Node, boundary: u64) -> (Node, usize) {
        let child = shape.node_over(boundary - 1, node.level + 1);
        (child, child.which_child() as usize)
    }
}

/// The stops worth making with at most `most` nodes: each wastes less than the one before it, with more nodes.
fn stops<S: Side>(shape: &Shape, from: Node, boundary: u64, most: usize) -> ArrayVec<Stop, MAX_K> {
    let mut stops = ArrayVec::<Stop, MAX_K>::new();
    let (mut node, mut inner) = (from, 0);
    loop {
        let waste = if shape.is_leaf(node) { 0 } else { S::waste(shape, node, boundary) };
        let nodes = inner + 1;
        match stops.last_mut() {
            Some(last) if last.nodes == nodes && waste < last.waste => {
                *last = Stop { level: node.level, nodes, waste };
            }
            Some(last) if waste >= last.waste => {}
            _ => stops.push(Stop { level: node.level, nodes, waste }),
        }
        if waste == 0 {
            return stops;
        }
        let (child, inside) = S::down(shape, node, boundary);
        inner += inside;
        if inner + 1 > most {
            return stops;
        }
        node = child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::citron::Params;
    use crate::protocol::Space;
    use lockwright_fabric::random::SplitMix;

    fn shape(units: u64, leaf_units: u32) -> Shape {
        Shape::new(&Space::of(1).units(units), &Params { leaf_units, ..Params::default() })
    }

    /// The least waste of any cover of `start..end` below `node` by at most `k` nodes, and its least nodes.
    fn brute(shape: &Shape, node: Node, start: u64, end: u64, k: usize) -> Option<(u64, usize)> {
        let (first, past) = shape.range(node);
        let (from, to) = (start.max(first), end.min(past));
        if from >= to {
            return Some((0, 0));
        }
        if k == 0 {
            return None;
        }
        if shape.is_leaf(node) {
            return Some((0, 1));
        }
        let mut best = ((past - first) - (to - from), 1);
        // All ways to share k among the four children.
        let mut partial = vec![Some((0, 0)); k + 1];
        for i in 0..4 {
            let child = node.child(i);
            partial = (0..=k)
                .map(|total| {
                    (0..=total)
                        .filter_map(|mine| {
                            let (waste, nodes) = partial[total - mine]?;
                            let (w, n) = brute(shape, child, start, end, mine)?;
                            Some((waste + w, nodes + n))
                        })
                        .min()
                })
                .collect();
        }
        if let Some(split) = partial[k] {
            best = best.min(split);
        }
        Some(best)
    }

    fn check(shape: &Shape, start: u64, end: u64, k: usize) {
        let cover = split(shape, start, end, k);
        assert!(cover.len() <= k);
        let (mut waste, mut at) = (0, start);
        for (i, node) in cover.iter().enumerate() {
            let (first, past) = shape.range(*node);
            if !shape.is_leaf(*node) {
                waste += (past - first) - (past.min(end) - first.max(start));
            }
            assert!(
                first <= at && past > at,
                "{start}..{end} with {k}: {cover:?} leaves a gap or is out of order"
            );
            assert!(cover[..i].iter().all(|other| !other.covers(*node) && !node.covers(*other)));
            at = past;
        }
        assert!(at >= end, "{start}..{end} with {k}: {cover:?} ends early");
        let best = brute(shape, Node::ROOT, start, end, k).unwrap();
        assert_eq!((waste, cover.len()), best, "{start}..{end} with {k}: {cover:?}");
    }

    #[test]
    fn no_cover_of_a_small_tree_is_better() {
        // Three levels of leaves with four units, every range.
        let shape = shape(64, 4);
        for start in 0..64 {
            for end in start + 1..=64 {
                for k in 1..=5 {
                    check(&shape, start, end, k);
                }
            }
        }
    }

    #[test]
    fn no_cover_of_a_deeper_tree_is_better() {
        let shape = shape(1024, 4);
        let mut random = SplitMix::new(1);
        for _ in 0..400 {
            let (a, b) = (random.below(1024), random.below(1024));
            let (start, end) = (a.min(b), a.max(b) + 1);
            for k in 1..=8 {
                check(&shape, start, end, k);
            }
        }
    }

    #[test]
    fn up_to_a_leafs_width_two_nodes_waste_nothing() {
        // §4.6: no false conflicts for L ≤ 64 at k = 2.
        let shape = shape(1 << 28, 64);
        for start in (0..4096).map(|i| i * 65_521 % ((1 << 28) - 64)) {
            assert!(split(&shape, start, start + 64, 2).iter().all(|node| shape.is_leaf(*node)));
        }
    }

    #[test]
    fn the_whole_tree_is_its_root() {
        let shape = shape(1 << 20, 64);
        assert_eq!(split(&shape, 0, 1 << 20, 8).as_slice(), [Node::ROOT]);
    }
}
