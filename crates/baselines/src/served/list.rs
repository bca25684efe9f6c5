//! LLC: the linked list of what is held, at the server (Kogan, Dice, Issa: "Scalable range locks for scalable address
//! spaces and beyond", EuroSys 2020, §4; Citron §4.1).
//!
//! In order of starts. A request walks from the head to its place, and takes out what was given back on its way; a
//! release only marks. On the server that is lock-free, and the threads walk side by side. Here the role is one state
//! machine, so the list is a plain one, and what remains of the algorithm is what it costs: a line for every node that
//! is walked past and one for every node taken out or put in.
//!
//! The same list changed by one-sided verbs is [`lld`](crate::lld).

use super::{Lines, Store};

/// The list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct List(Vec<Node>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    start: u64,
    end: u64,
    /// It was given back.
    marked: bool,
}

impl Store for List {
    const NAME: &'static str = "llc";
    const SUMMARY: &'static str = "range locks at a server, in a lock-free linked list";
    const ALONE: bool = false;

    fn take(&mut self, start: u64, end: u64) -> (bool, Lines) {
        // The head is a line.
        let (mut at, mut lines) = (0, 1);
        while let Some(node) = self.0.get(at).copied() {
            lines += 1;
            if node.marked {
                self.0.remove(at);
                lines += 1;
            } else if node.end <= start {
                at += 1;
            } else if node.start >= end {
                break;
            } else {
                return (false, lines);
            }
        }
        self.0.insert(at, Node { start, end, marked: false });
        (true, lines + 1)
    }

    /// The client's node is known: no walk.
    fn give(&mut self, start: u64, _: u64) -> Lines {
        if let Some(node) = self.0.iter_mut().find(|node| node.start == start && !node.marked) {
            node.marked = true;
        }
        1
    }

    fn is_bare(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_costs_a_line_a_node_and_takes_out_what_was_given_back() {
        let mut list = List::default();
        for start in [0, 10, 20] {
            assert!(list.take(start, start + 5).0);
        }
        assert_eq!(list.take(30, 31), (true, 5));
        list.give(10, 15);
        assert_eq!(list.0.len(), 4);
        assert_eq!(list.take(12, 13), (true, 6));
        assert_eq!(list.0.len(), 4);
        assert!(!list.take(3, 4).0);
    }
}
