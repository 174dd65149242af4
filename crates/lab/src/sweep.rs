//! The runs of a `Study`: their list, the contents of their folder, and one run, in this or another process.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::input::InputError;
use crate::load;
use crate::monitor::Monitor;
use crate::report::folder::{self, Contents, ResultFile};
use crate::report::points_table;
use crate::results::VERSION;
use crate::runs::run_once;
use crate::scenario::Scenario;
use crate::scoreboard::RunError;
use crate::store::{self, Record, Store, run_name};
use crate::study::{Point, Study};

/// A study with all its runs listed.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The study's file.
    pub study: Study,
    /// All runs, ordered by point, then seed.
    pub tasks: Vec<SweepTask>,
    /// The scenario at the first point.
    first: Scenario,
}

/// One run of the study.
#[derive(Clone, Debug)]
pub struct SweepTask {
    /// Its name in the store.
    pub name: String,
    /// Index of its point.
    point: usize,
    system: String,
    seed: u64,
}

/// Everything that another process needs to make a run, except the scenario's files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunOrder {
    scenario: PathBuf,
    overrides: Vec<String>,
    values: BTreeMap<String, String>,
    system: String,
    seed: u64,
}

impl Sweep {
    /// Reads a study and checks the scenario at every point, or only at the first if it has input files.
    ///
    /// # Errors
    /// A mistake in the study, or in the scenario at a point.
    pub fn load(path: &Path) -> Result<Sweep, InputError> {
        let study = Study::load(path)?;
        let first = at(&study, &study.points[0])?;
        if first.input_files().is_empty() {
            study.points.iter().try_for_each(|point| at(&study, point).map(drop))?;
        }
        let tasks = tasks(&study)?;
        Ok(Sweep { study, tasks, first })
    }

    /// Notices about the scenario's input files, for the user.
    pub fn notices(&self) -> &[String] {
        &self.first.inputs.notices
    }

    /// Identity of the study's folder: the values of every point, and the scenario at the first.
    ///
    /// # Errors
    /// If an input file cannot be read.
    pub fn contents(&self, commit: &str) -> Result<Contents, InputError> {
        let points = self.study.points.iter().map(|point| (point.name.clone(), json!(point.values)));
        let parameters = json!({
            "points": Value::Object(points.collect()),
            "scenario": self.first.file,
            "inputs": store::input_digests(&self.first)?,
            "version": VERSION,
            "commit": commit,
        });
        Ok(Contents { name: self.study.name.clone(), parameters })
    }

    /// The order that lets any process make this run.
    pub fn order(&self, task: &SweepTask) -> RunOrder {
        let point = &self.study.points[task.point];
        RunOrder {
            scenario: self.study.scenario.clone(),
            overrides: self.study.overrides(point),
            values: point.values.clone(),
            system: task.system.clone(),
            seed: task.seed,
        }
    }

    /// Writes the table of all kept runs into their folder and `more` into its manifest. Returns the number of kept runs.
    ///
    /// Without any kept run it removes what the store created.
    ///
    /// # Errors
    /// If a record is damaged or the folder cannot be written.
    pub fn tabulate(
        &self,
        store: &Store,
        contents: &Contents,
        place: &Path,
        mut more: Value,
    ) -> Result<usize, InputError> {
        let (count, wanted) = (store.names()?.len(), self.tasks.len());
        if count == 0 {
            store.forget_if_empty();
            return Ok(0);
        }
        more["runs"] = count.into();
        more["wanted"] = wanted.into();
        more["complete"] = (count >= wanted).into();
        folder::write(store::merged(&store.load()?), contents, more, place)?;
        Ok(count)
    }
}

/// The table of all kept runs for the terminal: a row per point and system.
///
/// # Errors
/// If a record is damaged.
pub fn overview(store: &Store) -> Result<String, InputError> {
    Ok(points_table(&store.load()?))
}

impl RunOrder {
    /// Makes the run and returns the files of its record.
    ///
    /// Reads the scenario again for each run: a thousand scenarios do not fit into memory.
    ///
    /// # Errors
    /// A mistake in the scenario; [`RunError::Stopped`] if the monitor stopped the run.
    pub fn make(&self, commit: &str, monitor: &dyn Monitor) -> Result<Vec<ResultFile>, RunError> {
        let read = Scenario::load(&self.scenario, &self.overrides);
        let mut scenario = read.map_err(|error| at_point(error, &self.values))?;
        load::settle(&mut scenario, monitor)?;
        let system = scenario.systems.iter().position(|system| system.name == self.system);
        let system = system.expect("no point renames a system");
        let run = run_once(&scenario, system, self.seed, monitor)?.ok_or(RunError::Stopped)?;
        Ok(Record::of(&scenario, &run, &self.values, commit, monitor.unix_s()).files(&scenario).collect())
    }
}

/// The scenario at a point; errors name the point.
fn at(study: &Study, point: &Point) -> Result<Scenario, InputError> {
    study.scenario(point).map_err(|error| at_point(error, &point.values))
}

/// The values of a point in one line.
pub fn in_a_line(values: &BTreeMap<String, String>) -> String {
    values.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
}

fn at_point(error: InputError, values: &BTreeMap<String, String>) -> InputError {
    InputError { cause: format!("{} (at the point {})", error.cause, in_a_line(values)), ..error }
}

fn tasks(study: &Study) -> Result<Vec<SweepTask>, InputError> {
    let mut all = Vec::new();
    // Only `systems` changes the list of systems, so one scenario per value of `systems` is enough.
    let mut known: BTreeMap<Option<&str>, (u64, Vec<String>)> = BTreeMap::new();
    for (index, point) in study.points.iter().enumerate() {
        let (seed, systems) = match known.entry(point.system()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let scenario = at(study, point)?;
                let names = scenario.systems.iter().map(|system| system.name.clone()).collect();
                entry.insert((scenario.file.seed, names))
            }
        };
        let first = point.seed().unwrap_or(*seed);
        for seed in (0..u64::from(study.seeds)).map(|k| first.wrapping_add(k)) {
            all.extend(systems.iter().map(|system| SweepTask {
                name: run_name(&point.name, system, seed),
                point: index,
                system: system.clone(),
                seed,
            }));
        }
    }
    Ok(all)
}
