//! The seed tree and the draws made from it.
//!
//! A run has one root [`Seed`]. Every entity forks its own branch by name and number, so that adding a
//! relay does not disturb the draws of the others. Floating-point functions come from `libm`, not from
//! the machine's C library, so that the same seed draws the same values everywhere.

use rand_core::{Rng as _, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A branch of the seed tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// The root of a run.
    pub fn root(seed: u64) -> Seed {
        Seed(mix(seed ^ 0x7469_6465_6761_7465))
    }

    /// The branch for a purpose, such as `"paths"`.
    pub fn fork(self, purpose: &str) -> Seed {
        let named = purpose.bytes().fold(self.0, |hash, byte| mix(hash ^ u64::from(byte)));
        // This separator cannot occur in a name, so `fork("a").fork("b")` differs from `fork("ab")`.
        Seed(mix(named ^ 0x100))
    }

    /// The branch for the `index`-th entity of a kind.
    pub fn fork_index(self, index: u64) -> Seed {
        Seed(mix(self.0 ^ mix(index.wrapping_add(1))))
    }

    /// The generator of this branch.
    pub fn random(self) -> Random {
        Random(Pcg64Mcg::seed_from_u64(self.0))
    }

    /// The branch as a number, for manifests.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit changes every output bit.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A deterministic stream of draws.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    /// A uniform 64-bit number.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 32 uniformly distributed bytes; the seed determines them, so they are not secret.
    pub fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&self.bits().to_le_bytes()));
        bytes
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `[low, high)`; `low` if the range is empty.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..n` (Lemire's multiplication; the bias is below 2^-32 for any `n` used here).
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "no draw from an empty range");
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Exponential with the given mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -libm::log(1.0 - self.unit()) * mean
    }

    /// Normal with the given mean and standard deviation (Box-Muller, one of the pair).
    pub fn normal(&mut self, mean: f64, deviation: f64) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit()));
        mean + deviation * radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// Puts a slice into random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_draws_the_same_everywhere() {
        // Fixed values: a change here changes the result of every recorded run.
        let mut draws = Seed::root(1).fork("paths").fork_index(3).random();
        assert_eq!([draws.bits(), draws.bits()], GOLDEN);
    }
    const GOLDEN: [u64; 2] = [9197779889981256666, 4467164804728620922];

    #[test]
    fn branches_differ_by_name_and_number() {
        let root = Seed::root(1);
        let all = [
            root,
            root.fork(""),
            root.fork("a"),
            root.fork("b"),
            root.fork_index(0),
            root.fork_index(1),
            root.fork("ab"),
            root.fork("a").fork("b"),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn moments_are_right() {
        let mut draws = Seed::root(7).random();
        let n = 100_000;
        let mean = |f: &mut dyn FnMut() -> f64| (0..n).map(|_| f()).sum::<f64>() / f64::from(n);
        assert!((mean(&mut || draws.unit()) - 0.5).abs() < 0.005);
        assert!((mean(&mut || draws.exponential(3.0)) - 3.0).abs() < 0.05);
        assert!((mean(&mut || draws.normal(2.0, 1.5)) - 2.0).abs() < 0.03);
        assert!((mean(&mut || draws.normal(0.0, 1.5).powi(2)) - 2.25).abs() < 0.05);
        assert!((mean(&mut || draws.below(10) as f64) - 4.5).abs() < 0.05);
    }
}
