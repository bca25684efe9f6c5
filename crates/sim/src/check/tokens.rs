//! Fencing tokens: every grant's is larger than that of every earlier conflicting grant.

use super::Violation;
use crate::check::Checker;
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::{Claim, Observation};
use std::collections::BTreeMap;

/// The highest token seen, by claim: claims that differ in mode or range conflict in different ways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tokens {
    highest: BTreeMap<Claim, u64>,
}

impl Tokens {
    /// Takes note of what `client` did.
    ///
    /// # Errors
    /// If a grant has no token, or one that does not rise.
    pub fn on(&mut self, client: PeerId, what: Observation) -> Result<(), Violation> {
        let Observation::Granted(claim, token) = what else { return Ok(()) };
        let Some(token) = token else {
            return Err(Violation::new(
                Checker::Tokens,
                format!("{client} was granted {claim} without a token"),
            ));
        };
        // Claims sort by lock first, so only this lock's are looked at.
        let same_lock =
            Claim { mode: lockwright_fabric::observe::Mode::Exclusive, start: 0, end: 0, ..claim }..;
        for (earlier, &theirs) in
            self.highest.range(same_lock).take_while(|(other, _)| other.lock == claim.lock)
        {
            if earlier.conflicts(&claim) && theirs >= token {
                let what =
                    format!("{client} was granted {claim} with token {token} after {earlier} had {theirs}");
                return Err(Violation::new(Checker::Tokens, what));
            }
        }
        let highest = self.highest.entry(claim).or_insert(token);
        *highest = token.max(*highest);
        Ok(())
    }
}
