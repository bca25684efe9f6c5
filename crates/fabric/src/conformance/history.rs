//! The checker for clients that run at the same time: is there one order of all verbs on a word that explains
//! what every client saw?
//!
//! Every verb returns the whole old word, and [`Op::apply`] says what it left there. So each verb that
//! changed the word is an edge from the old value to the new one, and an order that explains everything is a
//! path from the first value to the last that uses **every edge once**: an Euler path. It exists if and only
//! if the edges hang together and every value was entered as often as it was left, but for the two ends. A
//! lost update leaves a value twice; a carry that crosses a field enters a value that no verb leaves.
//!
//! Where no value comes twice (with wide random operands that is the rule) there is only one such path, and
//! then every client must also have seen its own verbs in the order in which it issued them.
//!
//! A pure function of what was recorded: it knows no backend.

use crate::addr::Width;
use crate::verb::Op;
use std::collections::HashMap;

/// One verb as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What was asked for.
    pub op: Op,
    /// The old word that came back.
    pub old: u128,
}

/// All verbs on one word.
///
/// ```
/// use lockwright_fabric::conformance::history::{History, Seen, Violation};
/// use lockwright_fabric::{Op, Width};
/// let add = |old| Seen { op: Op::FetchAdd(1), old };
/// let mut history = History { width: Width::W64, first: 0, last: 2, clients: vec![vec![add(0)], vec![add(1)]] };
/// assert_eq!(history.check(), Ok(()));
/// // Both saw 0 and the word ended as 1: an update was lost.
/// history = History { last: 1, clients: vec![vec![add(0)], vec![add(0)]], ..history };
/// assert!(matches!(history.check(), Err(Violation::Unbalanced { .. })));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The word's width.
    pub width: Width,
    /// What it held in the beginning.
    pub first: u128,
    /// What it held in the end.
    pub last: u128,
    /// Every client's verbs, in the order in which it issued them.
    pub clients: Vec<Vec<Seen>>,
}

/// Why no order explains a history.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Verbs that found a value and verbs that left it do not match up.
    #[error("the word came to hold {value:#x} {entered} times, but {left} verbs changed it from there")]
    Unbalanced {
        /// The value.
        value: u128,
        /// How often the word came to hold it.
        entered: u64,
        /// How often a verb found it there and changed it.
        left: u64,
    },
    /// A verb saw a value that the word never came to hold.
    #[error("a verb saw {value:#x}, which the word never held: {op:?}")]
    NeverHeld {
        /// The value.
        value: u128,
        /// The verb.
        op: Op,
    },
    /// A client's later verb happened before an earlier one.
    #[error("client {client} saw {later:#x} after {earlier:#x}, but the word held it before")]
    OutOfOrder {
        /// The client.
        client: usize,
        /// What its earlier verb left or saw.
        earlier: u128,
        /// What its later verb saw.
        later: u128,
    },
}

impl History {
    /// Whether one order of all verbs explains what all clients saw.
    ///
    /// # Errors
    /// The first thing that no order explains.
    pub fn check(&self) -> Result<(), Violation> {
        let mut degrees: HashMap<u128, Degree> = HashMap::new();
        let mut parts = Parts::default();
        let mut next = HashMap::new();
        let mut chain = true;
        for seen in self.clients.iter().flatten() {
            let Some(new) = self.changed(seen) else { continue };
            degrees.entry(seen.old).or_default().left += 1;
            degrees.entry(new).or_default().entered += 1;
            parts.join(seen.old, new);
            chain &= next.insert(seen.old, new).is_none();
        }
        // The beginning enters the first value, the end leaves the last one.
        degrees.entry(self.first).or_default().entered += 1;
        degrees.entry(self.last).or_default().left += 1;
        let mut uneven: Vec<_> = degrees.iter().filter(|(_, degree)| degree.entered != degree.left).collect();
        uneven.sort_by_key(|(value, _)| **value);
        if let Some((value, Degree { entered, left })) = uneven.first() {
            return Err(Violation::Unbalanced { value: **value, entered: *entered, left: *left });
        }
        let home = parts.find(self.first);
        for seen in self.clients.iter().flatten() {
            if parts.find(seen.old) != home {
                return Err(Violation::NeverHeld { value: seen.old, op: seen.op });
            }
        }
        if chain { self.check_order(&next) } else { Ok(()) }
    }

    /// What the verb made of the word, if that differs from what it found.
    fn changed(&self, seen: &Seen) -> Option<u128> {
        seen.op.apply(self.width, seen.old).filter(|new| *new != seen.old)
    }

    /// No value was left twice, so the path is known: every client must go forward on it.
    fn check_order(&self, next: &HashMap<u128, u128>) -> Result<(), Violation> {
        let path = std::iter::successors(Some(self.first), |value| next.get(value).copied());
        // One past the edges: a path that ends where it began has no order to speak of.
        let places: HashMap<u128, usize> =
            path.take(next.len() + 1).enumerate().map(|(place, value)| (value, place)).collect();
        if places.len() != next.len() + 1 {
            return Ok(());
        }
        for (client, verbs) in self.clients.iter().enumerate() {
            let mut earlier = self.first;
            for seen in verbs {
                if places[&seen.old] < places[&earlier] {
                    return Err(Violation::OutOfOrder { client, earlier, later: seen.old });
                }
                earlier = self.changed(seen).unwrap_or(seen.old);
            }
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Degree {
    entered: u64,
    left: u64,
}

/// Values that hang together through verbs.
#[derive(Debug, Default)]
struct Parts(HashMap<u128, u128>);

impl Parts {
    fn find(&mut self, value: u128) -> u128 {
        let mut root = value;
        while let Some(up) = self.0.get(&root).filter(|up| **up != root) {
            root = *up;
        }
        self.0.insert(value, root);
        root
    }

    fn join(&mut self, a: u128, b: u128) {
        let (a, b) = (self.find(a), self.find(b));
        self.0.insert(a, b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verb::Fields;

    fn history(last: u128, clients: &[&[(Op, u128)]]) -> History {
        let clients =
            clients.iter().map(|verbs| verbs.iter().map(|&(op, old)| Seen { op, old }).collect()).collect();
        History { width: Width::W64, first: 0, last, clients }
    }

    #[test]
    fn verbs_that_follow_each_other_are_fine() {
        let cas = Op::Cas { expect: 3, new: 50 };
        let fine = history(
            51,
            &[
                &[(Op::FetchAdd(1), 0), (cas, 3)],
                &[(Op::FetchAdd(2), 1), (cas, 51)],
                &[(Op::Read, 1), (Op::FetchAdd(1), 50)],
            ],
        );
        assert_eq!(fine.check(), Ok(()));
        assert_eq!(history(0, &[&[(Op::Read, 0)]]).check(), Ok(()));
    }

    #[test]
    fn a_word_may_go_round_in_circles() {
        let (up, down) = (Op::FetchAdd(1), Op::FetchAdd(u64::MAX.into()));
        assert_eq!(history(0, &[&[(up, 0), (up, 0)], &[(down, 1), (down, 1)]]).check(), Ok(()));
    }

    #[test]
    fn a_lost_update_is_found() {
        let lost = history(1, &[&[(Op::FetchAdd(1), 0)], &[(Op::FetchAdd(1), 0)]]);
        assert!(matches!(lost.check(), Err(Violation::Unbalanced { value: 0, .. })));
    }

    #[test]
    fn a_carry_that_leaves_its_field_is_found() {
        let add = Op::MaskedFetchAdd(Fields { add: 0x01, boundaries: 0x80 });
        let verbs: Vec<_> = (0..0x100).map(|old| (add, old)).collect();
        assert_eq!(history(0, &[&verbs]).check(), Ok(()));
        assert!(matches!(history(0x100, &[&verbs]).check(), Err(Violation::Unbalanced { .. })));
    }

    #[test]
    fn a_circle_that_nobody_entered_is_found() {
        let stray = [(Op::Cas { expect: 7, new: 8 }, 7), (Op::Cas { expect: 8, new: 7 }, 8)];
        assert!(matches!(history(0, &[&stray]).check(), Err(Violation::NeverHeld { value: 7, .. })));
        assert!(matches!(
            history(0, &[&[(Op::Read, 5)]]).check(),
            Err(Violation::NeverHeld { value: 5, .. })
        ));
    }

    #[test]
    fn a_read_of_the_past_is_found() {
        let add = Op::FetchAdd(1);
        let stale = history(2, &[&[(add, 0), (add, 1), (Op::Read, 1)]]);
        assert_eq!(stale.check(), Err(Violation::OutOfOrder { client: 0, earlier: 2, later: 1 }));
    }
}
