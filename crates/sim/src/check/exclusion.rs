//! Mutual exclusion over modes and ranges: no two clients hold conflicting claims. Of semaphores: no more permits are held
//! than there are.

use super::Violation;
use crate::check::Checker;
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::{Claim, Observation};
use std::collections::BTreeMap;

/// Who holds what.
///
/// By lock, so that a run with thousands of held locks looks only at those it has to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Exclusion {
    held: BTreeMap<u64, Vec<(PeerId, Claim)>>,
    /// Claims are on permits.
    permits: bool,
}

impl Exclusion {
    /// No client holds anything. With `permits`, a claim on `start..end` is for `start` of the `end - 1` permits of its lock.
    pub fn new(permits: bool) -> Self {
        Self { held: BTreeMap::new(), permits }
    }

    /// Takes note of what `client` did.
    ///
    /// # Errors
    /// If it was granted what conflicts with another client's claim.
    pub fn on(&mut self, client: PeerId, what: Observation) -> Result<(), Violation> {
        match what {
            Observation::Granted(claim, _) => {
                let holders = self.held.entry(claim.lock).or_default();
                if self.permits {
                    let out = claim.start + holders.iter().map(|(_, theirs)| theirs.start).sum::<u64>();
                    if out >= claim.end {
                        let what = format!("{client} was granted {claim}, and {out} permits are out");
                        return Err(Violation::new(Checker::Exclusion, what));
                    }
                } else if let Some((other, theirs)) =
                    holders.iter().find(|(other, theirs)| *other != client && theirs.conflicts(&claim))
                {
                    let what = format!("{client} was granted {claim} while {other} holds {theirs}");
                    return Err(Violation::new(Checker::Exclusion, what));
                }
                // Sorted, so that one set of holders is one state.
                let place = holders.partition_point(|held| *held < (client, claim));
                holders.insert(place, (client, claim));
            }
            Observation::Releasing(claim) | Observation::Lost(claim) => self.drop_claim(client, claim),
            _ => {}
        }
        Ok(())
    }

    /// `client` holds nothing any more.
    pub fn forget(&mut self, client: PeerId) {
        self.held.retain(|_, holders| {
            holders.retain(|(other, _)| *other != client);
            !holders.is_empty()
        });
    }

    /// Who holds what.
    pub fn holders(&self) -> impl Iterator<Item = (PeerId, Claim)> + '_ {
        self.held.values().flatten().copied()
    }

    /// Whether a client holds any part of `lock`.
    pub fn is_held(&self, lock: u64) -> bool {
        self.held.contains_key(&lock)
    }

    fn drop_claim(&mut self, client: PeerId, claim: Claim) {
        let Some(holders) = self.held.get_mut(&claim.lock) else { return };
        if let Some(place) = holders.iter().position(|held| *held == (client, claim)) {
            holders.remove(place);
        }
        if holders.is_empty() {
            self.held.remove(&claim.lock);
        }
    }
}
