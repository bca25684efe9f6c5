//! A node of the wide tree: up to `N` ranges, or up to `N` nodes below it.
//!
//! What is looked at together lies together: for eight ranges a cache line each for starts, for ends, and for the rest.
//! Unused places have a start that nothing reaches and an end that reaches nothing, so that every look at a node is a loop
//! of fixed length without branches.

use lockwright_fabric::backend::prefetch;

/// A node's number: of a leaf, or with [`ABOVE`] of a node above leaves.
pub(super) type Number = u32;

/// Marks the numbers of nodes that are not leaves.
pub(super) const ABOVE: Number = 1 << 31;

/// No node.
pub(super) const NONE: Number = u32::MAX;

/// The level of a node that is in no tree.
pub(super) const FREE: u8 = u8::MAX;

/// A start behind all starts.
pub(super) const NEVER: u64 = u64::MAX;

/// A node. Leaves, at level 0, hold ranges in no order; nodes above hold those below them in order.
///
/// | field | of a leaf | above |
/// |---|---|---|
/// | `starts` | where ranges start | the `low` of those below |
/// | `ends` | where they end | how far what is below reaches beyond its `high`; zero: not |
/// | `below` | their slots | the nodes below |
/// | `low`, `high` | all starts are in `low..=high`, and whatever starts in `low..high` belongs here | the same |
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Node<const N: usize> {
    pub(super) starts: [u64; N],
    pub(super) ends: [u64; N],
    pub(super) below: [u32; N],
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) parent: Number,
    pub(super) tree: u32,
    pub(super) len: u8,
    pub(super) level: u8,
}

const _: () = assert!(size_of::<Node<8>>() == 192, "eight ranges are three cache lines");

/// One place of a node: a range and its slot, or a node below with its lower bound and its reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) below: u32,
}

impl<const N: usize> Node<N> {
    /// Fewer than this are too few, but for a root.
    pub(super) const FEWEST: usize = (3 * N).div_ceil(8);
    /// Two neighbours with no more than this between them become one: some room stays for what comes next.
    pub(super) const JOINED: usize = 3 * N / 4;
    const SOUND: () = assert!(N >= 4 && Self::JOINED + 1 >= 2 * Self::FEWEST && N >= 2 * Self::FEWEST);

    /// A node with nothing in it.
    pub(super) fn empty(tree: u32, level: u8, low: u64, high: u64) -> Self {
        let () = Self::SOUND;
        let (starts, ends, below) = ([NEVER; N], [0; N], [0; N]);
        Self { starts, ends, below, low, high, parent: NONE, tree, len: 0, level }
    }

    /// Whether whatever starts at `start` belongs into this leaf of the tree.
    #[inline(always)]
    pub(super) fn is_leaf_for(&self, tree: u32, start: u64) -> bool {
        (self.level == 0) & (self.tree == tree) & (self.low <= start) & (start < self.high)
    }

    /// The place of the node below to which `start` belongs.
    #[inline(always)]
    pub(super) fn way(&self, start: u64) -> usize {
        // The first is never too large.
        self.starts[1..].iter().map(|low| usize::from(*low <= start)).sum()
    }

    /// How far what is in it, or below it, reaches beyond `high`; zero if it does not.
    pub(super) fn overhang(&self) -> u64 {
        let reach = self.ends.iter().copied().fold(0, u64::max);
        if reach > self.high { reach } else { 0 }
    }

    /// Of a node above leaves: the nodes below it under which something can overlap `start..end`, in order.
    pub(super) fn ways(&self, start: u64, end: u64) -> impl Iterator<Item = Number> + '_ {
        let high = move |at: usize| if at + 1 < self.len as usize { self.starts[at + 1] } else { self.high };
        (0..self.len as usize)
            .take_while(move |at| self.starts[*at] < end)
            .filter(move |at| start < self.ends[*at].max(high(*at)))
            .map(|at| self.below[at])
    }

    /// Of a leaf: what in it overlaps `start..end`.
    pub(super) fn meeting(&self, start: u64, end: u64) -> impl Iterator<Item = Place> + '_ {
        self.places().filter(move |place| place.start < end && start < place.end)
    }

    /// The place that holds `below`.
    #[inline(always)]
    pub(super) fn place_of(&self, below: u32) -> usize {
        // From behind: unused places hold zero, which is also a leaf's number, and the first that holds it is used.
        let mut place = 0;
        for at in (0..N).rev() {
            if self.below[at] == below {
                place = at;
            }
        }
        place
    }

    /// What is in it.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        let place = |at| Place { start: self.starts[at], end: self.ends[at], below: self.below[at] };
        (0..self.len as usize).map(place)
    }

    #[inline(always)]
    pub(super) fn put(&mut self, at: usize, place: Place) {
        (self.starts[at], self.ends[at], self.below[at]) = (place.start, place.end, place.below);
    }

    /// Puts it behind all others.
    #[inline(always)]
    pub(super) fn push(&mut self, place: Place) {
        let at = self.len as usize;
        self.put(at, place);
        self.len += 1;
    }

    /// Takes it out; the last one takes its place.
    #[inline(always)]
    pub(super) fn swap_remove(&mut self, at: usize) {
        let last = self.len as usize - 1;
        self.put(at, Place { start: self.starts[last], end: self.ends[last], below: self.below[last] });
        self.put(last, Place { start: NEVER, end: 0, below: 0 });
        self.len -= 1;
    }

    /// What is in it from now on.
    pub(super) fn refill(&mut self, places: &[Place]) {
        *self = Self { starts: [NEVER; N], ends: [0; N], below: [0; N], len: 0, ..*self };
        for place in places {
            self.push(*place);
        }
    }

    /// Starts to bring it into the cache: all of a leaf, of others what the way down needs.
    #[inline(always)]
    pub(super) fn fetch(&self, is_leaf: bool) {
        prefetch(&self.starts);
        prefetch(&self.below);
        if is_leaf {
            prefetch(&self.ends);
        }
    }
}
