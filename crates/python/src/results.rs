//! Results of runs: tables, the document of `--json`, and the folder with the report.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use tidegate_lab::input::InputError;
use tidegate_lab::report::{self, folder, tables};
use tidegate_lab::results;
use tidegate_lab::runs::Runs;
use tidegate_lab::scenario::Scenario;
use tidegate_lab::store;

use crate::errors::input_error;
use crate::table::Table;

/// The commit that the package was built from.
pub const COMMIT: &str = env!("TIDEGATE_COMMIT");

/// Results of runs. Join tables by `system` and `seed`; transfers refer to relays and circuits.
#[pyclass(frozen, module = "tidegate")]
pub struct Results {
    pub scenario: Scenario,
    pub runs: Runs,
    pub tables: PyOnceLock<Vec<Py<Table>>>,
}

impl Results {
    fn table(&self, py: Python<'_>, name: &str) -> PyResult<Py<Table>> {
        let made = self.tables.get_or_try_init(py, || {
            let all = py.detach(|| tables::ALL.map(|table| table(&self.figures())));
            all.into_iter().map(|table| Py::new(py, Table::of(table)?)).collect::<PyResult<Vec<_>>>()
        })?;
        let found = made.iter().find(|table| table.get().name() == name);
        Ok(found.expect("all tables are made at once").clone_ref(py))
    }

    fn figures(&self) -> results::Results<'_> {
        results::Results::new(&self.scenario, &self.runs)
    }

    fn write(&self, place: &Path, force: bool) -> Result<(), InputError> {
        let contents = report::contents(&self.scenario, store::input_digests(&self.scenario)?, COMMIT);
        folder::check_place(place, &contents, force)?;
        let figures = self.figures();
        folder::write(report::files(&figures), &contents, report::provenance(&figures, "tidegate.run"), place)
    }
}

#[pymethods]
impl Results {
    /// Every number of every run: system, seed, metric (with its unit), value.
    #[getter]
    fn metrics(&self, py: Python<'_>) -> PyResult<Py<Table>> {
        self.table(py, "metrics")
    }

    /// One row per user: throughput and max-min fair rate in bytes/s, latencies in s.
    #[getter]
    fn circuits(&self, py: Python<'_>) -> PyResult<Py<Table>> {
        self.table(py, "circuits")
    }

    /// One row per relay: names, weight, capacity in bytes/s, queues in cells and bytes, utilisation as a share.
    #[getter]
    fn relays(&self, py: Python<'_>) -> PyResult<Py<Table>> {
        self.table(py, "relays")
    }

    /// One row per transfer after the warm-up: relays, size in bytes, times since the request in s.
    #[getter]
    fn transfers(&self, py: Python<'_>) -> PyResult<Py<Table>> {
        self.table(py, "transfers")
    }

    /// Rates in bytes/s and backlog in bytes over time, in bins that end at `until_s`.
    #[getter]
    fn series(&self, py: Python<'_>) -> PyResult<Py<Table>> {
        self.table(py, "series")
    }

    /// Distribution function of the latency: share of bytes with at most this latency in seconds.
    #[getter]
    fn latency(&self, py: Python<'_>) -> PyResult<Py<Table>> {
        self.table(py, "latency")
    }

    /// The document of `tidegate run --json`: means over seeds, confidence intervals, paired ratios.
    #[getter]
    fn document<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(pythonize::pythonize(py, &py.detach(|| self.figures().document()))?)
    }

    /// (system, seed) -> digest of every observation: equal to the command line's.
    #[getter]
    fn digests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let digests = PyDict::new(py);
        for run in &self.runs.finished {
            let name = &self.scenario.systems[run.system].name;
            digests.set_item((name, run.seed), format!("{:016x}", run.digest))?;
        }
        Ok(digests)
    }

    /// The table of `tidegate run`, within `columns` columns if possible; `all` includes every row.
    #[pyo3(signature = (*, all=false, columns=report::COLUMNS))]
    fn summary(&self, py: Python<'_>, all: bool, columns: usize) -> String {
        py.detach(|| {
            let figures = self.figures();
            if all { report::full_table(&figures) } else { report::summary_table(&figures, columns) }
        })
    }

    /// Writes report.html, tables and manifest.json into a folder. It must be empty or hold results of the same scenario;
    /// `force` replaces other results.
    #[pyo3(signature = (folder, *, force=false))]
    fn save(&self, py: Python<'_>, folder: PathBuf, force: bool) -> PyResult<()> {
        py.detach(|| self.write(&folder, force)).map_err(|error| {
            // Cures name options of the command line.
            let cure = error.cure.replace("place with --out", "folder").replace("--force", "`force=True`");
            input_error(InputError { cure, ..error })
        })
    }

    fn __repr__(&self) -> String {
        let (scenario, runs) = (&self.scenario.file.name, self.runs.finished.len());
        format!("<tidegate.Results of {scenario}: {runs} runs>")
    }
}
