//! Controls written in Python, for prototypes. Each step takes the GIL and is therefore slow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use tidegate_control::units::{Span, Time};
use tidegate_lab::scenario::Scenario;
use tidegate_proto::control::{Allowance, Control, Controller, Place, Plant, Timer, Violation, Window};
use tidegate_proto::ids::CircuitKey;

/// The first exception of a control, which stops all runs.
#[derive(Debug, Default)]
pub struct Raised {
    error: Mutex<Option<PyErr>>,
    any: AtomicBool,
}

impl Raised {
    pub fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    pub fn take(&self) -> Option<PyErr> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The result; after an exception a harmless default until the runs stop.
    fn or<T>(&self, result: PyResult<T>, harmless: T) -> T {
        result.unwrap_or_else(|error| {
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            self.any.store(true, Ordering::SeqCst);
            harmless
        })
    }
}

/// Replaces the control of systems, by name, with a subclass of `Controller` or of `Window`.
pub fn replace(scenario: &mut Scenario, controls: &Bound<'_, PyDict>, raised: &Arc<Raised>) -> PyResult<()> {
    let module = controls.py().import("tidegate.control")?;
    let (controller, window) = (module.getattr("Controller")?, module.getattr("Window")?);
    for (name, class) in controls {
        let name: String = name
            .extract()
            .map_err(|_| PyTypeError::new_err("`control` is a dict from names of systems to classes"))?;
        // An instance does not suffice: every relay, or end of a circuit, gets its own.
        let is = |base| class.cast::<PyType>().map_or(Ok(false), |class| class.is_subclass(base));
        let steers_relays = is(&controller)?;
        if !steers_relays && !is(&window)? {
            let wrong = format!(
                "control `{name}` must be a class, a subclass of tidegate.Controller or tidegate.Window"
            );
            return Err(PyTypeError::new_err(wrong));
        }
        let names: Vec<&str> = scenario.systems.iter().map(|system| system.name.as_str()).collect();
        let unknown = || PyValueError::new_err(format!("no system `{name}`; there are {}", names.join(", ")));
        let number = names.iter().position(|other| *other == name).ok_or_else(unknown)?;
        let class = class.unbind();
        scenario.systems[number].control =
            Arc::new(InPython { class, steers_relays, raised: raised.clone() });
    }
    Ok(())
}

#[derive(Debug)]
struct InPython {
    class: Py<PyAny>,
    steers_relays: bool,
    raised: Arc<Raised>,
}

impl Control for InPython {
    fn window(&self) -> Option<Box<dyn Window>> {
        if self.steers_relays {
            return None;
        }
        let made = Python::attach(|py| PythonWindow::new(py, self));
        self.raised.or(made.map(Some), None).map(|made| -> Box<dyn Window> { Box::new(made) })
    }

    fn controller(&self, relay: &Place) -> Option<Box<dyn Controller>> {
        if !self.steers_relays {
            return None;
        }
        let made = Python::attach(|py| PythonController::new(py, self, relay.bandwidth));
        self.raised.or(made.map(Some), None).map(|made| -> Box<dyn Controller> { Box::new(made) })
    }
}

/// A circuit at a relay: its queues, and the cells that it may send until the next step.
#[pyclass(module = "tidegate", get_all)]
pub struct Circuit {
    /// Number of the circuit at this relay.
    key: u32,
    /// Cells that wait to be sent, in the circuit queue and in the output buffer.
    waiting_cells: f64,
    /// Estimate of the cells that its streams' sources still have.
    demand_cells: f64,
    /// Whether its cells enter the overlay here: it has streams.
    enters: bool,
    /// Whether its cells come from another relay.
    passes: bool,
    /// Whether the next node is the client, which accepts everything.
    to_client: bool,
    /// Cells that it may send until the next step; infinite if not set.
    #[pyo3(set)]
    send_cells: f64,
    /// Cells that its streams may package until the next step; infinite if not set.
    #[pyo3(set)]
    package_cells: f64,
}

#[pymethods]
impl Circuit {
    fn __repr__(&self) -> String {
        format!(
            "<tidegate.Circuit {}: {} cells wait, {} at the source>",
            self.key, self.waiting_cells, self.demand_cells
        )
    }
}

#[derive(Debug)]
struct PythonController {
    own: Py<PyAny>,
    interval: Span,
    first: (f64, f64),
    next: Timer,
    raised: Arc<Raised>,
    circuits: Vec<CircuitKey>,
}

/// Reads a number that a class of the user gives.
fn number(py: Python<'_>, value: &Py<PyAny>, what: &str) -> PyResult<f64> {
    let wrong = |_| match value.bind(py).repr() {
        Ok(shown) => PyTypeError::new_err(format!("`{what}` is {shown}; give a number")),
        Err(error) => error,
    };
    value.extract(py).map_err(wrong)
}

/// Checks that a number of cells is not negative.
fn cells(value: f64, what: &str) -> PyResult<f64> {
    if value >= 0.0 {
        Ok(value)
    } else {
        Err(PyValueError::new_err(format!("`{what}` is {value}; give 0 or more")))
    }
}

impl PythonController {
    fn new(py: Python<'_>, control: &InPython, bandwidth: f64) -> PyResult<PythonController> {
        let own = control.class.call1(py, (bandwidth,))?;
        let number = |name: &str| number(py, &own.getattr(py, name)?, name);
        let interval = number("interval_s")?;
        if !(1e-4..=1e3).contains(&interval) {
            let wrong = format!("`interval_s` is {interval}; give seconds from 0.0001 to 1000");
            return Err(PyValueError::new_err(wrong));
        }
        let interval = Span((interval * 1e9) as u64);
        let first = (
            cells(number("first_send_cells")?, "first_send_cells")?,
            cells(number("first_package_cells")?, "first_package_cells")?,
        );
        let next = Timer { due: Time::ZERO + interval, set: Time::ZERO };
        Ok(PythonController {
            own,
            interval,
            first,
            next,
            raised: control.raised.clone(),
            circuits: Vec::new(),
        })
    }

    fn in_python(&mut self, now: Time, plant: &mut dyn Plant) -> PyResult<()> {
        Python::attach(|py| {
            let mut views = Vec::with_capacity(self.circuits.len());
            for key in &self.circuits {
                let view = plant.view(*key);
                let circuit = Circuit {
                    key: key.0,
                    waiting_cells: view.waiting,
                    demand_cells: plant.demand(*key),
                    enters: view.enters,
                    passes: view.passes,
                    to_client: view.to_client,
                    send_cells: f64::INFINITY,
                    package_cells: f64::INFINITY,
                };
                views.push(Py::new(py, circuit)?);
            }
            let shown: Vec<Py<Circuit>> = views.iter().map(|view| view.clone_ref(py)).collect();
            self.own.call_method1(py, "step", (now.as_secs_f64(), shown))?;
            for (key, view) in self.circuits.iter().zip(views) {
                let view = view.borrow(py);
                let send = cells(view.send_cells, "send_cells")?;
                let package = cells(view.package_cells, "package_cells")?;
                plant.allow(now, *key, &Allowance { send, share: 0.0, package, planned: None, carry: true });
            }
            Ok(())
        })
    }
}

impl Controller for PythonController {
    fn first_allowance(&self) -> (f64, f64) {
        self.first
    }

    fn next_step(&self) -> Option<Timer> {
        Some(self.next)
    }

    fn step(&mut self, now: Time, plant: &mut dyn Plant) {
        self.next = Timer { due: now + self.interval, set: now };
        if self.raised.any() {
            return;
        }
        plant.circuits(&mut self.circuits);
        let done = self.in_python(now, plant);
        self.raised.or(done, ());
        for circuit in &self.circuits {
            plant.resume(*circuit);
        }
    }
}

#[derive(Debug)]
struct PythonWindow {
    own: Py<PyAny>,
    /// Both ends count by it, so it stays what it was when the circuit began.
    sendme_increment: u32,
    raised: Arc<Raised>,
}

impl PythonWindow {
    fn new(py: Python<'_>, control: &InPython) -> PyResult<PythonWindow> {
        let own = control.class.call0(py)?;
        let increment = number(py, &own.getattr(py, "sendme_increment")?, "sendme_increment")?;
        if !(1.0..=1000.0).contains(&increment) || increment.fract() != 0.0 {
            let wrong = format!("`sendme_increment` is {increment}; give a whole number from 1 to 1000");
            return Err(PyValueError::new_err(wrong));
        }
        Ok(PythonWindow { own, sendme_increment: increment as u32, raised: control.raised.clone() })
    }

    /// Calls a method unless an earlier call raised an exception.
    fn call<T>(&self, harmless: T, call: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<T>) -> T {
        if self.raised.any() {
            return harmless;
        }
        self.raised.or(Python::attach(|py| call(py, &self.own)), harmless)
    }
}

impl Window for PythonWindow {
    fn room(&self) -> u32 {
        self.call(0, |py, own| {
            let room = number(py, &own.call_method0(py, "room")?, "room()")?;
            if room.is_nan() {
                return Err(PyValueError::new_err("`room()` is NaN; give a number of cells"));
            }
            Ok(room as u32)
        })
    }

    fn sent(&mut self, now: Time) {
        self.call((), |py, own| own.call_method1(py, "sent", (now.as_secs_f64(),)).map(drop));
    }

    fn acknowledged(&mut self, now: Time, blocked: bool) -> Result<(), Violation> {
        let call = |py: Python<'_>, own: &Py<PyAny>| {
            own.call_method1(py, "acknowledged", (now.as_secs_f64(), blocked)).map(drop)
        };
        self.call((), call);
        Ok(())
    }

    fn sendme_increment(&self) -> u32 {
        self.sendme_increment
    }
}
