//! 128 bits that stand for a state.

use std::hash::{Hash, Hasher};

/// Odd numbers whose multiples spread over all bits: of the golden ratio, and of the square root of three.
const K: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbb67_ae85_84ca_a73b];

/// A hasher with two independent lanes. It has no secret, so that a run repeats to the byte.
#[derive(Clone, Copy, Debug)]
struct Lanes([u64; 2]);

impl Lanes {
    #[inline]
    fn add(&mut self, word: u64) {
        for (lane, k) in self.0.iter_mut().zip(K) {
            let wide = u128::from(*lane ^ word) * u128::from(k);
            // The sum keeps a lane from staying at zero once it was there.
            *lane = ((wide as u64) ^ (wide >> 64) as u64).wrapping_add(k);
        }
    }
}

impl Hasher for Lanes {
    fn finish(&self) -> u64 {
        self.0[0]
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
        self.add(bytes.len() as u64);
    }

    fn write_u8(&mut self, n: u8) {
        self.add(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.add(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.add(n);
    }

    fn write_u128(&mut self, n: u128) {
        self.add(n as u64);
        self.add((n >> 64) as u64);
    }

    fn write_usize(&mut self, n: usize) {
        self.add(n as u64);
    }
}

/// What stands for `state`.
pub(super) fn fingerprint(state: &impl Hash) -> u128 {
    let mut lanes = Lanes(K);
    state.hash(&mut lanes);
    lanes.add(0);
    u128::from(lanes.0[0]) << 64 | u128::from(lanes.0[1])
}
