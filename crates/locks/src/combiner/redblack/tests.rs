//! The shape that a red-black tree must have.

use super::*;
use crate::combiner::tree_tests::Shape;

impl RedBlack {
    /// Checks order, colours, heights and reach below `at`; returns the number of black nodes on every path down.
    fn check(&self, at: Slot, parent: Slot) -> u32 {
        if at == NIL {
            return 1;
        }
        let node = &self.nodes[at as usize];
        assert_eq!(node.parent, parent);
        assert!(!(node.red && self.is_red(parent)), "two red nodes in a row");
        let (left, right) = (&self.nodes[node.left as usize], &self.nodes[node.right as usize]);
        assert_eq!((node.left_reach, node.right_reach), (left.reach(), right.reach()));
        assert!(node.left == NIL || left.start <= node.start);
        assert!(node.right == NIL || right.start >= node.start);
        let height = self.check(node.left, at);
        assert_eq!(height, self.check(node.right, at), "paths with different numbers of black nodes");
        height + u32::from(!node.red)
    }
}

impl Shape for RedBlack {
    fn check_all(&self, _: &Records) {
        let none = &self.nodes[NIL as usize];
        assert!(!none.red && none.reach() == 0 && none.parent == NIL);
        for root in &self.roots {
            assert!(!self.is_red(*root));
            self.check(*root, NIL);
        }
    }
}
