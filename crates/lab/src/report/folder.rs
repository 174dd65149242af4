//! The folder of results: written beside its place, then renamed into it, so that it is whole or absent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::parquet::parquet;
use super::{page, tables};
use crate::input::InputError;
use crate::results::{Results, VERSION, whole_summary};

/// A folder that is ours has this in its manifest.
const MARK: &str = "tidegate";

/// Refuses a place that holds something else than results of ours. Call it before a long run.
pub fn check_place(place: &Path) -> Result<(), InputError> {
    let refuse = |cause: &str| {
        Err(InputError::new(place.display().to_string(), cause, "choose another place with --out"))
    };
    match fs::symlink_metadata(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => refuse(&format!("cannot be looked at: {error}")),
        Ok(about) if !about.is_dir() => refuse("exists and is not a folder"),
        Ok(_) if fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_none()) => Ok(()),
        Ok(_) => {
            match fs::read(place.join("manifest.json")).map(|bytes| serde_json::from_slice::<Value>(&bytes)) {
                Ok(Ok(manifest)) if manifest["tool"] == MARK => Ok(()),
                _ => refuse("exists and does not hold results of tidegate"),
            }
        }
    }
}

/// Writes report, tables, JSON and manifest into `place`, replacing results that are there.
pub fn write(results: &Results<'_>, command: &str, place: &Path) -> Result<(), InputError> {
    let mut files = vec![
        ("report.html".to_owned(), page(results).into_bytes()),
        ("summary.json".to_owned(), pretty(&results.document())),
        ("manifest.json".to_owned(), pretty(&manifest(results, command))),
    ];
    for table in tables::all(results) {
        files.push((format!("{}.csv", table.name), table.csv().into_bytes()));
        files.push((format!("{}.parquet", table.name), parquet(&table)));
    }
    write_files(files, place)
}

/// Puts files into a folder at once.
pub fn write_files(files: Vec<(String, Vec<u8>)>, place: &Path) -> Result<(), InputError> {
    check_place(place)?;
    let name = place.file_name().map_or("results".into(), |name| name.to_string_lossy().into_owned());
    let parent = match place.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let beside = |what: &str| parent.join(format!(".{name}.{what}-{}", std::process::id()));
    let (fresh, old) = (beside("new"), beside("old"));
    let put = || -> io::Result<()> {
        fs::create_dir_all(&fresh)?;
        for (file, bytes) in files {
            fs::write(fresh.join(file), bytes)?;
        }
        if place.exists() {
            fs::rename(place, &old)?;
        }
        fs::rename(&fresh, place)
    };
    let result = put();
    if result.is_err() && old.exists() && !place.exists() {
        // What was there stays there.
        let _ = fs::rename(&old, place);
    }
    let _ = fs::remove_dir_all(&fresh);
    let _ = fs::remove_dir_all(&old);
    result.map_err(|error| {
        InputError::new(
            place.display().to_string(),
            format!("cannot be written: {error}"),
            "choose another place with --out",
        )
    })
}

/// Everything needed to run the same again.
fn manifest(results: &Results<'_>, command: &str) -> Value {
    let runs = results.systems.iter().flat_map(|system| {
        system.runs.iter().map(
            |run| json!({ "system": system.name, "seed": run.seed, "digest": whole_summary(run)["digest"] }),
        )
    });
    json!({
        "tool": MARK,
        "version": VERSION,
        "command": command,
        "seeds": results.seeds(),
        "runs": runs.collect::<Vec<_>>(),
        "missing": results.runs.missing.len(),
        "scenario": results.scenario.file,
    })
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("JSON values can be written");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_results_are_replaced() {
        let root = std::env::temp_dir().join(format!("tidegate-folder-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let place = root.join("out/x");
        let ours = || vec![("manifest.json".to_owned(), br#"{"tool":"tidegate"}"#.to_vec())];
        write_files(ours(), &place).unwrap();
        write_files([ours(), vec![("b".into(), vec![1])]].concat(), &place).unwrap();
        assert_eq!(fs::read(place.join("b")).unwrap(), [1]);
        write_files(ours(), &place).unwrap();
        assert!(!place.join("b").exists(), "the old results are gone");
        assert_eq!(fs::read_dir(root.join("out")).unwrap().count(), 1, "nothing is left beside");

        let foreign = root.join("foreign");
        fs::create_dir_all(&foreign).unwrap();
        fs::write(foreign.join("thesis.tex"), "precious").unwrap();
        assert!(write_files(ours(), &foreign).unwrap_err().to_string().contains("does not hold results"));
        assert_eq!(fs::read_to_string(foreign.join("thesis.tex")).unwrap(), "precious");
        assert!(write_files(ours(), &foreign.join("thesis.tex")).is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}
