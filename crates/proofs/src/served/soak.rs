//! Servers whose clients go on for ever, while everything goes wrong, to be run at random.

use super::model::UNITS;
use super::{Faults, Op, Served};
use lockwright_fabric::observe::Mode;

/// Messages of the server per acknowledgement in a run that goes on for ever: few, so that little is kept.
const ACKS_EVERY: u64 = 4;

impl Served {
    /// What is shipped, with so many clients of one lock, for ever.
    pub fn soak(clients: usize) -> Self {
        use Mode::{Exclusive, Shared};
        use Op::{Downgrade, Lock, Set, Try, Unlock, Upgrade};
        let programs: [&[Op]; 3] = [
            &[Lock(Exclusive), Set, Unlock, Lock(Exclusive), Downgrade, Unlock, Try(Exclusive), Unlock],
            &[Lock(Shared), Upgrade, Unlock, Lock(Exclusive), Unlock],
            &[Lock(Shared), Unlock, Try(Shared), Unlock, Lock(Exclusive), Set, Unlock],
        ];
        Self::endless(clients, programs)
    }

    /// The same, and they lock ranges.
    pub fn soak_of_ranges(clients: usize) -> Self {
        use Mode::{Exclusive, Shared};
        use Op::{Range, Unlock};
        let programs: [&[Op]; 3] = [
            &[Range(Exclusive, 0, 1), Unlock, Range(Shared, 0, UNITS), Unlock],
            &[Range(Exclusive, 1, 3), Unlock, Range(Shared, 0, 2), Unlock],
            &[Range(Shared, 1, 2), Unlock, Range(Exclusive, 0, UNITS), Unlock],
        ];
        Self::endless(clients, programs)
    }

    /// These programs by turns, and everything goes wrong.
    fn endless(clients: usize, programs: [&[Op]; 3]) -> Self {
        let faults = Faults {
            breaks: 1,
            kills: 1,
            restarts: 1,
            deaths: 1,
            stops: 1,
            suspends: 1,
            expiries: 1,
            cancels: 1,
        };
        let programs = programs.iter().cycle().take(clients).map(|program| program.to_vec()).collect();
        Self { programs, faults, acks_every: Some(ACKS_EVERY), endless: true, ..Self::default() }
    }
}
