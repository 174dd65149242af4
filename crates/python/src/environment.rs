//! A run that stops at every step of its controllers to be told how fast circuits may send: what environments for learning
//! are made of.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tidegate_control::units::{Span, Time};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs::run_with;
use tidegate_proto::control::{Allowance, Control, Controller, Place, Plant, Timer};
use tidegate_proto::ids::CircuitKey;
use tidegate_sim::observe::{Observation, Recorder};

use crate::errors::input_error;
use crate::scenario::Scenario;

/// Application bytes of a cell.
const PAYLOAD: f64 = 498.0;

/// What one circuit's client saw in a step: delivered bytes, their mean latency and the least one, in seconds; 0 of none.
type Seen = [f64; 3];

/// Between the run's thread and its owner.
#[derive(Debug)]
struct Link {
    tell: Sender<Vec<Seen>>,
    hear: Receiver<Vec<f64>>,
    /// The step that the rates are of.
    at: Time,
    rates: Vec<f64>,
    /// Of each circuit in this step: bytes, sum of byte-seconds, least latency.
    meter: Vec<Seen>,
    /// User of each circuit.
    circuits: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Shared {
    link: Arc<Mutex<Link>>,
    abandoned: Arc<AtomicBool>,
}

impl Shared {
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rate of a circuit in the step that begins now; the first who asks waits for the owner's word.
    fn rate(&self, now: Time, circuit: usize) -> f64 {
        let mut link = self.link();
        if link.at < now {
            link.at = now;
            let count = link.rates.len();
            let seen = std::mem::replace(&mut link.meter, vec![[0.0; 3]; count]);
            let mean =
                |[bytes, sum, least]: Seen| [bytes, if bytes > 0.0 { sum / bytes } else { 0.0 }, least];
            let told = link.tell.send(seen.into_iter().map(mean).collect());
            match told.ok().and_then(|()| link.hear.recv().ok()) {
                Some(rates) => link.rates = rates,
                None => self.abandoned.store(true, Ordering::SeqCst),
            }
        }
        link.rates[circuit]
    }
}

impl Recorder for Shared {
    fn record(&mut self, now: Time, observation: &Observation) {
        match observation {
            Observation::CircuitBegun { user, .. } => self.link().circuits.push(user.0 as usize),
            Observation::Delivered { circuit, bytes, packaged, .. } => {
                let mut link = self.link();
                let user = link.circuits[circuit.0 as usize];
                let latency = now.since(*packaged).as_secs_f64();
                let [sum_bytes, sum, least] = &mut link.meter[user];
                *least = if *sum_bytes > 0.0 { least.min(latency) } else { latency };
                *sum_bytes += f64::from(*bytes);
                *sum += f64::from(*bytes) * latency;
            }
            _ => {}
        }
    }
}

impl Monitor for Shared {
    fn stopped(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }
}

/// Relays get controllers in the scenario's order: the first ones are the exits of the users.
#[derive(Debug)]
struct Stepped {
    shared: Shared,
    interval: Span,
    relays: AtomicUsize,
}

impl Control for Stepped {
    fn controller(&self, _: &Place) -> Option<Box<dyn Controller>> {
        let circuit = self.relays.fetch_add(1, Ordering::SeqCst);
        let is_exit = circuit < self.shared.link().rates.len();
        let next = Timer { due: Time::ZERO + self.interval, set: Time::ZERO };
        is_exit.then(|| -> Box<dyn Controller> {
            Box::new(Exit { circuit, shared: self.shared.clone(), interval: self.interval, next })
        })
    }
}

#[derive(Debug)]
struct Exit {
    circuit: usize,
    shared: Shared,
    interval: Span,
    next: Timer,
}

impl Exit {
    fn cells(&self, rate: f64) -> f64 {
        rate * self.interval.as_secs_f64() / PAYLOAD
    }
}

impl Controller for Exit {
    fn first_allowance(&self) -> (f64, f64) {
        (f64::INFINITY, self.cells(self.shared.link().rates[self.circuit]))
    }

    fn next_step(&self) -> Option<Timer> {
        Some(self.next)
    }

    fn step(&mut self, now: Time, plant: &mut dyn Plant) {
        self.next = Timer { due: now + self.interval, set: now };
        let package = self.cells(self.shared.rate(now, self.circuit));
        let mut circuits: Vec<CircuitKey> = Vec::new();
        plant.circuits(&mut circuits);
        for circuit in &circuits {
            let allowance = Allowance { send: f64::INFINITY, share: 0.0, package, carry: true };
            plant.allow(now, *circuit, &allowance);
        }
        circuits.into_iter().for_each(|circuit| plant.resume(circuit));
    }
}

/// A run of a scenario whose users, one circuit each, leave through relays of their own, the first ones of the file.
/// It waits at every step.
#[pyclass(module = "tidegate")]
pub struct Session {
    tell: Option<Sender<Vec<f64>>>,
    hear: Mutex<Receiver<Vec<Seen>>>,
    thread: Option<JoinHandle<()>>,
    circuits: usize,
}

impl Session {
    fn hear(&self) -> Option<Vec<Seen>> {
        self.hear.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    fn tell(&self, rates: Vec<f64>) -> PyResult<()> {
        let wrong = |rate: &&f64| !(rate.is_finite() && **rate >= 0.0);
        if rates.len() != self.circuits || rates.iter().any(|rate| wrong(&rate)) {
            let count = self.circuits;
            let cause = format!("give {count} rates in bytes/s, 0 or more; they are {rates:?}");
            return Err(PyValueError::new_err(cause));
        }
        let tell = self.tell.as_ref().expect("it lives as long as this");
        // Whoever has come to the end hears nobody; the answer says so.
        let _ = tell.send(rates);
        Ok(())
    }
}

#[pymethods]
impl Session {
    /// Begins; every circuit may send `rate` bytes/s in the first step of `interval_s` seconds.
    #[new]
    fn new(scenario: &Bound<'_, PyAny>, seed: u64, interval_s: f64, rate: f64) -> PyResult<Session> {
        let mut scenario = Scenario::of(scenario, None)?;
        if !(1e-3..=10.0).contains(&interval_s) {
            return Err(PyValueError::new_err(format!("`interval_s` is {interval_s}; give 0.001 to 10")));
        }
        let circuits = scenario.file.user.len();
        if scenario.file.relay.len() < circuits {
            return Err(PyValueError::new_err("each user needs an exit relay of its own"));
        }
        let (tell, asked) = mpsc::channel();
        let (answer, hear) = mpsc::channel();
        let link = Link {
            tell: answer,
            hear: asked,
            at: Time::ZERO,
            rates: vec![rate; circuits],
            meter: vec![[0.0; 3]; circuits],
            circuits: Vec::new(),
        };
        let shared = Shared { link: Arc::new(Mutex::new(link)), abandoned: Arc::default() };
        let interval = Span((interval_s * 1e9) as u64);
        let control = Stepped { shared: shared.clone(), interval, relays: AtomicUsize::new(0) };
        scenario.systems[0].control = Arc::new(control);
        // What only the network shows to be wrong is told here; the run itself cannot fail after it.
        tidegate_lab::network::build(&scenario, tidegate_control::random::Seed::root(seed).fork("network"))
            .map_err(input_error)?;
        let thread = thread::spawn(move || {
            let mut watch = shared.clone();
            // Its end closes the link, which says all there is to say.
            let _ = run_with(&scenario, 0, seed, &shared, &mut watch);
        });
        Ok(Session { tell: Some(tell), hear: Mutex::new(hear), thread: Some(thread), circuits })
    }

    /// What circuits' clients saw until the first step: (bytes delivered, mean latency in s, least latency in s) of each.
    fn begin(&self, py: Python<'_>) -> PyResult<Vec<Seen>> {
        py.detach(|| self.hear()).ok_or_else(|| PyRuntimeError::new_err("the run is shorter than a step"))
    }

    /// Lets circuits send at these rates, in bytes/s, until the next step; None at the run's end.
    fn step(&self, py: Python<'_>, rates: Vec<f64>) -> PyResult<Option<Vec<Seen>>> {
        self.tell(rates)?;
        Ok(py.detach(|| self.hear()))
    }
}

/// A step of several sessions at a time, on as many cores as there are.
#[pyfunction]
pub fn step_all(
    py: Python<'_>,
    sessions: Vec<PyRef<'_, Session>>,
    rates: Vec<Vec<f64>>,
) -> PyResult<Vec<Option<Vec<Seen>>>> {
    if sessions.len() != rates.len() {
        return Err(PyValueError::new_err("give a list of rates for each session"));
    }
    for (session, rates) in sessions.iter().zip(rates) {
        session.tell(rates)?;
    }
    let sessions: Vec<&Session> = sessions.iter().map(|session| &**session).collect();
    Ok(py.detach(|| sessions.iter().map(|session| session.hear()).collect()))
}

impl Drop for Session {
    fn drop(&mut self) {
        self.tell = None;
        if let Some(thread) = self.thread.take() {
            // It waits for a word that does not come, and so ends.
            let _ = thread.join();
        }
    }
}
