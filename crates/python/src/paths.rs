//! The native part of the environment `tidegate/ParallelPaths-v0`: an overlay of per-packet paths, in which the agent sets
//! the rates of one peer through each of the others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use self_cell::self_cell;
use tidegate_control::paths::{Controller, ControllerParameters, Feedback, Memo, Peer};
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_sim::parallel::{Delays, Plan, Steps};

/// Feedback on packets through a peer: acknowledged, lost, last smoothed round trip in s (0 before the first).
type Seen = [f64; 3];

/// Rate and feedback of each peer.
#[derive(Debug)]
struct Table {
    /// Rates in bytes/s.
    rates: Vec<f64>,
    seen: Vec<Seen>,
}

/// The controller of peer 0.
#[derive(Clone, Debug)]
struct Told(Arc<Mutex<Table>>);

impl Told {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controller for Told {
    fn rate(&self, peer: Peer) -> f64 {
        self.table().rates[usize::from(peer)]
    }

    fn feedback(&mut self, _: Time, peer: Peer, _: Memo, feedback: Feedback) -> f64 {
        let mut table = self.table();
        let [acknowledged, lost, round_trip] = &mut table.seen[usize::from(peer)];
        match feedback {
            Feedback::Acked { round_trip: measured, .. } => {
                *acknowledged += 1.0;
                *round_trip = measured;
            }
            Feedback::TimedOut | Feedback::Refused { .. } => *lost += 1.0,
            Feedback::Passed => {}
        }
        table.rates[usize::from(peer)]
    }

    /// Reports the agent's exact rate, without rounding to packets.
    fn keeps_remainder(&self) -> bool {
        true
    }
}

self_cell!(
    /// An overlay and the run on it.
    struct Running {
        owner: Plan,
        #[not_covariant]
        dependent: Steps,
    }
);

/// An overlay in which all peers send as fast as they may to random destinations. The agent sets the rates of peer 0;
/// the others use a controller of the registry.
#[pyclass(module = "tidegate")]
pub struct Overlay {
    /// The lock is never contended; it lets a run, which is `Send` but not `Sync`, move between threads.
    running: Mutex<Running>,
    told: Told,
    now: Time,
    interval: Span,
}

#[pymethods]
impl Overlay {
    /// Peers with these limits in bytes/s; packets take `hops` of them. Peer 0 initially sends `rate` bytes/s through every
    /// other peer. A step takes `interval_s` seconds.
    #[new]
    fn new(
        limits: Vec<u32>,
        hops: usize,
        others: &str,
        seed: u64,
        interval_s: f64,
        rate: f64,
    ) -> PyResult<Overlay> {
        let wrong = |cause: String| PyValueError::new_err(cause);
        if !(0.1..=1000.0).contains(&interval_s) {
            return Err(wrong(format!("`interval_s` is {interval_s}; give 0.1 to 1000")));
        }
        let peers = limits.len();
        let mut plan = Plan::thesis(peers, Span::ZERO);
        plan.hops = hops;
        if let Delays::Coordinates { layout, .. } = &mut plan.delays {
            *layout = seed;
        }
        plan.peers.iter_mut().zip(&limits).for_each(|(peer, limit)| peer.limit = *limit);
        let parameters = ControllerParameters::named(others, f64::from(plan.packet))
            .map_err(|error| wrong(format!("`others`: {error}")))?;
        let told =
            Told(Arc::new(Mutex::new(Table { rates: vec![rate; peers], seen: vec![[0.0; 3]; peers] })));
        let own = Box::new(told.clone());
        let running = Running::try_new(plan, |plan| Steps::begin(plan, &parameters, Seed::root(seed), own))
            .map_err(|error| wrong(error.to_string()))?;
        Ok(Overlay {
            running: Mutex::new(running),
            told,
            now: Time::ZERO,
            interval: Span((interval_s * 1e9) as u64),
        })
    }

    /// Runs a step with these rates through each other peer: float64, in bytes/s. Returns float64 of (other peers, 3): packets
    /// acknowledged and lost in the step, and the smoothed round trip in s (0 before the first).
    fn step<'py>(&mut self, py: Python<'py>, rates: &[u8]) -> PyResult<Bound<'py, PyByteArray>> {
        let (given, rest) = rates.as_chunks::<8>();
        let given: Vec<f64> = given.iter().map(|bytes| f64::from_ne_bytes(*bytes)).collect();
        let wanted = self.told.table().rates.len() - 1;
        let is_rate = |rate: &f64| rate.is_finite() && *rate >= 0.0;
        if given.len() != wanted || !rest.is_empty() || !given.iter().all(is_rate) {
            let cause = format!("expected {wanted} rates in bytes/s of at least 0, got {given:?}");
            return Err(PyValueError::new_err(cause));
        }
        self.told.table().rates[1..].copy_from_slice(&given);
        self.now += self.interval;
        let now = self.now;
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        py.detach(|| running.with_dependent_mut(|_, run| run.run_to(now)));
        let mut table = self.told.table();
        let bytes: Vec<u8> = table.seen[1..].as_flattened().iter().flat_map(|v| v.to_ne_bytes()).collect();
        table.seen.iter_mut().for_each(|[acknowledged, lost, _]| (*acknowledged, *lost) = (0.0, 0.0));
        Ok(PyByteArray::new(py, &bytes))
    }
}
