//! Means over seeds and their confidence intervals.

use serde::Serialize;
use tidegate_data::torperf::quantile;

/// A mean with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Number of values.
    pub n: usize,
    /// The mean; NaN without values.
    pub mean: f64,
    /// Half width of the two-sided 95 % interval by Student's t; `None` below two values.
    pub ci95: Option<f64>,
}

impl Estimate {
    /// Estimates the mean of independent values. NaN stands for a seed without a value and is left out.
    pub fn of(values: &[f64]) -> Estimate {
        let values: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let ci95 = (values.len() >= 2).then(|| {
            let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
            t975(values.len() - 1) * (variance / n).sqrt()
        });
        Estimate { n: values.len(), mean, ci95 }
    }
}

/// The median; `None` without values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// The 97.5 % quantile of Student's t distribution.
///
/// Up to 30 degrees of freedom from a table; beyond by the Cornish-Fisher expansion (Abramowitz and Stegun
/// 26.7.5), with an error below 1e-5.
pub(crate) fn t975(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788,
        2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639,
        2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
    ];
    if let Some(value) = degrees.checked_sub(1).and_then(|index| TABLE.get(index)) {
        return *value;
    }
    let (z, v) = (1.959_964_f64, degrees as f64);
    let (z3, z5) = (z.powi(3), z.powi(5));
    z + (z3 + z) / (4.0 * v) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        // Student's own sleep data, 10 differences: mean 1.58, interval [0.70, 2.46].
        let sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4];
        let estimate = Estimate::of(&sleep);
        assert!((estimate.mean - 1.58).abs() < 1e-12);
        assert!((estimate.ci95.unwrap() - 0.8799).abs() < 1e-3);
        assert_eq!(Estimate::of(&[3.0]).ci95, None);
        assert_eq!(Estimate::of(&[2.0, 2.0]).ci95, Some(0.0));
    }

    #[test]
    fn the_expansion_meets_the_table() {
        assert!((t975(31) - 2.0395).abs() < 1e-4);
        assert!((t975(100) - 1.9840).abs() < 1e-4);
        assert!((t975(100_000) - 1.95998).abs() < 1e-4);
    }
}
