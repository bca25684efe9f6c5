//! The word of a node in a tree with membership: four counts, changed by plain 8-byte fetch-and-add.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–15 | D | writers that occupy a node below and notified this one |
//! | 16–31 | DR | readers, likewise |
//! | 32–47 | W | writers that occupy this node, or are about to |
//! | 48–63 | R | readers, likewise |
//!
//! | state | meaning |
//! |---|---|
//! | W = 0, R = 0 | nobody occupies the node |
//! | W = 1 | a writer holds it, or waits for readers here and requests below to leave |
//! | W > 1 | all but one of the writers have looked and are about to take themselves back |
//! | W = 0, R > 0 | readers hold it, or wait for writers below to leave |
//!
//! Every count is a sum over requests: what one adds, it takes away again. So a word is zero when nobody wants anything,
//! no count can carry into the next (there are fewer than 2¹⁵ requests in a space), and what the dead left is the
//! difference between the word and what the living say they added.

use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Cond, Field};

const D: Field = Field { shift: 0, bits: 16 };
const DR: Field = Field { shift: 16, bits: 16 };
const W: Field = Field { shift: 32, bits: 16 };
const R: Field = Field { shift: 48, bits: 16 };
const FIELDS: [Field; 4] = [D, DR, W, R];

const _: () = assert!(Field::fill(&FIELDS, 64), "fields do not overlap and leave no gap");

/// What a request adds to a node that it occupies.
pub(super) const fn mark(mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => W.put(1) as u64,
        Mode::Shared => R.put(1) as u64,
    }
}

/// What it adds to an ancestor that it notifies.
pub(super) const fn note(mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => D.put(1) as u64,
        Mode::Shared => DR.put(1) as u64,
    }
}

/// Bits of an ancestor that make a request in `mode` yield when one is set.
const fn yields_to(mode: Mode) -> u128 {
    match mode {
        Mode::Exclusive => W.mask() | R.mask(),
        Mode::Shared => W.mask(),
    }
}

/// Whether a request in `mode` yields to the requests that occupy an ancestor with this word.
pub(super) const fn is_occupied(mode: Mode, above: u64) -> bool {
    above as u128 & yields_to(mode) != 0
}

/// It need not yield any more.
pub(super) const fn vacant(mode: Mode) -> Cond {
    Cond::Eq { mask: yields_to(mode), value: 0 }
}

/// Whether a writer occupied the node first: then a request at the same node yields.
pub(super) const fn has_writer(before: u64) -> bool {
    before as u128 & W.mask() != 0
}

/// No writer occupies the node.
pub(super) const NO_WRITER: Cond = Cond::Eq { mask: W.mask(), value: 0 };

/// Nobody below is in the way of a request in `mode`.
pub(super) const fn quiet_below(mode: Mode) -> Cond {
    let mask = match mode {
        Mode::Exclusive => D.mask() | DR.mask(),
        Mode::Shared => D.mask(),
    };
    Cond::Eq { mask, value: 0 }
}

/// The same of the node that the request occupies itself, where a writer also waits for readers: those that come later
/// see it and yield.
pub(super) const fn quiet_here(mode: Mode) -> Cond {
    let mask = match mode {
        Mode::Exclusive => D.mask() | DR.mask() | R.mask(),
        Mode::Shared => D.mask(),
    };
    Cond::Eq { mask, value: 0 }
}

/// `word` without `part`, count by count; `None` if it has less than that.
pub(super) fn without(word: u64, part: u64) -> Option<u64> {
    let enough = |field: &Field| field.get(word.into()) >= field.get(part.into());
    FIELDS.iter().all(enough).then(|| word.wrapping_sub(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_adds_it_can_take_away_again() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let all = 3 * mark(Mode::Exclusive) + 2 * mark(Mode::Shared) + 5 * note(Mode::Exclusive);
            for part in [mark(mode), note(mode)] {
                assert_eq!(all.wrapping_add(part).wrapping_add(part.wrapping_neg()), all);
                assert_eq!(without(all + part, all), Some(part));
            }
        }
        assert_eq!(without(mark(Mode::Shared), note(Mode::Shared)), None);
        assert_eq!(without(mark(Mode::Shared), mark(Mode::Exclusive)), None, "no borrow from another count");
    }

    #[test]
    fn readers_yield_to_writers_alone() {
        let (read, written) = (mark(Mode::Shared), mark(Mode::Exclusive));
        assert!(is_occupied(Mode::Exclusive, read) && is_occupied(Mode::Exclusive, written));
        assert!(!is_occupied(Mode::Shared, read) && is_occupied(Mode::Shared, written));
        let quiet = |mode, word: u64| quiet_below(mode).holds(word.into());
        assert!(!quiet(Mode::Exclusive, note(Mode::Shared)) && quiet(Mode::Shared, note(Mode::Shared)));
        assert!(!quiet_here(Mode::Exclusive).holds(read.into()));
    }

    #[test]
    fn a_downgrade_is_one_addition_per_word() {
        let held = mark(Mode::Exclusive) + note(Mode::Shared);
        let change = mark(Mode::Shared).wrapping_sub(mark(Mode::Exclusive));
        assert_eq!(held.wrapping_add(change), mark(Mode::Shared) + note(Mode::Shared));
    }
}
