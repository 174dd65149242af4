//! A row's verdict, and the scoreboard's table and JSON.

use std::fmt;

use serde::Serialize;

use super::experiment::{Check, Experiment, Row};
use super::{Measured, RunError};
use crate::statistics::Estimate;

/// How a published number fared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ours is within the tolerance, or the statement is true here.
    Holds,
    /// It is not.
    Differs,
    /// The two cannot be compared, and why.
    NotComparable(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Holds => f.write_str("holds"),
            Verdict::Differs => f.write_str("differs"),
            Verdict::NotComparable(why) => write!(f, "not comparable: {why}"),
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A published number or statement.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Published {
    /// A number.
    Number(f64),
    /// A statement.
    Statement(String),
}

/// One row of the scoreboard; its JSON has exactly these keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// `predictor`.
    pub paper: String,
    /// `table-1`.
    pub figure: String,
    /// What it is.
    pub quantity: String,
    /// In this unit.
    pub unit: String,
    /// Theirs.
    pub published: Published,
    /// Ours: the mean over seeds; of a statement, its left side.
    pub ours: Option<f64>,
    /// Half width of the 95 % confidence interval of `ours`, from two seeds on.
    pub ci95: Option<f64>,
    /// Permitted distance, as written in the experiment.
    pub tolerance: Option<String>,
    /// Whether it holds.
    pub verdict: Verdict,
    /// What a reader should know.
    pub note: String,
}

/// Judges all rows of an experiment.
pub fn judge(
    experiment: &Experiment,
    rows: &[Row],
    measured: &Result<Measured, RunError>,
    smoke: bool,
) -> Vec<Outcome> {
    rows.iter().map(|row| judge_row(experiment, row, measured, smoke)).collect()
}

fn judge_row(
    experiment: &Experiment,
    row: &Row,
    measured: &Result<Measured, RunError>,
    smoke: bool,
) -> Outcome {
    let at_smoke = row.file.not_comparable_at_smoke.as_ref().filter(|_| smoke);
    let excuse = row.file.not_comparable.as_ref().or(at_smoke);
    let mut outcome = Outcome {
        paper: experiment.paper.clone(),
        figure: experiment.figure.clone(),
        quantity: row.file.quantity.clone(),
        unit: row.file.unit.clone(),
        published: match &row.check {
            Check::Number { published, .. } => Published::Number(*published),
            Check::Statement(relation) => Published::Statement(relation.to_string()),
        },
        ours: None,
        ci95: None,
        tolerance: row.file.tolerance.map(|tolerance| tolerance.to_string()),
        verdict: Verdict::NotComparable(String::new()),
        note: row.file.note.clone(),
    };
    outcome.verdict = match measured {
        Ok(measured) => match (compare(row, measured, &mut outcome), excuse) {
            (Ok(_), Some(why)) => Verdict::NotComparable(why.clone()),
            (Ok(true), None) => Verdict::Holds,
            (Ok(false), None) => Verdict::Differs,
            (Err(why), _) => Verdict::NotComparable(why),
        },
        Err(RunError::Unavailable(why) | RunError::Failed(why)) => Verdict::NotComparable(why.clone()),
        Err(RunError::Input(error)) => Verdict::NotComparable(error.to_string()),
        Err(RunError::Stopped) => Verdict::NotComparable("stopped before it was measured".into()),
    };
    outcome
}

/// Fills in ours; gives whether the row holds.
fn compare(row: &Row, measured: &Measured, outcome: &mut Outcome) -> Result<bool, String> {
    let mut set_ours = |values: &[f64]| {
        let estimate = Estimate::of(values);
        outcome.ours = Some(estimate.mean).filter(|mean| mean.is_finite());
        outcome.ci95 = estimate.ci95;
        estimate.mean
    };
    match &row.check {
        Check::Number { measure, published, tolerance } => {
            let ours = set_ours(&measure.evaluate(&measured.values)?);
            if !ours.is_finite() {
                return Err("nothing was measured".into());
            }
            Ok((ours - published).abs() <= tolerance.width(*published))
        }
        Check::Statement(relation) => {
            let left = set_ours(&relation.left.evaluate(&measured.values)?);
            let right = Estimate::of(&relation.right.evaluate(&measured.values)?).mean;
            if !(left.is_finite() && right.is_finite()) {
                return Err("nothing was measured".into());
            }
            let sides = format!("here {left:.4} against {right:.4}");
            outcome.note = if outcome.note.is_empty() { sides } else { format!("{}; {sides}", outcome.note) };
            Ok(relation.holds(left, right))
        }
    }
}
