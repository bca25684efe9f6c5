//! SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): repeatable random numbers for backends, simulations and tests. Not for
//! secrets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A stream of random numbers, determined by its seed.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `limit`, which is not zero.
    pub const fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True with this chance.
    pub const fn chance(&mut self, rate: f64) -> bool {
        rate > 0.0 && ((self.next() >> 11) as f64) < rate * (1u64 << 53) as f64
    }
}

/// The same, shared by threads.
#[derive(Debug)]
pub struct SharedSplitMix(AtomicU64);

impl SharedSplitMix {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        mix(self.0.fetch_add(GOLDEN, Relaxed).wrapping_add(GOLDEN))
    }
}

/// The step between two states.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that belongs to a state.
pub const fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_numbers() {
        const PUBLISHED: [u64; 2] = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        let (mut stream, shared) = (SplitMix::new(1_234_567), SharedSplitMix::new(1_234_567));
        assert_eq!([stream.next(), stream.next()], PUBLISHED);
        assert_eq!([shared.next(), shared.next()], PUBLISHED);
    }

    #[test]
    fn a_chance_of_nothing_never_comes_and_a_certain_one_always() {
        let mut stream = SplitMix::new(1);
        assert!((0..1000).all(|_| !stream.chance(0.0) && stream.chance(1.0)));
    }
}
