//! Recorded results of experiments: `experiments/<paper>/<figure>/result.json`.
//!
//! `result.json` holds the largest recorded scale, `result-<scale>.json` any other.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::experiment::{Published, RowKind, Scale};
use super::verdict::{Outcome, Verdict};
use crate::input::{InputError, SourceFile};

/// A recorded measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// Scale of the measurement.
    pub scale: Scale,
    /// Commit that the tool was built from.
    pub commit: String,
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
    pub published: Published,
    /// Our number.
    pub ours: Option<f64>,
    /// The 95 % confidence interval of our number; needs two seeds.
    pub interval: Option<[f64; 2]>,
    /// Origin of the published number.
    pub kind: RowKind,
    /// The verdict.
    pub verdict: Verdict,
    /// Remarks.
    pub note: String,
}

impl From<&Outcome> for RecordedRow {
    fn from(outcome: &Outcome) -> RecordedRow {
        RecordedRow {
            quantity: outcome.quantity.clone(),
            published: outcome.published.clone(),
            ours: outcome.ours,
            interval: outcome.ours.zip(outcome.ci95).map(|(ours, width)| [ours - width, ours + width]),
            kind: outcome.kind,
            verdict: outcome.verdict,
            note: outcome.note.clone(),
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
    replace(&place, &text).map_err(fail)?;
    // Each scale has one record.
    if place.ends_with(LARGEST) {
        let _ = fs::remove_file(beside(folder, recorded.scale));
    }
    Ok(place)
}

/// Replaces a file atomically: readers see either the old or the new text.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let fresh = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = fs::File::create(&fresh).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&fresh, path)).inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(scale: Scale, ours: f64) -> Recorded {
        let row = RecordedRow {
            quantity: "rate".into(),
            published: Published::Number(2.0),
            ours: Some(ours),
            interval: Some([ours - 1.0, ours + 1.0]),
            kind: RowKind::Published,
            verdict: Verdict::NotComparable,
            note: String::new(),
        };
        Recorded { scale, commit: "0123".into(), cost: Cost { wall_s: 1.0, cpu_s: 2.0 }, rows: vec![row] }
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
        for key in ["\"scale\": \"smoke\"", "\"kind\": \"published\"", "\"verdict\": \"not comparable\""] {
            assert!(other.contains(key), "{key}: {other}");
        }

        fs::write(folder.join(LARGEST), "{\"scale\": \"tiny\"}").unwrap();
        let said = write(&folder, &smoke).unwrap_err().to_string();
        assert!(said.contains("result.json:1:") && said.contains("is not a record"), "{said}");
        assert!(fs::read_to_string(folder.join(LARGEST)).unwrap().contains("tiny"), "left as it was");
        fs::remove_dir_all(&folder).unwrap();
    }
}
