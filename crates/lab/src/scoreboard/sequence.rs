//! Confidence sequences: intervals of a mean that stay valid however often one looks and whenever one stops.
//!
//! Per-seed values are modelled as normal with unknown variance. Under the mean `m`, the Bayes factor of the t
//! statistic with the prior N(0, `PRIOR`) on the standardised effect is a nonnegative martingale with mean 1 (Lai,
//! Annals of Statistics 4, 1976; Wang and Ramdas, Anytime-valid t-tests and confidence sequences for Gaussian means
//! with unknown variance, Sequential Analysis 2025, arXiv 2310.03722). By Ville's inequality it ever exceeds 1 / alpha
//! with probability at most alpha. Its inverse is therefore a p-value at every stopping time.

/// Variance of the prior of the effect, in standard deviations. At 10, three seeds can decide.
const PRIOR: f64 = 10.0;

/// Count, mean and standard deviation of independent values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sequence {
    /// Number of values.
    pub n: usize,
    /// Their mean; NaN without values.
    pub mean: f64,
    deviation: f64,
}

impl Sequence {
    /// Summarises the values seen so far.
    pub(crate) fn of(values: &[f64]) -> Sequence {
        let n = values.len();
        // The sum of equal values can round to another mean.
        if let [first, rest @ ..] = values
            && rest.iter().all(|value| value == first)
        {
            return Sequence { n, mean: *first, deviation: 0.0 };
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        Sequence { n, mean, deviation: (squares / (n as f64 - 1.0).max(1.0)).sqrt() }
    }

    /// Whether all values are equal.
    pub(crate) fn is_constant(&self) -> bool {
        self.n >= 2 && self.deviation == 0.0
    }

    /// Standard error of the mean.
    pub(crate) fn standard_error(&self) -> f64 {
        self.deviation / (self.n as f64).sqrt()
    }

    /// Student's t statistic of the hypothesis that the mean is `mean`.
    pub(crate) fn t(&self, mean: f64) -> f64 {
        (self.mean - mean) / self.standard_error()
    }

    /// Anytime-valid two-sided p-value of the hypothesis that the mean is `mean`.
    pub(crate) fn p_value(&self, mean: f64) -> f64 {
        let n = self.n as f64;
        if self.n < 2 {
            return 1.0;
        }
        if self.deviation == 0.0 {
            return self.sign_p_value();
        }
        let spread = 1.0 + n * PRIOR;
        // t squared over the degrees of freedom.
        let x = n * (self.mean - mean).powi(2) / (self.deviation.powi(2) * (n - 1.0));
        let ratio = (1.0 + x) / (1.0 + x / spread);
        (0.5 * spread.ln() - 0.5 * n * ratio.ln()).exp().min(1.0)
    }

    /// P-value of the sign test if all values are equal.
    ///
    /// Equal values say nothing about their spread, so the normal model cannot be used. The sign test asks whether at
    /// least half of all seeds give this value; 2^n is its test martingale.
    fn sign_p_value(&self) -> f64 {
        0.5f64.powi(i32::try_from(self.n).unwrap_or(i32::MAX))
    }

    /// Half width of the interval of level `1 - alpha`; `None` while the interval is unbounded.
    pub(crate) fn half_width(&self, alpha: f64) -> Option<f64> {
        let n = self.n as f64;
        if self.is_constant() {
            return (self.sign_p_value() <= alpha).then_some(0.0);
        }
        let spread = 1.0 + n * PRIOR;
        let ratio = (spread.sqrt() / alpha).powf(2.0 / n);
        let x = (ratio - 1.0) / (1.0 - ratio / spread);
        (self.n >= 2 && ratio < spread).then(|| (x * (n - 1.0) / n).sqrt() * self.deviation)
    }
}

/// Holm's step-down procedure: which hypotheses of a family are rejected at family-wise level `alpha`.
pub(crate) fn holm(p_values: &[f64], alpha: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut rejected = vec![false; p_values.len()];
    for (rank, at) in order.into_iter().enumerate() {
        if p_values[at] > alpha / (p_values.len() - rank) as f64 {
            break;
        }
        rejected[at] = true;
    }
    rejected
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_control::random::Seed;

    /// Share of 2000 experiments that at any of 2 to 40 values exclude the true mean at level 5 %.
    fn false_decisions(name: &str, mean: f64, draw: impl Fn(&mut dyn FnMut() -> f64) -> f64) -> f64 {
        let experiments = 2000;
        let excluded = (0..experiments).filter(|experiment| {
            let mut random = Seed::root(7).fork(name).fork_index(*experiment).random();
            let mut uniform = || random.unit();
            let mut values = Vec::new();
            (0..40).any(|_| {
                values.push(draw(&mut uniform));
                Sequence::of(&values).p_value(mean) <= 0.05
            })
        });
        excluded.count() as f64 / experiments as f64
    }

    fn normal(uniform: &mut dyn FnMut() -> f64) -> f64 {
        (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
    }

    #[test]
    fn stopping_at_the_first_decision_is_wrong_in_at_most_five_percent() {
        let shares = [
            false_decisions("normal", 3.0, |uniform| 3.0 + 2.0 * normal(uniform)),
            false_decisions("uniform", 0.5, |uniform| uniform()),
            false_decisions("difference of exponentials", 0.0, |u| (1.0 - u()).ln() - (1.0 - u()).ln()),
        ];
        assert!(shares.iter().all(|share| *share <= 0.05), "{shares:?}");
        // Looking at Student's interval after every value decides wrongly more often: the reason for sequences.
        let looked = (0..500u64).filter(|experiment| {
            let mut random = Seed::root(8).fork_index(*experiment).random();
            let mut values = Vec::new();
            (0..40).any(|_| {
                values.push(normal(&mut || random.unit()));
                let estimate = crate::statistics::Estimate::of(&values);
                estimate.ci95.is_some_and(|width| estimate.mean.abs() > width)
            })
        });
        assert!(looked.count() > 100);
    }

    #[test]
    fn the_interval_is_the_set_of_means_that_are_not_rejected() {
        let sequence = Sequence::of(&[1.0, 2.0, 4.0, 3.0]);
        let width = sequence.half_width(0.05).unwrap();
        for sign in [-1.0, 1.0] {
            assert!((sequence.p_value(sequence.mean + sign * width) - 0.05).abs() < 1e-9);
        }
        assert_eq!(Sequence::of(&[1.0, 2.0]).half_width(0.05), None, "two seeds cannot decide");
        assert!(Sequence::of(&[1.0, 2.0, 1.5]).half_width(0.05).is_some());
        assert!(Sequence::of(&[0.0; 4]).p_value(1.0) > 0.05, "equal values are not certainty");
        assert_eq!(Sequence::of(&[2.0; 4]).half_width(0.05), None);
        assert_eq!(Sequence::of(&[2.0; 5]).half_width(0.05), Some(0.0));
        assert_eq!(Sequence::of(&[5.0]).p_value(0.0), 1.0);
    }

    #[test]
    fn holm_steps_down_from_the_smallest() {
        assert_eq!(holm(&[0.04, 0.01, 0.02], 0.05), [true, true, true]);
        assert_eq!(holm(&[0.04, 0.01, 0.03], 0.05), [false, true, false]);
        assert_eq!(holm(&[0.06], 0.05), [false]);
    }
}
