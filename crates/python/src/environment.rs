//! The native part of the environment `tidegate/Bottleneck-v0`: runs that stop at every step of their controllers, so
//! that the agent can set the rates of circuits.
//!
//! One call steps all networks, without the GIL. Actions, observations and inputs of rewards are plain memory, which
//! Python reads as NumPy arrays.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use self_cell::self_cell;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_lab::network;
use tidegate_proto::control::{Allowance, Control, Controller, Place, Plant, Timer};
use tidegate_proto::ids::CircuitKey;
use tidegate_sim::observe::{Observation, Recorder};
use tidegate_sim::plan::{Plan, System};
use tidegate_sim::world::Steps;

use crate::errors::input_error;
use crate::scenario::Scenario;

/// Application bytes per cell.
const PAYLOAD: f64 = 498.0;
/// The largest change of a rate by one action (PCC-RL).
const STEP: f64 = 0.025;
/// Bounds of rates: bytes/s, and a multiple of the slow link's rate.
const LOWEST: f64 = 1e3;
const HIGHEST: f64 = 10.0;
/// Largest magnitude of a feature.
const MOST: f64 = 1e3;
/// Features per interval (PCC-RL: latency gradient, latency ratio, sending ratio), and their initial values.
const FEATURES: usize = 3;
const NOTHING_SEEN: [f32; FEATURES] = [0.0, 1.0, 1.0];

/// Networks per thread. With fewer, starting a thread and its cache misses cost more than it saves.
const PER_THREAD: usize = 8;

/// Delivered bytes, their mean and their minimum latency in seconds, of one circuit in a step; 0 without bytes.
type Seen = [f64; 3];

/// Recorder of bytes, byte-seconds and minimum latency per circuit.
#[derive(Debug)]
struct Meter {
    /// User of each circuit.
    users: Vec<usize>,
    seen: Vec<Seen>,
}

impl Recorder for Meter {
    fn record(&mut self, now: Time, observation: &Observation) {
        match observation {
            Observation::CircuitBegun { user, .. } => self.users.push(user.0 as usize),
            Observation::Delivered { circuit, bytes, packaged, .. } => {
                let latency = now.since(*packaged).as_secs_f64();
                let [sum_bytes, sum, least] = &mut self.seen[self.users[circuit.0 as usize]];
                *least = if *sum_bytes > 0.0 { least.min(latency) } else { latency };
                *sum_bytes += f64::from(*bytes);
                *sum += f64::from(*bytes) * latency;
            }
            _ => {}
        }
    }
}

/// Rates of all circuits in bytes/s, as set by the agent.
#[derive(Clone, Debug)]
struct Rates(Arc<Mutex<Vec<f64>>>);

impl Rates {
    fn get(&self) -> MutexGuard<'_, Vec<f64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates controllers of relays in the scenario's order; the first relays are the exits of the users.
#[derive(Debug)]
struct Stepped {
    rates: Rates,
    interval: Span,
    relays: AtomicUsize,
}

impl Control for Stepped {
    fn controller(&self, _: &Place) -> Option<Box<dyn Controller>> {
        let circuit = self.relays.fetch_add(1, Ordering::SeqCst);
        let is_exit = circuit < self.rates.get().len();
        let next = Timer { due: Time::ZERO + self.interval, set: Time::ZERO };
        is_exit.then(|| -> Box<dyn Controller> {
            let rates = self.rates.clone();
            Box::new(Exit { circuit, rates, interval: self.interval, next, circuits: Vec::new() })
        })
    }
}

#[derive(Debug)]
struct Exit {
    circuit: usize,
    rates: Rates,
    interval: Span,
    next: Timer,
    circuits: Vec<CircuitKey>,
}

impl Exit {
    /// Cells that the exit may package in a step.
    fn package(&self) -> f64 {
        self.rates.get()[self.circuit] * self.interval.as_secs_f64() / PAYLOAD
    }
}

impl Controller for Exit {
    fn first_allowance(&self) -> (f64, f64) {
        (f64::INFINITY, self.package())
    }

    fn next_step(&self) -> Option<Timer> {
        Some(self.next)
    }

    fn step(&mut self, now: Time, plant: &mut dyn Plant) {
        self.next = Timer { due: now + self.interval, set: now };
        let planned = Some(self.rates.get()[self.circuit] / PAYLOAD);
        let package = self.package();
        let allowance = Allowance { send: f64::INFINITY, share: 0.0, package, planned, carry: true };
        self.circuits.clear();
        plant.circuits(&mut self.circuits);
        self.circuits.iter().for_each(|circuit| plant.allow(now, *circuit, &allowance));
        self.circuits.iter().for_each(|circuit| plant.resume(*circuit));
    }
}

type World<'a> = Steps<'a, Meter>;

self_cell!(
    /// A network and the run on it.
    struct Running {
        owner: (Plan, System),
        #[not_covariant]
        dependent: World,
    }
);

/// Latencies of a circuit in earlier intervals.
#[derive(Clone, Copy, Debug)]
struct LatencyHistory {
    /// Minimum latency so far, in seconds.
    least: f64,
    /// Mean latency of the last interval with delivered bytes; 0 before.
    before: f64,
}

/// A running network.
struct Session {
    running: Running,
    rates: Rates,
    /// Rate of the slow link in bytes/s.
    link: f64,
    /// End of the next step.
    until: Time,
    known: Vec<LatencyHistory>,
}

impl Session {
    /// Advances the run by a step. Writes measurements to `told`, and appends features to the `history` in `observed`.
    fn step(&mut self, interval: Span, history: usize, told: &mut [Seen], observed: &mut [f32]) {
        let until = self.until;
        self.until += interval;
        self.running.with_dependent_mut(|_, world| {
            world.run_to(until);
            for (told, seen) in told.iter_mut().zip(&mut world.recorder().seen) {
                let [bytes, sum, least] = std::mem::take(seen);
                *told = [bytes, if bytes > 0.0 { sum / bytes } else { 0.0 }, least];
            }
        });
        let rates = self.rates.get();
        let circuits = told.iter().zip(&mut self.known).zip(rates.iter());
        let windows = observed.chunks_exact_mut(history * FEATURES);
        for ((([bytes, latency, least], known), rate), window) in circuits.zip(windows) {
            window.copy_within(FEATURES.., 0);
            let new = &mut window[(history - 1) * FEATURES..];
            let seconds = interval.as_secs_f64();
            let features = if *bytes > 0.0 {
                known.least = known.least.min(*least);
                let before = std::mem::replace(&mut known.before, *latency);
                let gradient = if before > 0.0 { (latency - before) / seconds } else { 0.0 };
                [gradient, latency / known.least, rate * seconds / bytes.max(1.0)]
            } else {
                [0.0, 1.0, 10.0]
            };
            new.iter_mut().zip(features).for_each(|(new, feature)| *new = feature.clamp(-MOST, MOST) as f32);
        }
    }

    /// Applies PCC-RL's actions: a rate grows or shrinks by up to 1/40.
    fn act(&mut self, actions: &[f32]) {
        for (rate, action) in self.rates.get().iter_mut().zip(actions) {
            let action = f64::from(*action).clamp(-1.0, 1.0);
            let factor = if action >= 0.0 { 1.0 + STEP * action } else { 1.0 / (1.0 - STEP * action) };
            *rate = (*rate * factor).clamp(LOWEST, HIGHEST * self.link);
        }
    }
}

/// The content of a session's lock.
fn inside(session: &mut Mutex<Option<Session>>) -> &mut Option<Session> {
    session.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// Networks of the same shape and their observations: float32 of (networks, circuits, history, features).
#[pyclass(module = "tidegate")]
pub struct Bottlenecks {
    /// The lock is never contended; it lets a run, which is `Send` but not `Sync`, move between threads.
    sessions: Vec<Mutex<Option<Session>>>,
    circuits: usize,
    interval: Span,
    history: usize,
    threads: usize,
    observed: Vec<f32>,
    /// Measurements of the last step.
    told: Vec<Seen>,
}

impl Bottlenecks {
    /// Elements of `observed` per network.
    fn size(&self) -> usize {
        self.circuits * self.history * FEATURES
    }

    /// Steps all running networks.
    fn step_all(&mut self, actions: &[f32]) {
        let (size, circuits, interval, history) = (self.size(), self.circuits, self.interval, self.history);
        let share = self.sessions.len().div_ceil(self.threads);
        let sessions = self.sessions.chunks_mut(share).zip(actions.chunks(share * circuits));
        let outs = self.told.chunks_mut(share * circuits).zip(self.observed.chunks_mut(share * size));
        let mut parts = sessions.zip(outs).map(|((sessions, actions), (told, observed))| {
            move || {
                let all = sessions.iter_mut().zip(actions.chunks(circuits));
                let all = all.zip(told.chunks_mut(circuits)).zip(observed.chunks_mut(size));
                for (((session, actions), told), observed) in all {
                    told.fill([0.0; 3]);
                    if let Some(session) = inside(session) {
                        session.act(actions);
                        session.step(interval, history, told, observed);
                    }
                }
            }
        });
        let first = parts.next();
        thread::scope(|scope| {
            parts.for_each(|part| {
                scope.spawn(part);
            });
            first.into_iter().for_each(|mut part| part());
        });
    }
}

#[pymethods]
impl Bottlenecks {
    /// Creates `count` networks of `circuits` circuits, with observations of the last `history` intervals.
    #[new]
    fn new(count: i64, circuits: i64, interval_s: f64, history: i64) -> PyResult<Bottlenecks> {
        let wrong = |cause: String| Err(PyValueError::new_err(cause));
        if !(1..=10_000).contains(&count) {
            return wrong(format!("`num_envs` is {count}; give 1 to 10000"));
        }
        if !(1..=1000).contains(&circuits) {
            return wrong(format!("`circuits` is {circuits}; give 1 to 1000"));
        }
        if !(1e-3..=10.0).contains(&interval_s) {
            return wrong(format!("`interval_s` is {interval_s}; give 0.001 to 10"));
        }
        if !(1..=1000).contains(&history) {
            return wrong(format!("`history` is {history}; give 1 to 1000"));
        }
        let [count, circuits, history] = [count, circuits, history].map(|number| number as usize);
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Ok(Bottlenecks {
            sessions: (0..count).map(|_| Mutex::new(None)).collect(),
            circuits,
            interval: Span((interval_s * 1e9) as u64),
            history,
            threads: cores.min(count.div_ceil(PER_THREAD)),
            observed: NOTHING_SEEN.repeat(count * circuits * history),
            told: vec![[0.0; 3]; count * circuits],
        })
    }

    /// Starts network `number` and runs its first interval. Each user has one circuit with its own exit; the exits are the
    /// first relays of the scenario. The circuits start with `rates` bytes/s, and the slow link has `link` bytes/s.
    fn begin(
        &mut self,
        py: Python<'_>,
        number: usize,
        scenario: &Bound<'_, PyAny>,
        seed: u64,
        link: f64,
        rates: Vec<f64>,
    ) -> PyResult<()> {
        let mut scenario = Scenario::of(scenario, None)?;
        assert!(
            number < self.sessions.len() && [scenario.file.user.len(), rates.len()] == [self.circuits; 2],
            "tidegate.gym's scenario"
        );
        let rates = Rates(Arc::new(Mutex::new(rates)));
        let control = Stepped { rates: rates.clone(), interval: self.interval, relays: AtomicUsize::new(0) };
        scenario.systems[0].control = Arc::new(control);
        let root = Seed::root(seed);
        let network = network::build(&scenario, root.fork("network")).map_err(input_error)?;
        let owner = (network.plan, scenario.systems.swap_remove(0));
        let running = Running::new(owner, |(plan, system)| {
            let meter = Meter { users: Vec::new(), seen: vec![[0.0; 3]; self.circuits] };
            Steps::begin(plan, system, root.fork("run"), meter)
        });
        let unknown = LatencyHistory { least: f64::INFINITY, before: 0.0 };
        let (until, known) = (Time::ZERO + self.interval, vec![unknown; self.circuits]);
        let mut session = Session { running, rates, link, until, known };
        let size = self.size();
        let observed = &mut self.observed[number * size..][..size];
        observed.copy_from_slice(&NOTHING_SEEN.repeat(self.circuits * self.history));
        let told = &mut self.told[number * self.circuits..][..self.circuits];
        py.detach(|| session.step(self.interval, self.history, told, observed));
        *inside(&mut self.sessions[number]) = Some(session);
        Ok(())
    }

    /// Stops network `number`.
    fn end(&mut self, number: usize) {
        *inside(&mut self.sessions[number]) = None;
    }

    /// Steps all running networks. `actions` are float32 of (networks, circuits). Returns float64 of (networks, circuits, 3):
    /// bytes delivered, their mean and their minimum latency in s; 0 without bytes.
    fn step<'py>(&mut self, py: Python<'py>, actions: &[u8]) -> PyResult<Bound<'py, PyByteArray>> {
        let (given, rest) = actions.as_chunks::<4>();
        let given: Vec<f32> = given.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        let wanted = self.sessions.len() * self.circuits;
        if given.len() != wanted || !rest.is_empty() || given.iter().any(|action| action.is_nan()) {
            let cause = format!("expected {wanted} actions between -1 and 1, got {given:?}");
            return Err(PyValueError::new_err(cause));
        }
        if self.sessions.iter_mut().all(|session| inside(session).is_none()) {
            return Err(PyRuntimeError::new_err("no network is running; call `reset` first"));
        }
        py.detach(|| self.step_all(&given));
        let told = self.told.as_flattened();
        PyByteArray::new_with(py, size_of_val(told), |to| {
            to.chunks_exact_mut(8).zip(told).for_each(|(to, value)| to.copy_from_slice(&value.to_ne_bytes()));
            Ok(())
        })
    }

    /// The current observations: float32 of (networks, circuits, history, features).
    fn observed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        PyByteArray::new_with(py, size_of_val(&*self.observed), |to| {
            let values = to.chunks_exact_mut(4).zip(&self.observed);
            values.for_each(|(to, value)| to.copy_from_slice(&value.to_ne_bytes()));
            Ok(())
        })
    }

    /// The rates of the circuits of network `number`, in bytes/s.
    fn rates(&mut self, number: usize) -> Vec<f64> {
        inside(&mut self.sessions[number])
            .as_ref()
            .map_or_else(Vec::new, |session| session.rates.get().clone())
    }
}
