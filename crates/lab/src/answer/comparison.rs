//! Paired comparisons with the baseline, and their verdicts.

use std::fmt;

use serde_json::{Value, json};

use crate::scoreboard::sequence::{Sequence, holm};
use crate::scoreboard::verdict::ALPHA;
use crate::statistics::Estimate;

/// Values that differ by less than this, as ratio or as share, are the same in practice.
const TIE: f64 = 0.01;

/// Whether a part is better than the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Better, after Holm's correction.
    Helps,
    /// Worse, after Holm's correction.
    Harms,
    /// The whole interval lies within 1 % of the baseline.
    Same,
    /// The networks do not decide.
    Undecided,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Helps => "helps",
            Verdict::Harms => "harms",
            Verdict::Same => "same",
            Verdict::Undecided => "undecided",
        })
    }
}

/// A part beside the baseline on the same networks: a ratio, or a difference of shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison {
    /// Mean over networks with Student's 95 % interval.
    pub estimate: Estimate,
    /// Anytime-valid p-value of no difference, before Holm's correction.
    pub p_value: f64,
    /// The verdict.
    pub(crate) verdict: Verdict,
    /// Whether the mean is on the better side.
    better: bool,
}

impl Comparison {
    /// Compares one value per network with the value of no difference: 1 for ratios, 0 for differences. NaN stands for
    /// a network without a value.
    pub(super) fn of(values: &[f64], neutral: f64, less_is_better: bool) -> Comparison {
        let estimate = Estimate::of(values);
        let known: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
        let sequence = Sequence::of(&known);
        let p_value = if sequence.mean == neutral { 1.0 } else { sequence.p_value(neutral) };
        let within = |width: f64| (estimate.mean - neutral).abs() + width <= TIE;
        let verdict = if estimate.ci95.is_some_and(within) { Verdict::Same } else { Verdict::Undecided };
        let better = (estimate.mean < neutral) == less_is_better;
        Comparison { estimate, p_value, verdict, better }
    }

    /// As JSON; `key` names the compared value.
    pub(super) fn document(&self, key: &str) -> Value {
        json!({
            key: self.estimate.mean,
            "ci95": self.estimate.ci95,
            "n": self.estimate.n,
            "p_value": self.p_value,
            "verdict": self.verdict.to_string(),
        })
    }
}

/// Decides all comparisons of an answer as one family by Holm's procedure.
pub(super) fn settle<'a>(comparisons: impl Iterator<Item = &'a mut Comparison>) {
    let all: Vec<&mut Comparison> = comparisons.collect();
    let decided = holm(&all.iter().map(|one| one.p_value).collect::<Vec<_>>(), ALPHA);
    for (one, decided) in all.into_iter().zip(decided) {
        if decided && one.verdict == Verdict::Undecided {
            one.verdict = if one.better { Verdict::Helps } else { Verdict::Harms };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_need_a_clear_difference_among_all_that_are_tested() {
        let [less, more, noisy, equal, close] = [
            [0.80, 0.81, 0.79, 0.80, 0.80, 0.81, 0.79, 0.80],
            [1.20, 1.21, 1.19, 1.20, 1.20, 1.21, 1.19, 1.20],
            [0.70, 1.40, 1.00, 0.80, 1.30, 0.60, 1.10, 0.90],
            [1.0; 8],
            [1.001, 1.002, 1.001, 1.002, 1.001, 1.002, 1.001, 1.002],
        ]
        .map(|values| Comparison::of(&values, 1.0, true));
        let mut all = [less, more, noisy, equal, close];
        settle(all.iter_mut());
        use Verdict::{Harms, Helps, Same, Undecided};
        assert_eq!(all.map(|one| one.verdict), [Helps, Harms, Undecided, Same, Same]);
        assert_eq!(equal.p_value, 1.0, "equal values are no evidence of a difference");
        let mut rate = Comparison::of(&[1.20, 1.21, 1.19, 1.20, 1.20, 1.21], 1.0, false);
        settle(std::iter::once(&mut rate));
        assert_eq!(rate.verdict, Helps, "more is better");
        assert_eq!(Comparison::of(&[0.5], 1.0, true).verdict, Undecided, "one network decides nothing");
        let lacking = Comparison::of(&[f64::NAN, 0.5, 0.5, 0.5], 1.0, true);
        assert_eq!((lacking.estimate.n, lacking.p_value), (3, 0.125));
    }
}
