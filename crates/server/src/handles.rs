//! How a session's handles are looked up. Clients choose them, and a look-up happens with the books open: so what a handle hashes
//! to must not be its client's to know, or one that chose a quarter of a million that meet would keep everybody waiting.
//!
//! Two multiplications by secret numbers, folded, instead of the standard library's SipHash: they take a fraction of the time, and
//! every lock asks for them. (One is not enough: handles that differ in their upper bits only would meet too often.) Each session has secrets of its own and only ever sees how long its answers take.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Secrets, different for each map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Secretly(u64, u64);

impl Default for Secretly {
    fn default() -> Self {
        let random = RandomState::new();
        // Odd: a factor of zero would make all the same.
        Self(random.hash_one(0_u64) | 1, random.hash_one(1_u64) | 1)
    }
}

impl BuildHasher for Secretly {
    type Hasher = Folded;

    #[inline]
    fn build_hasher(&self) -> Folded {
        Folded { secret: *self, hash: 0 }
    }
}

/// A number on its way.
#[derive(Debug)]
pub(super) struct Folded {
    secret: Secretly,
    hash: u64,
}

#[inline]
fn folded(number: u64, factor: u64) -> u64 {
    let product = u128::from(number) * u128::from(factor);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for Folded {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let Secretly(one, other) = self.secret;
        self.hash = folded(folded(number ^ one, other) ^ other, one);
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("handles are numbers");
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn handles_one_after_the_other_or_far_apart_meet_as_seldom_as_chance_has_it() {
        const COUNT: u64 = 1 << 14;
        for step in [1_u64, 64, 1 << 14, 1 << 32, 1 << 50, 0x9e37_79b9_7f4a_7c15] {
            let secret = Secretly::default();
            let hashes = (0..COUNT).map(|at| secret.hash_one(at.wrapping_mul(step)));
            // The bits that say where in a table of twice the size it goes, and those that tell neighbours apart.
            let places: HashSet<_> = hashes.clone().map(|hash| hash % (2 * COUNT)).collect();
            let tags: HashSet<_> = hashes.map(|hash| hash >> 57).collect();
            // By chance it is 0.79 of them, give or take a hundredth.
            assert!(places.len() as u64 > COUNT * 2 / 3, "{} of {COUNT} places at step {step}", places.len());
            assert_eq!(tags.len(), 128, "at step {step}");
        }
    }

    #[test]
    fn every_map_has_secrets_of_its_own() {
        assert_ne!(Secretly::default().hash_one(7_u64), Secretly::default().hash_one(7_u64));
    }
}
