//! Verbs as values: operations on a word, and batches of them.
//!
//! [`Op::apply`] defines the meaning of every verb. The simulator, the explorer, servers and the conformance
//! suite's reference model call it; backends with real atomics are tested against it.

use crate::addr::{Addr, Value, Width, Word};

/// The operation of a verb. Operands are in the low bits; a 64-bit verb ignores the high ones.
///
/// The tag is one byte: beside 16-byte operands it would be sixteen, written in two stores and read by one load, which
/// stalls the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Return the word.
    Read,
    /// Replace the word. Some fabrics return the old word; no protocol may rely on it.
    Write(u128),
    /// Replace the word by `new` if it is `expect`.
    Cas {
        /// What the word must be.
        expect: u128,
        /// What it becomes.
        new: u128,
    },
    /// Add, wrapping at the word's width.
    FetchAdd(u128),
    /// Replace the bits of `swap_mask` if the bits of `compare_mask` are those of `compare`.
    MaskedCas(MaskedCas),
    /// Add field by field: no carry leaves a field.
    MaskedFetchAdd(Fields),
    /// As [`Op::MaskedFetchAdd`], but only where the bits of `guard_mask` are those of `guard`.
    GuardedFetchAdd {
        /// What is added, and where fields end.
        fields: Fields,
        /// What the guarded bits must be.
        guard: u128,
        /// Which bits are guarded.
        guard_mask: u128,
    },
}

/// Operands of a masked compare-and-swap (RDMA "extended atomics").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskedCas {
    /// Expected bits.
    pub compare: u128,
    /// Which bits are compared; zero means the swap always happens (fetch-and-store).
    pub compare_mask: u128,
    /// New bits.
    pub swap: u128,
    /// Which bits are replaced.
    pub swap_mask: u128,
}

/// Operands of a masked fetch-and-add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fields {
    /// One addend per field, each in its field's place.
    pub add: u128,
    /// A set bit is the **top** bit of a field: the carry out of it is dropped.
    pub boundaries: u128,
}

impl Fields {
    /// Field-wise sum of `old` and the addends: add below the top bits, then put the top bits in without carry.
    #[inline(always)]
    pub const fn sum(self, old: u128) -> u128 {
        let tops = self.boundaries;
        ((old & !tops).wrapping_add(self.add & !tops)) ^ ((old ^ self.add) & tops)
    }
}

impl Op {
    /// The new word, or `None` if the verb does not change it.
    #[inline(always)]
    pub const fn apply(&self, width: Width, old: u128) -> Option<u128> {
        let new = match *self {
            Op::Read => return None,
            Op::Write(value) => value,
            Op::Cas { expect, new } => {
                if (old ^ expect) & width.mask() != 0 {
                    return None;
                }
                new
            }
            Op::FetchAdd(add) => old.wrapping_add(add),
            Op::MaskedCas(MaskedCas { compare, compare_mask, swap, swap_mask }) => {
                if (old ^ compare) & compare_mask & width.mask() != 0 {
                    return None;
                }
                (old & !swap_mask) | (swap & swap_mask)
            }
            Op::MaskedFetchAdd(fields) => fields.sum(old),
            Op::GuardedFetchAdd { fields, guard, guard_mask } => {
                if (old ^ guard) & guard_mask & width.mask() != 0 {
                    return None;
                }
                fields.sum(old)
            }
        };
        Some(new & width.mask())
    }

    /// The kind, for counting.
    #[inline(always)]
    pub const fn kind(&self) -> VerbKind {
        match self {
            Op::Read => VerbKind::Read,
            Op::Write(_) => VerbKind::Write,
            Op::Cas { .. } | Op::MaskedCas(_) => VerbKind::Cas,
            Op::FetchAdd(_) | Op::MaskedFetchAdd(_) | Op::GuardedFetchAdd { .. } => VerbKind::FetchAdd,
        }
    }

    /// Whether the verb reads, changes and writes back in one step.
    #[inline(always)]
    pub const fn is_atomic(&self) -> bool {
        !matches!(self, Op::Read | Op::Write(_))
    }
}

/// The classes in which the papers count verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerbKind {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// Compare-and-swap, masked or not.
    Cas,
    /// Fetch-and-add, masked, guarded or not.
    FetchAdd,
}

/// A verb as backends see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawVerb {
    /// The word.
    pub addr: Addr,
    /// Its width.
    pub width: Width,
    /// What is done to it.
    pub op: Op,
}

impl RawVerb {
    /// Bytes of operands and result on the wire, without headers: how the papers count traffic.
    pub const fn payload_bytes(&self) -> u64 {
        let w = self.width.bytes();
        match self.op {
            Op::Read | Op::Write(_) => w,
            Op::FetchAdd(_) => 2 * w,
            Op::Cas { .. } | Op::MaskedFetchAdd(_) => 3 * w,
            Op::MaskedCas(_) | Op::GuardedFetchAdd { .. } => 5 * w,
        }
    }
}

/// A verb on a word of type `T`: executed by [`Endpoint::go`](crate::Endpoint::go).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verb<T> {
    word: Word<T>,
    op: Op,
}

impl<T: Value> Verb<T> {
    /// The verb without its type, for lists of mixed widths.
    #[inline(always)]
    pub const fn raw(self) -> RawVerb {
        RawVerb { addr: self.word.addr(), width: T::WIDTH, op: self.op }
    }
}

impl<T: Value> Word<T> {
    #[inline(always)]
    fn verb(self, op: Op) -> Verb<T> {
        Verb { word: self, op }
    }

    /// Read the word.
    #[inline(always)]
    pub fn read(self) -> Verb<T> {
        self.verb(Op::Read)
    }

    /// Overwrite the word.
    #[inline(always)]
    pub fn write(self, value: T) -> Verb<T> {
        self.verb(Op::Write(value.widen()))
    }

    /// Compare and swap the whole word.
    #[inline(always)]
    pub fn cas(self, expect: T, new: T) -> Verb<T> {
        self.verb(Op::Cas { expect: expect.widen(), new: new.widen() })
    }

    /// Add to the whole word.
    #[inline(always)]
    pub fn fetch_add(self, add: T) -> Verb<T> {
        self.verb(Op::FetchAdd(add.widen()))
    }

    /// Compare and swap some bits.
    #[inline(always)]
    pub fn masked_cas(self, compare: T, compare_mask: T, swap: T, swap_mask: T) -> Verb<T> {
        self.verb(Op::MaskedCas(MaskedCas {
            compare: compare.widen(),
            compare_mask: compare_mask.widen(),
            swap: swap.widen(),
            swap_mask: swap_mask.widen(),
        }))
    }

    /// Fetch-and-store: a masked compare-and-swap that compares nothing (ShiftLock §3.3).
    #[inline(always)]
    pub fn swap(self, new: T) -> Verb<T> {
        let all = T::narrow(u128::MAX);
        self.masked_cas(T::narrow(0), T::narrow(0), new, all)
    }

    /// Add field by field; a set bit of `boundaries` is the top bit of a field.
    #[inline(always)]
    pub fn masked_fetch_add(self, add: T, boundaries: T) -> Verb<T> {
        self.verb(Op::MaskedFetchAdd(Fields { add: add.widen(), boundaries: boundaries.widen() }))
    }

    /// Add field by field, but only if the bits of `guard_mask` are those of `guard`.
    #[inline(always)]
    pub fn guarded_fetch_add(self, add: T, boundaries: T, guard: T, guard_mask: T) -> Verb<T> {
        self.verb(Op::GuardedFetchAdd {
            fields: Fields { add: add.widen(), boundaries: boundaries.widen() },
            guard: guard.widen(),
            guard_mask: guard_mask.widen(),
        })
    }
}

/// The most verbs that a list batch may hold.
pub const MAX_BATCH: usize = 32;

/// Old values of a list batch, in order.
pub type Olds = arrayvec::ArrayVec<u128, MAX_BATCH>;

/// One verb, a tuple of verbs, an array of them, or a slice of raw ones: executed **in order**, at one node,
/// in **one round trip**, and **not** as one atomic step.
///
/// ```
/// # use lockwright_fabric::*;
/// # let (mine, other) = (Word64::at(Addr::new(NodeId(0), 0)), Word64::at(Addr::new(NodeId(0), 8)));
/// let both = (mine.write(1), other.read());
/// let olds: (u64, u64) = both.each(&mut |verb| if verb.op == Op::Read { 5 } else { 0 });
/// assert_eq!(olds, (0, 5));
/// ```
pub trait Batch: Copy {
    /// What the verbs return, in the batch's own shape.
    type Old;

    /// Hands every verb to `executor` in order and shapes what it returns.
    fn run(self, executor: &mut impl Executor) -> Self::Old;

    /// [`Batch::run`] with a closure. Backends that cannot answer at once call it twice: to list the verbs, and to shape the
    /// answers.
    #[inline(always)]
    fn each(self, run: &mut impl FnMut(RawVerb) -> u128) -> Self::Old {
        self.run(&mut ByClosure(run))
    }
}

/// Executes verbs one by one. A trait beside the closure of [`Batch::each`], because a closure cannot be forced inline, and
/// a backend on atomics must be: then a verb's constants select its instruction at compile time.
pub trait Executor {
    /// Executes `verb` and returns the old word.
    fn execute(&mut self, verb: RawVerb) -> u128;
}

struct ByClosure<'a, F>(&'a mut F);

impl<F: FnMut(RawVerb) -> u128> Executor for ByClosure<'_, F> {
    #[inline(always)]
    fn execute(&mut self, verb: RawVerb) -> u128 {
        (self.0)(verb)
    }
}

impl<T: Value> Batch for Verb<T> {
    type Old = T;
    #[inline(always)]
    fn run(self, executor: &mut impl Executor) -> T {
        T::narrow(executor.execute(self.raw()))
    }
}

impl<B: Batch, const N: usize> Batch for [B; N] {
    type Old = [B::Old; N];
    #[inline(always)]
    fn run(self, executor: &mut impl Executor) -> Self::Old {
        self.map(|verb| verb.run(executor))
    }
}

impl Batch for &[RawVerb] {
    type Old = Olds;
    #[inline]
    fn run(self, executor: &mut impl Executor) -> Olds {
        self.iter().map(|verb| executor.execute(*verb)).collect()
    }
}

macro_rules! tuple_batch {
    ($($name:ident)+) => {
        impl<$($name: Batch),+> Batch for ($($name,)+) {
            type Old = ($($name::Old,)+);
            #[inline(always)]
            #[expect(non_snake_case, reason = "a tuple's parts are named after their types")]
            fn run(self, executor: &mut impl Executor) -> Self::Old {
                let ($($name,)+) = self;
                ($($name.run(executor),)+)
            }
        }
    };
}
tuple_batch!(A);
tuple_batch!(A B);
tuple_batch!(A B C);
tuple_batch!(A B C D);
tuple_batch!(A B C D F);
tuple_batch!(A B C D F G);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_add_never_carries_out_of_its_field() {
        let fields = Fields { add: 0x01_01, boundaries: 0x80_80 };
        assert_eq!(fields.sum(0xff_ff), 0x00_00);
        assert_eq!(fields.sum(0x00_ff), 0x01_00);
        assert_eq!(fields.sum(0x7f_80), 0x80_81);
    }

    #[test]
    fn a_masked_add_subtracts_with_a_field_wide_complement() {
        // RdrCnt in the low byte goes down, the counter above it goes up (ShiftLock's reader release).
        let fields = Fields { add: 0x01_ff, boundaries: 0x80_80 };
        assert_eq!(fields.sum(0x05_03), 0x06_02);
    }

    #[test]
    fn a_masked_cas_compares_and_swaps_only_its_bits() {
        let op = Op::MaskedCas(MaskedCas { compare: 0x0a, compare_mask: 0x0f, swap: 0xb0, swap_mask: 0xf0 });
        assert_eq!(op.apply(Width::W64, 0x1a), Some(0xba));
        assert_eq!(op.apply(Width::W64, 0x1b), None);
    }

    #[test]
    fn a_64_bit_add_wraps_at_64_bits() {
        assert_eq!(Op::FetchAdd(1).apply(Width::W64, u64::MAX as u128), Some(0));
    }

    #[test]
    fn a_guard_that_does_not_hold_adds_nothing() {
        let fields = Fields { add: 1, boundaries: 0x80 };
        let op = Op::GuardedFetchAdd { fields, guard: 0x300, guard_mask: 0xf00 };
        assert_eq!(op.apply(Width::W64, 0x301), Some(0x302));
        assert_eq!(op.apply(Width::W64, 0x401), None);
    }
}
