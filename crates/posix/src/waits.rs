//! Who waits for whom, in all files of this process's programs.
//!
//! A request waits for all owners in its way. It would close a circle, `EDEADLK`, if one of them waits, by however many
//! steps, for the owner that asks. What an owner waits for is looked up at that moment and not remembered: an edge that was true a
//! while ago makes a circle that is none.

use crate::table::Owner;
use std::collections::{HashMap, HashSet};

/// Those that wait, and where.
#[derive(Debug)]
pub struct Waits<W> {
    /// A process waits for several things at a time if several threads of it do.
    waiting: HashMap<Owner, Vec<(u64, W)>>,
    next: u64,
}

/// A wait that can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    owner: Owner,
    number: u64,
}

impl<W> Default for Waits<W> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), next: 0 }
    }
}

impl<W: Clone> Waits<W> {
    /// `owner` waits for `what` from now on.
    pub fn begin(&mut self, owner: Owner, what: W) -> Waiter {
        self.next += 1;
        self.waiting.entry(owner).or_default().push((self.next, what));
        Waiter { owner, number: self.next }
    }

    /// It waits no more.
    pub fn end(&mut self, waiter: Waiter) {
        if let Some(waits) = self.waiting.get_mut(&waiter.owner) {
            waits.retain(|(number, _)| *number != waiter.number);
            if waits.is_empty() {
                self.waiting.remove(&waiter.owner);
            }
        }
    }

    /// Whether `owner` would wait for itself if it waited for these. `blockers` tells who is in the way of what is waited for.
    /// Descriptions are never found to: any process that has one may give its locks back.
    pub fn would_close_a_circle(
        &self,
        owner: Owner,
        blocked_by: impl IntoIterator<Item = Owner>,
        mut blockers: impl FnMut(Owner, &W) -> Vec<Owner>,
    ) -> bool {
        if matches!(owner, Owner::Description(_)) {
            return false;
        }
        let mut seen = HashSet::new();
        let mut open: Vec<_> = blocked_by.into_iter().collect();
        while let Some(other) = open.pop() {
            if other == owner {
                return true;
            }
            if matches!(other, Owner::Description(_)) || !seen.insert(other) {
                continue;
            }
            for (_, what) in self.waiting.get(&other).into_iter().flatten() {
                open.extend(blockers(other, what));
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_circle_that_is_there_now_is_one() {
        let [a, b, c] = [1, 2, 3].map(Owner::Process);
        let mut waits = Waits::default();
        let first = waits.begin(a, b);
        waits.begin(b, c);
        let blockers = |_: Owner, what: &Owner| vec![*what];
        assert!(waits.would_close_a_circle(c, [a], blockers));
        assert!(!waits.would_close_a_circle(c, [Owner::Process(9)], blockers));
        assert!(!waits.would_close_a_circle(Owner::Description(7), [a], blockers));
        // What b waits for is gone by now.
        assert!(!waits.would_close_a_circle(c, [a], |_, what| if *what == c { vec![] } else { vec![*what] }));
        waits.end(first);
        assert!(!waits.would_close_a_circle(c, [a], blockers));
    }
}
