//! Recorded results of experiments: `experiments/<paper>/<figure>/result.json`.
//!
//! `result.json` holds the largest recorded scale, `result-<scale>.json` any other.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::calibration::Calibration;
use super::experiment::{Check, Published, PublishedRow, RowKind, Scale, joined};
use super::looks::Looks;
use super::verdict::{self, Outcome, Tendency, Verdict};
use crate::input::{InputError, SourceFile};
use crate::report::staged::replace;

/// A recorded measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// Scale of the measurement.
    pub scale: Scale,
    /// Commit that the tool was built from.
    pub commit: String,
    /// Architecture, operating system, processor and its number of cores.
    #[serde(default)]
    pub machine: String,
    /// The command that repeats the measurement.
    #[serde(default)]
    pub command: String,
    /// Seeds in addition to those of the scale.
    #[serde(default)]
    pub extra_seeds: u32,
    /// The numbers of seeds at which rows were judged.
    #[serde(default)]
    pub looks: Looks,
    /// SHA-256 of all measured values; `None` if they depend on the machine.
    #[serde(default)]
    pub digest: Option<String>,
    /// The search for the values of free parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
    /// Time that the measurement took.
    pub cost: Cost,
    /// Its rows.
    pub rows: Vec<RecordedRow>,
}

/// Time that a measurement took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Wall-clock seconds.
    pub wall_s: f64,
    /// Processor seconds of the tool, without the processes of live experiments.
    pub cpu_s: f64,
}

/// A recorded row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRow {
    /// Name of the quantity.
    pub quantity: String,
    /// The published number or statement.
    pub(crate) published: Published,
    /// Our number.
    pub ours: Option<f64>,
    /// Number of seeds.
    #[serde(default)]
    pub n: usize,
    /// Per seed: our number, or the left side minus the right side of a statement. Older records lack them.
    #[serde(default)]
    pub values: Option<Vec<f64>>,
    /// The same at the further points of the posterior range of calibrated parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Vec<f64>>,
    /// Whether every seed gives the same value.
    #[serde(default)]
    pub deterministic: bool,
    /// The 95 % interval of the mean of `values` over all looks.
    pub interval: Option<[f64; 2]>,
    /// Origin of the published number.
    pub(crate) kind: RowKind,
    /// The verdict.
    pub verdict: Verdict,
    /// Additions of the measurement to the row's note.
    pub remarks: String,
}

impl From<&Outcome> for RecordedRow {
    fn from(outcome: &Outcome) -> RecordedRow {
        RecordedRow {
            quantity: outcome.quantity.clone(),
            published: outcome.published.clone(),
            ours: outcome.ours,
            n: outcome.n,
            values: Some(outcome.values.clone()).filter(|values| !values.is_empty()),
            elsewhere: outcome.elsewhere.clone(),
            deterministic: outcome.deterministic,
            interval: outcome.interval,
            kind: outcome.kind,
            verdict: outcome.verdict,
            remarks: outcome.remarks.clone(),
        }
    }
}

/// Recorded rows by experiment row, with the verdicts that their values give today; `None` if a row is not recorded.
///
/// A row counts as recorded only if its name and published value are unchanged. A row recorded without values per seed
/// is judged by its recorded interval, without correction for its family; without one it is undecided.
pub(crate) fn settled(rows: &[PublishedRow], recorded: Option<&Recorded>) -> Vec<Option<RecordedRow>> {
    let same = |row: &PublishedRow, old: &RecordedRow| {
        old.quantity == row.file.quantity && old.published == row.published()
    };
    let mut found: Vec<Option<RecordedRow>> =
        rows.iter().map(|row| recorded?.rows.iter().find(|old| same(row, old)).cloned()).collect();
    let looks = recorded.map_or_else(Looks::default, |recorded| recorded.looks.clone());
    let mut family = Vec::new();
    for (old, row) in found.iter_mut().zip(rows) {
        let Some(old) = old.as_mut() else { continue };
        let excused = matches!(old.verdict, Verdict::NotComparable | Verdict::NoData);
        match (&old.values, excused) {
            (_, true) => {}
            (Some(values), false) => {
                let tendency = Tendency::over(&row.check, values, &old.elsewhere, &looks, old.deterministic);
                old.interval = verdict::interval(values, &old.elsewhere, &looks);
                family.push((old, tendency));
            }
            (None, false) => {
                old.verdict = by_interval(&row.check, old.interval);
                let how = if old.interval.is_some() { "judged by its interval" } else { "no interval" };
                let how = format!("old record without values per seed: {how}");
                old.remarks = joined([old.remarks.as_str(), &how]);
            }
        }
    }
    let verdicts = verdict::settle(&family.iter().map(|(_, tendency)| *tendency).collect::<Vec<_>>());
    family.into_iter().zip(verdicts).for_each(|((old, _), verdict)| old.verdict = verdict);
    found
}

/// The verdict of an old record's interval: Student's 95 % interval of our number or of a statement's left side.
fn by_interval(check: &Check, interval: Option<[f64; 2]>) -> Verdict {
    let Some([low, high]) = interval else { return Verdict::Undecided };
    let ends = [low, high];
    match check {
        Check::Number { published, tolerance, .. } => {
            let bounds = [-1.0, 1.0].map(|side| published + side * tolerance.width(*published));
            let inside = |end: f64| bounds[0] <= end && end <= bounds[1];
            match (ends.into_iter().all(inside), high < bounds[0] || bounds[1] < low) {
                (true, _) => Verdict::Holds,
                (_, true) => Verdict::Differs,
                _ => Verdict::Undecided,
            }
        }
        Check::Statement(relation) => {
            // The interval of one measured side says nothing about paired differences.
            let Some(bound) = relation.right.constant() else { return Verdict::Undecided };
            match ends.map(|end| relation.holds(end, bound)) {
                [true, true] => Verdict::Holds,
                [false, false] => Verdict::Differs,
                _ => Verdict::Undecided,
            }
        }
    }
}

/// Name of the file of the largest scale.
pub const LARGEST: &str = "result.json";

fn beside(folder: &Path, scale: Scale) -> PathBuf {
    folder.join(format!("result-{scale}.json"))
}

/// Reads the record of the largest scale, if there is one.
///
/// # Errors
/// If the file exists and is not a record.
pub fn read(folder: &Path) -> Result<Option<Recorded>, InputError> {
    let path = folder.join(LARGEST);
    if fs::symlink_metadata(&path).is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let source = SourceFile::read(&path)?;
    serde_json::from_str(&source.text).map(Some).map_err(|error| InputError {
        at: Some((error.line(), error.column())),
        ..InputError::new(
            &source.file,
            format!("is not a record: {error}"),
            "restore it, or remove it and run `tidegate reproduce` with --record",
        )
    })
}

/// Writes a record to `result.json`, unless that holds a larger scale; then to `result-<scale>.json`.
///
/// A record of a smaller scale in `result.json` moves to `result-<scale>.json`.
///
/// # Errors
/// If the existing file is not a record, or the folder cannot be written.
pub fn write(folder: &Path, recorded: &Recorded) -> Result<PathBuf, InputError> {
    let largest = folder.join(LARGEST);
    let there = read(folder)?.map(|there| there.scale);
    let fail = |cause: io::Error| {
        InputError::new(
            folder.display().to_string(),
            format!("cannot be written: {cause}"),
            "check permissions and free space",
        )
    };
    let place = match there {
        Some(scale) if scale > recorded.scale => beside(folder, recorded.scale),
        Some(scale) if scale < recorded.scale => {
            fs::copy(&largest, beside(folder, scale)).map_err(fail)?;
            largest
        }
        _ => largest,
    };
    let text = serde_json::to_string_pretty(recorded).expect("records can be written") + "\n";
    replace(&place, text.as_bytes()).map_err(fail)?;
    // Each scale has one record.
    if place.ends_with(LARGEST) {
        let _ = fs::remove_file(beside(folder, recorded.scale));
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(scale: Scale, ours: f64) -> Recorded {
        let row = RecordedRow {
            quantity: "rate".into(),
            published: Published::Number(2.0),
            ours: Some(ours),
            n: 2,
            values: Some(vec![ours, ours]),
            elsewhere: Vec::new(),
            deterministic: false,
            interval: Some([ours - 1.0, ours + 1.0]),
            kind: RowKind::Paper,
            verdict: Verdict::NotComparable,
            remarks: String::new(),
        };
        Recorded {
            scale,
            commit: "0123".into(),
            machine: "test".into(),
            command: "tidegate reproduce".into(),
            extra_seeds: 1,
            looks: Looks::default(),
            digest: None,
            calibration: None,
            cost: Cost { wall_s: 1.0, cpu_s: 2.0 },
            rows: vec![row],
        }
    }

    #[test]
    fn an_old_interval_decides_only_what_it_covers() {
        use super::super::experiment::Tolerance;
        let number = Check::Number {
            measure: "a".parse().unwrap(),
            published: 10.0,
            tolerance: Tolerance::Relative(0.1),
        };
        let constant = Check::Statement("a <= 12".parse().unwrap());
        let sides = Check::Statement("a <= b".parse().unwrap());
        for (check, interval, wanted) in [
            (&number, Some([9.2, 10.8]), Verdict::Holds),
            (&number, Some([8.9, 10.8]), Verdict::Undecided),
            (&number, Some([11.1, 11.8]), Verdict::Differs),
            (&number, None, Verdict::Undecided),
            (&constant, Some([10.0, 12.0]), Verdict::Holds),
            (&constant, Some([11.0, 13.0]), Verdict::Undecided),
            (&constant, Some([12.5, 13.0]), Verdict::Differs),
            (&sides, Some([1.0, 2.0]), Verdict::Undecided),
        ] {
            assert_eq!(by_interval(check, interval), wanted, "{check:?} {interval:?}");
        }
    }

    #[test]
    fn the_largest_scale_wins_and_others_lie_beside() {
        let folder = std::env::temp_dir().join(format!("tidegate-record-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(read(&folder), Ok(None));
        let (smoke, medium) = (recorded(Scale::Smoke, 1.0), recorded(Scale::Medium, 2.0));
        write(&folder, &smoke).unwrap();
        assert_eq!(read(&folder), Ok(Some(smoke.clone())));
        write(&folder, &medium).unwrap();
        write(&folder, &recorded(Scale::Smoke, 3.0)).unwrap();
        assert_eq!(read(&folder), Ok(Some(medium)));
        let other = fs::read_to_string(folder.join("result-smoke.json")).unwrap();
        assert_eq!(serde_json::from_str::<Recorded>(&other).unwrap(), recorded(Scale::Smoke, 3.0));
        for key in ["\"scale\": \"smoke\"", "\"kind\": \"paper\"", "\"verdict\": \"not comparable\""] {
            assert!(other.contains(key), "{key}: {other}");
        }

        fs::write(folder.join(LARGEST), "{\"scale\": \"tiny\"}").unwrap();
        let said = write(&folder, &smoke).unwrap_err().to_string();
        assert!(said.contains("result.json:1:") && said.contains("is not a record"), "{said}");
        assert!(fs::read_to_string(folder.join(LARGEST)).unwrap().contains("tiny"), "left as it was");
        fs::remove_dir_all(&folder).unwrap();
    }
}
