//! Register arrays as a switch has them: cells of one bit, one byte or four, each array touched **once** by a packet.
//!
//! Once is a matter of types. A packet that enters the pipeline is given one [`Port`] per array; an access takes the
//! port and does not give it back. What an access may do is data, and no more than a stateful ALU can: a bit is set,
//! cleared or read *whatever it was* (1-bit registers know no conditions, FissLock §5.2), a wider cell is compared with
//! one operand and then set or counted up. Every access returns the old value.
//!
//! ```compile_fail
//! use lockwright_locks::fisslock::pipeline::{BitArray, BitOp, Free, Port};
//! fn twice(free: &mut BitArray<Free>, port: Port<Free>) -> bool {
//!     free.access(port, 0, BitOp::Set);
//!     free.access(port, 0, BitOp::Read) // the port is gone
//! }
//! ```

use std::marker::PhantomData;

/// A packet's one access to the array called `A`.
#[derive(Debug)]
pub struct Port<A>(PhantomData<A>);

impl<A> Port<A> {
    /// Only code that lets packets into the pipeline makes ports.
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }
}

/// What a 1-bit register can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOp {
    /// Leave it.
    Read,
    /// Make it one.
    Set,
    /// Make it zero.
    Clear,
}

/// An array of 1-bit registers, indexed by lock.
///
/// ```compile_fail
/// # use lockwright_locks::fisslock::pipeline::{BitOp, Free, Port};
/// let forged: Port<Free> = Port::new(); // only the pipeline makes ports
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BitArray<A> {
    words: Vec<u64>,
    len: usize,
    array: PhantomData<A>,
}

impl<A> BitArray<A> {
    /// `len` registers, all `initially`.
    pub(super) fn new(len: usize, initially: bool) -> Self {
        let word = if initially { u64::MAX } else { 0 };
        Self { words: vec![word; len.div_ceil(64)], len, array: PhantomData }
    }

    /// The packet's one access. Returns the old bit.
    ///
    /// # Panics
    /// If there is no such register.
    pub fn access(&mut self, _port: Port<A>, at: usize, op: BitOp) -> bool {
        assert!(at < self.len, "register {at} of {}", self.len);
        let (word, bit) = (&mut self.words[at / 64], 1 << (at % 64));
        let old = *word & bit != 0;
        match op {
            BitOp::Read => {}
            BitOp::Set => *word |= bit,
            BitOp::Clear => *word &= !bit,
        }
        old
    }

    /// The bit, as the control plane reads it: outside of any packet.
    pub(super) fn peek(&self, at: usize) -> bool {
        self.words[at / 64] & 1 << (at % 64) != 0
    }

    /// Sets the bit, as the control plane does.
    pub(super) fn poke(&mut self, at: usize, value: bool) {
        let bit = 1 << (at % 64);
        if value {
            self.words[at / 64] |= bit;
        } else {
            self.words[at / 64] &= !bit;
        }
    }

    /// Bits of register memory.
    pub fn bits(&self) -> u64 {
        self.len as u64
    }
}

/// When a wider register is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predicate<T> {
    /// Whatever it is.
    Always,
    /// If it is this.
    Equals(T),
    /// If it is less than this.
    Below(T),
}

/// What is then done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update<T> {
    /// Nothing.
    Keep,
    /// It becomes this.
    Set(T),
    /// It counts up, and begins again at zero.
    Count,
}

/// One operation of the ALU at a register array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellOp<T> {
    /// The condition.
    pub when: Predicate<T>,
    /// The update.
    pub then: Update<T>,
}

impl<T> CellOp<T> {
    /// Only looks.
    pub const READ: Self = Self { when: Predicate::Always, then: Update::Keep };

    /// Writes, whatever was there.
    pub const fn set(value: T) -> Self {
        Self { when: Predicate::Always, then: Update::Set(value) }
    }

    /// Counts up.
    pub const COUNT: Self = Self { when: Predicate::Always, then: Update::Count };
}

/// A register's type: one, four or eight bytes.
pub trait Cell: Copy + Default + PartialEq + PartialOrd {
    /// Its size.
    const BITS: u32;
    /// One more, from the largest to zero.
    #[must_use]
    fn next(self) -> Self;
}

macro_rules! cells {
    ($($cell:ty),+) => {$(
        impl Cell for $cell {
            const BITS: u32 = <$cell>::BITS;
            fn next(self) -> Self {
                self.wrapping_add(1)
            }
        }
    )+};
}

cells!(u8, u32, u64);

/// Where a wide register is: lock ids do not fit into one MAU's memory, so a first stage splits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which MAU.
    pub mau: usize,
    /// Which register of it.
    pub offset: usize,
}

/// An array of wider registers, over as many MAUs as it takes. Only the indexed one does anything for a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellArray<A, T> {
    maus: Vec<Vec<T>>,
    array: PhantomData<A>,
}

impl<A, T: Cell> CellArray<A, T> {
    /// `len` zeros, `per_mau` to a MAU.
    pub(super) fn new(len: usize, per_mau: usize) -> Self {
        let mau = |first: usize| vec![T::default(); per_mau.min(len - first)];
        Self { maus: (0..len).step_by(per_mau.max(1)).map(mau).collect(), array: PhantomData }
    }

    /// The packet's one access. Returns the old value: the ALU's condition held if that meets it.
    ///
    /// # Panics
    /// If there is no such register.
    pub fn access(&mut self, _port: Port<A>, at: Place, op: CellOp<T>) -> T {
        let cell = &mut self.maus[at.mau][at.offset];
        let old = *cell;
        let applies = match op.when {
            Predicate::Always => true,
            Predicate::Equals(value) => old == value,
            Predicate::Below(value) => old < value,
        };
        match op.then {
            Update::Set(value) if applies => *cell = value,
            Update::Count if applies => *cell = old.next(),
            _ => {}
        }
        old
    }

    /// The value, as the control plane reads it.
    pub(super) fn peek(&self, at: Place) -> T {
        self.maus[at.mau][at.offset]
    }

    /// Sets it, as the control plane does.
    pub(super) fn poke(&mut self, at: Place, value: T) {
        self.maus[at.mau][at.offset] = value;
    }

    /// Bits of register memory.
    pub fn bits(&self) -> u64 {
        self.maus.iter().map(|mau| mau.len() as u64 * u64::from(T::BITS)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Here;

    #[test]
    fn a_bit_is_changed_whatever_it_was_and_told_as_it_was() {
        let mut bits = BitArray::<Here>::new(70, true);
        assert!(bits.access(Port::new(), 69, BitOp::Clear));
        assert!(!bits.access(Port::new(), 69, BitOp::Clear));
        assert!(!bits.access(Port::new(), 69, BitOp::Set));
        assert!(bits.access(Port::new(), 69, BitOp::Read) && bits.peek(0));
    }

    #[test]
    fn a_cell_is_changed_if_its_condition_holds() {
        let mut cells = CellArray::<Here, u8>::new(5, 2);
        let at = Place { mau: 2, offset: 0 };
        assert_eq!(cells.access(Port::new(), at, CellOp::set(255)), 0);
        assert_eq!(cells.access(Port::new(), at, CellOp::COUNT), 255);
        assert_eq!(
            cells.access(Port::new(), at, CellOp { when: Predicate::Equals(3), then: Update::Set(9) }),
            0
        );
        assert_eq!(
            cells.access(Port::new(), at, CellOp { when: Predicate::Below(3), then: Update::Set(9) }),
            0
        );
        assert_eq!(cells.peek(at), 9);
        assert_eq!(cells.bits(), 40);
    }
}
