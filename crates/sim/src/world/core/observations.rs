//! What clients said that is not in effect yet. It goes with the verb or message that brings it into effect.
//!
//! All of it lies side by side in [`ObservationPool`]; a client, an operation and a message have the number of the first thing that
//! was said. What goes from one to the other is that number, and an operation is a cache line shorter for it.

use lockwright_fabric::observe::{Claim, Mode, Observation};

/// Observations in the order in which they were made: the number of the first. Code that drops it without having taken them
/// leaves them where they are.
#[derive(Debug)]
pub(crate) struct PendingObservations(u32);

/// The number of nothing.
const NOTHING: u32 = u32::MAX;

/// Where they lie.
#[derive(Debug)]
pub(super) struct ObservationPool {
    /// Each with the number of the next, or of the next place that is free.
    places: Vec<(Observation, u32)>,
    free: u32,
}

impl Default for PendingObservations {
    fn default() -> Self {
        Self(NOTHING)
    }
}

impl PendingObservations {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0 == NOTHING
    }

    /// All of it; nothing is left.
    #[inline]
    pub(super) fn take(&mut self) -> PendingObservations {
        std::mem::take(self)
    }

    /// Takes over all that `others` has; there is nothing here yet.
    #[inline]
    pub(super) fn take_from(&mut self, others: &mut PendingObservations) {
        debug_assert!(self.is_empty(), "what was pending before has taken effect");
        *self = others.take();
    }
}

impl ObservationPool {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), free: NOTHING }
    }

    /// Adds `what` to what was said.
    #[inline(always)]
    pub(super) fn add(&mut self, pending: &mut PendingObservations, what: Observation) {
        if self.free == NOTHING {
            self.one_more_place();
        }
        let place = self.free;
        let free = &mut self.places[place as usize];
        self.free = free.1;
        *free = (what, NOTHING);
        if pending.is_empty() {
            pending.0 = place;
        } else {
            self.append(pending.0, place);
        }
    }

    /// Makes a place that is free.
    #[cold]
    fn one_more_place(&mut self) {
        let of_nobody = Claim { lock: 0, mode: Mode::Exclusive, start: 0, end: 0 };
        self.free = self.places.len() as u32;
        self.places.push((Observation::Waiting(of_nobody), NOTHING));
    }

    /// Nearly always one thing is said at a time.
    #[cold]
    fn append(&mut self, first: u32, place: u32) {
        let mut last = first;
        while self.places[last as usize].1 != NOTHING {
            last = self.places[last as usize].1;
        }
        self.places[last as usize].1 = place;
    }

    /// Takes out what was said first.
    #[inline]
    pub(super) fn take_first(&mut self, pending: &mut PendingObservations) -> Option<Observation> {
        if pending.is_empty() {
            return None;
        }
        let place = &mut self.places[pending.0 as usize];
        let what = place.0;
        let first = std::mem::replace(&mut pending.0, place.1);
        place.1 = self.free;
        self.free = first;
        Some(what)
    }

    /// Forgets what was said.
    #[inline]
    pub(super) fn forget(&mut self, pending: &mut PendingObservations) {
        while self.take_first(pending).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_locks::Want;

    #[test]
    fn what_was_said_goes_on_in_order_and_leaves_nothing_behind() {
        let says = |lock| Observation::Waiting(Want::exclusive(lock).claim);
        let (mut observations, mut client, mut verb) =
            (ObservationPool::new(), PendingObservations::default(), PendingObservations::default());
        for _ in 0..3 {
            for lock in 0..3 {
                observations.add(&mut client, says(lock));
            }
            verb.take_from(&mut client);
            assert!(client.is_empty() && observations.take_first(&mut client).is_none());
            observations.add(&mut client, says(7));
            let in_order = std::iter::from_fn(|| observations.take_first(&mut verb));
            assert_eq!(in_order.collect::<Vec<_>>(), [says(0), says(1), says(2)]);
            assert!(verb.is_empty());
            observations.forget(&mut client);
            assert!(client.is_empty());
        }
        assert_eq!(observations.places.len(), 4, "places are used again");
    }
}
