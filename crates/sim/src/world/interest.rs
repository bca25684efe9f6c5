//! Who is after which lock: looked up for everything that a client says, so a table of its own. Locks that nobody is
//! after are not in it, so it stays small however many there are.

use lockwright_fabric::observe::Mode;

/// Who is after a lock that the checkers are not told about, or that they are. Small, since it is looked up for every
/// observation: a client that claims a part of a lock is watched from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Interest {
    #[default]
    Nobody,
    /// One client, after the whole of it.
    Alone {
        client: u32,
        waiting: Option<Mode>,
        holding: Option<Mode>,
    },
    Watched,
}

/// Interests by lock: open addressing with linear probing, at most half full.
#[derive(Debug)]
pub(super) struct Interests {
    places: Vec<Place>,
    used: usize,
    shift: u32,
}

/// Free where nobody is interested.
type Place = (u64, Interest);

const _: () = assert!(size_of::<Place>() <= 16);

impl Interests {
    pub(super) fn new() -> Self {
        Self::of_bits(6)
    }

    fn of_bits(bits: u32) -> Self {
        Self { places: vec![Place::default(); 1 << bits], used: 0, shift: 64 - bits }
    }

    /// Where the interest in `lock` is, or would be.
    #[inline]
    pub(super) fn find(&self, lock: u64) -> usize {
        let mut place = self.home(lock);
        loop {
            let (other, interest) = self.places[place];
            // Which of the two it is cannot be foreseen; that it is one of them can.
            if (other == lock) | matches!(interest, Interest::Nobody) {
                return place;
            }
            place = (place + 1) & (self.places.len() - 1);
        }
    }

    /// The interest that was found there.
    #[inline]
    pub(super) fn at(&self, place: usize) -> Interest {
        self.places[place].1
    }

    /// Changes what was found there.
    #[inline]
    pub(super) fn change(&mut self, place: usize, interest: Interest) {
        debug_assert!(interest != Interest::Nobody && self.at(place) != Interest::Nobody);
        self.places[place].1 = interest;
    }

    /// Adds an interest in `lock` where none was found.
    #[inline]
    pub(super) fn add(&mut self, place: usize, lock: u64, interest: Interest) {
        debug_assert!(interest != Interest::Nobody && self.at(place) == Interest::Nobody);
        self.places[place] = (lock, interest);
        self.used += 1;
        if 2 * self.used > self.places.len() {
            self.grow();
        }
    }

    /// Nobody is interested any more in what was found there. Clients that had to make way for it move up.
    #[inline]
    pub(super) fn remove(&mut self, place: usize) {
        debug_assert!(self.at(place) != Interest::Nobody);
        self.used -= 1;
        let (last, mut free, mut next) = (self.places.len() - 1, place, place);
        loop {
            next = (next + 1) & last;
            let (lock, interest) = self.places[next];
            if matches!(interest, Interest::Nobody) {
                break;
            }
            // Found from its home on, so it may stand anywhere from there to here.
            if next.wrapping_sub(self.home(lock)) & last >= next.wrapping_sub(free) & last {
                self.places[free] = (lock, interest);
                free = next;
            }
        }
        self.places[free] = Place::default();
    }

    #[inline]
    fn home(&self, lock: u64) -> usize {
        (lock.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[cold]
    fn grow(&mut self) {
        let larger = Self::of_bits(64 - self.shift + 1);
        for (lock, interest) in std::mem::replace(self, larger).places {
            if interest != Interest::Nobody {
                let place = self.find(lock);
                self.add(place, lock, interest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn it_holds_what_a_map_holds() {
        let (mut interests, mut map, mut rng) = (Interests::new(), BTreeMap::new(), Rng::new(5, 0));
        for round in 0..100_000 {
            // Now many and now few, so that it grows and empties.
            let many = if round / 10_000 % 2 == 0 { 70 } else { 30 };
            let lock = rng.below(500);
            let place = interests.find(lock);
            assert_eq!(interests.at(place), map.get(&lock).copied().unwrap_or_default());
            let interest =
                Interest::Alone { client: rng.below(9) as u32, waiting: None, holding: Some(Mode::Shared) };
            let wanted = rng.below(100) < many;
            match (wanted, map.contains_key(&lock)) {
                (true, true) => interests.change(place, interest),
                (true, false) => interests.add(place, lock, interest),
                (false, true) => interests.remove(place),
                (false, false) => continue,
            }
            if wanted {
                map.insert(lock, interest);
            } else {
                map.remove(&lock);
            }
        }
        for (lock, interest) in map {
            assert_eq!(interests.at(interests.find(lock)), interest);
        }
    }
}
