//! Curves over time: rates in bins, backlog in samples. They cover the whole run, including the warm-up.

use serde::{Deserialize, Serialize};
use tidegate_control::units::{Span, Time};

/// Curves with a common time axis: one per user if there are few, otherwise one per class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Width of a bin, or interval between samples.
    #[serde(with = "super::kept::span")]
    pub step: Span,
    /// End of the run. The last bin is shorter than the others if `step` does not divide it.
    #[serde(with = "super::kept::span")]
    pub end: Span,
    /// Names of the curves.
    pub names: Vec<String>,
    /// `curves[name][bin]`: bytes delivered within the bin, or bytes of backlog at its end.
    pub curves: Vec<Vec<u64>>,
}

impl Series {
    /// Curves of zeros over `duration`.
    pub(crate) fn new(names: Vec<String>, step: Span, duration: Span) -> Series {
        let bins = duration.0.div_ceil(step.0.max(1)) as usize;
        let curves = vec![vec![0; bins]; names.len()];
        Series { step, end: duration, names, curves }
    }

    /// Adds to the bin that contains `now`; the end of the run belongs to the last bin.
    pub(crate) fn add(&mut self, now: Time, curve: usize, value: u64) {
        let values = &mut self.curves[curve];
        let bin = ((now.0 / self.step.0.max(1)) as usize).min(values.len().saturating_sub(1));
        if let Some(slot) = values.get_mut(bin) {
            *slot += value;
        }
    }

    /// End of a bin, in seconds.
    fn until(&self, bin: usize) -> f64 {
        Span(((bin as u64 + 1) * self.step.0).min(self.end.0)).as_secs_f64()
    }

    /// Rates of a curve: the end of each bin, and what the bin counted per second of its width.
    pub fn rates<'a>(&'a self, curve: &'a [u64]) -> impl Iterator<Item = (f64, f64)> + 'a {
        curve.iter().enumerate().map(|(bin, value)| {
            let start = Span(bin as u64 * self.step.0).as_secs_f64();
            (self.until(bin), *value as f64 / (self.until(bin) - start))
        })
    }

    /// Samples of a curve: the end of each bin, and the value at it.
    pub(crate) fn samples<'a>(&'a self, curve: &'a [u64]) -> impl Iterator<Item = (f64, f64)> + 'a {
        curve.iter().enumerate().map(|(bin, value)| (self.until(bin), *value as f64))
    }

    /// Numbers and counts of the bins of full width that start at `from` or later.
    pub(crate) fn full_bins<'a>(
        &'a self,
        curve: &'a [u64],
        from: Span,
    ) -> impl Iterator<Item = (u64, u64)> + 'a {
        let full = (self.end.0 / self.step.0) as usize;
        let first = from.0.div_ceil(self.step.0);
        (0_u64..).zip(curve.iter().take(full).copied()).skip_while(move |(bin, _)| *bin < first)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A constant rate is drawn as a constant, whatever part of a bin the run ends in.
        #[test]
        fn a_constant_rate_stays_constant_to_the_end(
            duration in 150_u64..5_000, step in 10_u64..1_500, per_ms in 1_u64..100,
        ) {
            let mut series = Series::new(vec!["one".into()], Span::from_millis(step), Span::from_millis(duration));
            for ms in 0..duration {
                series.add(Time(ms * 1_000_000), 0, per_ms);
            }
            let rates: Vec<(f64, f64)> = series.rates(&series.curves[0]).collect();
            for (until, rate) in &rates {
                prop_assert!((rate - 1e3 * per_ms as f64).abs() < 1e-6 * rate, "{rate} until {until}");
            }
            prop_assert_eq!(rates.last().unwrap().0, duration as f64 / 1e3);
            for (_, count) in series.full_bins(&series.curves[0], Span::from_millis(step / 2)) {
                prop_assert_eq!(count, step * per_ms);
            }
        }
    }
}
