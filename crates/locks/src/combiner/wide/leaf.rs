//! A leaf of the wide tree: up to eight ranges in two cache lines.
//!
//! Ranges that stand in one leaf are near each other, so a leaf notes how far they are from its lower bound, in 31 bits
//! each. Where one is too far or too long for that, the leaf notes all of its ranges in full instead: the upper halves of its
//! numbers take half of its places, so that it holds half as many. What is looked at together lies together: starts and ends
//! in one line, the rest in the other. Unused places have a start that nothing reaches and an end that reaches nothing, so
//! that a look at a leaf is a loop of fixed length without branches.

use super::node::{NONE, Number, Place};
use arrayvec::ArrayVec;
use lockwright_fabric::backend::{prefetch, prefetch_far};

/// The tree of a leaf that is in none.
pub(super) const NOWHERE: u32 = u32::MAX;

/// The start of an unused place; no range that starts so far off is noted in short. Numbers with a sign, for that is what CPUs
/// compare several of at once.
const NEVER: i32 = i32::MAX;

/// A leaf: ranges in no order.
///
/// | field | noted in short (up to `L` ranges) | noted in full (up to `L / 2`) |
/// |---|---|---|
/// | `starts`, `ends` | distances from `low` | the lower halves, and `L / 2` places further the upper halves |
/// | `slots` | the ranges' requests | the same, in the first half |
/// | `low`, `high` | all starts are in `low..=high`, and whatever starts in `low..high` belongs here | the same |
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Leaf<const L: usize> {
    starts: [i32; L],
    ends: [i32; L],
    slots: [u32; L],
    pub(super) low: u64,
    pub(super) high: u64,
    /// The node above; of a free leaf, the next free one.
    pub(super) parent: Number,
    pub(super) tree: u32,
    pub(super) len: u8,
    in_full: bool,
}

const _: () = assert!(size_of::<Leaf<8>>() == 128, "eight ranges are two cache lines");

/// Fewer than this are too few for a node that holds up to `most`, but for a root.
pub(super) const fn fewest(most: usize) -> usize {
    (3 * most).div_ceil(8)
}

/// Two neighbours with no more than this between them become one: some room stays for what comes next.
pub(super) const fn joined(most: usize) -> usize {
    3 * most / 4
}

impl<const L: usize> Leaf<L> {
    /// As many ranges does it hold if they are noted in full.
    pub(super) const IN_FULL: usize = L / 2;
    const SOUND: () = assert!(L >= 4 && L.is_multiple_of(4));

    /// A leaf with nothing in it.
    pub(super) fn empty(tree: u32, low: u64, high: u64) -> Self {
        let () = Self::SOUND;
        let (starts, ends, slots) = ([NEVER; L], [0; L], [0; L]);
        Self { starts, ends, slots, low, high, parent: NONE, tree, len: 0, in_full: false }
    }

    /// Whether whatever starts at `start` belongs into this leaf of the tree.
    #[inline(always)]
    pub(super) fn is_for(&self, tree: u32, start: u64) -> bool {
        (self.tree == tree) & (self.low <= start) & (start < self.high)
    }

    /// Whether a range that ends there can be noted in short in a leaf with that lower bound.
    #[inline(always)]
    fn is_near(low: u64, end: u64) -> bool {
        end - low <= NEVER as u64
    }

    /// How many ranges a leaf with that lower bound holds, if these are among them.
    pub(super) fn most(low: u64, places: &[Place]) -> usize {
        if places.iter().all(|place| Self::is_near(low, place.end)) { L } else { Self::IN_FULL }
    }

    /// Fewer than this are too few.
    #[inline(always)]
    pub(super) fn fewest(&self) -> usize {
        if self.in_full { fewest(Self::IN_FULL) } else { fewest(L) }
    }

    /// Whether it has room for a range that ends there, the way it notes ranges now.
    #[inline(always)]
    pub(super) fn has_room(&self, end: u64) -> bool {
        if self.in_full {
            (self.len as usize) < Self::IN_FULL
        } else {
            ((self.len as usize) < L) & Self::is_near(self.low, end)
        }
    }

    /// Whether it has room for a range of any kind, if it notes all of them in full.
    pub(super) fn has_room_in_full(&self) -> bool {
        (self.len as usize) < Self::IN_FULL
    }

    /// Notes in full what is in it, which must not be more than [`IN_FULL`](Self::IN_FULL).
    pub(super) fn note_in_full(&mut self) {
        self.note(&self.in_order(), true);
    }

    /// Whether something in it overlaps `start..end`, which belongs here; and whether something starts at or before `start`.
    #[inline(always)]
    pub(super) fn look(&self, start: u64, end: u64) -> (bool, bool) {
        if self.in_full {
            let meets = self.meeting(start, end).next().is_some();
            return (meets, self.places().any(|place| place.start <= start));
        }
        // What is noted in short is nearer than this, so what is further away can be taken to be here.
        let near = |unit: u64| (unit - self.low).min(NEVER as u64) as i32;
        let (start, end) = (near(start), near(end));
        let before = start.min(NEVER - 1);
        let (mut meets, mut has_one_before) = (false, false);
        for at in 0..L {
            meets |= (self.starts[at] < end) & (start < self.ends[at]);
            has_one_before |= self.starts[at] <= before;
        }
        (meets, has_one_before)
    }

    /// How far what is in it reaches beyond `high`; zero if it does not.
    pub(super) fn overhang(&self) -> u64 {
        self.places().map(|place| place.end).filter(|end| *end > self.high).max().unwrap_or(0)
    }

    /// What in it overlaps `start..end`.
    pub(super) fn meeting(&self, start: u64, end: u64) -> impl Iterator<Item = Place> + '_ {
        self.places().filter(move |place| place.start < end && start < place.end)
    }

    /// The place that holds the request, which was put into the place `first`.
    #[inline(always)]
    pub(super) fn place_of(&self, slot: u32, first: usize) -> usize {
        if self.slots[first] == slot { first } else { self.place_now_of(slot) }
    }

    /// The same for one that took the place of another meanwhile.
    fn place_now_of(&self, slot: u32) -> usize {
        // Unused places hold zero, which is no request.
        let mut place = 0;
        for at in 0..L {
            if self.slots[at] == slot {
                place = at;
            }
        }
        place
    }

    /// What is in that place.
    #[inline(always)]
    pub(super) fn place(&self, at: usize) -> Place {
        let whole = |numbers: &[i32; L]| {
            if self.in_full {
                u64::from(numbers[at] as u32) | u64::from(numbers[at + Self::IN_FULL] as u32) << 32
            } else {
                self.low + numbers[at] as u64
            }
        };
        Place { start: whole(&self.starts), end: whole(&self.ends), below: self.slots[at] }
    }

    /// What is in it.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        (0..self.len as usize).map(|at| self.place(at))
    }

    /// What is in it, by start.
    pub(super) fn in_order(&self) -> ArrayVec<Place, 32> {
        let mut places: ArrayVec<_, 32> = self.places().collect();
        places.sort_unstable_by_key(|place| place.start);
        places
    }

    /// Adds a range, for which it [has room](Self::has_room).
    #[inline(always)]
    pub(super) fn push(&mut self, place: Place) {
        let at = self.len as usize;
        self.slots[at] = place.below;
        if self.in_full {
            let upper = at + Self::IN_FULL;
            (self.starts[at], self.starts[upper]) = (place.start as i32, (place.start >> 32) as i32);
            (self.ends[at], self.ends[upper]) = (place.end as i32, (place.end >> 32) as i32);
        } else {
            (self.starts[at], self.ends[at]) =
                ((place.start - self.low) as i32, (place.end - self.low) as i32);
        }
        self.len += 1;
    }

    /// Takes a range out; the last one takes its place.
    #[inline(always)]
    pub(super) fn swap_remove(&mut self, at: usize) {
        let last = self.len as usize - 1;
        let mut move_last = |at: usize, last: usize| {
            (self.starts[at], self.ends[at]) = (self.starts[last], self.ends[last]);
            (self.starts[last], self.ends[last]) = (NEVER, 0);
        };
        move_last(at, last);
        if self.in_full {
            move_last(at + Self::IN_FULL, last + Self::IN_FULL);
        }
        self.slots[at] = self.slots[last];
        self.slots[last] = 0;
        self.len -= 1;
    }

    /// What is in it from now on, noted in short if that can be. There must not be more than [`most`](Self::most).
    pub(super) fn refill(&mut self, places: &[Place]) {
        let most = Self::most(self.low, places);
        assert!(places.len() <= most, "{} ranges in a leaf that holds {most}", places.len());
        self.note(places, most != L);
    }

    fn note(&mut self, places: &[Place], in_full: bool) {
        let Self { low, high, parent, tree, .. } = *self;
        *self = Self { parent, in_full, ..Self::empty(tree, low, high) };
        for place in places {
            self.push(*place);
        }
    }

    /// Starts to bring it into the cache.
    #[inline(always)]
    pub(super) fn fetch(&self) {
        prefetch(&self.starts);
        prefetch(&self.slots);
    }

    /// The same for one that is far away.
    #[inline(always)]
    pub(super) fn fetch_far(&self) {
        prefetch_far(&self.starts);
        prefetch_far(&self.slots);
    }

    /// A load from each of its cache lines.
    #[inline(always)]
    pub(super) fn touch(&self) -> u32 {
        self.starts[0] as u32 ^ self.tree
    }

    /// Panics unless it is as a leaf must be.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let len = self.len as usize;
        assert!(len <= if self.in_full { Self::IN_FULL } else { L });
        assert!(self.places().all(|place| self.low <= place.start && place.start <= self.high));
        assert!(self.places().all(|place| place.start < place.end));
        let used = |at: usize| at < len || self.in_full && (Self::IN_FULL..Self::IN_FULL + len).contains(&at);
        for at in (0..L).filter(|at| !used(*at)) {
            assert_eq!((self.starts[at], self.ends[at]), (NEVER, 0), "an unused place");
        }
        assert!(self.slots[len..].iter().all(|slot| *slot == 0), "an unused place");
    }
}
