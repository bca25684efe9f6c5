//! What a request does to words and reads from them, by who it is: the paper's exclusive requests, or the readers and
//! writers of a reader-writer tree (`citron-rw`), which have words of their own.
//!
//! **Leaf of a reader-writer tree**: 8 units, one byte each.
//!
//! | bits of a byte | field |
//! |---|---|
//! | 0–6 | readers of the unit |
//! | 7 | a writer has it |
//!
//! A reader takes its units with one masked fetch-and-add, a writer with one masked CAS that compares bits *and* counts.
//!
//! **Internal node of a reader-writer tree**:
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–11 | D | writers below that notified this node |
//! | 12–23 | DR | readers below that notified this node |
//! | 24–35 | R | readers at this node |
//! | 36–47 | TMax | the next ticket at this node |
//! | 48–59 | TCnt | the ticket whose turn it is |
//! | 60–63 | | zero |
//!
//! D and DR go up and down, where the exclusive tree has pairs of counters that only rise: that makes room for R in
//! eight bytes. At most 4,095 clients may use one reader-writer tree at a time, and 127 one unit. The bounds on readers
//! that are refused with an error ([`MANY_READERS`], [`MANY_READERS_OF_A_UNIT`]) leave half of each counter for those
//! who have added themselves and not looked yet.
//!
//! Exclusive-only trees know nothing of all this: their words are in `layout`.

use super::layout;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Cond, Field, Verb, Word64};

const D: Field = Field { shift: 0, bits: 12 };
const DR: Field = Field { shift: 12, bits: 12 };
const R: Field = Field { shift: 24, bits: 12 };
const T_MAX: Field = Field { shift: 36, bits: 12 };
const T_CNT: Field = Field { shift: 48, bits: 12 };
const BOUNDARIES: u64 = (D.top() | DR.top() | R.top() | T_MAX.top() | T_CNT.top()) as u64;

const _: () = {
    let fields = [D, DR, R, T_MAX, T_CNT];
    let (mut i, mut all) = (0, 0);
    while i < fields.len() {
        assert!(all & fields[i].mask() == 0, "fields do not overlap");
        all |= fields[i].mask();
        i += 1;
    }
    assert!(all == (1 << 60) - 1, "fields leave no gap and fit into 60 bits");
};

/// Readers at an internal node from which on more are refused.
pub const MANY_READERS: u64 = 1 << 11;
/// Readers of a unit from which on more are refused.
pub const MANY_READERS_OF_A_UNIT: u64 = 1 << 6;

/// One bit in every byte.
const EACH: u64 = 0x0101_0101_0101_0101;
const WRITER: u64 = 0x80;
const COUNT: u64 = 0x7f;
const COUNT_TOP: u64 = 0x40;

/// Whose words, and who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// The paper's words; everybody is alone.
    Exclusive,
    /// A reader-writer tree's, seen by a writer.
    Writer,
    /// A reader-writer tree's, seen by a reader.
    Reader,
}

impl Words {
    pub(crate) fn new(readers: bool, mode: Mode) -> Self {
        match (readers, mode) {
            (false, _) => Self::Exclusive,
            (true, Mode::Exclusive) => Self::Writer,
            (true, Mode::Shared) => Self::Reader,
        }
    }

    pub(crate) const fn is_reader(self) -> bool {
        matches!(self, Self::Reader)
    }

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
    const fn obstacles(self, units: u64) -> u64 {
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
            Self::Reader => leaf.masked_fetch_add(bits & EACH, EACH * (WRITER | COUNT_TOP)),
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
    pub(crate) const fn has_many_readers(self, before: u64, units: u64) -> bool {
        let tops = (MANY_READERS_OF_A_UNIT * EACH) & self.spread(units);
        self.is_reader() && before & tops != 0
    }

    /// Gives units back.
    pub(crate) fn free_units(self, leaf: Word64, units: u64) -> Verb<u64> {
        let bits = self.spread(units);
        match self {
            Self::Exclusive => leaf.masked_cas(bits, bits, 0, bits),
            Self::Writer => {
                let writers = bits & (EACH * WRITER);
                leaf.masked_cas(writers, writers, 0, writers)
            }
            // Adding all ones to a count takes one away.
            Self::Reader => leaf.masked_fetch_add(bits & (EACH * COUNT), EACH * (WRITER | COUNT_TOP)),
        }
    }

    /// Leaves a note at an ancestor.
    pub(crate) fn note(self, above: Word64) -> Verb<u64> {
        match self {
            Self::Exclusive => layout::add_one(above, layout::D_MAX),
            Self::Writer => add(above, &[(D, 1)]),
            Self::Reader => add(above, &[(DR, 1)]),
        }
    }

    /// Takes the note back.
    pub(crate) fn unnote(self, above: Word64) -> Verb<u64> {
        match self {
            Self::Exclusive => layout::add_one(above, layout::D_CNT),
            Self::Writer => add(above, &[(D, D.max())]),
            Self::Reader => add(above, &[(DR, DR.max())]),
        }
    }

    const fn tickets(self) -> (Field, Field) {
        match self {
            Self::Exclusive => (layout::T_CNT, layout::T_MAX),
            Self::Writer | Self::Reader => (T_CNT, T_MAX),
        }
    }

    /// Takes the next ticket.
    pub(crate) fn ticket(self, node: Word64) -> Verb<u64> {
        match self {
            Self::Exclusive => layout::add_one(node, layout::T_MAX),
            Self::Writer | Self::Reader => add(node, &[(T_MAX, 1)]),
        }
    }

    /// Takes the next ticket, but only if the tickets are as in `seen`, where nobody waits.
    pub(crate) fn ticket_if_free(self, node: Word64, seen: u64) -> Verb<u64> {
        let (turn, next) = self.tickets();
        let now = turn.get(seen.into());
        let both = (turn.mask() | next.mask()) as u64;
        node.masked_cas(
            (turn.put(now) | next.put(now)) as u64,
            both,
            next.put(now + 1) as u64,
            next.mask() as u64,
        )
    }

    /// The ticket that a taker got, by what was there before.
    pub(crate) const fn ticket_of(self, before: u64) -> u128 {
        self.tickets().1.get(before as u128)
    }

    /// Whether two looks at a node show the same tickets.
    pub(crate) const fn same_queue(self, one: u64, other: u64) -> bool {
        let (turn, next) = self.tickets();
        (one ^ other) as u128 & (turn.mask() | next.mask()) == 0
    }

    /// Whether somebody has a ticket.
    pub(crate) const fn has_queue(self, node: u64) -> bool {
        let (turn, next) = self.tickets();
        turn.get(node as u128) != next.get(node as u128)
    }

    /// Nobody has a ticket.
    pub(crate) const fn queue_empty(self) -> Cond {
        let (turn, next) = self.tickets();
        Cond::FieldsEq(turn, next)
    }

    /// It is the turn of `ticket`.
    pub(crate) const fn turn_of(self, ticket: u128) -> Cond {
        let (turn, _) = self.tickets();
        Cond::Eq { mask: turn.mask(), value: turn.put(ticket) }
    }

    /// Passes the turn on.
    pub(crate) fn pass(self, node: Word64) -> Verb<u64> {
        match self {
            Self::Exclusive => layout::add_one(node, layout::T_CNT),
            Self::Writer | Self::Reader => add(node, &[(T_CNT, 1)]),
        }
    }

    /// Whether a request at an ancestor with this word is in the way of this one.
    pub(crate) const fn is_occupied(self, above: u64) -> bool {
        self.has_queue(above) || matches!(self, Self::Writer) && has_readers(above)
    }

    /// Nobody below is in the way.
    pub(crate) const fn quiet_below(self) -> Cond {
        match self {
            Self::Exclusive => layout::QUIET_BELOW,
            Self::Writer => Cond::Eq { mask: D.mask() | DR.mask(), value: 0 },
            Self::Reader => Cond::Eq { mask: D.mask(), value: 0 },
        }
    }
}

fn add(word: Word64, addends: &[(Field, u128)]) -> Verb<u64> {
    let sum = addends.iter().fold(0, |sum, (field, by)| sum | field.put(*by));
    word.masked_fetch_add(sum as u64, BOUNDARIES)
}

/// One more reader at an internal node.
pub(crate) fn enter(node: Word64) -> Verb<u64> {
    add(node, &[(R, 1)])
}

/// One more reader, whose turn it was: it goes in and lets the next one come up.
pub(crate) fn enter_and_pass(node: Word64) -> Verb<u64> {
    add(node, &[(R, 1), (T_CNT, 1)])
}

/// One reader less.
pub(crate) fn leave(node: Word64) -> Verb<u64> {
    add(node, &[(R, R.max())])
}

/// Whether there are readers at a node.
pub(crate) const fn has_readers(node: u64) -> bool {
    R.get(node as u128) != 0
}

/// Whether there are as many as there may be.
pub(crate) const fn has_many_readers(node: u64) -> bool {
    R.get(node as u128) >= MANY_READERS as u128
}

/// The bits of an internal node that are zero when all is quiet.
pub(crate) const QUIET: u64 = (D.mask() | DR.mask() | R.mask()) as u64;

/// Nobody reads at the node.
pub(crate) const NO_READERS: Cond = Cond::Eq { mask: R.mask(), value: 0 };

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::{Addr, NodeId, Width};

    fn word() -> Word64 {
        Word64::at(Addr::new(NodeId(0), 0))
    }

    fn after(verb: Verb<u64>, old: u64) -> u64 {
        verb.raw().op.apply(Width::W64, u128::from(old)).map_or(old, |new| new as u64)
    }

    #[test]
    fn readers_share_units_and_a_writer_waits_for_all_of_them() {
        let units = 0b0110;
        let one = after(Words::Reader.take_units(word(), units), 0);
        let two = after(Words::Reader.take_units(word(), 0b0100), one);
        assert_eq!(two, 0x02_01_00);
        assert!(!Words::Reader.units_taken(two, units));
        assert!(Words::Writer.units_taken(two, 0b1100) && !Words::Writer.units_taken(two, 0b1001));
        assert_eq!(after(Words::Writer.take_units(word(), 0b1100), two), two, "the CAS fails");
        let back = after(Words::Reader.free_units(word(), units), two);
        assert_eq!(after(Words::Reader.free_units(word(), 0b0100), back), 0);
    }

    #[test]
    fn a_writer_of_a_unit_stops_readers_of_it_alone() {
        let held = after(Words::Writer.take_units(word(), 0b10), 0);
        assert_eq!(held, 0x80_00);
        assert!(Words::Reader.units_taken(held, 0b11) && !Words::Reader.units_taken(held, 0b01));
        assert_eq!(after(Words::Writer.free_units(word(), 0b10), held), 0);
    }

    #[test]
    fn the_last_reader_that_fits_does_not_become_a_writer() {
        let full = after(Words::Reader.take_units(word(), 1), 0x7f);
        assert_eq!(full, 0, "the count wraps within its seven bits");
        assert!(Words::Reader.has_many_readers(0x40, 1) && !Words::Reader.has_many_readers(0x3f, 1));
    }

    #[test]
    fn every_internal_field_comes_back_and_wraps_alone() {
        let full = (D.mask() | DR.mask() | R.mask() | T_MAX.mask() | T_CNT.mask()) as u64;
        for field in [D, DR, R, T_MAX, T_CNT] {
            assert_eq!(field.get(field.put(77)), 77);
            assert_eq!(after(add(word(), &[(field, 1)]), full), full & !(field.mask() as u64));
        }
        let entered = after(enter_and_pass(word()), after(Words::Reader.ticket(word()), 0));
        assert!(has_readers(entered) && !Words::Reader.has_queue(entered));
        assert!(!has_readers(after(leave(word()), entered)));
    }

    #[test]
    fn readers_do_not_mind_readers() {
        let read_above = after(enter(word()), 0);
        assert!(Words::Writer.is_occupied(read_above) && !Words::Reader.is_occupied(read_above));
        let quiet = |words: Words, word: u64| words.quiet_below().holds(word.into());
        let read_below = after(Words::Reader.note(word()), 0);
        assert!(!quiet(Words::Writer, read_below) && quiet(Words::Reader, read_below));
        let written_below = after(Words::Writer.note(word()), 0);
        assert!(!quiet(Words::Reader, written_below));
        assert_eq!(after(Words::Writer.unnote(word()), written_below), 0);
    }

    #[test]
    fn a_ticket_for_a_free_node_wraps_with_its_counter() {
        for words in [Words::Exclusive, Words::Writer] {
            let (turn, next) = words.tickets();
            let last = (turn.mask() | next.mask()) as u64 | 5;
            let taken = after(words.ticket_if_free(word(), last), last);
            assert_eq!((next.get(taken.into()), turn.get(taken.into()), taken & 7), (0, turn.max(), 5));
            assert_eq!(after(words.ticket_if_free(word(), last), taken), taken, "not free any more");
        }
    }
}
