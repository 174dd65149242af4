//! Group-sequential tests: an experiment is judged at a few numbers of seeds, until its budget is spent.
//!
//! The error probability is spent over the looks as a function of the share of the planned seeds (Lan and DeMets,
//! Discrete sequential boundaries for clinical trials, Biometrika 70, 1983), here its square (Kim and DeMets, Biometrika 74,
//! 1987). Each look is one test by Student's t at the level that it may spend. By the union bound, the looks together
//! are wrong with at most the whole probability, however they depend on each other. The budget's last look spends what
//! is left, and may do so because costs, not results, make it the last.

use serde::{Deserialize, Serialize};

use super::sequence::Sequence;
use crate::statistics::{student_p_value, student_quantile};

/// Fewest values that a look tests: two cannot show how far they spread.
const FEWEST: usize = 3;

/// Student's t has one degree of freedom fewer than values if these are normal. Values between bounds can be close to each
/// other by chance more often, so one more is taken: with four uniform values the plain test is wrong in 7 %.
const DEGREES_LOST: usize = 2;

/// One look at an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Look {
    /// Number of seeds, or of runs that depend on the machine.
    pub seeds: usize,
    /// Share of the error probability that this look and the earlier ones spend.
    pub spent: f64,
}

/// The looks at an experiment, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Look>")]
pub struct Looks(Vec<Look>);

impl TryFrom<Vec<Look>> for Looks {
    type Error = &'static str;

    fn try_from(looks: Vec<Look>) -> Result<Looks, &'static str> {
        let begin = Look { seeds: 1, spent: 0.0 };
        let rising = looks.iter().try_fold(begin, |before, look| {
            let later = look.seeds >= before.seeds && (before.spent..=1.0).contains(&look.spent);
            later.then_some(*look)
        });
        rising
            .map(|_| Looks(looks))
            .ok_or("looks have at least one seed and spend from 0 to 1, both without falling")
    }
}

impl Default for Looks {
    /// One look at whatever there is.
    fn default() -> Looks {
        Looks(vec![Look { seeds: 1, spent: 1.0 }])
    }
}

impl Looks {
    /// No look so far.
    pub fn none() -> Looks {
        Looks(Vec::new())
    }

    /// Adds a look at `seeds` seeds of `planned`.
    pub fn look(&mut self, seeds: usize, planned: usize) {
        let share = (seeds as f64 / planned.max(seeds) as f64).powi(2);
        let before = self.0.last().map_or(0.0, |look| look.spent);
        self.0.push(Look { seeds, spent: share.max(before) });
    }

    /// Makes the present look the last one, which spends what is left.
    pub fn end(&mut self) {
        if let Some(last) = self.0.last_mut() {
            last.spent = 1.0;
        }
    }

    /// The values at each look, and the share of the error probability that the look spends.
    fn tests<'a>(&'a self, values: &'a [f64]) -> impl Iterator<Item = (Sequence, f64)> + 'a {
        let before = std::iter::once(0.0).chain(self.0.iter().map(|look| look.spent));
        let all = self.0.last().map_or(1, |look| look.seeds);
        self.0.iter().zip(before).filter_map(move |(look, before)| {
            // A quantity may have several values per run, or none for some seeds.
            let seen = (values.len() * look.seeds + all / 2) / all;
            let share = look.spent - before;
            (seen >= FEWEST && share > 0.0).then(|| (Sequence::of(&values[..seen]), share))
        })
    }

    /// Two-sided p-value of the hypothesis that the mean is `mean`; looks with a mean on the other side do not count.
    pub(crate) fn p_value(&self, values: &[f64], mean: f64) -> f64 {
        let all = Sequence::of(values);
        if all.is_constant() {
            return all.p_value(mean);
        }
        let above = all.mean > mean;
        let tests = self.tests(values).filter(|(seen, _)| (seen.mean > mean) == above && !seen.is_constant());
        tests
            .map(|(seen, share)| student_p_value(seen.t(mean), seen.n - DEGREES_LOST) / share)
            .fold(1.0, f64::min)
    }

    /// The interval of level `1 - alpha` that holds at all looks together; `None` while it is unbounded.
    pub(crate) fn interval(&self, values: &[f64], alpha: f64) -> Option<[f64; 2]> {
        let all = Sequence::of(values);
        if all.is_constant() {
            return all.half_width(alpha).map(|width| [all.mean - width, all.mean + width]);
        }
        let tests = self.tests(values).filter(|(seen, _)| !seen.is_constant());
        let ends = tests.map(|(seen, share)| {
            let width = student_quantile(alpha * share, seen.n - DEGREES_LOST) * seen.standard_error();
            [seen.mean - width, seen.mean + width]
        });
        let both = ends.reduce(|[a, b], [c, d]| [a.max(c), b.min(d)]);
        // Looks that contradict each other, which happens with probability alpha at most, bound nothing.
        both.filter(|[low, high]| low <= high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_control::random::Seed;

    /// The looks at 3, 4, 6, ... of `planned` seeds.
    fn looks(planned: usize) -> Vec<(usize, Looks)> {
        let (mut seeds, mut looks, mut all) = (3, Looks::none(), Vec::new());
        loop {
            looks.look(seeds, planned);
            all.push((seeds, looks.clone()));
            if seeds == planned {
                return all;
            }
            seeds = (seeds * 3 / 2).min(planned);
        }
    }

    /// Share of 4000 experiments that at any look exclude the true mean at level 5 %.
    fn false_decisions(
        name: &str,
        planned: usize,
        mean: f64,
        draw: impl Fn(&mut dyn FnMut() -> f64) -> f64,
    ) -> f64 {
        let experiments = 4000;
        let looks = looks(planned);
        let excluded = (0..experiments).filter(|experiment| {
            let mut random = Seed::root(7).fork(name).fork_index(*experiment).random();
            let values: Vec<f64> = (0..planned).map(|_| draw(&mut || random.unit())).collect();
            looks.iter().any(|(seeds, looks)| looks.p_value(&values[..*seeds], mean) <= 0.05)
        });
        excluded.count() as f64 / experiments as f64
    }

    fn normal(uniform: &mut dyn FnMut() -> f64) -> f64 {
        (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
    }

    #[test]
    fn stopping_at_the_first_decision_is_wrong_in_at_most_five_percent() {
        for planned in [3, 4, 5, 6, 9, 13, 28] {
            let shares = [
                false_decisions("normal", planned, 3.0, |uniform| 3.0 + 2.0 * normal(uniform)),
                false_decisions("uniform", planned, 0.5, |uniform| uniform()),
                false_decisions("difference of exponentials", planned, 0.0, |u| {
                    (1.0 - u()).ln() - (1.0 - u()).ln()
                }),
            ];
            assert!(shares.iter().all(|share| *share <= 0.05), "{planned} seeds: {shares:?}");
        }
    }

    #[test]
    fn the_interval_is_the_set_of_means_that_are_not_rejected() {
        let values = [1.0, 2.0, 4.0, 3.0, 2.5, 3.5];
        let (_, looks) = looks(6).pop().unwrap();
        for end in looks.interval(&values, 0.05).unwrap() {
            assert!((looks.p_value(&values, end) - 0.05).abs() < 1e-6);
        }
        let single = Looks::default();
        assert_eq!(single.interval(&[1.0, 2.0], 0.05), None, "two seeds cannot decide");
        assert_eq!(single.p_value(&[1.0, 2.0], 0.0), 1.0);
        assert_eq!(single.interval(&[2.0; 5], 0.05), Some([2.0, 2.0]));
    }

    #[test]
    fn looks_of_a_record_must_rise() {
        let read = |text: &str| serde_json::from_str::<Looks>(text).map_err(|error| error.to_string());
        let (_, looks) = looks(9).pop().unwrap();
        assert_eq!(read(&serde_json::to_string(&looks).unwrap()), Ok(looks));
        for wrong in [
            r#"[{"seeds": 0, "spent": 1.0}]"#,
            r#"[{"seeds": 3, "spent": 1.1}]"#,
            r#"[{"seeds": 6, "spent": 0.5}, {"seeds": 3, "spent": 1.0}]"#,
        ] {
            assert!(read(wrong).unwrap_err().contains("without falling"), "{wrong}");
        }
    }

    #[test]
    fn looks_spend_the_whole_probability_once() {
        for (_, looks) in looks(28) {
            assert!(looks.tests(&[0.0; 28]).map(|(_, share)| share).sum::<f64>() <= 1.0 + 1e-12);
        }
        let mut looks = Looks::none();
        looks.look(4, 40);
        looks.look(6, 40);
        let early = looks.p_value(&[1.0, 1.2, 0.9, 1.1, 1.0, 0.8], 0.5);
        looks.end();
        assert!(looks.p_value(&[1.0, 1.2, 0.9, 1.1, 1.0, 0.8], 0.5) < early);
        // A row without the values of some seeds has fewer at each look; one with two values per run has twice as many.
        let seen = |count: usize| looks.tests(&vec![1.0; count]).map(|(seen, _)| seen.n).collect::<Vec<_>>();
        assert_eq!((seen(6), seen(5), seen(12)), (vec![4, 6], vec![3, 5], vec![8, 12]));
    }
}
