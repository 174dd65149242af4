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
            student_quantile(0.05, values.len() - 1) * (variance / n).sqrt()
        });
        Estimate { n: values.len(), mean, ci95 }
    }
}

/// The median; `None` without values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// The two-sided p-value of Student's t with `degrees` of freedom: the finite sums of Abramowitz and Stegun, 26.7.3
/// and 26.7.4. Exact to about 1e-15, so smaller values are noise.
pub(crate) fn student_p_value(t: f64, degrees: usize) -> f64 {
    let angle = (t.abs() / (degrees as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    // The powers of the cosine, each with the factor by which it exceeds the one before.
    let odd = degrees % 2;
    let (mut term, mut sum) = if odd == 1 { (cosine, cosine) } else { (1.0, 1.0) };
    for k in (odd + 2..degrees).step_by(2) {
        term *= cosine * cosine * (k as f64 - 1.0) / k as f64;
        sum += term;
    }
    let inside = match degrees {
        1 => angle / std::f64::consts::FRAC_PI_2,
        _ if odd == 1 => (angle + sine * sum) / std::f64::consts::FRAC_PI_2,
        _ => sine * sum,
    };
    (1.0 - inside).clamp(0.0, 1.0)
}

/// The t of a two-sided p-value.
pub(crate) fn student_quantile(p_value: f64, degrees: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while student_p_value(high, degrees) > p_value {
        (low, high) = (high, 2.0 * high);
    }
    // Doubles have 53 bits.
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if student_p_value(middle, degrees) > p_value { low = middle } else { high = middle }
    }
    high
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
    fn the_distribution_is_students() {
        // Two-sided 5 % and 0.1 % points of printed tables.
        for (degrees, five, tenth) in [
            (1, 12.7062, 636.619),
            (2, 4.3027, 31.599),
            (3, 3.1824, 12.924),
            (8, 2.3060, 5.041),
            (9, 2.2622, 4.781),
            (30, 2.0423, 3.646),
            (100, 1.9840, 3.390),
        ] {
            assert!((student_quantile(0.05, degrees) - five).abs() < 1e-4, "{degrees}");
            assert!((student_quantile(0.001, degrees) / tenth - 1.0).abs() < 2e-4, "{degrees}");
        }
        assert!((student_quantile(0.05, 100_000) - 1.95998).abs() < 1e-4);
        assert_eq!(student_p_value(0.0, 5), 1.0);
    }
}
