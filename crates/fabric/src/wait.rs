//! Conditions on words as data: a protocol names what it waits for, and the backend (a server, a waking verb) checks it.

use crate::addr::{Addr, Value, Width, Word};

/// Nanoseconds on the fabric's clock.
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

/// How long a caller is willing to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deadline {
    /// No limit.
    #[default]
    Never,
    /// Check once, do not wait.
    Now,
    /// Until this time.
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
    /// A field is at least `value`: for counters that only rise.
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

/// A wait on a word: ends when one of its conditions holds, or at its deadline.
///
/// ```
/// # use lockwright_fabric::*;
/// let word = Word64::at(Addr::new(NodeId(0), 0));
/// let wait = word.until(Cond::Eq { mask: 0xff, value: 0 }).or(Cond::Ne { mask: !0xff, value: 0 });
/// assert!(wait.met_by(0x100) && wait.met_by(0x00) && !wait.met_by(0x01));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait<T> {
    /// The word.
    pub word: Word<T>,
    /// Ends the wait when it holds.
    pub cond: Cond,
    /// Also ends the wait when it holds.
    pub or: Option<Cond>,
    /// When the wait gives up.
    pub deadline: Deadline,
    /// Nanoseconds between two READs on fabrics that poll. Zero: the fabric's default.
    pub pace_ns: u64,
}

impl<T: Value> Word<T> {
    /// A wait until this word meets `cond`.
    #[inline(always)]
    pub const fn until(self, cond: Cond) -> Wait<T> {
        Wait { word: self, cond, or: None, deadline: Deadline::Never, pace_ns: 0 }
    }
}

impl<T: Value> Wait<T> {
    /// Also ends when `cond` holds.
    #[must_use]
    pub const fn or(mut self, cond: Cond) -> Self {
        self.or = Some(cond);
        self
    }

    /// Gives up at `deadline`.
    #[must_use]
    pub const fn by(mut self, deadline: Deadline) -> Self {
        self.deadline = deadline;
        self
    }

    /// Polls every `ns` nanoseconds, where the fabric polls.
    #[must_use]
    pub const fn pace(mut self, ns: u64) -> Self {
        self.pace_ns = ns;
        self
    }

    /// The wait without its type and deadline.
    #[inline(always)]
    pub fn raw(&self) -> RawWait {
        RawWait { addr: self.word.addr(), width: T::WIDTH, cond: self.cond, or: self.or }
    }

    /// Whether `word` ends the wait.
    #[inline(always)]
    pub fn met_by(&self, word: T) -> bool {
        let word = word.widen();
        self.cond.holds(word) || self.or.is_some_and(|or| or.holds(word))
    }
}

/// A [`Wait`] as backends see it: without its type and deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawWait {
    /// The word.
    pub addr: Addr,
    /// Its width.
    pub width: Width,
    /// Ends the wait when it holds.
    pub cond: Cond,
    /// Also ends the wait when it holds.
    pub or: Option<Cond>,
}

impl RawWait {
    /// Whether `word` ends the wait.
    pub fn met_by(&self, word: u128) -> bool {
        self.cond.holds(word) || self.or.is_some_and(|or| or.holds(word))
    }

    /// Whether the wait is over: the word meets a condition, or `read` cannot reach it any more.
    pub(crate) fn is_over(&self, read: impl FnOnce(Addr, Width) -> Option<u128>) -> bool {
        read(self.addr, self.width).is_none_or(|word| self.met_by(word))
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waited<T> {
    /// The word as last read.
    pub value: T,
    /// Whether a condition holds; if not, the deadline passed.
    pub met: bool,
    /// READs it took: one round trip each on fabrics that poll, zero where verbs wake their waiters.
    pub polls: u32,
}
