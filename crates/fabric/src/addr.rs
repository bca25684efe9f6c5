//! Nodes, regions, addresses, words, and peers.

use std::fmt;
use std::marker::PhantomData;

/// A machine whose memory other machines can access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u16);

/// A registered memory region of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u16);

/// A byte in some node's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Addr {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// The node that owns the memory.
    pub node: NodeId,
    /// The region of that node.
    pub region: RegionId,
}

impl Addr {
    /// Region 0 of `node`, at `offset`.
    #[inline(always)]
    pub const fn new(node: NodeId, offset: u64) -> Self {
        Self { offset, node, region: RegionId(0) }
    }

    /// `bytes` further in the same region.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.region {
            RegionId(0) => write!(f, "n{}+{:#x}", self.node.0, self.offset),
            RegionId(region) => write!(f, "n{}.r{region}+{:#x}", self.node.0, self.offset),
        }
    }
}

/// The id of a client or server-side role: what messages are sent to.
///
/// Never 0, so that a lock word can use 0 for "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl PeerId {
    const ROLE: u32 = 1 << 31;

    /// The `index`-th client, counted from zero.
    pub const fn client(index: usize) -> Self {
        Self(index as u32 + 1)
    }

    /// The `index`-th server-side role, counted from zero.
    pub const fn role(index: usize) -> Self {
        Self(Self::ROLE | index as u32)
    }

    /// The index this peer was made from, and whether it is a role.
    pub const fn index(self) -> (usize, bool) {
        if self.0 & Self::ROLE != 0 {
            ((self.0 & !Self::ROLE) as usize, true)
        } else {
            (self.0 as usize - 1, false)
        }
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index() {
            (index, true) => write!(f, "S{index}"),
            (index, false) => write!(f, "C{index}"),
        }
    }
}

/// The two sizes an atomic verb works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// Eight bytes.
    W64,
    /// Sixteen bytes, aligned to sixteen.
    W128,
}

impl Width {
    /// Size in bytes.
    #[inline(always)]
    pub const fn bytes(self) -> u64 {
        match self {
            Width::W64 => 8,
            Width::W128 => 16,
        }
    }

    /// All bits of a word of this width.
    #[inline(always)]
    pub const fn mask(self) -> u128 {
        match self {
            Width::W64 => u64::MAX as u128,
            Width::W128 => u128::MAX,
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for u128 {}
}

/// The type of a word: `u64` or `u128`. Verbs carry their operands as `u128`; this trait converts.
pub trait Value: sealed::Sealed + Copy + Eq + fmt::Debug + fmt::LowerHex + Send + Sync + 'static {
    /// The width of a word of this type.
    const WIDTH: Width;
    /// The value in the low bits of a `u128`.
    fn widen(self) -> u128;
    /// The low bits of `wide`.
    fn narrow(wide: u128) -> Self;
}

impl Value for u64 {
    const WIDTH: Width = Width::W64;
    #[inline(always)]
    fn widen(self) -> u128 {
        self as u128
    }
    #[inline(always)]
    fn narrow(wide: u128) -> Self {
        wide as u64
    }
}

impl Value for u128 {
    const WIDTH: Width = Width::W128;
    #[inline(always)]
    fn widen(self) -> u128 {
        self
    }
    #[inline(always)]
    fn narrow(wide: u128) -> Self {
        wide
    }
}

/// The address of an aligned word of type `T`, from which verbs are made.
///
/// ```
/// use lockwright_fabric::{Addr, NodeId, Word64};
/// let tail = Word64::at(Addr::new(NodeId(0), 64));
/// let swap = tail.swap(7); // a verb is a value: nothing is executed yet
/// assert_eq!(swap.raw().addr.offset, 64);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word<T> {
    addr: Addr,
    holds: PhantomData<T>,
}

/// An eight-byte word.
pub type Word64 = Word<u64>;
/// A sixteen-byte word.
pub type Word128 = Word<u128>;

impl<T: Value> Word<T> {
    /// The word at `addr`.
    ///
    /// # Panics
    /// If `addr` is not aligned to the word's size.
    #[inline(always)]
    pub const fn at(addr: Addr) -> Self {
        assert!(addr.offset.is_multiple_of(T::WIDTH.bytes()), "an atomic word is aligned to its size");
        Self { addr, holds: PhantomData }
    }

    /// Where the word is.
    #[inline(always)]
    pub const fn addr(self) -> Addr {
        self.addr
    }
}
