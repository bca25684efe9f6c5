//! A client's numbers for what it wants and holds: the smallest that is free, one per acquisition. Two acquisitions of
//! one lock by one client (one of them abandoned, say) are two to the server.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which numbers are in use.
#[derive(Debug, Default)]
pub struct Slots(Mutex<Vec<bool>>);

impl Slots {
    /// The smallest free number, from now on in use.
    pub fn take(&self) -> u64 {
        let mut slots = self.slots();
        let place = slots.iter().position(|taken| !taken).unwrap_or(slots.len());
        if place == slots.len() {
            slots.push(true);
        } else {
            slots[place] = true;
        }
        place as u64
    }

    /// `slot` is free again.
    pub fn free(&self, slot: u64) {
        self.slots()[slot as usize] = false;
    }

    /// The numbers in use.
    pub fn in_use(&self) -> Vec<u64> {
        let slots = self.slots();
        (0..slots.len()).filter(|slot| slots[*slot]).map(|slot| slot as u64).collect()
    }

    /// Nothing can be half done in there.
    fn slots(&self) -> MutexGuard<'_, Vec<bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_free_number_is_given() {
        let slots = Slots::default();
        assert_eq!([slots.take(), slots.take(), slots.take()], [0, 1, 2]);
        slots.free(1);
        assert_eq!((slots.in_use(), slots.take(), slots.take()), (vec![0, 2], 1, 3));
    }
}
