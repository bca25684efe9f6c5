//! Clusters in which several kinds of things go wrong at once, to be run at random.

use super::{Cluster, Faults};
use lockwright_cluster::Rules;

impl Cluster {
    /// What is shipped, and what goes wrong is drawn by `seed`.
    pub fn soak(seed: u64) -> Self {
        let is = |nth: u64| (seed >> nth & 1) as u8;
        let faults = Faults {
            crashes: is(0),
            pauses: is(1),
            cuts: is(2),
            moves: is(3),
            deaths: is(4),
            suspends: is(5),
            races: is(6),
            breaks: is(7),
            tables: is(8),
        };
        Self { faults, rules: Rules::default() }
    }
}
