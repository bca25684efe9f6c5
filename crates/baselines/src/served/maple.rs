//! MT: a B-tree of disjoint ranges in the manner of Linux's maple tree, at the server, under one lock (Citron §4.1;
//! L. Howlett, "Introducing the Maple Tree", LWN 884840).
//!
//! What is kept of the maple tree: nodes of 256 bytes with sixteen slots; a leaf names ranges and the gaps between
//! them, so that it has room for eight ranges; nodes are never changed where they are, because readers may be in them
//! without a lock: a change writes a new node and puts that in the old one's place. The last is what it costs: four
//! lines for every node written, one for the place, and one for the old node's way back to the allocator; reading a
//! node takes three lines (two of pivots, one of slots).
//!
//! What is not kept: lookups without the lock, for a range lock has none.

use super::{Lines, Store};

/// Ranges in a leaf: each takes a slot, and so does the gap behind it.
const RANGES: usize = 8;
/// Children of an inner node.
const CHILDREN: usize = 16;
/// Lines of a node that are read on the way down.
const READ: Lines = 3;
/// Lines for a node that is written anew.
const WRITE: Lines = 6;

/// The tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Maple(Node);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Node {
    /// Ranges, in order.
    Leaf(Vec<(u64, u64)>),
    /// Children, in order, each with the start of its first range.
    Inner(Vec<(u64, Node)>),
}

impl Default for Maple {
    fn default() -> Self {
        Self(Node::Leaf(Vec::new()))
    }
}

impl Store for Maple {
    const NAME: &'static str = "mt";
    const SUMMARY: &'static str = "range locks at a server, in a maple tree under one lock";
    const ALONE: bool = true;

    fn take(&mut self, start: u64, end: u64) -> (bool, Lines) {
        let mut lines = self.0.height() * READ;
        if !self.0.is_free(start, end, u64::MAX) {
            return (false, lines);
        }
        if let Some((key, right)) = self.0.insert(start, end, &mut lines) {
            let left = std::mem::replace(&mut self.0, Node::Inner(Vec::with_capacity(2)));
            self.0 = Node::Inner(vec![(left.first(), left), (key, right)]);
            lines += WRITE;
        }
        (true, lines)
    }

    fn give(&mut self, start: u64, _: u64) -> Lines {
        let mut lines = self.0.height() * READ;
        self.0.remove(start, &mut lines);
        while let Node::Inner(children) = &mut self.0
            && children.len() == 1
        {
            self.0 = children.remove(0).1;
        }
        lines
    }

    fn is_bare(&self) -> bool {
        self.0.len() == 0
    }
}

impl Node {
    fn height(&self) -> u64 {
        match self {
            Node::Leaf(_) => 1,
            Node::Inner(children) => 1 + children[0].1.height(),
        }
    }

    /// Slots in use.
    fn len(&self) -> usize {
        match self {
            Node::Leaf(ranges) => ranges.len(),
            Node::Inner(children) => children.len(),
        }
    }

    fn is_full(&self) -> bool {
        self.len() > if matches!(self, Node::Leaf(_)) { RANGES } else { CHILDREN }
    }

    /// The start of its first range; only an empty tree has none.
    fn first(&self) -> u64 {
        match self {
            Node::Leaf(ranges) => ranges.first().map_or(0, |range| range.0),
            Node::Inner(children) => children[0].0,
        }
    }

    /// Whether nothing overlaps `start..end`, where everything behind this node starts at `bound` or later.
    fn is_free(&self, start: u64, end: u64, bound: u64) -> bool {
        match self {
            Node::Leaf(ranges) => {
                let behind = ranges.partition_point(|range| range.0 <= start);
                let before_ends = behind == 0 || ranges[behind - 1].1 <= start;
                before_ends && ranges.get(behind).map_or(bound, |range| range.0) >= end
            }
            Node::Inner(children) => {
                let child = child_of(children, start);
                let bound = children.get(child + 1).map_or(bound, |next| next.0);
                children[child].1.is_free(start, end, bound)
            }
        }
    }

    /// Puts a range in. Returns the right half, if that made two of this node.
    fn insert(&mut self, start: u64, end: u64, lines: &mut Lines) -> Option<(u64, Node)> {
        match self {
            Node::Leaf(ranges) => {
                let place = ranges.partition_point(|range| range.0 < start);
                ranges.insert(place, (start, end));
                *lines += WRITE;
            }
            Node::Inner(children) => {
                let child = child_of(children, start);
                let split = children[child].1.insert(start, end, lines);
                children[child].0 = children[child].1.first();
                if let Some(right) = split {
                    children.insert(child + 1, right);
                    *lines += WRITE;
                }
            }
        }
        if !self.is_full() {
            return None;
        }
        *lines += WRITE;
        let right = match self {
            Node::Leaf(ranges) => Node::Leaf(ranges.split_off(ranges.len() / 2)),
            Node::Inner(children) => Node::Inner(children.split_off(children.len() / 2)),
        };
        Some((right.first(), right))
    }

    /// Takes the range that starts at `start` out. A child that is left with less than a third joins a neighbour, if
    /// that has room.
    fn remove(&mut self, start: u64, lines: &mut Lines) {
        *lines += match self {
            Node::Leaf(ranges) => {
                ranges.retain(|range| range.0 != start);
                WRITE
            }
            Node::Inner(children) => {
                let child = child_of(children, start);
                children[child].1.remove(start, lines);
                if children[child].1.len() == 0 {
                    children.remove(child);
                    WRITE
                } else {
                    children[child].0 = children[child].1.first();
                    if join_neighbours(children, child) { 2 * WRITE } else { 0 }
                }
            }
        };
    }

    fn append(&mut self, right: Node) {
        match (self, right) {
            (Node::Leaf(ranges), Node::Leaf(more)) => ranges.extend(more),
            (Node::Inner(children), Node::Inner(more)) => children.extend(more),
            _ => unreachable!("nodes side by side are of one height"),
        }
    }
}

/// Which child has the place of `start`.
fn child_of(children: &[(u64, Node)], start: u64) -> usize {
    children.partition_point(|child| child.0 <= start).saturating_sub(1)
}

fn join_neighbours(children: &mut Vec<(u64, Node)>, child: usize) -> bool {
    let most = if matches!(children[child].1, Node::Leaf(_)) { RANGES } else { CHILDREN };
    if children[child].1.len() * 3 > most || children.len() < 2 {
        return false;
    }
    let left = if child + 1 < children.len() { child } else { child - 1 };
    if children[left].1.len() + children[left + 1].1.len() > most {
        return false;
    }
    let (_, right) = children.remove(left + 1);
    children[left].1.append(right);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_stays_low_and_shrinks_again() {
        let mut tree = Maple::default();
        for start in 0..400 {
            assert!(tree.take(start * 2, start * 2 + 1).0);
        }
        assert_eq!(tree.0.height(), 3);
        assert!(!tree.take(399, 401).0);
        assert!(tree.take(401, 402).0);
        tree.give(401, 402);
        for start in (0..400).rev() {
            tree.give(start * 2, start * 2 + 1);
        }
        assert!(tree.is_bare() && tree.0.height() == 1);
    }

    #[test]
    fn a_change_costs_a_new_node_and_the_way_to_it() {
        let mut tree = Maple::default();
        assert_eq!(tree.take(5, 6), (true, READ + WRITE));
        assert_eq!(tree.give(5, 6), READ + WRITE);
    }
}
