//! How many locks fit into a switch: the match-action units that the decider's register arrays take (FissLock §7.2).

/// A switch's ingress pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Match-action units.
    pub maus: u64,
    /// Register memory of each, in bits.
    pub mau_bits: u64,
}

/// MAUs for the decider's control and computing, without register arrays of locks (§7.2).
pub const CONTROL_MAUS: u64 = 4;

impl Switch {
    /// The Tofino of the paper's testbed (§7.2): 12 MAUs of about 560 KB each.
    pub const TOFINO: Self = Self { maus: 12, mau_bits: 560_000 * 8 };

    /// MAUs that `locks` locks take: M = ⌈N/C⌉·2 + ⌈8N/C⌉·2 + 4.
    ///
    /// Two arrays of bits (the mode), two of bytes (`mid` and `inca`), the rest is control. The third bit of locks with
    /// starvation prevention or write preference lies beside the second: both need only what the Free stage found, so
    /// one MAU serves both as long as they fit into it.
    ///
    /// ```
    /// use lockwright_locks::fisslock::pipeline::Switch;
    /// assert_eq!(Switch::TOFINO.maus_for(1_680_000), 12);
    /// assert_eq!(Switch::TOFINO.maus_for(1_680_001), 14);
    /// ```
    pub const fn maus_for(&self, locks: u64) -> u64 {
        let bits = locks.div_ceil(self.mau_bits);
        let bytes = (8 * locks).div_ceil(self.mau_bits);
        2 * bits + 2 * bytes + CONTROL_MAUS
    }

    /// The largest number of locks that fits.
    pub const fn capacity(&self) -> u64 {
        // More locks never take fewer MAUs, so halving finds the border.
        let (mut fits, mut too_many) = (0, self.maus * self.mau_bits + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.maus_for(middle) <= self.maus {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        fits
    }

    /// Registers of `bits` bits that fit into one MAU.
    pub const fn registers_per_mau(&self, bits: u64) -> u64 {
        self.mau_bits / bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tofino_holds_1_68_million_locks() {
        assert_eq!(Switch::TOFINO.capacity(), 1_680_000);
        assert_eq!(Switch::TOFINO.maus_for(Switch::TOFINO.capacity()), Switch::TOFINO.maus);
    }

    #[test]
    fn the_best_allocation_is_two_maus_for_modes_and_three_each_for_mid_and_inca() {
        let locks = Switch::TOFINO.capacity();
        assert_eq!(locks.div_ceil(Switch::TOFINO.registers_per_mau(1)), 1);
        assert_eq!(locks.div_ceil(Switch::TOFINO.registers_per_mau(8)), 3);
    }

    #[test]
    fn the_third_bit_fits_beside_the_second() {
        assert!(2 * Switch::TOFINO.capacity() <= Switch::TOFINO.mau_bits);
    }
}
