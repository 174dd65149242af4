//! The native part of `tidegate.dask.sweep`, in which other processes make the runs of a study.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::json;
use tidegate_lab::input::InputError;
use tidegate_lab::report::folder::{self, Contents};
use tidegate_lab::scoreboard::RunError;
use tidegate_lab::store::Store;
use tidegate_lab::sweep;

use crate::errors::input_error;
use crate::results::COMMIT;
use crate::run::Watch;

/// A study file and the folder of its runs, as of `tidegate sweep`.
#[pyclass(frozen, module = "tidegate")]
pub struct Sweep {
    sweep: sweep::Sweep,
    contents: Contents,
    place: PathBuf,
    store: Store,
}

#[pymethods]
impl Sweep {
    /// Opens or creates the folder, by default out/<study>.
    #[new]
    #[pyo3(signature = (study, out=None))]
    fn new(study: PathBuf, out: Option<PathBuf>) -> PyResult<Sweep> {
        let sweep = sweep::Sweep::load(&study).map_err(input_error)?;
        let contents = sweep.contents(COMMIT).map_err(input_error)?;
        let place = out.unwrap_or_else(|| PathBuf::from("out").join(&sweep.study.name));
        folder::check_place(&place, &contents, false).map_err(|error| {
            // Cures name options of the command line.
            input_error(InputError { cure: "choose another folder with `out`".into(), ..error })
        })?;
        let store = Store::open(&place, &contents).map_err(input_error)?;
        Ok(Sweep { sweep, contents, place, store })
    }

    /// The folder.
    #[getter]
    fn place(&self) -> PathBuf {
        self.place.clone()
    }

    /// Runs of the study.
    fn __len__(&self) -> usize {
        self.sweep.tasks.len()
    }

    /// (name, order for `make`) of every run that is not stored yet.
    fn missing(&self) -> PyResult<Vec<(String, String)>> {
        let kept: BTreeSet<String> = self.store.names().map_err(input_error)?.into_iter().collect();
        let left = self.sweep.tasks.iter().filter(|task| !kept.contains(&task.name));
        let order = |task| serde_json::to_string(&self.sweep.order(task)).expect("orders can be written");
        Ok(left.map(|task| (task.name.clone(), order(task))).collect())
    }

    /// Stores the files of a run that `make` returned. The run then survives a power failure.
    fn keep(&self, py: Python<'_>, name: &str, files: BTreeMap<String, Vec<u8>>) -> PyResult<()> {
        let files: Vec<folder::ResultFile> = files.into_iter().collect();
        py.detach(|| self.store.keep(name, files)).map_err(input_error)
    }

    /// Writes metrics.csv and metrics.parquet of all stored runs; returns their number.
    fn tabulate(&self, py: Python<'_>) -> PyResult<usize> {
        let more = json!({ "command": "tidegate.dask.sweep" });
        py.detach(|| self.sweep.tabulate(&self.store, &self.contents, &self.place, more)).map_err(input_error)
    }
}

/// Makes a run of `Sweep.missing`; returns the files of its record.
#[pyfunction]
pub fn make(py: Python<'_>, order: &str) -> PyResult<BTreeMap<String, Vec<u8>>> {
    let order: sweep::RunOrder =
        serde_json::from_str(order).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let watch = Watch::new(1, 1);
    match py.detach(|| order.make(COMMIT, &watch)) {
        Ok(files) => Ok(files.into_iter().collect()),
        Err(RunError::Input(error)) => Err(input_error(error)),
        Err(RunError::Failed(cause) | RunError::Unavailable(cause)) => Err(PyRuntimeError::new_err(cause)),
        Err(RunError::Stopped) => Err(PyRuntimeError::new_err("the run was stopped")),
    }
}
