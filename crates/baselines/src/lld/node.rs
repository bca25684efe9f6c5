//! The list's words: a node, the link in it, and a reference to a node.
//!
//! | bytes of a node | field |
//! |---|---|
//! | 0–7 | link |
//! | 8–11, 12–15 | range: first unit, one past the last |
//!
//! | bits of a link | field |
//! |---|---|
//! | 0 | mark: the node that the link is in has been given back |
//! | 1–20 | own version: which of its lives the node is in |
//! | 21–40 | version of the next node |
//! | 41–63 | number of the next node, counted from one; zero: the list ends here |
//!
//! A lock's head is a link alone; its own version is always zero. A version keeps clients that stand on a node, or are
//! about to change its link, from taking its next life for the one they know.

use lockwright_fabric::Field;

const OWN: Field = Field { shift: 1, bits: 20 };
const NEXT_VERSION: Field = Field { shift: 21, bits: 20 };
const NEXT: Field = Field { shift: 41, bits: 23 };

/// What a release adds to a link.
pub(super) const MARK: u64 = 1;

/// The bits of a link that tell whether its node is still held: mark and version.
pub(super) const LIFE: u64 = MARK | OWN.mask() as u64;

/// Bytes of a node, and of a head.
pub(super) const NODE_BYTES: u64 = 16;

/// The largest number of nodes.
pub(super) const MAX_NODES: u64 = NEXT.max() as u64;

/// A node in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// Counted from one.
    pub(super) number: u64,
    pub(super) version: u64,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(pub(super) u64);

impl Link {
    /// The link of an unmarked node of this version.
    pub(super) fn new(own: u64, next: Option<Life>) -> Self {
        Self(OWN.put(u128::from(own)) as u64).to(next)
    }

    /// The same link to another node.
    pub(super) fn to(self, next: Option<Life>) -> Self {
        let (number, version) = next.map_or((0, 0), |life| (life.number, life.version));
        let next = NEXT.put(u128::from(number)) | NEXT_VERSION.put(u128::from(version));
        Self(self.0 & LIFE | next as u64)
    }

    pub(super) fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    pub(super) fn own(self) -> u64 {
        OWN.get(u128::from(self.0)) as u64
    }

    pub(super) fn next(self) -> Option<Life> {
        let word = u128::from(self.0);
        let (number, version) = (NEXT.get(word) as u64, NEXT_VERSION.get(word) as u64);
        (number != 0).then_some(Life { number, version })
    }
}

/// The version after this one.
pub(super) fn after(version: u64) -> u64 {
    (version + 1) & OWN.max() as u64
}

/// A node as it is read and written: sixteen bytes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) link: Link,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Node {
    pub(super) fn of(word: u128) -> Self {
        let half = |shift: u32| (word >> shift) as u64 & u64::from(u32::MAX);
        Self { link: Link(word as u64), start: half(64), end: half(96) }
    }

    pub(super) fn word(&self) -> u128 {
        u128::from(self.link.0) | u128::from(self.start) << 64 | u128::from(self.end) << 96
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_survives_its_word() {
        let next = Some(Life { number: MAX_NODES, version: 5 });
        let node = Node { link: Link::new(9, next), start: 7, end: u64::from(u32::MAX) };
        assert_eq!(Node::of(node.word()), node);
        assert_eq!((node.link.own(), node.link.next(), node.link.is_marked()), (9, next, false));
        assert!(Link(node.link.0 + MARK).is_marked());
        assert_eq!(Link(node.link.0 + MARK).to(None).own(), 9);
    }

    #[test]
    fn versions_go_round() {
        assert_eq!(after(OWN.max() as u64), 0);
    }
}
