//! A node of the wide tree above its leaves: up to `N` nodes or leaves below it, in order.
//!
//! The way down needs their lower bounds and their numbers, which lie together; what else is known of them lies behind.

use lockwright_fabric::backend::prefetch;
use std::hint::select_unpredictable;

/// A node's number: of a leaf, or with [`ABOVE`] of a node above leaves.
pub(super) type Number = u32;

/// Marks the numbers of nodes that are not leaves.
pub(super) const ABOVE: Number = 1 << 31;

/// No node.
pub(super) const NONE: Number = u32::MAX;

/// A unit behind all starts.
pub(super) const NEVER: u64 = u64::MAX;

/// A node above leaves.
///
/// | field | of each node below it |
/// |---|---|
/// | `lows` | its `low`; of unused places, a unit that nothing reaches |
/// | `below` | its number |
/// | `reaches` | how far what is below reaches beyond its `high`; zero: not |
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Node<const N: usize> {
    pub(super) lows: [u64; N],
    pub(super) below: [Number; N],
    pub(super) reaches: [u64; N],
    /// All that is below starts in `low..=high`, and whatever starts in `low..high` belongs there.
    pub(super) low: u64,
    pub(super) high: u64,
    /// The node above; of a free node, the next free one.
    pub(super) parent: Number,
    pub(super) tree: u32,
    pub(super) len: u8,
    /// Those right above leaves are at level 1.
    pub(super) level: u8,
}

const _: () =
    assert!(std::mem::offset_of!(Node<16>, reaches) == 192, "a way down is three cache lines a node");

/// One place of a node: a range and its slot, or a node below with its lower bound and its reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) below: u32,
}

impl<const N: usize> Node<N> {
    const SOUND: () = assert!(N >= 4 && N.is_power_of_two());

    /// A node with nothing in it.
    pub(super) fn empty(tree: u32, level: u8, low: u64, high: u64) -> Self {
        let () = Self::SOUND;
        let (lows, reaches, below) = ([NEVER; N], [0; N], [0; N]);
        Self { lows, reaches, below, low, high, parent: NONE, tree, len: 0, level }
    }

    /// The place of the node below to which `start` belongs: the last that begins there or before.
    #[inline(always)]
    pub(super) fn way(&self, start: u64) -> usize {
        // The first is never too large. Which half it is, is a matter of chance: a branch would be mispredicted.
        let (mut at, mut step) = (0, N / 2);
        while step > 0 {
            let further = (at + step) & (N - 1);
            at = select_unpredictable(self.lows[further] <= start, further, at);
            step /= 2;
        }
        at
    }

    /// How far what is below it reaches beyond `high`; zero if it does not.
    pub(super) fn overhang(&self) -> u64 {
        let reach = self.reaches.iter().copied().fold(0, u64::max);
        if reach > self.high { reach } else { 0 }
    }

    /// The nodes below it under which something can overlap `start..end`, in order.
    pub(super) fn ways(&self, start: u64, end: u64) -> impl Iterator<Item = Number> + '_ {
        let high = move |at: usize| if at + 1 < self.len as usize { self.lows[at + 1] } else { self.high };
        (0..self.len as usize)
            .take_while(move |at| self.lows[*at] < end)
            .filter(move |at| start < self.reaches[*at].max(high(*at)))
            .map(|at| self.below[at])
    }

    /// The place that holds `below`.
    #[inline(always)]
    pub(super) fn place_of(&self, below: Number) -> usize {
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
        let place = |at| Place { start: self.lows[at], end: self.reaches[at], below: self.below[at] };
        (0..self.len as usize).map(place)
    }

    /// Puts it behind all others.
    pub(super) fn push(&mut self, place: Place) {
        let at = self.len as usize;
        (self.lows[at], self.reaches[at], self.below[at]) = (place.start, place.end, place.below);
        self.len += 1;
    }

    /// What is in it from now on.
    pub(super) fn refill(&mut self, places: &[Place]) {
        *self = Self { lows: [NEVER; N], reaches: [0; N], below: [0; N], len: 0, ..*self };
        for place in places {
            self.push(*place);
        }
    }

    /// Starts to bring into the cache what the way down needs.
    #[inline(always)]
    pub(super) fn fetch(&self) {
        self.lows.iter().step_by(8).for_each(prefetch);
        self.below.iter().step_by(16).for_each(prefetch);
    }
}
