//! A client's numbers for its requests: the smallest that is free, so that tables by number stay short.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which numbers are in use.
#[derive(Debug, Default)]
pub(super) struct Ids(Mutex<Vec<u64>>);

impl Ids {
    /// The smallest free number, from now on in use.
    pub(super) fn take(&self) -> u32 {
        let mut words = self.words();
        let place = words.iter().position(|word| *word != u64::MAX).unwrap_or_else(|| {
            words.push(0);
            words.len() - 1
        });
        let bit = words[place].trailing_ones();
        words[place] |= 1 << bit;
        place as u32 * 64 + bit
    }

    /// `id` is free again.
    pub(super) fn free(&self, id: u32) {
        self.words()[id as usize / 64] &= !(1 << (id % 64));
    }

    /// The numbers in use, one bit each; without zeros at the end, so that one set has one picture.
    pub(super) fn in_use(&self) -> Vec<u64> {
        let mut words = self.words().clone();
        while words.last() == Some(&0) {
            words.pop();
        }
        words
    }

    /// Nothing can be half done in there.
    fn words(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_free_number_is_given() {
        let ids = Ids::default();
        assert_eq!((0..130).map(|_| ids.take()).collect::<Vec<_>>(), (0..130).collect::<Vec<_>>());
        ids.free(64);
        ids.free(3);
        assert_eq!([ids.take(), ids.take(), ids.take()], [3, 64, 130]);
        (0..131).for_each(|id| ids.free(id));
        assert!(ids.in_use().is_empty());
    }
}
