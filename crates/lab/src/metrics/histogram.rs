//! A histogram of times with a relative error of quantiles of at most 0.4 %.

use serde::{Deserialize, Serialize};
use tidegate_control::units::Span;

/// Buckets per octave. The middle of a bucket differs from any value in it by at most 1/256.
const PER_OCTAVE: u64 = 128;

/// Whether `n` values say anything about their `q`-quantile: a p95 needs 20 of them, a p10 needs 10.
///
/// The median is always shown, with n.
pub(crate) fn supported(n: u64, q: f64) -> bool {
    let tail = 1.0 / n as f64;
    // The difference is rounded: 20 values support a p95.
    q == 0.5 || (tail - 1e-12..=1.0 - tail + 1e-12).contains(&q)
}

/// Weighted counts of nanosecond values in buckets of 1/128 octave, as in HDR histograms.
///
/// Histograms of different runs merge without loss. Memory covers only the range of buckets in use, and the mean is
/// exact; the crate `hdrhistogram` has neither, and its quantiles would change every recorded number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Index of the first bucket in `weights`.
    first: usize,
    weights: Vec<u64>,
    total: u64,
    /// Exact weighted sum, for the mean.
    sum: u128,
}

impl Histogram {
    /// Adds a value with a weight (bytes, or 1).
    pub(crate) fn add(&mut self, value: Span, weight: u64) {
        let bucket = bucket(value.0);
        self.reach(bucket);
        self.weights[bucket - self.first] += weight;
        self.total += weight;
        self.sum += u128::from(value.0) * u128::from(weight);
    }

    /// Extends `weights` to include a bucket.
    fn reach(&mut self, bucket: usize) {
        if self.weights.is_empty() {
            self.first = bucket;
        }
        if bucket < self.first {
            let gap = self.first - bucket;
            self.weights.splice(0..0, std::iter::repeat_n(0, gap));
            self.first = bucket;
        }
        if bucket - self.first >= self.weights.len() {
            self.weights.resize(bucket - self.first + 1, 0);
        }
    }

    /// Adds all values of another histogram.
    pub(crate) fn merge(&mut self, other: &Histogram) {
        if other.weights.is_empty() {
            return;
        }
        self.reach(other.first);
        self.reach(other.first + other.weights.len() - 1);
        let offset = other.first - self.first;
        for (mine, theirs) in self.weights[offset..].iter_mut().zip(&other.weights) {
            *mine += theirs;
        }
        self.total += other.total;
        self.sum += other.sum;
    }

    /// (middle in seconds, weight) of its buckets.
    pub(crate) fn values(&self) -> impl Iterator<Item = (f64, u64)> {
        let middle = |offset: usize| middle(self.first + offset) as f64 * 1e-9;
        self.weights.iter().enumerate().map(move |(offset, weight)| (middle(offset), *weight))
    }

    /// Sum of the weights.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The exact weighted mean in seconds.
    pub fn mean(&self) -> Option<f64> {
        (self.total > 0).then(|| self.sum as f64 / (self.total as f64 * 1e9))
    }

    /// The weighted standard deviation in seconds, computed from the middles of buckets.
    pub(crate) fn deviation(&self) -> Option<f64> {
        let mean = self.mean()?;
        let part = |(offset, weight): (usize, &u64)| {
            let far = middle(self.first + offset) as f64 * 1e-9 - mean;
            far * far * *weight as f64
        };
        Some((self.weights.iter().enumerate().map(part).sum::<f64>() / self.total as f64).sqrt())
    }

    /// The `q`-quantile in seconds: the middle of the bucket that holds it.
    pub(crate) fn quantile(&self, q: f64) -> Option<f64> {
        let wanted = (q.clamp(0.0, 1.0) * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let position = self.weights.iter().position(|weight| {
            seen += weight;
            seen >= wanted
        })?;
        Some(middle(self.first + position) as f64 * 1e-9)
    }

    /// The `q`-quantile with right-censored values: Kaplan and Meier's product-limit estimate (JASA 53, 1958).
    ///
    /// A censored value is at least as long as it was seen. `None` if too few values ended for this quantile.
    pub(crate) fn quantile_censored(&self, censored: &Histogram, q: f64) -> Option<f64> {
        if censored.total == 0 {
            return self.quantile(q);
        }
        let mut at_risk = self.total + censored.total;
        let mut surviving = 1.0;
        for bucket in self.first.min(censored.first)..self.first + self.weights.len() {
            let ended = self.weight(bucket);
            if ended > 0 {
                surviving *= 1.0 - ended as f64 / at_risk as f64;
                // The product is rounded.
                if 1.0 - surviving >= q - 1e-12 {
                    return Some(middle(bucket) as f64 * 1e-9);
                }
            }
            at_risk -= ended + censored.weight(bucket);
        }
        None
    }

    fn weight(&self, bucket: usize) -> u64 {
        bucket.checked_sub(self.first).and_then(|offset| self.weights.get(offset)).copied().unwrap_or(0)
    }

    /// The distribution function as up to `points` + 2 pairs (seconds, share of values up to it).
    pub(crate) fn distribution(&self, points: usize) -> Vec<(f64, f64)> {
        let mut curve = Vec::new();
        let (mut seen, mut shown) = (0, -1.0);
        for (offset, weight) in self.weights.iter().enumerate() {
            if *weight == 0 {
                continue;
            }
            if seen == 0 {
                curve.push((lower(self.first + offset) as f64 * 1e-9, 0.0));
            }
            seen += weight;
            let share = seen as f64 / self.total as f64;
            if seen == self.total || share - shown >= 1.0 / points as f64 {
                curve.push((lower(self.first + offset + 1) as f64 * 1e-9, share));
                shown = share;
            }
        }
        curve
    }
}

/// The bucket of a value. Values below 128 have their own; others go by their leading one and the next seven bits.
fn bucket(value: u64) -> usize {
    let octave = u64::from(value.max(1).ilog2()).saturating_sub(7);
    (octave * PER_OCTAVE + (value >> octave)) as usize
}

/// The smallest value of a bucket.
fn lower(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let octave = (bucket / PER_OCTAVE).saturating_sub(1);
    (bucket - octave * PER_OCTAVE).saturating_mul(1u64.checked_shl(octave as u32).unwrap_or(u64::MAX))
}

fn middle(bucket: usize) -> u64 {
    let (low, high) = (lower(bucket), lower(bucket + 1));
    low + (high - low) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn censored_values_are_neither_dropped_nor_counted_as_ends() {
        let of = |seconds: &[u64]| {
            let mut histogram = Histogram::default();
            seconds.iter().for_each(|second| histogram.add(Span::from_secs(*second), 1));
            histogram
        };
        let near = |found: Option<f64>, wanted: f64| found.is_some_and(|found| (found - wanted).abs() < 0.05);
        // Survival is 0.8 after 1 s, 0.8 * 2 / 3 after 3 s and 0.8 / 3 after 4 s: one of five is censored at 2 s.
        let (ended, censored) = (of(&[1, 3, 4]), of(&[2, 9]));
        assert!(near(ended.quantile_censored(&censored, 0.2), 1.0));
        assert!(near(ended.quantile_censored(&censored, 0.4), 3.0));
        assert!(near(ended.quantile_censored(&censored, 0.5), 4.0));
        assert_eq!(ended.quantile_censored(&censored, 0.75), None, "too few ended");
        assert_eq!(ended.quantile_censored(&Histogram::default(), 0.5), ended.quantile(0.5));
    }

    #[test]
    fn a_quantile_needs_values_beyond_it() {
        for (n, q, wanted) in [
            (3, 0.95, false),
            (19, 0.95, false),
            (20, 0.95, true),
            (9, 0.1, false),
            (10, 0.1, true),
            (1, 0.5, true),
        ] {
            assert_eq!(supported(n, q), wanted, "{n} values, {q}");
        }
    }

    #[test]
    fn quantiles_and_mean_of_a_known_distribution() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|ms| histogram.add(Span::from_millis(ms), 1));
        assert_eq!(histogram.mean(), Some(0.5005));
        // Of the numbers from 1 to n the square root of (n^2 - 1) / 12.
        assert!((histogram.deviation().unwrap() / 0.288_675 - 1.0).abs() < 0.004);
        for (q, exact) in [(0.5, 0.5), (0.95, 0.95), (0.99, 0.99), (0.0, 0.001), (1.0, 1.0)] {
            let found = histogram.quantile(q).unwrap();
            assert!((found / exact - 1.0).abs() < 0.004, "{q}: {found}");
        }
        assert_eq!(Histogram::default().quantile(0.5), None);
        let curve = histogram.distribution(100);
        assert!(curve.len() <= 102 && curve.last().unwrap().1 == 1.0);
        assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
    }

    #[test]
    fn weights_count() {
        let mut histogram = Histogram::default();
        histogram.add(Span::from_secs(1), 1);
        histogram.add(Span::from_secs(2), 3);
        assert_eq!(histogram.mean(), Some(1.75));
        assert!((histogram.quantile(0.3).unwrap() - 2.0).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn a_value_is_in_its_bucket(value in any::<u64>()) {
            let value = value >> (value % 60);
            let number = bucket(value);
            prop_assert!(lower(number) <= value && value < lower(number + 1).max(value + 1));
            let error = (middle(number) as f64 - value as f64).abs();
            prop_assert!(error <= value as f64 / 256.0 + 1.0);
        }

        #[test]
        fn merging_is_adding(a in prop::collection::vec(0u64..1 << 40, 0..50), b in prop::collection::vec(0u64..1 << 40, 0..50)) {
            let of = |values: &[u64]| {
                let mut histogram = Histogram::default();
                values.iter().for_each(|value| histogram.add(Span(*value), 1));
                histogram
            };
            let mut merged = of(&a);
            merged.merge(&of(&b));
            let all = of(&[a, b].concat());
            prop_assert_eq!(merged.quantile(0.5), all.quantile(0.5));
            prop_assert_eq!(merged.mean(), all.mean());
            prop_assert_eq!(merged.distribution(20), all.distribution(20));
        }
    }
}
