//! Search for the values of free parameters that reproduce a baseline's numbers.
//!
//! Candidates are points of a low-discrepancy sequence (Roberts' R sequence with a random shift). Successive halving
//! (Jamieson and Talwalkar, AISTATS 2016) measures all with few seeds, and the better half with twice as many, until at
//! most `SURVIVORS` remain. The posterior range consists of the survivors that fit about equally well.

use serde::{Deserialize, Serialize};
use tidegate_control::random::Seed;

/// `[calibrate]` of `experiment.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CalibrateFile {
    /// The system whose published numbers fit the parameters.
    pub baseline: String,
    /// Quantities of the rows that the search fits; they may measure the baseline only.
    pub fit: Vec<String>,
    /// Quantities of the rows that are predicted over the posterior range; default: all others.
    pub predict: Option<Vec<String>>,
    /// Number of candidates; default: 16.
    #[serde(default = "default_candidates")]
    pub candidates: usize,
    /// Seed of the sequence's shift.
    #[serde(default)]
    pub seed: u64,
    /// The free parameters.
    pub parameter: Vec<FreeParameter>,
}

fn default_candidates() -> usize {
    16
}

/// A parameter that the publication does not state.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FreeParameter {
    /// Name; `{name}` in overrides stands for its value.
    pub name: String,
    /// Lowest and highest candidate.
    pub range: [f64; 2],
    /// Whether candidates are uniform in the logarithm.
    #[serde(default)]
    pub logarithmic: bool,
    /// Whether candidates are whole numbers.
    #[serde(default)]
    pub whole: bool,
    /// Why the parameter is free, and the source of its range.
    pub source: String,
}

impl FreeParameter {
    /// The value at a position in `[0, 1)` of the range.
    pub(crate) fn value(&self, position: f64) -> f64 {
        let [low, high] = self.range;
        let value = if self.logarithmic {
            low * libm::pow(high / low, position)
        } else {
            low + (high - low) * position
        };
        if self.whole { value.round() } else { value }
    }

    /// Why the range is unusable, if it is.
    pub(crate) fn wrong(&self) -> Option<String> {
        let [low, high] = self.range;
        let name = &self.name;
        match () {
            () if !(low.is_finite() && high.is_finite() && low < high) => {
                Some(format!("`{name}`: the range [{low}, {high}] is empty"))
            }
            () if self.logarithmic && low <= 0.0 => {
                Some(format!("`{name}`: a logarithmic range must be above 0"))
            }
            () if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) => {
                Some(format!("`{name}`: a name consists of letters, digits, `-` and `_`"))
            }
            () if name == "data" => Some("`data`: `{data}` stands for the data folder".into()),
            () => None,
        }
    }
}

/// The recorded result of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Names of the parameters, in the order of points.
    pub parameters: Vec<String>,
    /// Seed of the candidates.
    pub seed: u64,
    /// Every candidate with its last measurement; the best fit first.
    pub(crate) trials: Vec<Trial>,
    /// Lowest and highest accepted value of each parameter.
    pub range: Vec<[f64; 2]>,
    /// Points at which predictions are made; the best fit first.
    pub points: Vec<Vec<f64>>,
}

/// A measured candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trial {
    /// Values of the parameters.
    pub point: Vec<f64>,
    /// Number of seeds.
    pub seeds: u32,
    /// Root mean square over the fitted rows of the mean deviation; 1 is the edge of the tolerance.
    pub loss: f64,
    /// Whether the candidate belongs to the posterior range.
    pub accepted: bool,
}

/// The most candidates of the last round, which share the most seeds.
pub(crate) const SURVIVORS: usize = 8;

/// The most points at which predictions are made.
pub(crate) const POINTS: usize = 4;

/// Deviation of a quantity that was not measured, in tolerances.
const UNMEASURED: f64 = 1e3;

/// A candidate and its deviations: one list of rows per seed.
#[derive(Clone)]
struct Candidate {
    position: Vec<f64>,
    deviations: Vec<Vec<f64>>,
}

impl Candidate {
    /// Root mean square over rows of the mean over seeds.
    fn loss(&self) -> f64 {
        let rows = self.deviations.first().map_or(0, Vec::len);
        let mean = |row: usize| {
            let all = self.deviations.iter().map(|seed| bounded(seed[row]));
            all.sum::<f64>() / self.deviations.len() as f64
        };
        root_mean_square((0..rows).map(mean))
    }

    /// Standard error of the paired difference in fit to another candidate, over seeds.
    fn noise(&self, best: &Candidate) -> f64 {
        let fit = |seed: &[f64]| root_mean_square(seed.iter().map(|value| bounded(*value)));
        let differences: Vec<f64> =
            self.deviations.iter().zip(&best.deviations).map(|(a, b)| fit(a) - fit(b)).collect();
        let n = differences.len() as f64;
        if n < 2.0 {
            return 0.0;
        }
        let mean = differences.iter().sum::<f64>() / n;
        let squares: f64 = differences.iter().map(|value| (value - mean) * (value - mean)).sum();
        libm::sqrt(squares / (n - 1.0) / n)
    }
}

fn bounded(deviation: f64) -> f64 {
    if deviation.is_finite() { deviation.clamp(-UNMEASURED, UNMEASURED) } else { UNMEASURED }
}

fn root_mean_square(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len().max(1) as f64;
    libm::sqrt(values.map(|value| value * value).sum::<f64>() / n)
}

/// Searches. `measure` returns, for a point and a number of seeds, the deviation of each fitted row in tolerances: one
/// list of rows per seed.
///
/// # Errors
/// The first error of `measure`.
pub(crate) fn search<E>(
    parameters: &[FreeParameter],
    candidates: usize,
    seed: u64,
    mut measure: impl FnMut(&[f64], u32) -> Result<Vec<Vec<f64>>, E>,
) -> Result<Calibration, E> {
    let values = |position: &[f64]| -> Vec<f64> {
        parameters.iter().zip(position).map(|(parameter, at)| parameter.value(*at)).collect()
    };
    let positions = sequence(parameters.len(), candidates.max(1), seed);
    let mut alive: Vec<Candidate> =
        positions.into_iter().map(|position| Candidate { position, deviations: Vec::new() }).collect();
    let mut dropped: Vec<Candidate> = Vec::new();
    let mut seeds = 1;
    loop {
        for candidate in &mut alive {
            candidate.deviations = measure(&values(&candidate.position), seeds)?;
        }
        alive.sort_by(|a, b| a.loss().total_cmp(&b.loss()));
        if alive.len() <= SURVIVORS {
            break;
        }
        dropped.splice(0..0, alive.split_off(alive.len().div_ceil(2)));
        seeds *= 2;
    }
    let best = alive[0].clone();
    // Either the candidate is inside all tolerances on average, or noise can explain its distance to the best.
    let fits = |candidate: &Candidate| {
        candidate.loss() <= f64::max(1.0, best.loss() + 2.0 * candidate.noise(&best))
            && candidate.loss() < UNMEASURED / 2.0
    };
    let accepted: Vec<Vec<f64>> = alive
        .iter()
        .filter(|candidate| fits(candidate))
        .map(|candidate| candidate.position.clone())
        .collect();
    let trial = |candidate: &Candidate| Trial {
        point: values(&candidate.position),
        seeds: candidate.deviations.len() as u32,
        loss: candidate.loss(),
        accepted: accepted.contains(&candidate.position),
    };
    let reached = |index: usize| {
        let all = accepted.iter().map(|position| parameters[index].value(position[index]));
        all.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)])
    };
    Ok(Calibration {
        parameters: parameters.iter().map(|parameter| parameter.name.clone()).collect(),
        seed,
        trials: alive.iter().chain(&dropped).map(trial).collect(),
        range: if accepted.is_empty() { Vec::new() } else { (0..parameters.len()).map(reached).collect() },
        points: spread(&accepted).iter().map(|position| values(position)).collect(),
    })
}

/// The first `count` points of Roberts' R sequence in the unit cube, shifted at random (modulo 1).
fn sequence(dimensions: usize, count: usize, seed: u64) -> Vec<Vec<f64>> {
    // The positive root of x^(d + 1) = x + 1, by fixed-point iteration.
    let power = 1.0 / (dimensions as f64 + 1.0);
    let root = (0..64).fold(1.5f64, |root, _| libm::pow(1.0 + root, power));
    let mut random = Seed::root(seed).fork("calibrate").random();
    let shifts: Vec<f64> = (0..dimensions).map(|_| random.unit()).collect();
    let coordinate = |index: usize, dimension: usize| {
        (shifts[dimension] + index as f64 * libm::pow(root, -(dimension as f64 + 1.0))).fract()
    };
    (0..count).map(|index| (0..dimensions).map(|dimension| coordinate(index, dimension)).collect()).collect()
}

/// The first position and those farthest from the ones already chosen, at most [`POINTS`].
fn spread(accepted: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut chosen: Vec<Vec<f64>> = accepted.first().cloned().into_iter().collect();
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum::<f64>();
    while chosen.len() < accepted.len().min(POINTS) {
        let nearest = |position: &Vec<f64>| {
            chosen.iter().map(|known| distance(known, position)).fold(f64::INFINITY, f64::min)
        };
        let farthest = accepted.iter().max_by(|a, b| nearest(a).total_cmp(&nearest(b)));
        let farthest = farthest.expect("more positions are accepted than chosen").clone();
        chosen.push(farthest);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn parameter(name: &str, range: [f64; 2], logarithmic: bool) -> FreeParameter {
        FreeParameter { name: name.into(), range, logarithmic, whole: false, source: "test".into() }
    }

    /// A quantity `speed * load` that should be 6, and `load`, which should be 3, both within 30 %; noise per seed.
    fn synthetic(noise: f64) -> impl FnMut(&[f64], u32) -> Result<Vec<Vec<f64>>, Infallible> {
        move |point, seeds| {
            let of = |seed: u32| {
                let draw = Seed::root(9).fork_index(seed.into()).random().normal(0.0, noise);
                vec![(point[0] * point[1] + draw - 6.0) / 1.8, (point[1] + draw - 3.0) / 0.9]
            };
            Ok((1..=seeds).map(of).collect())
        }
    }

    #[test]
    fn the_search_finds_the_parameters_of_a_synthetic_problem() {
        let parameters = [parameter("speed", [0.1, 10.0], true), parameter("load", [1.0, 9.0], false)];
        let found = search(&parameters, 256, 1, &mut synthetic(0.05)).unwrap();
        assert_eq!(found.trials.len(), 256);
        let best = &found.trials[0];
        assert!((best.point[0] - 2.0).abs() < 0.4 && (best.point[1] - 3.0).abs() < 0.6, "{best:?}");
        assert_eq!(best.seeds, 32, "256, 128, .., 8 candidates");
        for (index, truth) in [2.0, 3.0].into_iter().enumerate() {
            let [low, high] = found.range[index];
            assert!(low < 1.1 * truth && 0.9 * truth < high, "{:?}", found.range);
            assert!(0.1 * truth < high - low && high - low < truth, "{:?}", found.range);
        }
        assert!((1..=POINTS).contains(&found.points.len()) && found.points[0] == best.point);
        assert_eq!(found, search(&parameters, 256, 1, &mut synthetic(0.05)).unwrap(), "reproducible");
        assert_ne!(found.points, search(&parameters, 256, 2, &mut synthetic(0.05)).unwrap().points);
    }

    #[test]
    fn a_parameter_without_effect_keeps_its_whole_range() {
        let parameters = [parameter("load", [1.0, 5.0], false), parameter("idle", [0.0, 1.0], false)];
        let mut measure = |point: &[f64], seeds: u32| -> Result<Vec<Vec<f64>>, Infallible> {
            Ok(vec![vec![(point[0] - 3.0) / 1.5]; seeds as usize])
        };
        let found = search(&parameters, 16, 3, &mut measure).unwrap();
        let width = |index: usize| found.range[index][1] - found.range[index][0];
        assert!(width(1) > 0.6, "{:?}", found.range);
        assert!(width(0) < 3.0, "{:?}", found.range);
        assert_eq!(found.points.len(), POINTS);
    }

    #[test]
    fn unmeasured_quantities_never_fit() {
        let parameters = [parameter("load", [1.0, 5.0], false)];
        let mut nothing =
            |_: &[f64], _: u32| -> Result<Vec<Vec<f64>>, Infallible> { Ok(vec![vec![f64::NAN]]) };
        let found = search(&parameters, 4, 3, &mut nothing).unwrap();
        assert!(found.range.is_empty() && found.points.is_empty());
        assert!(found.trials.iter().all(|trial| trial.loss == UNMEASURED && !trial.accepted));
    }

    #[test]
    fn candidates_cover_the_range_evenly() {
        for dimensions in 1..=3 {
            let points = sequence(dimensions, 64, 5);
            for dimension in 0..dimensions {
                let mut eighths = [0; 8];
                points.iter().for_each(|point| eighths[(point[dimension] * 8.0) as usize] += 1);
                assert!(eighths.iter().all(|count| (4..=12).contains(count)), "{dimensions} {eighths:?}");
            }
        }
        assert_eq!(parameter("a", [1.0, 100.0], true).value(0.5), 10.0);
        let whole = FreeParameter { whole: true, ..parameter("a", [1.0, 4.0], false) };
        assert_eq!(whole.value(0.4), 2.0);
        for (range, logarithmic) in [([2.0, 1.0], false), ([0.0, 1.0], true), ([f64::NAN, 1.0], false)] {
            assert!(parameter("a", range, logarithmic).wrong().is_some());
        }
        assert!(parameter("data", [0.0, 1.0], false).wrong().is_some());
    }
}
