//! Lock ids that are not 0, 1, 2, …: a directory gives each the next free index when it is first asked for, and clients
//! keep the answer (§6 "Non-linear lock IDs"). Exact: two ids never share an index. Indices are never taken back, so what
//! a client keeps stays right for ever; those beyond the switch's capacity are kept by machines, like any other.
//!
//! The coordinator keeps the directory; asking it is a call over the network, once per client and lock.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ids and their indices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Directory(BTreeMap<u64, u64>);

impl Directory {
    /// The index of `id`, from now on.
    pub(super) fn index_of(&mut self, id: u64) -> u64 {
        let next = self.0.len() as u64;
        *self.0.entry(id).or_insert(next)
    }
}

/// What a client has been told.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<BTreeMap<u64, u64>>);

impl Known {
    pub(super) fn get(&self, id: u64) -> Option<u64> {
        self.map().get(&id).copied()
    }

    pub(super) fn insert(&self, id: u64, index: u64) {
        self.map().insert(id, index);
    }

    /// All of it, as numbers, for the explorer's marks.
    pub(super) fn locals(&self) -> Vec<u64> {
        self.map().iter().flat_map(|(id, index)| [*id, *index]).collect()
    }

    /// Nothing can be half done in there.
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_get_indices_in_the_order_they_are_first_asked_for() {
        let mut directory = Directory::default();
        assert_eq!([7_000_000_000, 3, 7_000_000_000, 9].map(|id| directory.index_of(id)), [0, 1, 0, 2]);
    }
}
