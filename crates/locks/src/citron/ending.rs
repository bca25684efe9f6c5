//! Generations, and verbs that end something only in the generation it began in.
//!
//! A recovery takes away what a client left in a word and goes on to the next generation of that word (`recover`). The
//! client may be alive after all: whatever it then does to end what it began must not happen. So a verb that ends
//! something names the generation in which it began; where the fabric can, the verb compares it and leaves the word
//! alone if it is another, and in any case the old word tells whether it was.
//!
//! Nothing here touches lock memory.

use super::shape::Node;
use lockwright_fabric::{Field, RawVerb, Word64};

/// A field that is no field, for words without a generation.
pub(crate) const NONE: Field = Field { shift: 0, bits: 0 };

/// A verb that ends something, and how to tell from the old word that there was something to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub(crate) verb: RawVerb,
    mask: u128,
    value: u128,
    /// What else has to be ended if the tree has grown past the word since, and what Swept was there then.
    pub(crate) span: Option<(Span, bool)>,
}

/// What a growth of the tree did for a request that was there before it (`grow`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// It left this note at ancestors further up, too.
    Note(Node),
    /// It left notes for the request at this node, which was the root.
    Root(Node),
}

impl Ending {
    /// A verb that finds the masked bits to be `value`, if what it ends was still there.
    pub(crate) const fn new(verb: RawVerb, mask: u128, value: u128) -> Self {
        Self { verb, mask, value, span: None }
    }

    /// The same, and `span` if Swept is no longer as it was.
    pub(crate) fn spanning(mut self, span: Option<Span>, swept: bool) -> Self {
        self.span = span.map(|span| (span, swept));
        self
    }

    /// A masked fetch-and-add, guarded by `generation` of `field` if the fabric can.
    pub(crate) fn add(
        word: Word64,
        (sum, boundaries): (u64, u64),
        (field, generation): (Field, u32),
        guards: bool,
    ) -> Self {
        let (mask, value) = (field.mask(), field.put(generation.into()));
        let verb = if guards && field.bits > 0 {
            word.guarded_fetch_add(sum, boundaries, value as u64, mask as u64)
        } else {
            word.masked_fetch_add(sum, boundaries)
        };
        Self::new(verb.raw(), mask, value)
    }

    /// Whether what was to be ended was still there.
    pub(crate) const fn was_due(&self, old: u128) -> bool {
        (old ^ self.value) & self.mask == 0
    }
}

/// The generations in which a client began what it holds at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generations {
    /// Of the node itself: of its tickets and readers, or of the leaf.
    pub(crate) here: u32,
    /// Of the four leaves below, sixteen bits each, if they were locked explicitly.
    pub(crate) leaves: u64,
    /// Of the notes at the ancestors that were notified, four bits each, the parent's first.
    notified: u128,
    /// The tree had grown past the root, or past the highest of those ancestors, already.
    pub(crate) late: bool,
    /// What Swept was at those ancestors, a bit each, and at the node itself ([`SWEPT_HERE`]).
    swept: u64,
}

/// Of the node itself; there are never so many ancestors.
const SWEPT_HERE: u32 = 63;

/// Words of a mark that say when a piece began.
pub(crate) const LOCALS: usize = 5;

const NOTIFIED_BITS: u32 = 4;
const _: () =
    assert!(super::layout::BELOW.bits <= NOTIFIED_BITS && super::words::BELOW.bits <= NOTIFIED_BITS);

impl Generations {
    /// At a node of generation `here`.
    pub(crate) fn at(here: u128) -> Self {
        Self { here: here as u32, ..Self::default() }
    }

    /// Takes note of the generation in which the `place`-th ancestor was notified.
    pub(crate) fn notified(&mut self, place: usize, generation: u32) {
        self.notified |= u128::from(generation) << (NOTIFIED_BITS * place as u32);
    }

    /// The generation in which the `place`-th ancestor was notified.
    pub(crate) const fn at_notified(&self, place: usize) -> u32 {
        (self.notified >> (NOTIFIED_BITS * place as u32)) as u32 & ((1 << NOTIFIED_BITS) - 1)
    }

    /// Takes note of what Swept was at the `place`-th ancestor when it was notified.
    pub(crate) fn swept_at_notified(&mut self, place: usize, swept: bool) {
        self.swept |= u64::from(swept) << place;
    }

    /// What Swept was at the `place`-th ancestor when it was notified.
    pub(crate) const fn was_swept_at_told(&self, place: usize) -> bool {
        self.swept >> place & 1 != 0
    }

    /// Takes note of what Swept was at the node itself.
    pub(crate) fn swept_here(&mut self, swept: bool) {
        self.swept |= u64::from(swept) << SWEPT_HERE;
    }

    /// What Swept was at the node itself.
    pub(crate) const fn was_swept_here(&self) -> bool {
        self.swept >> SWEPT_HERE & 1 != 0
    }

    /// Takes note of the generation of the `i`-th leaf below.
    pub(crate) fn leaf(&mut self, i: usize, generation: u32) {
        self.leaves |= u64::from(generation) << (16 * i);
    }

    /// The generation of the `i`-th leaf below.
    pub(crate) const fn at_leaf(&self, i: usize) -> u32 {
        (self.leaves >> (16 * i)) as u32 & 0xffff
    }

    /// For marks.
    pub(crate) const fn locals(&self) -> [u64; LOCALS] {
        let here = self.here as u64 | (self.late as u64) << 32;
        [here, self.leaves, self.notified as u64, (self.notified >> 64) as u64, self.swept]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::{Addr, NodeId, Width};

    #[test]
    fn every_generation_comes_back_as_it_was_noted() {
        let mut begun = Generations::default();
        for place in 0..31 {
            begun.notified(place, (place as u32 * 7) & 15);
        }
        begun.leaf(3, 0xbeef);
        begun.swept_at_notified(2, true);
        assert!(begun.was_swept_at_told(2) && !begun.was_swept_at_told(3) && !begun.was_swept_here());
        assert!((0..31).all(|place| begun.at_notified(place) == (place as u32 * 7) & 15));
        assert_eq!((begun.at_leaf(3), begun.at_leaf(0)), (0xbeef, 0));
    }

    #[test]
    fn what_belongs_to_another_generation_is_left_alone() {
        let generation = Field { shift: 8, bits: 4 };
        let word = Word64::at(Addr::new(NodeId(0), 0));
        let ending = Ending::add(word, (1, 0x880), (generation, 3), true);
        assert_eq!(ending.verb.op.apply(Width::W64, 0x305), Some(0x306));
        assert!(ending.was_due(0x305) && !ending.was_due(0x405));
        assert_eq!(ending.verb.op.apply(Width::W64, 0x405), None);
    }
}
