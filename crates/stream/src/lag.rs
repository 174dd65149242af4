//! Histogram of the age of packets at playback, in steps of 10 ms.

use serde::{Deserialize, Serialize};

/// A histogram of ages.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lags {
    /// Count by step, at most [`MOST`] steps.
    counts: Vec<u32>,
    /// Count by step since the last [`Lags::recent_median`].
    #[serde(skip)]
    recent: Vec<u32>,
}

const STEP: u64 = 10;
/// Number of steps; the last one holds all greater ages.
const MOST: usize = 3000;

impl Lags {
    /// Counts a packet of `age` milliseconds.
    pub(crate) fn add(&mut self, age: u64) {
        let step = ((age / STEP) as usize).min(MOST - 1);
        for counts in [&mut self.counts, &mut self.recent] {
            if counts.len() <= step {
                counts.resize(step + 1, 0);
            }
            counts[step] += 1;
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Lags) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(ours, theirs)| *ours += theirs);
    }

    /// The quantile `share` of the ages, ms, rounded up to 10; zero without packets.
    pub fn quantile(&self, share: f64) -> u64 {
        quantile(&self.counts, share)
    }

    /// The median since the last call.
    pub(crate) fn recent_median(&mut self) -> u32 {
        let median = quantile(&self.recent, 0.5) as u32;
        self.recent.clear();
        median
    }
}

fn quantile(counts: &[u32], share: f64) -> u64 {
    let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    let wanted = (total as f64 * share).ceil() as u64;
    let mut sum = 0;
    for (step, count) in counts.iter().enumerate() {
        sum += u64::from(*count);
        if sum >= wanted && total > 0 {
            return (step as u64 + 1) * STEP;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_match_the_added_ages() {
        let mut lags = Lags::default();
        assert_eq!(lags.quantile(0.5), 0);
        (0..100).for_each(|n| lags.add(n * 10));
        assert_eq!((lags.quantile(0.5), lags.quantile(0.95), lags.quantile(1.0)), (500, 950, 1000));
        lags.add(u64::MAX);
        assert_eq!(lags.quantile(1.0), MOST as u64 * STEP);
        assert_eq!((lags.recent_median(), lags.recent_median()), (510, 0));
    }
}
