//! Circuits that a client builds and measures before it uses one of them.

use tidegate_control::units::{Span, Time};
use tidegate_proto::node::{CircuitKey, StreamKey};

/// Circuits of one user under measurement.
pub(super) struct Contest {
    /// Round trips to measure over each.
    probes: usize,
    contenders: Vec<Contender>,
}

struct Contender {
    circuit: CircuitKey,
    /// A stream that the exit refuses, and when it was opened.
    probe: Option<(StreamKey, Time)>,
    round_trips: Vec<Span>,
    /// Out of the contest if it is not measured by then.
    due: Time,
}

impl Contest {
    pub(super) fn new(probes: u32) -> Contest {
        Contest { probes: probes as usize, contenders: Vec::new() }
    }

    pub(super) fn add(&mut self, circuit: CircuitKey) {
        self.contenders.push(Contender { circuit, probe: None, round_trips: Vec::new(), due: Time::NEVER });
    }

    /// All circuits, in the order of their begin.
    pub(super) fn circuits(&self) -> impl Iterator<Item = CircuitKey> + '_ {
        self.contenders.iter().map(|one| one.circuit)
    }

    pub(super) fn holds(&self, circuit: CircuitKey) -> bool {
        self.circuits().any(|one| one == circuit)
    }

    /// A probe was sent.
    pub(super) fn sent(&mut self, now: Time, probe: StreamKey) {
        if let Some(one) = self.contenders.iter_mut().find(|one| one.circuit == probe.circuit) {
            one.probe = Some((probe, now));
        }
    }

    /// The exit refused a stream: returns whether the circuit needs another probe; `None` if the stream was not a probe.
    pub(super) fn refused(&mut self, now: Time, stream: StreamKey) -> Option<bool> {
        let is_probe = |one: &&mut Contender| one.probe.is_some_and(|(probe, _)| probe == stream);
        let one = self.contenders.iter_mut().find(is_probe)?;
        let (_, sent) = one.probe.take()?;
        one.round_trips.push(now.since(sent));
        Some(one.round_trips.len() < self.probes)
    }

    /// Sets a time by which circuits have to be measured. Returns those that are not, and that had more time.
    pub(super) fn hurry(&mut self, due: Time) -> Vec<CircuitKey> {
        let unmeasured = self.contenders.iter_mut().filter(|one| one.round_trips.len() < self.probes);
        let hurried = unmeasured.filter(|one| due < one.due).map(|one| {
            one.due = due;
            one.circuit
        });
        hurried.collect()
    }

    /// Whether a circuit's time is over now and it is not measured.
    pub(super) fn is_late(&self, now: Time, circuit: CircuitKey) -> bool {
        let late = |one: &Contender| one.due <= now && one.round_trips.len() < self.probes;
        self.contenders.iter().any(|one| one.circuit == circuit && late(one))
    }

    /// A circuit is gone.
    pub(super) fn remove(&mut self, circuit: CircuitKey) {
        self.contenders.retain(|one| one.circuit != circuit);
    }

    /// The circuit with the lowest cost, the first of equal ones, once all are measured.
    pub(super) fn winner(&self, cost: impl Fn(CircuitKey, &[Span]) -> f64) -> Option<CircuitKey> {
        if self.contenders.iter().any(|one| one.round_trips.len() < self.probes) {
            return None;
        }
        let cost = |one: &&Contender| cost(one.circuit, &one.round_trips);
        let cheapest = self.contenders.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
        cheapest.map(|one| one.circuit)
    }
}
