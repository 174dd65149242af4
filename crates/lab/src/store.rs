//! Storage of a study: an append-only folder of finished runs.
//!
//! Each finished run is one record, which is synced and renamed into place when the run ends. If the process dies,
//! only the runs under way are lost.
//!
//! ```text
//! manifest.json                     parameters of the study (written first)
//! runs/<study>/<run>/record.json    the run's system, seed, provenance, cost and metrics
//! runs/<study>/<run>/*.parquet      the run's rows of the tables
//! ```
//!
//! `<study>` is a digest of the parameters. It separates the records of other studies that `--force` left in the
//! folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tidegate_control::text::hex;

use crate::input::InputError;
use crate::metrics::Metrics;
use crate::report::folder::{self, Contents};
use crate::report::parquet::parquet;
use crate::report::tables::{self, Column, Table};
use crate::report::{places, staged};
use crate::results::{Results, VERSION, flatten};
use crate::runs::{Run, Runs};
use crate::scenario::Scenario;

/// Name of the record's file in the folder of a run.
const RECORD: &str = "record.json";

/// Origin of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    /// The tool's version.
    pub version: String,
    /// The commit that the tool was built from.
    pub commit: String,
    /// End of the run, in Unix seconds.
    pub ended_unix_s: u64,
}

/// One finished run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Its point in a sweep: key -> value; empty outside of a sweep.
    #[serde(default)]
    pub point: BTreeMap<String, String>,
    /// Its system's name.
    pub system: String,
    /// Root of its seed tree.
    pub seed: u64,
    /// Digest of every observation, in hexadecimal.
    pub digest: String,
    /// Wall-clock time.
    pub wall_s: f64,
    /// Processor time.
    pub cpu_s: f64,
    /// Its origin.
    pub(crate) provenance: Provenance,
    /// Its metrics.
    pub metrics: Arc<Metrics>,
}

impl Record {
    /// The record of a run of this scenario.
    pub(crate) fn of(
        scenario: &Scenario,
        run: &Run,
        point: &BTreeMap<String, String>,
        commit: &str,
        now: u64,
    ) -> Record {
        Record {
            point: point.clone(),
            system: scenario.systems[run.system].name.clone(),
            seed: run.seed,
            digest: format!("{:016x}", run.digest),
            wall_s: run.wall_s,
            cpu_s: run.cpu_s,
            provenance: Provenance { version: VERSION.into(), commit: commit.into(), ended_unix_s: now },
            metrics: run.metrics.clone(),
        }
    }

    /// The files of the record: `record.json`, and the run's rows of each table. Each is made when it is asked for, because
    /// all together take several times the memory of the record.
    pub(crate) fn files(&self, scenario: &Scenario) -> impl Iterator<Item = folder::ResultFile> {
        let text = || (RECORD.to_owned(), serde_json::to_vec(self).expect("records can be written"));
        let runs = Runs { finished: self.clone().run(scenario).into_iter().collect(), missing: Vec::new() };
        let tables = tables::ALL.into_iter().map(move |table| {
            let table = table(&Results::new(scenario, &runs));
            (format!("{}.parquet", table.name), parquet(&table))
        });
        std::iter::once_with(text).chain(tables)
    }

    /// The run, if the scenario has its system.
    pub(crate) fn run(self, scenario: &Scenario) -> Option<Run> {
        let system = scenario.systems.iter().position(|system| system.name == self.system)?;
        let digest = u64::from_str_radix(&self.digest, 16).ok()?;
        let (seed, wall_s, cpu_s) = (self.seed, self.wall_s, self.cpu_s);
        Some(Run { system, seed, metrics: self.metrics, digest, wall_s, cpu_s })
    }
}

/// The name of a run within its study: point (in a sweep), system and seed.
pub fn run_name(point: &str, system: &str, seed: u64) -> String {
    let between = if point.is_empty() { "" } else { "." };
    format!("{point}{between}{system}.{seed}")
}

fn name_of(scenario: &Scenario, (system, seed): (usize, u64)) -> String {
    run_name("", &scenario.systems[system].name, seed)
}

/// The records of a study.
#[derive(Clone, Debug)]
pub struct Store {
    place: PathBuf,
    records: PathBuf,
    /// Whether this store created the folder.
    fresh: bool,
}

impl Store {
    /// Opens the study in this folder, or creates it. `folder::check_place` must have accepted the folder.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn open(place: &Path, contents: &Contents) -> Result<Store, InputError> {
        let fresh = folder::contents_of(place).as_ref() != Some(contents);
        if fresh
            && let Err(error) = folder::write(Vec::new(), contents, json!({ "complete": false }), place)
            // Another process, such as another part of a sweep, may have begun the same study meanwhile.
            && folder::contents_of(place).as_ref() != Some(contents)
        {
            return Err(error);
        }
        let records = records_of(place, contents);
        fs::create_dir_all(&records).map_err(|cause| failed(&records, &cause))?;
        Ok(Store { place: place.to_owned(), records, fresh })
    }

    /// Stores a finished run, given as the `files` of its record. It then survives a power failure.
    ///
    /// # Errors
    /// If the files cannot be written; none of them are left then.
    pub fn keep(
        &self,
        name: &str,
        files: impl IntoIterator<Item = folder::ResultFile>,
    ) -> Result<(), InputError> {
        let fresh = self.records.join(format!(".{name}.{}", std::process::id()));
        let place = self.records.join(name);
        let write = || -> io::Result<()> {
            fs::create_dir_all(&fresh)?;
            files.into_iter().try_for_each(|(file, bytes)| staged::synced(&fresh.join(file), &bytes))?;
            places::sync_folder(&fresh)?;
            places::exchange(&fresh, &place)?;
            if fresh.exists() {
                // An earlier record of the same run.
                fs::remove_dir_all(&fresh)?;
            }
            places::sync_folder(&self.records)
        };
        write().map_err(|cause| {
            let _ = fs::remove_dir_all(&fresh);
            failed(&place, &cause)
        })
    }

    /// [Stores](Store::keep) a finished run of a scenario outside of a sweep.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_run(&self, scenario: &Scenario, run: &Run, commit: &str, now: u64) -> Result<(), InputError> {
        let record = Record::of(scenario, run, &BTreeMap::new(), commit, now);
        self.keep(&name_of(scenario, (run.system, run.seed)), record.files(scenario))
    }

    /// The tasks (system, seed) without a stored run.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn lacking(
        &self,
        scenario: &Scenario,
        mut tasks: Vec<(usize, u64)>,
    ) -> Result<Vec<(usize, u64)>, InputError> {
        let there = self.names()?;
        tasks.retain(|task| there.binary_search(&name_of(scenario, *task)).is_err());
        Ok(tasks)
    }

    /// Removes the stored runs of the study that are not among these tasks.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub fn drop_others(&self, scenario: &Scenario, tasks: &[(usize, u64)]) -> Result<(), InputError> {
        let kept: Vec<String> = tasks.iter().map(|task| name_of(scenario, *task)).collect();
        for name in self.names()?.into_iter().filter(|name| !kept.contains(name)) {
            let place = self.records.join(name);
            fs::remove_dir_all(&place).map_err(|cause| failed(&place, &cause))?;
        }
        Ok(())
    }

    /// The stored runs of the scenario, by seed, then system.
    ///
    /// # Errors
    /// If a record is damaged.
    pub fn finished(&self, scenario: &Scenario) -> Result<Vec<Run>, InputError> {
        let mut runs: Vec<Run> = self.load()?.into_iter().filter_map(|record| record.run(scenario)).collect();
        runs.sort_by_key(|run| (run.seed, run.system));
        Ok(runs)
    }

    /// The names of the stored runs, sorted.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>, InputError> {
        let entries = fs::read_dir(&self.records).map_err(|cause| failed(&self.records, &cause))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// All stored runs, by name.
    ///
    /// # Errors
    /// If a record is damaged.
    pub(crate) fn load(&self) -> Result<Vec<Record>, InputError> {
        self.names()?.iter().map(|name| read(&self.records.join(name).join(RECORD))).collect()
    }

    /// Removes the study's folders if this store created them and no run was stored.
    pub fn forget_if_empty(&self) {
        if self.fresh && self.names().is_ok_and(|names| names.is_empty()) {
            // `remove_dir` fails on folders with other contents, which therefore stay.
            let runs = self.place.join("runs");
            let _ = fs::remove_dir(&self.records).and_then(|()| fs::remove_dir(&runs));
            if !runs.exists() && fs::read_dir(&self.place).is_ok_and(|entries| entries.count() == 1) {
                let _ = fs::remove_file(self.place.join("manifest.json"))
                    .and_then(|()| fs::remove_dir(&self.place));
            }
        }
    }
}

/// Reads a record.
fn read(path: &Path) -> Result<Record, InputError> {
    let text = fs::read_to_string(path).map_err(|cause| failed(path, &cause))?;
    serde_json::from_str(&text).map_err(|error| {
        let (file, cure) = (path.display().to_string(), "remove its folder; the tool then repeats the run");
        InputError::new(file, format!("is not a record of a run: {error}"), cure)
    })
}

/// The table of all runs of a study: a row per run and metric, and a column for each key of the sweep.
pub fn merged(records: &[Record]) -> Vec<folder::ResultFile> {
    let mut keys: Vec<&String> = records.iter().flat_map(|record| record.point.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let (mut systems, mut seeds, mut names, mut values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut points: Vec<Vec<String>> = vec![Vec::new(); keys.len()];
    for record in records {
        for (name, value) in flatten(&record.metrics.summary) {
            for (column, key) in points.iter_mut().zip(&keys) {
                // Records of other studies may lack a key.
                column.push(record.point.get(*key).cloned().unwrap_or_default());
            }
            systems.push(record.system.clone());
            seeds.push(record.seed.cast_signed());
            names.push(name);
            values.push(value);
        }
    }
    let points = keys.into_iter().cloned().zip(points.into_iter().map(Column::Text));
    let rest = [
        ("system", Column::Text(systems)),
        ("seed", Column::Integer(seeds)),
        ("metric", Column::Text(names)),
        ("value", Column::Number(values)),
    ];
    let columns = points.chain(rest.map(|(name, column)| (name.to_owned(), column))).collect();
    let table = Table { name: "metrics", columns };
    vec![("metrics.csv".to_owned(), table.csv()), ("metrics.parquet".to_owned(), parquet(&table))]
}

/// The folder of a study's records.
fn records_of(place: &Path, contents: &Contents) -> PathBuf {
    let parameters = serde_json::to_vec(&contents.parameters).expect("JSON values can be written");
    place.join("runs").join(hex(&Sha256::digest(parameters)[..6]))
}

/// The records of the study in a folder of results. Those of an earlier study that `--force` left there do not count.
///
/// # Errors
/// If a record is damaged.
pub fn records(place: &Path, contents: &Contents) -> Result<Vec<Record>, InputError> {
    subfolders(&records_of(place, contents)).iter().map(|run| read(&run.join(RECORD))).collect()
}

/// Number of runs of the study in a folder of results.
pub fn count(place: &Path, contents: &Contents) -> usize {
    subfolders(&records_of(place, contents)).len()
}

/// Folders in a folder, sorted. Names with a leading dot are skipped: they are still being written.
fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let visible = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut paths: Vec<PathBuf> = visible.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    paths.sort_unstable();
    paths
}

fn failed(path: &Path, cause: &io::Error) -> InputError {
    InputError::new(
        path.display().to_string(),
        format!("cannot be read or written: {cause}"),
        "stored runs stay; fix the cause and continue with --resume",
    )
}

/// SHA-256 digests of the files that a scenario names, by key.
///
/// # Errors
/// If one cannot be read.
pub fn input_digests(scenario: &Scenario) -> Result<Value, InputError> {
    let mut all = serde_json::Map::new();
    for (key, path) in scenario.input_files() {
        let bytes = fs::read(&path).map_err(|cause| failed(&path, &cause))?;
        all.insert(key, json!(hex(&Sha256::digest(bytes))));
    }
    Ok(Value::Object(all))
}
