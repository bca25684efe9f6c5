//! What a request does to a leaf, by who it is, and what a leaf tells it.
//!
//! Leaves of exclusive trees have a bit per unit (`layout`). **Leaf of a reader-writer tree**, n ≤ 8 units of one byte:
//!
//! | bits of byte `i` < n | field |
//! |---|---|
//! | 0–6 | readers of unit `i` |
//! | 7 | a writer has it |
//!
//! | bits above | field |
//! |---|---|
//! | 8n to 8n + 15, as far as there are bits | generation: one more whenever the leaf was recovered |
//!
//! A reader takes its units with one masked fetch-and-add, a writer with one masked CAS that compares bits *and* counts.

use super::ending::{Ending, NONE};
use super::words::Words;
use lockwright_fabric::{Cond, Field, Verb, Word64};

/// Readers of a unit from which on more are refused.
pub const MANY_READERS_OF_A_UNIT: u64 = 1 << 6;

/// One bit in every byte.
const EACH: u64 = 0x0101_0101_0101_0101;
const WRITER: u64 = 0x80;
const COUNT: u64 = 0x7f;
const COUNT_TOP: u64 = 0x40;
/// Where counts end. The generation above them is never added to.
const BOUNDARIES: u64 = EACH * (WRITER | COUNT_TOP);

/// The generation of a leaf that has `units` units: what is left of the word, at most sixteen bits.
pub(crate) const fn generation(readers: bool, units: u32) -> Field {
    let used = if readers { units * 8 } else { units };
    let left = 64 - used;
    if left == 0 { NONE } else { Field { shift: used, bits: if left < 16 { left } else { 16 } } }
}

impl Words {
    /// The bits of a leaf that stand for `units`, all of each unit's.
    const fn spread(self, units: u64) -> u64 {
        match self {
            Self::Exclusive => units,
            Self::Writer | Self::Reader => {
                let (mut i, mut bits) = (0, 0);
                while i < 8 {
                    if units >> i & 1 != 0 {
                        bits |= 0xff << (8 * i);
                    }
                    i += 1;
                }
                bits
            }
        }
    }

    /// Of those, the ones that are in the way of this request when set.
    pub(crate) const fn obstacles(self, units: u64) -> u64 {
        match self {
            Self::Exclusive | Self::Writer => self.spread(units),
            Self::Reader => self.spread(units) & (EACH * WRITER),
        }
    }

    /// Takes units of a leaf.
    pub(crate) fn take_units(self, leaf: Word64, units: u64) -> Verb<u64> {
        let bits = self.spread(units);
        match self {
            Self::Exclusive => leaf.masked_cas(0, bits, bits, bits),
            Self::Writer => leaf.masked_cas(0, bits, bits & (EACH * WRITER), bits & (EACH * WRITER)),
            Self::Reader => leaf.masked_fetch_add(bits & EACH, BOUNDARIES),
        }
    }

    /// Whether that did not succeed, by what was there before.
    pub(crate) const fn units_taken(self, before: u64, units: u64) -> bool {
        before & self.obstacles(units) != 0
    }

    /// Whether units were marked although they were not free: a reader adds first and looks then.
    pub(crate) const fn marks_anyway(self) -> bool {
        self.is_reader()
    }

    /// The units are free.
    pub(crate) fn units_free(self, units: u64) -> Cond {
        Cond::Eq { mask: self.obstacles(units).into(), value: 0 }
    }

    /// Whether a unit has as many readers as it may have.
    pub(crate) const fn has_many_readers_of(self, before: u64, units: u64) -> bool {
        let tops = (MANY_READERS_OF_A_UNIT * EACH) & self.spread(units);
        self.is_reader() && before & tops != 0
    }

    /// Gives units back that were taken in this generation of the leaf.
    pub(crate) fn free_units(
        self,
        leaf: Word64,
        units: u64,
        (field, generation): (Field, u32),
        guards: bool,
    ) -> Ending {
        let bits = self.spread(units);
        let taken = match self {
            Self::Exclusive => bits,
            Self::Writer => bits & (EACH * WRITER),
            // Adding all ones to a count takes one away.
            Self::Reader => {
                let less = (bits & (EACH * COUNT), BOUNDARIES);
                return Ending::add(leaf, less, (field, generation), guards);
            }
        };
        let mask = taken | field.mask() as u64;
        let ours = taken | field.put(generation.into()) as u64;
        Ending::new(leaf.masked_cas(ours, mask, 0, taken).raw(), mask.into(), ours.into())
    }

    /// Frees everything in a leaf that was seen like this, and goes on to the next generation.
    pub(crate) fn clear_leaf(leaf: Word64, seen: u64, field: Field) -> Verb<u64> {
        let next = field.get(seen.into()) + 1;
        leaf.cas(seen, field.put(next) as u64)
    }

    /// Whether any unit of a leaf is taken.
    pub(crate) const fn is_leaf_taken(seen: u64, field: Field) -> bool {
        seen & !(field.mask() as u64) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::{Addr, NodeId, RawVerb, Width};

    fn word() -> Word64 {
        Word64::at(Addr::new(NodeId(0), 0))
    }

    fn after(verb: RawVerb, old: u64) -> u64 {
        verb.op.apply(Width::W64, u128::from(old)).map_or(old, |new| new as u64)
    }

    fn free(words: Words, units: u64, old: u64) -> u64 {
        after(words.free_units(word(), units, (NONE, 0), true).verb, old)
    }

    #[test]
    fn readers_share_units_and_a_writer_waits_for_all_of_them() {
        let units = 0b0110;
        let one = after(Words::Reader.take_units(word(), units).raw(), 0);
        let two = after(Words::Reader.take_units(word(), 0b0100).raw(), one);
        assert_eq!(two, 0x02_01_00);
        assert!(!Words::Reader.units_taken(two, units));
        assert!(Words::Writer.units_taken(two, 0b1100) && !Words::Writer.units_taken(two, 0b1001));
        assert_eq!(after(Words::Writer.take_units(word(), 0b1100).raw(), two), two, "the CAS fails");
        let back = free(Words::Reader, units, two);
        assert_eq!(free(Words::Reader, 0b0100, back), 0);
    }

    #[test]
    fn a_writer_of_a_unit_stops_readers_of_it_alone() {
        let held = after(Words::Writer.take_units(word(), 0b10).raw(), 0);
        assert_eq!(held, 0x80_00);
        assert!(Words::Reader.units_taken(held, 0b11) && !Words::Reader.units_taken(held, 0b01));
        assert_eq!(free(Words::Writer, 0b10, held), 0);
    }

    #[test]
    fn the_last_reader_that_fits_does_not_become_a_writer() {
        let full = after(Words::Reader.take_units(word(), 1).raw(), 0x7f);
        assert_eq!(full, 0, "the count wraps within its seven bits");
        assert!(Words::Reader.has_many_readers_of(0x40, 1) && !Words::Reader.has_many_readers_of(0x3f, 1));
    }

    #[test]
    fn small_leaves_have_a_generation_and_the_papers_have_none() {
        assert_eq!(generation(false, 64), NONE);
        assert_eq!(generation(false, 32), Field { shift: 32, bits: 16 });
        assert_eq!(generation(true, 8), NONE);
        assert_eq!(generation(true, 4), Field { shift: 32, bits: 16 });
    }

    #[test]
    fn a_cleared_leaf_is_free_and_its_former_holders_cannot_free_it_again() {
        for words in [Words::Exclusive, Words::Writer, Words::Reader] {
            let field = generation(words != Words::Exclusive, 4);
            let held = after(words.take_units(word(), 0b11).raw(), 0);
            let cleared = after(Words::clear_leaf(word(), held, field).raw(), held);
            assert!(!Words::is_leaf_taken(cleared, field));
            let again = after(words.take_units(word(), 0b11).raw(), cleared);
            let late = words.free_units(word(), 0b11, (field, 0), true);
            assert_eq!(after(late.verb, again), again, "{words:?}");
            assert!(!late.was_due(again.into()));
            let mine = words.free_units(word(), 0b11, (field, 1), true);
            assert_eq!(after(mine.verb, again), cleared);
        }
    }
}
