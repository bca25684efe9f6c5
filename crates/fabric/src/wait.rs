//! What a waiting protocol waits for, as data, so that a server or a parked waiter can check it too.

use crate::addr::{Value, Word};

/// Nanoseconds since the fabric's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// The time `ns` nanoseconds later.
    #[must_use]
    pub const fn plus(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to here, zero if it is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Until when somebody is ready to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deadline {
    /// As long as it takes.
    #[default]
    Never,
    /// Look once.
    Now,
    /// Until then.
    At(Time),
}

/// A field of a word: `bits` bits from bit `shift` up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Position of the lowest bit.
    pub shift: u32,
    /// Width in bits.
    pub bits: u32,
}

impl Field {
    /// The field's bits in place.
    #[inline(always)]
    pub const fn mask(self) -> u128 {
        self.max() << self.shift
    }

    /// The largest value the field holds.
    #[inline(always)]
    pub const fn max(self) -> u128 {
        if self.bits == 128 { u128::MAX } else { (1 << self.bits) - 1 }
    }

    /// The field's top bit in place: its boundary in a masked fetch-and-add.
    #[inline(always)]
    pub const fn top(self) -> u128 {
        1 << (self.shift + self.bits - 1)
    }

    /// The field's value in `word`.
    #[inline(always)]
    pub const fn get(self, word: u128) -> u128 {
        (word >> self.shift) & self.max()
    }

    /// `value` moved into place; bits that do not fit are dropped.
    #[inline(always)]
    pub const fn put(self, value: u128) -> u128 {
        (value & self.max()) << self.shift
    }

    /// Whether `fields` fill a word of so many bits: none overlaps another, and none leaves a gap.
    pub const fn fill(fields: &[Self], bits: u32) -> bool {
        let (mut all, mut widths, mut at) = (0, 0, 0);
        while at < fields.len() {
            all |= fields[at].mask();
            widths += fields[at].bits;
            at += 1;
        }
        all == (Self { shift: 0, bits }).max() && widths == bits
    }
}

/// One condition on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cond {
    /// The masked bits are those of `value`.
    Eq {
        /// Which bits.
        mask: u128,
        /// What they must be.
        value: u128,
    },
    /// The masked bits differ from those of `value`.
    Ne {
        /// Which bits.
        mask: u128,
        /// What they must not all be.
        value: u128,
    },
    /// Two fields of the word hold the same number (Citron: DCnt = DMax).
    FieldsEq(Field, Field),
    /// A field has come to `value` or past it, for counters that only rise.
    AtLeast(Field, u128),
}

impl Cond {
    /// Whether `word` meets the condition.
    #[inline(always)]
    pub const fn holds(&self, word: u128) -> bool {
        match *self {
            Cond::Eq { mask, value } => (word ^ value) & mask == 0,
            Cond::Ne { mask, value } => (word ^ value) & mask != 0,
            Cond::FieldsEq(a, b) => a.get(word) == b.get(word),
            Cond::AtLeast(field, value) => field.get(word) >= value,
        }
    }
}

/// A wait for a word: ends when any of its conditions holds, or at its deadline.
///
/// ```
/// # use lockwright_fabric::*;
/// let word = Word64::at(Addr::new(NodeId(0), 0));
/// let wait = word.until(Cond::Eq { mask: 0xff, value: 0 }).or(Cond::Ne { mask: !0xff, value: 0 });
/// assert!(wait.met_by(0x100) && wait.met_by(0x00) && !wait.met_by(0x01));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait<T> {
    /// The word looked at.
    pub word: Word<T>,
    /// What is waited for.
    pub cond: Cond,
    /// A second way to be done.
    pub or: Option<Cond>,
    /// When to give up.
    pub deadline: Deadline,
    /// Nanoseconds to let pass between two looks, where looking costs a round trip. Zero: the fabric's own pace.
    pub pace_ns: u64,
}

impl<T: Value> Word<T> {
    /// A wait for this word to meet `cond`.
    #[inline(always)]
    pub const fn until(self, cond: Cond) -> Wait<T> {
        Wait { word: self, cond, or: None, deadline: Deadline::Never, pace_ns: 0 }
    }
}

impl<T: Value> Wait<T> {
    /// Be done when `cond` holds, too.
    #[must_use]
    pub const fn or(mut self, cond: Cond) -> Self {
        self.or = Some(cond);
        self
    }

    /// Give up at `deadline`.
    #[must_use]
    pub const fn by(mut self, deadline: Deadline) -> Self {
        self.deadline = deadline;
        self
    }

    /// Let `ns` pass between two looks.
    #[must_use]
    pub const fn pace(mut self, ns: u64) -> Self {
        self.pace_ns = ns;
        self
    }

    /// Whether `word` ends the wait.
    #[inline(always)]
    pub fn met_by(&self, word: T) -> bool {
        let word = word.widen();
        self.cond.holds(word) || self.or.is_some_and(|or| or.holds(word))
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waited<T> {
    /// The word as last seen.
    pub value: T,
    /// Whether a condition holds for it; if not, the deadline passed.
    pub met: bool,
    /// READs it took: one round trip each on fabrics that poll, none where somebody wakes the waiter.
    pub polls: u32,
}
