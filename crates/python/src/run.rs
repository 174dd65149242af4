//! `tidegate.run`: runs on separate threads, without the GIL.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use rustix::time::{ClockId, clock_gettime};
use tidegate_lab::input::{InputError, suggest};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs::{self, Runs};
use tidegate_lab::{load, scenario};

use crate::control::{self, Raised};
use crate::errors::input_error;
use crate::results::Results;
use crate::scenario::Scenario;

/// Interval at which Ctrl-C and progress are polled.
const LOOK: Duration = Duration::from_millis(100);

/// Clock, stop request and progress of one call.
pub struct Watch {
    started: Instant,
    jobs: usize,
    total: usize,
    stop: AtomicBool,
    raised: Arc<Raised>,
    /// Share of each run that is done, and the latest progress text.
    parts: Mutex<(std::collections::BTreeMap<String, f64>, String)>,
}

impl Watch {
    /// Monitors `runs` runs on `jobs` threads (0: one per core).
    pub fn new(total: usize, jobs: usize) -> Watch {
        #[expect(clippy::disallowed_methods, reason = "only the package's interface reads the clock")]
        let started = Instant::now();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Watch {
            started,
            jobs: if jobs == 0 { cores } else { jobs },
            total,
            stop: AtomicBool::new(false),
            raised: Arc::default(),
            parts: Mutex::default(),
        }
    }

    /// Share of all runs that is done, and the latest progress text.
    fn state(&self) -> (f64, String) {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        (parts.0.values().sum::<f64>() / self.total.max(parts.0.len()).max(1) as f64, parts.1.clone())
    }
}

impl Monitor for Watch {
    fn jobs(&self) -> usize {
        self.jobs
    }

    fn progress(&self, work: &str, state: &str, done: f64) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.0.insert(work.to_owned(), done.clamp(0.0, 1.0));
        parts.1 = format!("{work}: {state}");
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || self.raised.any()
    }

    fn wall_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn unix_s(&self) -> u64 {
        u64::try_from(clock_gettime(ClockId::Realtime).tv_sec).unwrap_or(0)
    }

    fn cpu_s(&self) -> f64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    }
}

/// Runs every system of a scenario (a path, dict or Scenario) on `seeds` networks, on `jobs` threads (0: one per core).
/// `set` overrides values by TOML text or dicts. `systems` selects systems to run. `control` replaces controls of systems,
/// by name, with Python classes. Calls `progress(share, text)` ten times per second. Ctrl-C stops it.
#[pyfunction]
#[pyo3(signature = (scenario, *, seeds=1, seed=None, jobs=0, set=None, systems=None, control=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "they are keyword arguments of Python")]
pub fn run(
    py: Python<'_>,
    scenario: &Bound<'_, PyAny>,
    seeds: u32,
    seed: Option<u64>,
    jobs: usize,
    set: Option<&Bound<'_, PyAny>>,
    systems: Option<Vec<String>>,
    control: Option<&Bound<'_, PyDict>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Results> {
    let mut scenario = Scenario::of(scenario, set)?;
    if let Some(seed) = seed {
        scenario.file.seed = seed;
    }
    if let Some(names) = systems {
        retain(&mut scenario, &names)?;
    }
    let raised = Arc::new(Raised::default());
    if let Some(controls) = control {
        control::replace(&mut scenario, controls, &raised)?;
    }
    let total = seeds as usize * scenario.systems.len();
    let watch = Watch { raised: raised.clone(), ..Watch::new(total, jobs) };
    let done = py.detach(|| watched(&mut scenario, seeds, &watch, progress.as_ref()))?;
    if let Some(error) = raised.take() {
        return Err(error);
    }
    Ok(Results { scenario, runs: done.map_err(input_error)?, tables: PyOnceLock::new() })
}

/// Removes all other systems from a scenario.
fn retain(scenario: &mut scenario::Scenario, names: &[String]) -> PyResult<()> {
    let known: Vec<&str> = scenario.systems.iter().map(|system| system.name.as_str()).collect();
    if let Some(other) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let cause = format!("there is no system `{other}`");
        return Err(input_error(InputError::new("`systems`", cause, suggest(other, &known))));
    }
    scenario.systems.retain(|system| names.contains(&system.name));
    scenario.file.system.retain(|system| names.contains(system.name.get_ref()));
    Ok(())
}

/// Runs on another thread, while this one polls Ctrl-C and reports progress.
fn watched(
    scenario: &mut scenario::Scenario,
    seeds: u32,
    watch: &Watch,
    progress: Option<&Py<PyAny>>,
) -> PyResult<Result<Runs, InputError>> {
    let (ended, end) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let _ended = ended;
            load::settle(scenario, watch)?;
            runs::run_all(scenario, seeds, watch)
        });
        let mut looked = Ok(());
        while looked.is_ok() && end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            looked = look(watch, progress);
        }
        if looked.is_err() {
            watch.stop.store(true, Ordering::SeqCst);
        }
        let done = worker
            .join()
            .map_err(|_| PyRuntimeError::new_err("a run panicked; please report this bug of tidegate"))?;
        looked.and_then(|()| look(watch, progress)).map(|()| done)
    })
}

fn look(watch: &Watch, progress: Option<&Py<PyAny>>) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        progress.map_or(Ok(()), |progress| progress.call1(py, watch.state()).map(drop))
    })
}
