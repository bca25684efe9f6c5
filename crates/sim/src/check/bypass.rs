//! Bounded bypass: how often a waiting client sees conflicting claims granted to others.

use super::Violation;
use crate::check::Checker;
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::{Claim, Observation};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// Who waits, and how often each was overtaken. By lock, as in [`Exclusion`](super::Exclusion).
#[derive(Clone, Debug)]
pub struct Bypass {
    bound: u32,
    /// A statistic, not part of what the checker still has to know: left out of equality.
    longest: u32,
    waiting: BTreeMap<u64, Vec<(PeerId, Claim, u32)>>,
}

impl PartialEq for Bypass {
    fn eq(&self, other: &Self) -> bool {
        (self.bound, &self.waiting) == (other.bound, &other.waiting)
    }
}

impl Eq for Bypass {}

impl Hash for Bypass {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.bound, &self.waiting).hash(state);
    }
}

impl Bypass {
    /// At most `bound` conflicting grants may pass a waiting client.
    pub fn new(bound: u32) -> Self {
        Self { bound, longest: 0, waiting: BTreeMap::new() }
    }

    /// The most often a client was overtaken.
    pub fn longest(&self) -> u32 {
        self.longest
    }

    /// Takes note of what `client` did.
    ///
    /// # Errors
    /// If a client was overtaken more often than the bound allows.
    pub fn on(&mut self, client: PeerId, what: Observation) -> Result<(), Violation> {
        match what {
            Observation::Waiting(claim) => {
                let waiting = self.waiting.entry(claim.lock).or_default();
                let place = waiting.partition_point(|(other, ..)| *other < client);
                waiting.insert(place, (client, claim, 0));
            }
            Observation::Granted(claim, _) => {
                self.stop_waiting(client, claim);
                for (other, theirs, passed) in self.waiting.get_mut(&claim.lock).into_iter().flatten() {
                    if *other == client || !theirs.conflicts(&claim) {
                        continue;
                    }
                    *passed += 1;
                    if *passed > self.bound {
                        let what = format!(
                            "{other} waits for {theirs} and was overtaken {passed} times, last by {client}"
                        );
                        return Err(Violation::new(Checker::Bypass, what));
                    }
                    self.longest = self.longest.max(*passed);
                }
            }
            Observation::GaveUp(claim) => self.stop_waiting(client, claim),
            _ => {}
        }
        Ok(())
    }

    /// `client` waits for nothing any more.
    pub fn forget(&mut self, client: PeerId) {
        self.waiting.retain(|_, waiting| {
            waiting.retain(|(other, ..)| *other != client);
            !waiting.is_empty()
        });
    }

    /// Whether a client waits for any part of `lock`.
    pub fn is_wanted(&self, lock: u64) -> bool {
        self.waiting.contains_key(&lock)
    }

    fn stop_waiting(&mut self, client: PeerId, claim: Claim) {
        let Some(waiting) = self.waiting.get_mut(&claim.lock) else { return };
        if let Some(place) =
            waiting.iter().position(|(other, theirs, _)| (*other, *theirs) == (client, claim))
        {
            waiting.remove(place);
        }
        if waiting.is_empty() {
            self.waiting.remove(&claim.lock);
        }
    }
}
