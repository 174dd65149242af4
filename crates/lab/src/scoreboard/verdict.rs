//! Verdicts on rows, and the entries of the scoreboard's JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::experiment::{Check, Experiment, Published, PublishedRow, RowKind, Scale, joined};
use super::looks::Looks;
use super::sequence::{Sequence, holm};
use super::{Measured, RunError};
use crate::number::format_number;

/// Level of the family-wise error: all rows of one experiment are one family.
pub(crate) const ALPHA: f64 = 0.05;

/// The verdict on a published number. Its text is that of the scoreboard's JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The interval of ours lies inside the tolerance, or on the stated side of zero.
    #[serde(rename = "holds")]
    Holds,
    /// The interval of ours lies outside the tolerance, or on the other side of zero.
    #[serde(rename = "differs")]
    Differs,
    /// The interval decides neither.
    #[serde(rename = "undecided")]
    Undecided,
    /// The two cannot be compared; the note says why.
    #[serde(rename = "not comparable")]
    NotComparable,
    /// The quantity was not measured; the note says which, or what is missing.
    #[serde(rename = "no data")]
    NoData,
}

impl Verdict {
    /// All verdicts, in the order of tables.
    pub(crate) const ALL: [Verdict; 5] =
        [Verdict::Holds, Verdict::Differs, Verdict::Undecided, Verdict::NoData, Verdict::NotComparable];
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Holds => "holds",
            Verdict::Differs => "differs",
            Verdict::Undecided => "undecided",
            Verdict::NotComparable => "not comparable",
            Verdict::NoData => "no data",
        })
    }
}

/// Decision on one row before the correction for its family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tendency {
    /// Whether the row's mean agrees with the published number or statement.
    pub agrees: bool,
    /// P-value of the opposite over all looks; `None` for a deterministic row.
    pub p_value: Option<f64>,
}

impl Tendency {
    /// Compares the values that decide a row with its tolerance or with zero.
    pub(crate) fn of(check: &Check, values: &[f64], looks: &Looks, deterministic: bool) -> Tendency {
        let mean = Sequence::of(values).mean;
        let (agrees, p_value) = match check {
            Check::Number { published, tolerance, .. } => {
                let width = tolerance.width(*published);
                let (low, high) = (published - width, published + width);
                let (low_p, high_p) = (looks.p_value(values, low), looks.p_value(values, high));
                let agrees = (mean - published).abs() <= width;
                // Two one-sided tests inside, one test against the nearer bound outside.
                let outside = if mean < low { low_p } else { high_p };
                (agrees, if agrees { low_p.max(high_p) } else { outside })
            }
            Check::Statement(relation) => (relation.holds(mean, 0.0), looks.p_value(values, 0.0)),
        };
        Tendency { agrees, p_value: Some(p_value).filter(|_| !deterministic) }
    }

    /// Decides a row by its values at every point of a posterior range. It agrees or differs only if it does so at every
    /// point: the largest p-value counts (intersection-union test).
    pub(crate) fn over(
        check: &Check,
        values: &[f64],
        elsewhere: &[Vec<f64>],
        looks: &Looks,
        deterministic: bool,
    ) -> Tendency {
        let first = Tendency::of(check, values, looks, deterministic);
        elsewhere.iter().fold(first, |sum, values| {
            let here = Tendency::of(check, values, looks, deterministic);
            let p_value = if here.agrees == sum.agrees {
                sum.p_value.map(|p| here.p_value.map_or(p, |other| p.max(other)))
            } else {
                Some(1.0)
            };
            Tendency { p_value, ..sum }
        })
    }
}

/// Verdicts of the rows of one experiment, corrected by Holm's procedure; deterministic rows do not need it.
pub(crate) fn settle(tendencies: &[Tendency]) -> Vec<Verdict> {
    let tested: Vec<f64> = tendencies.iter().filter_map(|row| row.p_value).collect();
    let mut decided = holm(&tested, ALPHA).into_iter();
    let verdict = |row: &Tendency| match (row.p_value.is_none() || decided.next() == Some(true), row.agrees) {
        (false, _) => Verdict::Undecided,
        (true, true) => Verdict::Holds,
        (true, false) => Verdict::Differs,
    };
    tendencies.iter().map(verdict).collect()
}

/// One row of the scoreboard; its JSON has exactly these keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// `predictor`.
    pub paper: String,
    /// `table-1`.
    pub figure: String,
    /// Name of the quantity.
    pub quantity: String,
    /// Its unit.
    pub unit: String,
    /// The published number or statement.
    pub(crate) published: Published,
    /// Origin of the published number.
    pub(crate) kind: RowKind,
    /// Why a parameter of ours was chosen by looking at the published value, if one was.
    pub fitted: Option<String>,
    /// Our number: the mean over seeds; for a statement, its left side.
    pub ours: Option<f64>,
    /// Number of seeds behind `ours`.
    pub n: usize,
    /// Per seed: our number; for a statement, its left side minus its right side on the same network.
    pub values: Vec<f64>,
    /// The same at the further points of the posterior range of calibrated parameters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Vec<f64>>,
    /// The 95 % interval of the mean of `values` over all looks; over several points, from the least to the greatest.
    /// Needs three seeds.
    pub interval: Option<[f64; 2]>,
    /// P-value over all looks of the opposite of what `values` show, before Holm's correction.
    pub p_value: Option<f64>,
    /// Whether every seed gives the same value, because the experiment draws nothing at random.
    pub deterministic: bool,
    /// Permitted distance, as written in the experiment.
    pub tolerance: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// The experiment's remark on the row.
    pub note: String,
    /// Additions of the measurement; includes the cause if the verdict does not follow from it.
    pub remarks: String,
}

impl Outcome {
    fn remark(&mut self, remark: &str) {
        self.remarks = joined([&self.remarks, remark]);
    }

    /// The note and the remarks.
    pub fn notes(&self) -> String {
        joined([self.note.as_str(), &self.remarks])
    }
}

/// Judges all rows of an experiment.
pub fn judge(
    experiment: &Experiment,
    rows: &[PublishedRow],
    measured: &Result<Measured, RunError>,
    scale: Scale,
) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> =
        rows.iter().map(|row| judge_row(experiment, row, measured, scale)).collect();
    let looks = measured.as_ref().map_or_else(|_| Looks::default(), |measured| measured.looks.clone());
    let mut family = Vec::new();
    for (outcome, row) in outcomes.iter_mut().zip(rows) {
        // `judge_row` leaves these to the family.
        if outcome.verdict == Verdict::Undecided {
            let (values, elsewhere) = (&outcome.values, &outcome.elsewhere);
            let tendency = Tendency::over(&row.check, values, elsewhere, &looks, outcome.deterministic);
            outcome.p_value = tendency.p_value;
            family.push((outcome, tendency));
        }
    }
    let verdicts = settle(&family.iter().map(|(_, tendency)| *tendency).collect::<Vec<_>>());
    for ((outcome, _), verdict) in family.into_iter().zip(verdicts) {
        outcome.verdict = verdict;
        if outcome.deterministic {
            outcome.remark("deterministic");
        } else if outcome.n == 1 {
            outcome.remark("one seed decides nothing");
        }
    }
    outcomes
}

/// Counts rows by verdict: published numbers, then this project's own goals.
pub fn count(outcomes: &[Outcome]) -> String {
    let of = |own: bool| {
        let count = |wanted: Verdict| {
            outcomes.iter().filter(|row| (row.kind == RowKind::Own) == own && row.verdict == wanted).count()
        };
        format!(
            "{} hold, {} differ, {} undecided, {} not comparable, {} without data",
            count(Verdict::Holds),
            count(Verdict::Differs),
            count(Verdict::Undecided),
            count(Verdict::NotComparable),
            count(Verdict::NoData)
        )
    };
    format!("published: {}. own goals: {}", of(false), of(true))
}

/// Evaluates a row. A row that its values can decide is `undecided` until [`settle`] has corrected its family.
fn judge_row(
    experiment: &Experiment,
    row: &PublishedRow,
    measured: &Result<Measured, RunError>,
    scale: Scale,
) -> Outcome {
    let at_smoke = row.file.not_comparable_at_smoke.as_ref().filter(|_| scale == Scale::Smoke);
    let excuse = row.file.not_comparable.as_ref().or(at_smoke);
    let mut outcome = Outcome {
        paper: experiment.paper.clone(),
        figure: experiment.figure.clone(),
        quantity: row.file.quantity.clone(),
        unit: row.file.unit.clone(),
        published: row.published(),
        kind: row.file.kind.unwrap_or(experiment.file.kind),
        fitted: experiment.fitted(&row.file),
        ours: None,
        n: 0,
        values: Vec::new(),
        elsewhere: Vec::new(),
        interval: None,
        p_value: None,
        deterministic: false,
        tolerance: row.file.tolerance.map(|tolerance| tolerance.to_string()),
        verdict: Verdict::NotComparable,
        note: row.note(),
        remarks: String::new(),
    };
    let (verdict, cause) = match measured {
        Ok(measured) => match (compare(experiment, row, measured, &mut outcome), excuse) {
            (_, Some(why)) => (Verdict::NotComparable, why.clone()),
            (Ok(()), None) => (Verdict::Undecided, String::new()),
            (Err(why), None) => (Verdict::NoData, why),
        },
        Err(RunError::Unavailable(what)) => (Verdict::NoData, what.clone()),
        Err(RunError::Failed(why)) => (Verdict::NoData, format!("the run failed: {why}")),
        Err(RunError::Input(error)) => (Verdict::NoData, error.to_string()),
        Err(RunError::Stopped) => (Verdict::NoData, "stopped before it was measured".into()),
    };
    outcome.verdict = verdict;
    outcome.remark(&cause);
    outcome
}

/// The values of the seeds that have one.
///
/// # Errors
/// If more than a tenth of the seeds lack one: the others are then a choice instead of a sample.
fn complete(values: &[f64]) -> Result<Vec<f64>, String> {
    let kept: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    let missing = values.len() - kept.len();
    if 10 * missing > values.len() {
        return Err(format!("{missing} of {} seeds have no value", values.len()));
    }
    Ok(kept)
}

/// The means of both sides of a statement, over the seeds in which both have a value.
fn means(sides: &[[f64; 2]]) -> [f64; 2] {
    let kept = || sides.iter().filter(|sides| sides.iter().all(|side| !side.is_nan()));
    [0, 1].map(|side| Sequence::of(&kept().map(|sides| sides[side]).collect::<Vec<_>>()).mean)
}

/// Sets our number and the values that decide the row, or returns which quantity was not measured.
fn compare(
    experiment: &Experiment,
    row: &PublishedRow,
    measured: &Measured,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let all = row.check.values(&measured.values)?;
    let values = complete(&all)?;
    if values.len() < all.len() {
        let without = all.len() - values.len();
        outcome.remark(&format!("{without} of {} seeds have no value and are left out", all.len()));
    }
    let ours = match &row.check {
        Check::Number { .. } => Sequence::of(&values).mean,
        Check::Statement(relation) => {
            let [left, right] = means(&relation.sides(&measured.values)?);
            outcome.remark(&format!("here {} against {}", format_number(left), format_number(right)));
            left
        }
    };
    outcome.ours = Some(ours).filter(|mean| mean.is_finite());
    let sequence = Sequence::of(&values);
    if !(ours.is_finite() && sequence.mean.is_finite()) {
        return Err("the measured value is not finite".into());
    }
    outcome.n = values.len();
    outcome.deterministic = measured.is_deterministic(&row.check.names());
    outcome.values = values;
    if experiment.predicted(&row.file) && !measured.elsewhere.is_empty() {
        let (mut low, mut high) = (sequence.mean, sequence.mean);
        for values in &measured.elsewhere {
            let values = row.check.values(values)?;
            let values = complete(&values)?;
            let here = Sequence::of(&values);
            if !here.mean.is_finite() {
                return Err("the measured value is not finite at a point of the posterior range".into());
            }
            (low, high) = (low.min(here.mean), high.max(here.mean));
            outcome.elsewhere.push(values);
        }
        let what = if matches!(row.check, Check::Number { .. }) { "" } else { "left minus right " };
        let (points, low, high) = (measured.elsewhere.len() + 1, format_number(low), format_number(high));
        outcome.remark(&format!("over the posterior range ({points} points): {what}{low} to {high}"));
    }
    outcome.interval = interval(&outcome.values, &outcome.elsewhere, &measured.looks);
    Ok(())
}

/// The interval of the mean; over several points of a posterior range, from the least to the greatest.
pub(crate) fn interval(values: &[f64], elsewhere: &[Vec<f64>], looks: &Looks) -> Option<[f64; 2]> {
    let hull = |[a, b]: [f64; 2], [c, d]: [f64; 2]| [a.min(c), b.max(d)];
    let first = looks.interval(values, ALPHA);
    elsewhere
        .iter()
        .fold(first, |all, values| all.zip(looks.interval(values, ALPHA)).map(|(all, here)| hull(all, here)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::experiment::{RowFile, find};
    use super::*;

    fn experiments() -> Vec<Experiment> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        find(&root, Path::new("no-data"), None).unwrap()
    }

    /// The verdict of a row without `not-comparable`, if every quantity has the value that `of` returns.
    fn verdict(experiment: &Experiment, row: &PublishedRow, of: impl Fn(&str) -> f64) -> Verdict {
        let values = row.check.names().into_iter().map(|name| (name.to_owned(), vec![of(name)])).collect();
        let row = PublishedRow {
            file: RowFile { not_comparable: None, not_comparable_at_smoke: None, ..row.file.clone() },
            check: row.check.clone(),
        };
        let measured = Measured { values, deterministic: true, ..Measured::default() };
        judge(experiment, &[row], &Ok(measured), Scale::Full)[0].verdict
    }

    #[test]
    fn seeds_without_a_value_are_left_out_if_they_are_few() {
        let with = |missing: usize| -> Vec<f64> {
            (0..20).map(|seed| if seed < missing { f64::NAN } else { f64::from(seed as u32) }).collect()
        };
        assert_eq!(complete(&with(2)).unwrap().len(), 18);
        assert!(complete(&with(3)).unwrap_err().contains("3 of 20 seeds"));
        // Both sides of a statement keep the same seeds.
        let sides: Vec<[f64; 2]> =
            with(0).into_iter().zip(with(2)).map(|(left, right)| [left, right]).collect();
        assert_eq!(means(&sides), [10.5, 10.5]);
        assert_eq!(means(&with(2).into_iter().map(|right| [5.0, right]).collect::<Vec<_>>())[0], 5.0);
    }

    /// Upper bound of a quantity: 1 for shares, 100 for percentages, 1e9 for others.
    fn most(name: &str) -> f64 {
        let last = name.rsplit('.').next().unwrap_or(name);
        let share = ["within_", "fairness_index", "jain_index", "background_", "normal_corr", "autocorr"];
        match last {
            _ if share.iter().any(|start| last.starts_with(start)) => 1.0,
            _ if last.ends_with("_percent") => 100.0,
            _ => 1e9,
        }
    }

    /// Assignments of pseudo-random values, from nearly 0 to the upper bound, to each quantity independently.
    fn mutations() -> impl Iterator<Item = impl Fn(&str) -> f64> {
        (0..4000u64).map(|seed| {
            move |name: &str| {
                let mut state = name.bytes().fold(seed ^ 0x9e37_79b9, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
                });
                state = (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let share = ((state ^ (state >> 32)) >> 11) as f64 / (1u64 << 53) as f64;
                // Logarithmic distribution from a millionth of the upper bound or of 1000, up to the upper bound.
                most(name).min(1e3 * 10f64.powf(6.0 * share)) * 10f64.powf(-6.0 * (1.0 - share))
            }
        })
    }

    #[test]
    fn for_each_row_there_is_a_measurement_that_differs() {
        for experiment in experiments() {
            for row in experiment.rows().unwrap() {
                let what = format!("{}/{}: {}", experiment.paper, experiment.figure, row.file.quantity);
                let mut all = mutations();
                assert!(
                    all.any(|of| verdict(&experiment, &row, of) == Verdict::Differs),
                    "{what}: always true"
                );
                let missing = judge_row(&experiment, &row, &Ok(Measured::default()), Scale::Full);
                assert_ne!(missing.verdict, Verdict::Holds, "{what}: holds without a measurement");
            }
        }
    }

    #[test]
    fn a_zero_value_is_never_within_tolerance() {
        for experiment in experiments() {
            for row in experiment.rows().unwrap() {
                let Check::Number { published, tolerance, .. } = &row.check else { continue };
                let what = format!("{}/{}: {}", experiment.paper, experiment.figure, row.file.quantity);
                assert!(tolerance.width(*published) < published.abs(), "{what}: 0 would hold");
            }
        }
    }

    #[test]
    fn what_was_not_measured_has_no_data() {
        let experiment = experiments()
            .into_iter()
            .find(|experiment| experiment.figure == "figure-7-9")
            .expect("the thesis' figure 7.9");
        let rows = experiment.rows().unwrap();
        let row = rows.iter().find(|row| row.file.quantity == "AIMD is back soon").expect("its row");
        let never = judge_row(&experiment, row, &Ok(Measured::default()), Scale::Full);
        assert_eq!(never.verdict, Verdict::NoData);
        assert!(never.remarks.contains("`aimd.recovered_s` was not measured"), "{}", never.remarks);
        let smoke = judge_row(&experiment, row, &Ok(Measured::default()), Scale::Smoke);
        assert_eq!(smoke.verdict, Verdict::NotComparable);
        let absent = Err(RunError::Unavailable("needs consensus".into()));
        assert_eq!(judge_row(&experiment, row, &absent, Scale::Full).verdict, Verdict::NoData);
        let mut nan = Measured::default();
        nan.push("aimd.recovered_s", f64::NAN);
        assert_eq!(judge_row(&experiment, row, &Ok(nan), Scale::Full).verdict, Verdict::NoData);
    }

    #[test]
    fn own_goals_are_counted_apart() {
        let experiment = experiments().into_iter().find(|e| e.figure == "figure-11").expect("FlashFlow's");
        let rows = experiment.rows().unwrap();
        let stopped = judge(&experiment, &rows, &Err(RunError::Failed("no".into())), Scale::Full);
        assert_eq!(
            count(&stopped),
            "published: 0 hold, 0 differ, 0 undecided, 0 not comparable, 2 without data. \
             own goals: 0 hold, 0 differ, 0 undecided, 0 not comparable, 1 without data"
        );
    }
    fn tendency(text: &str, values: &[f64]) -> Tendency {
        Tendency::of(&Check::Statement(text.parse().unwrap()), values, &Looks::default(), false)
    }

    #[test]
    fn a_mean_on_the_right_side_does_not_decide() {
        let close = tendency("a < b", &[-0.5, 0.4, -0.2, 0.1, -0.1]);
        assert!(close.agrees);
        assert_eq!(settle(&[close]), [Verdict::Undecided]);
        let clear = tendency("a < b", &[-1.0, -1.1, -0.9, -1.05]);
        assert_eq!(settle(&[clear]), [Verdict::Holds]);
        assert_eq!(settle(&[tendency("a > b", &[-1.0, -1.1, -0.9, -1.05])]), [Verdict::Differs]);
        assert_eq!(settle(&[tendency("a < b", &[-1.0])]), [Verdict::Undecided], "one seed");
        // A count that can only be zero or more holds by the sign test.
        assert_eq!(settle(&[tendency("a <= 0", &[0.0; 4])]), [Verdict::Undecided]);
        assert_eq!(settle(&[tendency("a <= 0", &[0.0; 5])]), [Verdict::Holds]);
        // A family of 20 needs stronger evidence for each row.
        let fair = tendency("a < b", &[-1.0, -1.6, -0.7, -1.4]);
        assert_eq!(settle(&[fair]), [Verdict::Holds]);
        assert_eq!(settle(&[fair; 20]), [Verdict::Undecided; 20]);
    }

    /// Share of simulated experiments with a wrong verdict, if seeds are added until all rows are decided.
    fn wrong_families(draw: impl Fn(&mut dyn FnMut() -> f64) -> f64, rows: usize) -> f64 {
        use tidegate_control::random::Seed;
        let check = Check::Statement("a < b".parse().unwrap());
        let experiments = 4000u32;
        let wrong = (0..experiments).filter(|experiment| {
            let mut random = Seed::root(11).fork_index(u64::from(*experiment)).random();
            let mut uniform = || random.unit();
            let mut values = vec![Vec::new(); rows];
            let mut looks = Looks::none();
            for seeds in [2, 3, 4, 6, 9, 13, 19, 28] {
                looks.look(seeds, 28);
                for row in &mut values {
                    row.extend((row.len()..seeds).map(|_| draw(&mut uniform)));
                }
                let rows: Vec<Tendency> =
                    values.iter().map(|row| Tendency::of(&check, row, &looks, false)).collect();
                // The true difference is zero, so every decision is wrong.
                if settle(&rows).iter().any(|verdict| *verdict != Verdict::Undecided) {
                    return true;
                }
            }
            false
        });
        wrong.count() as f64 / f64::from(experiments)
    }

    #[test]
    fn a_family_is_wrong_in_at_most_five_percent_whenever_seeds_stop() {
        let normal = |uniform: &mut dyn FnMut() -> f64| {
            (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
        };
        for rows in [1, 8] {
            let share = wrong_families(normal, rows);
            assert!(share <= 0.05, "{rows} rows: {share}");
        }
    }

    #[test]
    fn a_number_holds_only_with_its_whole_interval() {
        let number = |values: &[f64]| {
            let check = Check::Number {
                measure: "a".parse().unwrap(),
                published: 10.0,
                tolerance: super::super::experiment::Tolerance::Relative(0.1),
            };
            settle(&[Tendency::of(&check, values, &Looks::default(), false)])[0]
        };
        assert_eq!(number(&[10.0, 10.1, 9.9, 10.05]), Verdict::Holds);
        assert_eq!(number(&[8.0, 12.0, 9.0, 11.0]), Verdict::Undecided);
        assert_eq!(number(&[13.0, 13.1, 12.9, 13.05]), Verdict::Differs);
        assert_eq!(number(&[11.1, 10.8, 11.2, 10.9]), Verdict::Undecided);
    }
}
