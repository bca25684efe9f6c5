//! Which lock a client picks: Zipf by rejection-inversion (Hörmann and Derflinger 1996), exact for every
//! exponent and number of locks.
//!
//! Inversion takes a logarithm and an exponential, and all that is wanted of the result is the nearest whole number. So it is
//! approximated first, by a few terms of a Taylor series, whose error is known: only where the error could change what
//! is picked, which is rare, it is worked out. The pick is the same either way.

use crate::rng::Rng;

/// Ranks `0..n`, rank `k` with weight `1 / (k + 1)^exponent`.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    exponent: f64,
    /// The integral of the weights at the lower and upper end.
    h_x1: f64,
    h_n: f64,
    /// Below this distance a candidate is accepted without looking at its weight.
    s: f64,
    pieces: Box<[Piece; PIECES]>,
}

const PIECES: usize = 64;

/// The inversion for one in so many of the numbers that are drawn, as a polynomial in the distance from their middle.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Piece {
    terms: [f64; TERMS],
    /// A candidate is certain, and accepted without looking at its weight, if it lies so far above the number half way
    /// between it and the one before, and no further.
    from: f64,
    to: f64,
}

const TERMS: usize = 6;

impl Zipf {
    /// A choice among `n` ranks.
    ///
    /// # Panics
    /// If there are no ranks, or the exponent is negative or not a number.
    pub fn new(n: u64, exponent: f64) -> Self {
        assert!(n > 0, "a choice needs something to choose from");
        assert!(exponent >= 0.0, "a Zipf exponent is not negative");
        let unknown = Piece { terms: [0.0; TERMS], from: 1.0, to: 0.0 };
        let pieces = Box::new([unknown; PIECES]);
        let mut zipf = Self { n, exponent, h_x1: 0.0, h_n: 0.0, s: 0.0, pieces };
        zipf.h_x1 = zipf.h(1.5) - 1.0;
        zipf.h_n = zipf.h(n as f64 + 0.5);
        zipf.s = 2.0 - zipf.h_inverse(zipf.h(2.5) - zipf.weight(2.0));
        for piece in 0..PIECES {
            zipf.pieces[piece] = zipf.piece(piece);
        }
        zipf
    }

    /// The Taylor series around the middle of a piece. With `x = h_inverse(y)` the derivative of `x` is `x^e`, so each
    /// further one has a factor `i e - (i - 1)` more, and `e - 1` is added to the power.
    fn piece(&self, piece: usize) -> Piece {
        let (e, per_draw) = (self.exponent, self.h_x1 - self.h_n);
        let x_at = |draw: f64| self.h_inverse(self.h_n + draw * per_draw);
        let half = 0.5 / PIECES as f64;
        let middle = (2 * piece + 1) as f64 * half;
        // The term number `i` of the series, but for the power of the distance, if all derivatives are taken at `x`.
        let term = |i: usize, x: f64| {
            let factors = (1..i).map(|j| j as f64 * e - (j - 1) as f64).product::<f64>();
            let power = if i == 0 { x } else { factors * x.powf(1.0 + i as f64 * (e - 1.0)) };
            (1..=i).fold(power, |term, j| term * per_draw / j as f64)
        };
        let terms = std::array::from_fn(|i| term(i, x_at(middle)));
        // Lagrange: what is left out is no more than the next term with its derivative taken where that is largest, at
        // one of the ends. What is computed has an error of its own, far below a million-millionth.
        let ends = [x_at(middle - half), x_at(middle + half)];
        let left_out = ends.map(|x| (term(TERMS, x) * half.powi(TERMS as i32)).abs());
        let error = 1.01 * left_out[0].max(left_out[1]) + 1e-12 * ends[0].max(ends[1]);
        Piece { terms, from: error + (0.5 - self.s).max(0.0), to: 1.0 - error }
    }

    /// A rank.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        if self.exponent == 0.0 {
            return rng.below(self.n);
        }
        loop {
            let draw = rng.unit();
            if let Some(k) = self.nearly(draw).or_else(|| self.exactly(draw)) {
                return k - 1;
            }
        }
    }

    /// The candidate for `draw`, where the approximation leaves no doubt that it is this one and that it is accepted.
    #[inline]
    fn nearly(&self, draw: f64) -> Option<u64> {
        // Signed, because that is one instruction to and fro.
        let piece = (draw * PIECES as f64) as i64;
        let Piece { terms, from, to } = &self.pieces[piece as usize % PIECES];
        let distance = draw - (piece as f64 + 0.5) / PIECES as f64;
        let x = terms.iter().rev().fold(0.0, |x, term| x * distance + term);
        let k = (x + 0.5) as i64;
        let above = x + 0.5 - k as f64;
        (*from <= above && above <= *to && 1 <= k && k as u64 <= self.n).then_some(k as u64)
    }

    /// The candidate for `draw`, if it is accepted.
    fn exactly(&self, draw: f64) -> Option<u64> {
        let u = self.h_n + draw * (self.h_x1 - self.h_n);
        let x = self.h_inverse(u);
        let k = x.round().clamp(1.0, self.n as f64);
        (k - x <= self.s || u >= self.h(k + 0.5) - self.weight(k)).then_some(k as u64)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of a hundred thousand draws the approximation is enough for; all of those must be right.
    fn share_of_the_approximation(n: u64, exponent: f64) -> f64 {
        let (zipf, mut rng) = (Zipf::new(n, exponent), Rng::new(11, 0));
        let draws = 100_000;
        let nearly = (0..draws).filter(|_| {
            let draw = rng.unit();
            let nearly = zipf.nearly(draw);
            assert!(nearly.is_none() || nearly == zipf.exactly(draw), "{n} {exponent} {draw}: {nearly:?}");
            nearly.is_some()
        });
        nearly.count() as f64 / f64::from(draws)
    }

    #[test]
    fn what_is_approximated_is_exact() {
        for exponent in [0.1, 0.5, 0.9, 0.99, 1.0, 1.01, 1.5, 2.0, 3.7] {
            for n in [1, 2, 3, 50, 1_000, 1_000_000, 10_000_000, 1 << 40] {
                share_of_the_approximation(n, exponent);
            }
        }
        for exponent in [0.9, 0.99, 1.0] {
            let share = share_of_the_approximation(10_000_000, exponent);
            assert!(share > 0.95, "{exponent}: {share}");
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
