//! Which lock a client picks: Zipf by rejection-inversion (Hörmann and Derflinger 1996), exact for every
//! exponent and number of locks, without tables and without set-up work.

use crate::rng::Rng;

/// Ranks `0..n`, rank `k` with weight `1 / (k + 1)^exponent`.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    n: u64,
    exponent: f64,
    /// The integral of the weights at the lower and upper end.
    h_x1: f64,
    h_n: f64,
    /// Below this distance a candidate is accepted without looking at its weight.
    s: f64,
}

impl Zipf {
    /// A choice among `n` ranks.
    ///
    /// # Panics
    /// If there are no ranks, or the exponent is negative or not a number.
    pub fn new(n: u64, exponent: f64) -> Self {
        assert!(n > 0, "a choice needs something to choose from");
        assert!(exponent >= 0.0, "a Zipf exponent is not negative");
        let mut zipf = Self { n, exponent, h_x1: 0.0, h_n: 0.0, s: 0.0 };
        zipf.h_x1 = zipf.h(1.5) - 1.0;
        zipf.h_n = zipf.h(n as f64 + 0.5);
        zipf.s = 2.0 - zipf.h_inverse(zipf.h(2.5) - zipf.weight(2.0));
        zipf
    }

    /// A rank.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        if self.exponent == 0.0 {
            return rng.below(self.n);
        }
        loop {
            let u = self.h_n + rng.unit() * (self.h_x1 - self.h_n);
            let x = self.h_inverse(u);
            let k = rounded(x).clamp(1.0, self.n as f64);
            if k - x <= self.s || u >= self.h(k + 0.5) - self.weight(k) {
                return k as u64 - 1;
            }
        }
    }

    #[inline]
    fn weight(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The integral of the weight: `(x^(1-e) - 1) / (1-e)`, or `ln x` for exponent one.
    #[inline]
    fn h(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        if t.abs() > 1e-8 { log * t.exp_m1() / t } else { log * (1.0 + t / 2.0) }
    }

    #[inline]
    fn h_inverse(&self, y: f64) -> f64 {
        let t = ((1.0 - self.exponent) * y).max(-1.0);
        (if t.abs() > 1e-8 { y * t.ln_1p() / t } else { y * (1.0 - t / 2.0) }).exp()
    }
}

/// The nearest whole number, as [`f64::round`] has it, for what is neither negative nor beyond 2^53: two conversions
/// instead of a call.
#[inline]
fn rounded(x: f64) -> f64 {
    let below = x as u64 as f64;
    if x - below >= 0.5 { below + 1.0 } else { below }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_rounding() {
        let mut rng = Rng::new(11, 0);
        let edges = [0.0, 0.49999999999999994, 0.5, 1.5, 2.5, 1e7 + 0.5, (1_u64 << 53) as f64];
        for x in edges.into_iter().chain((0..100_000).map(|_| rng.unit() * 1e7)) {
            assert_eq!(rounded(x), x.round());
        }
    }

    /// Compares the share of every rank with its weight.
    fn shape_is_right(n: u64, exponent: f64) {
        let (zipf, mut rng) = (Zipf::new(n, exponent), Rng::new(7, 0));
        let draws = 400_000;
        let mut seen = vec![0_u64; n as usize];
        for _ in 0..draws {
            seen[zipf.sample(&mut rng) as usize] += 1;
        }
        let weights: Vec<f64> = (1..=n).map(|k| (k as f64).powf(-exponent)).collect();
        let total: f64 = weights.iter().sum();
        // Pearson's statistic over ranks: its mean is n - 1, its deviation sqrt(2 (n - 1)).
        let statistic: f64 = seen
            .iter()
            .zip(&weights)
            .map(|(&seen, weight)| {
                let expected = weight / total * f64::from(draws);
                (seen as f64 - expected).powi(2) / expected
            })
            .sum();
        let freedom = n as f64 - 1.0;
        assert!(statistic < freedom + 5.0 * (2.0 * freedom).sqrt() + 1e-9, "{n} {exponent}: {statistic}");
    }

    #[test]
    fn the_shape_is_zipf_for_every_exponent() {
        for exponent in [0.0, 0.5, 0.9, 0.99, 1.0, 1.5] {
            shape_is_right(50, exponent);
        }
    }

    #[test]
    fn one_and_two_ranks_work_too() {
        shape_is_right(1, 0.99);
        shape_is_right(2, 0.99);
    }

    #[test]
    fn ten_million_ranks_give_the_hottest_its_known_share() {
        let (zipf, mut rng) = (Zipf::new(10_000_000, 0.99), Rng::new(3, 0));
        let draws = 200_000;
        let hottest = (0..draws).filter(|_| zipf.sample(&mut rng) == 0).count();
        // 1 / H(10^7, 0.99) = 5.2 %: the sum is 18.07 up to 10^7 ... computed here, not believed.
        let total: f64 = (1..=10_000_000_u64).map(|k| (k as f64).powf(-0.99)).sum();
        let share = hottest as f64 / f64::from(draws);
        assert!((share - 1.0 / total).abs() < 0.002, "{share} against {}", 1.0 / total);
    }
}
