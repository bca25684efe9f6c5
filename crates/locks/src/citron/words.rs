//! What a request does to internal nodes and reads from them, by who it is: the paper's exclusive requests, or the
//! readers and writers of a reader-writer tree (`citron-rw`), which have words of their own. Leaves are in `leaf`.
//!
//! **Internal node of a reader-writer tree**:
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–10 | D | writers below that notified this node |
//! | 11–21 | DR | readers below that notified this node |
//! | 22–32 | R | readers at this node |
//! | 33–43 | TMax | the next ticket at this node |
//! | 44–54 | TCnt | the ticket whose turn it is |
//! | 55 | Exp | the tree has grown past this node (`grow`) |
//! | 56–59 | Below | generation of D and DR: one more whenever they were recovered |
//! | 60–63 | Here | generation of R, TMax and TCnt: one more whenever they were recovered |
//!
//! D and DR go up and down, where the exclusive tree has pairs of counters that only rise: that makes room for R in
//! eight bytes. At most 2,047 clients may use one reader-writer tree at a time, and 127 one unit. The bounds on readers
//! that are refused with an error ([`MANY_READERS`], [`MANY_READERS_OF_A_UNIT`](super::MANY_READERS_OF_A_UNIT)) leave
//! half of each counter for clients that have added themselves and not looked yet.
//!
//! Exclusive-only trees know nothing of all this: their words are in `layout`.

use super::ending::Ending;
use super::layout;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Cond, Field, Verb, Word64};

const D: Field = Field { shift: 0, bits: 11 };
const DR: Field = Field { shift: 11, bits: 11 };
const R: Field = Field { shift: 22, bits: 11 };
const T_MAX: Field = Field { shift: 33, bits: 11 };
const T_CNT: Field = Field { shift: 44, bits: 11 };
const EXP: Field = Field { shift: 55, bits: 1 };
pub(super) const BELOW: Field = Field { shift: 56, bits: 4 };
const HERE: Field = Field { shift: 60, bits: 4 };
const BOUNDARIES: u64 = {
    let counts = D.top() | DR.top() | R.top() | T_MAX.top() | T_CNT.top();
    (counts | EXP.top() | BELOW.top() | HERE.top()) as u64
};

const _: () = {
    let fields = [D, DR, R, T_MAX, T_CNT, EXP, BELOW, HERE];
    assert!(Field::fill(&fields, 64), "fields do not overlap and leave no gap");
};

/// Readers at an internal node from which on more are refused.
pub const MANY_READERS: u64 = 1 << 10;

/// Whose words, and who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// The paper's words; every holder is alone.
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

    /// Leaves a note at an ancestor.
    pub(crate) fn note(self, above: Word64) -> Verb<u64> {
        match self {
            Self::Exclusive => layout::add_one(above, layout::D_MAX),
            Self::Writer => add(above, &[(D, 1)]),
            Self::Reader => add(above, &[(DR, 1)]),
        }
    }

    /// Takes the note back that was left in this generation.
    pub(crate) fn unnote(self, above: Word64, generation: u32, guards: bool) -> Ending {
        let less = match self {
            Self::Exclusive => layout::D_CNT.put(1),
            Self::Writer => D.put(D.max()),
            Self::Reader => DR.put(DR.max()),
        };
        let sum = (less as u64, self.boundaries());
        Ending::add(above, sum, (self.generation_below(), generation), guards)
    }

    /// Where fields end.
    const fn boundaries(self) -> u64 {
        match self {
            Self::Exclusive => layout::BOUNDARIES,
            Self::Writer | Self::Reader => BOUNDARIES,
        }
    }

    /// The generation of what requests below leave at a node.
    pub(crate) const fn generation_below(self) -> Field {
        match self {
            Self::Exclusive => layout::BELOW,
            Self::Writer | Self::Reader => BELOW,
        }
    }

    /// The generation of what requests at a node leave there.
    pub(crate) const fn generation_here(self) -> Field {
        match self {
            Self::Exclusive => layout::HERE,
            Self::Writer | Self::Reader => HERE,
        }
    }

    /// What tells that requests below come to an end.
    pub(crate) const fn progress_below(self) -> u64 {
        match self {
            Self::Exclusive => (layout::D_CNT.mask() | layout::D_MAX.mask() | layout::BELOW.mask()) as u64,
            Self::Writer | Self::Reader => (D.mask() | DR.mask() | BELOW.mask()) as u64,
        }
    }

    /// What tells that requests at a node come to an end.
    pub(crate) const fn progress_here(self) -> u64 {
        match self {
            Self::Exclusive => (layout::T_CNT.mask() | layout::OCC.mask() | layout::HERE.mask()) as u64,
            Self::Writer | Self::Reader => (T_CNT.mask() | R.mask() | HERE.mask()) as u64,
        }
    }

    /// Recovery: forgets all notes at a node whose notes still are as `seen`, in a new generation.
    pub(crate) fn forget_below(self, node: Word64, seen: u64) -> Verb<u64> {
        let field = self.generation_below();
        let next = field.put(field.get(seen.into()) + 1);
        let (swap, mask) = match self {
            Self::Exclusive => {
                (next | layout::D_CNT.put(layout::D_MAX.get(seen.into())), layout::D_CNT.mask())
            }
            Self::Writer | Self::Reader => (next, D.mask() | DR.mask()),
        };
        let same = self.progress_below();
        node.masked_cas(seen & same, same, swap as u64, (mask | field.mask()) as u64)
    }

    /// Recovery: forgets all clients at a node whose turn and readers still are as `seen`, in a new generation.
    pub(crate) fn forget_here(self, node: Word64, seen: u64) -> Verb<u64> {
        let (turn, next) = self.tickets();
        let field = self.generation_here();
        let swap = field.put(field.get(seen.into()) + 1) | turn.put(next.get(seen.into()));
        let others = match self {
            Self::Exclusive => layout::OCC.mask(),
            Self::Writer | Self::Reader => R.mask(),
        };
        let same = self.progress_here() | self.queue();
        node.masked_cas(seen & same, same, swap as u64, (field.mask() | turn.mask() | others) as u64)
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

    /// The bits of the tickets.
    pub(crate) const fn queue(self) -> u64 {
        let (turn, next) = self.tickets();
        (turn.mask() | next.mask()) as u64
    }

    /// Whether two looks at a node show the same tickets.
    pub(crate) const fn same_queue(self, one: u64, other: u64) -> bool {
        (one ^ other) & self.queue() == 0
    }

    /// Whether any client has a ticket.
    pub(crate) const fn has_queue(self, node: u64) -> bool {
        let (turn, next) = self.tickets();
        turn.get(node as u128) != next.get(node as u128)
    }

    /// Nobody has a ticket.
    pub(crate) const fn queue_empty(self) -> Cond {
        let (turn, next) = self.tickets();
        Cond::FieldsEq(turn, next)
    }

    /// Passes a turn on that belongs to a ticket of this generation; opens or closes the gap with it.
    pub(crate) fn pass(self, node: Word64, gap: Gap, generation: u32, guards: bool) -> Ending {
        let (turn, _) = self.tickets();
        let gap = if matches!(gap, Gap::Leave) { 0 } else { layout::OCC.put(1) };
        let sum = ((turn.put(1) | gap) as u64, self.boundaries());
        Ending::add(node, sum, (self.generation_here(), generation), guards)
    }

    /// How many tickets are ahead of `ticket`.
    pub(crate) const fn ahead(self, ticket: u128, node: u64) -> u128 {
        let (turn, _) = self.tickets();
        ticket.wrapping_sub(turn.get(node as u128)) & turn.max()
    }

    /// Whether a client waits behind `ticket`.
    pub(crate) const fn is_followed(self, ticket: u128, node: u64) -> bool {
        let (_, next) = self.tickets();
        next.get(node as u128).wrapping_sub(ticket) & next.max() > 1
    }

    /// Another's turn, or none of the tickets counts any more.
    pub(crate) const fn turn_has_moved(self, seen: u64) -> Cond {
        let mask = self.tickets().0.mask() | self.generation_here().mask();
        Cond::Ne { mask, value: seen as u128 & mask }
    }

    /// Whether a queue leaves a gap for requests below just now. Reader-writer trees have none.
    pub(crate) const fn has_gap(self, node: u64) -> bool {
        matches!(self, Self::Exclusive) && layout::is_occ(node)
    }

    /// The tickets are of another generation: none of them counts any more.
    pub(crate) const fn renewed_here(self, generation: u32) -> Cond {
        let field = self.generation_here();
        Cond::Ne { mask: field.mask(), value: field.put(generation as u128) }
    }

    /// Whether a request at an ancestor with this word is in the way of this one.
    pub(crate) const fn is_occupied(self, above: u64) -> bool {
        self.has_queue(above) && !self.has_gap(above) || matches!(self, Self::Writer) && has_readers(above)
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
pub(crate) fn enter_and_pass(node: Word64, generation: u32, guards: bool) -> Ending {
    let sum = (R.put(1) | T_CNT.put(1)) as u64;
    Ending::add(node, (sum, BOUNDARIES), (HERE, generation), guards)
}

/// One reader less.
pub(crate) fn leave(node: Word64, generation: u32, guards: bool) -> Ending {
    Ending::add(node, (R.put(R.max()) as u64, BOUNDARIES), (HERE, generation), guards)
}

/// What passing a turn on does to the gap between two turns (handshake mode, exclusive trees): the wait mode's flag is
/// free there, and means that requests below may come although there is a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gap {
    /// It is closed and stays so.
    Leave,
    /// It opens: a request waits, and will close it.
    Open,
    /// It was open, and closes.
    Close,
}

/// Closes the gap that was opened with the turn of a ticket of this generation.
pub(crate) fn close_gap(node: Word64, generation: u32, guards: bool) -> Ending {
    occupy(node, generation, guards)
}

/// A queue leaves a gap for requests below.
pub(crate) const GAP: Cond = Cond::Ne { mask: layout::OCC.mask(), value: 0 };

/// Wait mode: holds off requests below (Alg. 2 line 28), with a ticket of this generation.
pub(crate) fn occupy(node: Word64, generation: u32, guards: bool) -> Ending {
    let sum = (layout::OCC.put(1) as u64, layout::BOUNDARIES);
    Ending::add(node, sum, (layout::HERE, generation), guards)
}

/// Wait mode: passes the turn on and lets requests below come (Alg. 3 line 7).
pub(crate) fn vacate(node: Word64, generation: u32, guards: bool) -> Ending {
    let sum = layout::OCC.put(layout::OCC.max()) | layout::T_CNT.put(1);
    Ending::add(node, (sum as u64, layout::BOUNDARIES), (layout::HERE, generation), guards)
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
    use lockwright_fabric::{Addr, NodeId, RawVerb, Width};

    fn word() -> Word64 {
        Word64::at(Addr::new(NodeId(0), 0))
    }

    fn run(verb: RawVerb, old: u64) -> u64 {
        verb.op.apply(Width::W64, u128::from(old)).map_or(old, |new| new as u64)
    }

    fn after(verb: Verb<u64>, old: u64) -> u64 {
        run(verb.raw(), old)
    }

    #[test]
    fn every_internal_field_comes_back_and_wraps_alone() {
        let fields = [D, DR, R, T_MAX, T_CNT, EXP, BELOW, HERE];
        for field in fields {
            assert_eq!(field.get(field.put(77 & field.max())), 77 & field.max());
            assert_eq!(after(add(word(), &[(field, 1)]), u64::MAX), !(field.mask() as u64));
        }
        let entered = run(enter_and_pass(word(), 0, true).verb, after(Words::Reader.ticket(word()), 0));
        assert!(has_readers(entered) && !Words::Reader.has_queue(entered));
        assert!(!has_readers(run(leave(word(), 0, true).verb, entered)));
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
        assert_eq!(run(Words::Writer.unnote(word(), 0, true).verb, written_below), 0);
    }

    #[test]
    fn a_release_in_wait_mode_passes_the_turn_and_clears_occ_in_one_verb() {
        let ticket = after(Words::Exclusive.ticket(word()), layout::D_MAX.put(3) as u64);
        let held = run(occupy(word(), 0, true).verb, ticket);
        assert!(layout::is_occ(held));
        let free = run(vacate(word(), 0, true).verb, held);
        assert!(!layout::is_occ(free) && !Words::Exclusive.has_queue(free));
        assert_eq!(layout::get(free, layout::D_MAX), 3);
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

    #[test]
    fn who_was_forgotten_can_end_nothing_any_more() {
        for words in [Words::Exclusive, Words::Writer] {
            let two = after(words.note(word()), after(words.ticket(word()), 0));
            let here = after(words.forget_here(word(), two), two);
            assert!(!words.has_queue(here) && !words.quiet_below().holds(here.into()));
            assert_eq!(run(words.pass(word(), Gap::Leave, 0, true).verb, here), here);
            assert!(words.renewed_here(0).holds(here.into()));
            let below = after(words.forget_below(word(), here), here);
            assert!(words.quiet_below().holds(below.into()));
            assert_eq!(run(words.unnote(word(), 0, true).verb, below), below);
        }
    }

    #[test]
    fn nobody_is_forgotten_where_something_moved() {
        for words in [Words::Exclusive, Words::Writer] {
            let seen = after(words.note(word()), after(words.ticket(word()), 0));
            let passed = run(words.pass(word(), Gap::Leave, 0, true).verb, seen);
            assert_eq!(after(words.forget_here(word(), seen), passed), passed);
            let another = after(words.note(word()), seen);
            assert_eq!(after(words.forget_below(word(), seen), another), another);
        }
    }
}
