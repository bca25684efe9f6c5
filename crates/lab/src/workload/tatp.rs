//! TATP's lock requests: seven short transactions of a mobile network's home location register (FissLock Table 3).
//!
//! Rows, each with a lock: a subscriber; its 1 to 4 access infos and 1 to 4 special facilities; 0 to 3 call forwardings
//! per facility. Subscribers are picked non-uniformly, `(random(0..=65535) | random(1..=100000)) mod 100000`.
//!
//! | type | share | `paper` locks | `spec` locks |
//! |---|---|---|---|
//! | GS get subscriber data | 35 % | S r | S r |
//! | GD get new destination | 10 % | SF r, and one time in four CF r | SF r if it is there, then CF r as its times are |
//! | GA get access data | 35 % | AI r | AI r if it is there |
//! | US update subscriber data | 2 % | S w, SF w | S w, SF w if it is there |
//! | UL update location | 14 % | S w | S w |
//! | IF insert call forwarding | 2 % | S r, every SF r, CF w | the same |
//! | DF delete call forwarding | 2 % | S r, CF w | the same |
//!
//! The `paper` column has the shape of the papers' traces: 1.135 locks per transaction, at most 6, 80.6 % shared. How much
//! the hottest of the *touched* locks take grows with the length of a trace (5.3, 18.5 and 48.7 % of 200,000
//! transactions, 9.5, 27.3 and 62.4 % of a million); it is 6.2, 21.3 and 52.8 %, as published, for 160 clients with 2,000
//! transactions each.

use super::{Profile, Txn};
use lockwright_locks::Want;
use lockwright_sim::Rng;

/// A population and how it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tatp {
    pub(crate) profile: Profile,
    pub(crate) subscribers: u64,
    /// How long a transaction works: about 2 µs in FissLock §7.1, 2.8 µs in ShiftLock.
    pub(crate) work_ns: u64,
}

/// Locks per subscriber, by table: places for rows that may not be there cost nothing.
const INFOS: u64 = 4;
const FACILITIES: u64 = 4;
const FORWARDINGS: u64 = 3;

impl Tatp {
    /// The default population.
    pub(crate) const fn new(profile: Profile, work_ns: u64) -> Self {
        Self { profile, subscribers: 100_000, work_ns }
    }

    pub(crate) const fn locks(&self) -> u64 {
        self.subscribers * (1 + INFOS + FACILITIES + FACILITIES * FORWARDINGS)
    }

    fn subscriber(&self, rng: &mut Rng) -> u64 {
        (rng.below(65_536) | (1 + rng.below(self.subscribers))) % self.subscribers
    }

    fn info(&self, s: u64, kind: u64) -> u64 {
        self.subscribers + s * INFOS + kind
    }

    fn facility(&self, s: u64, kind: u64) -> u64 {
        self.subscribers * (1 + INFOS) + s * FACILITIES + kind
    }

    fn forwarding(&self, s: u64, kind: u64, time: u64) -> u64 {
        self.subscribers * (1 + INFOS + FACILITIES) + (s * FACILITIES + kind) * FORWARDINGS + time
    }

    /// How many rows of a kind a subscriber has: 1 to 4, the same whenever it is asked.
    fn rows(s: u64, salt: u64) -> u64 {
        1 + (s.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt.wrapping_mul(0xbf58_476d_1ce4_e5b9))
            >> 40)
            % 4
    }

    /// A kind that the subscriber has, or, by the benchmark's rules, may not have.
    fn kind(&self, s: u64, salt: u64, rng: &mut Rng) -> Option<u64> {
        let rows = Self::rows(s, salt);
        match self.profile {
            Profile::Paper => Some(rng.below(rows)),
            Profile::Spec => Some(rng.below(4)).filter(|kind| *kind < rows),
        }
    }

    /// The next transaction.
    pub(crate) fn next(&self, rng: &mut Rng) -> Txn {
        let s = self.subscriber(rng);
        let (read, write) = (Want::shared, Want::exclusive);
        let facilities = 2;
        let (kind, wants) = match rng.below(100) {
            0..35 => ("GS", vec![read(s)]),
            35..45 => {
                let facility = self.kind(s, facilities, rng);
                let mut wants: Vec<_> = facility.iter().map(|kind| read(self.facility(s, *kind))).collect();
                // A start time that fits is there for about one in four (23.9 % of all succeed).
                let found = if self.profile == Profile::Paper { 0.25 } else { 0.239 / 0.625 };
                if let Some(kind) = facility
                    && rng.chance(found)
                {
                    wants.push(read(self.forwarding(s, kind, rng.below(FORWARDINGS))));
                }
                ("GD", wants)
            }
            45..80 => ("GA", self.kind(s, 1, rng).iter().map(|kind| read(self.info(s, *kind))).collect()),
            80..82 => {
                let mut wants = vec![write(s)];
                wants.extend(self.kind(s, facilities, rng).map(|kind| write(self.facility(s, kind))));
                ("US", wants)
            }
            82..96 => ("UL", vec![write(s)]),
            96..98 => {
                let rows = Self::rows(s, facilities);
                let mut wants = vec![read(s)];
                wants.extend((0..rows).map(|kind| read(self.facility(s, kind))));
                wants.push(write(self.forwarding(s, rng.below(rows), rng.below(FORWARDINGS))));
                ("IF", wants)
            }
            _ => {
                let kind = rng.below(Self::rows(s, facilities));
                ("DF", vec![read(s), write(self.forwarding(s, kind, rng.below(FORWARDINGS)))])
            }
        };
        Txn { kind, wants, work_ns: self.work_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Workload, shape};
    use super::*;

    #[test]
    fn the_paper_s_profile_has_the_shape_of_the_papers_traces() {
        let shape = shape(&Workload::Tatp(Tatp::new(Profile::Paper, 0)), 1_000_000);
        assert!((shape.locks_per_txn - 1.135).abs() < 0.01, "{shape:?}");
        assert!((shape.shared_percent - 80.6).abs() < 0.5, "{shape:?}");
        assert_eq!(shape.most_locks, 6);
    }

    #[test]
    fn the_hottest_locks_of_the_paper_s_profile_take_as_much_as_in_the_papers_traces() {
        // The shares grow with the trace: they are those of 2,000 transactions for each of 160 clients.
        let shape = shape(&Workload::Tatp(Tatp::new(Profile::Paper, 0)), 160 * 2_000);
        for (ours, paper) in shape.hottest_percent.iter().zip([6.2, 21.3, 52.8]) {
            assert!((ours / paper - 1.0).abs() < 0.03, "{shape:?}");
        }
    }

    #[test]
    fn the_benchmark_s_own_rules_lock_fewer_rows_because_some_are_not_there() {
        let shape = shape(&Workload::Tatp(Tatp::new(Profile::Spec, 0)), 200_000);
        assert!((0.9..1.1).contains(&shape.locks_per_txn), "{shape:?}");
        assert!((70.0..82.0).contains(&shape.shared_percent), "{shape:?}");
    }
}
