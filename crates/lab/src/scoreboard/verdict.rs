//! Verdicts on rows, and the entries of the scoreboard's JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::experiment::{Check, Experiment, Published, PublishedRow, RowKind, Scale};
use super::{Measured, RunError};
use crate::number::format_number;
use crate::statistics::Estimate;

/// The verdict on a published number. Its text is that of the scoreboard's JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Ours is within the tolerance, or the statement is true here.
    #[serde(rename = "holds")]
    Holds,
    /// Ours is outside the tolerance, the statement is false, or its quantity was never measured.
    #[serde(rename = "differs")]
    Differs,
    /// The two cannot be compared; the note says why.
    #[serde(rename = "not comparable")]
    NotComparable,
    /// An input or a capability of the machine is missing; the note says which.
    #[serde(rename = "no data")]
    NoData,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Holds => "holds",
            Verdict::Differs => "differs",
            Verdict::NotComparable => "not comparable",
            Verdict::NoData => "no data",
        })
    }
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
    pub published: Published,
    /// Origin of the published number.
    pub kind: RowKind,
    /// Our number: the mean over seeds; for a statement, its left side.
    pub ours: Option<f64>,
    /// Half width of the 95 % confidence interval of `ours`; needs two seeds.
    pub ci95: Option<f64>,
    /// Permitted distance, as written in the experiment.
    pub tolerance: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// Remarks; includes the cause if the verdict does not follow from the measurement.
    pub note: String,
}

impl Outcome {
    fn add_note(&mut self, note: &str) {
        let between = if self.note.is_empty() || note.is_empty() { "" } else { "; " };
        self.note = format!("{}{between}{note}", self.note);
    }
}

/// Judges all rows of an experiment.
pub fn judge(
    experiment: &Experiment,
    rows: &[PublishedRow],
    measured: &Result<Measured, RunError>,
    scale: Scale,
) -> Vec<Outcome> {
    rows.iter().map(|row| judge_row(experiment, row, measured, scale)).collect()
}

/// Counts rows by verdict: published numbers, then this project's own goals.
pub fn count(outcomes: &[Outcome]) -> String {
    let of = |kind: RowKind| {
        let verdicts: Vec<Verdict> =
            outcomes.iter().filter(|row| row.kind == kind).map(|row| row.verdict).collect();
        let count = |wanted: Verdict| verdicts.iter().filter(|verdict| **verdict == wanted).count();
        format!(
            "{} hold, {} differ, {} not comparable, {} without data",
            count(Verdict::Holds),
            count(Verdict::Differs),
            count(Verdict::NotComparable),
            count(Verdict::NoData)
        )
    };
    format!("published: {}. own goals: {}", of(RowKind::Published), of(RowKind::Own))
}

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
        ours: None,
        ci95: None,
        tolerance: row.file.tolerance.map(|tolerance| tolerance.to_string()),
        verdict: Verdict::NotComparable,
        note: row.file.note.clone(),
    };
    if let Some(how) = &row.file.derived {
        outcome.add_note(&format!("published number derived: {how}"));
    }
    let (verdict, cause) = match measured {
        Ok(measured) => match (compare(row, measured, &mut outcome), excuse) {
            (_, Some(why)) => (Verdict::NotComparable, why.clone()),
            (Ok(true), None) => (Verdict::Holds, String::new()),
            (Ok(false), None) => (Verdict::Differs, String::new()),
            // A row differs if its quantity was never measured.
            (Err(why), None) => (Verdict::Differs, why),
        },
        Err(RunError::Unavailable(what)) => (Verdict::NoData, what.clone()),
        Err(RunError::Failed(why)) => (Verdict::Differs, why.clone()),
        Err(RunError::Input(error)) => (Verdict::Differs, error.to_string()),
        Err(RunError::Stopped) => (Verdict::NotComparable, "stopped before it was measured".into()),
    };
    outcome.verdict = verdict;
    outcome.add_note(&cause);
    outcome
}

/// Sets our number; returns whether the row holds, or which quantity was not measured.
fn compare(row: &PublishedRow, measured: &Measured, outcome: &mut Outcome) -> Result<bool, String> {
    let mut set_ours = |values: &[f64]| {
        let estimate = Estimate::of(values);
        outcome.ours = Some(estimate.mean).filter(|mean| mean.is_finite());
        outcome.ci95 = estimate.ci95.filter(|width| width.is_finite());
        estimate.mean
    };
    match &row.check {
        Check::Number { measure, published, tolerance } => {
            let ours = set_ours(&measure.evaluate(&measured.values)?);
            // NaN stands for a metric without values in any seed.
            if !ours.is_finite() {
                return Err("the measured value is not finite".into());
            }
            Ok((ours - published).abs() <= tolerance.width(*published))
        }
        Check::Statement(relation) => {
            let left = set_ours(&relation.left.evaluate(&measured.values)?);
            let right = Estimate::of(&relation.right.evaluate(&measured.values)?).mean;
            if !(left.is_finite() && right.is_finite()) {
                return Err("the measured value is not finite".into());
            }
            outcome.add_note(&format!("here {} against {}", format_number(left), format_number(right)));
            Ok(relation.holds(left, right))
        }
    }
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
        let names = match &row.check {
            Check::Number { measure, .. } => measure.names(),
            Check::Statement(relation) => [relation.left.names(), relation.right.names()].concat(),
        };
        let values = names.into_iter().map(|name| (name.to_owned(), vec![of(name)])).collect();
        let row = PublishedRow {
            file: RowFile { not_comparable: None, not_comparable_at_smoke: None, ..row.file.clone() },
            check: row.check.clone(),
        };
        judge_row(experiment, &row, &Ok(Measured { values, ..Measured::default() }), Scale::Full).verdict
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
    fn unmeasured_rows_differ_and_missing_inputs_have_no_data() {
        let experiment = experiments()
            .into_iter()
            .find(|experiment| experiment.figure == "figure-7-9")
            .expect("the thesis' figure 7.9");
        let rows = experiment.rows().unwrap();
        let row = rows.iter().find(|row| row.file.quantity == "AIMD is back soon").expect("its row");
        let never = judge_row(&experiment, row, &Ok(Measured::default()), Scale::Full);
        assert_eq!(never.verdict, Verdict::Differs);
        assert!(never.note.contains("`aimd.recovered_s` was not measured"), "{}", never.note);
        let smoke = judge_row(&experiment, row, &Ok(Measured::default()), Scale::Smoke);
        assert_eq!(smoke.verdict, Verdict::NotComparable);
        let absent = Err(RunError::Unavailable("needs consensus".into()));
        assert_eq!(judge_row(&experiment, row, &absent, Scale::Full).verdict, Verdict::NoData);
        let mut nan = Measured::default();
        nan.push("aimd.recovered_s", f64::NAN);
        assert_eq!(judge_row(&experiment, row, &Ok(nan), Scale::Full).verdict, Verdict::Differs);
    }

    #[test]
    fn own_goals_are_counted_apart() {
        let experiment = experiments().into_iter().find(|e| e.figure == "figure-11").expect("FlashFlow's");
        let rows = experiment.rows().unwrap();
        let stopped = judge(&experiment, &rows, &Err(RunError::Failed("no".into())), Scale::Full);
        assert_eq!(
            count(&stopped),
            "published: 0 hold, 2 differ, 0 not comparable, 0 without data. \
             own goals: 0 hold, 1 differ, 0 not comparable, 0 without data"
        );
    }
}
