//! The trajectories of its neighbours that a relay accepts.

use super::exchange::{believe, last};
use tidegate_control::units::Time;

use super::delay::Delay;
use super::parameters::{Clocks, PredictorParameters};
use super::trajectory::{About, Trajectory};
use crate::ids::CircuitKey;

/// Steps after which a predecessor's plan expires, and the largest age that a message can claim.
const TIMEOUT_STEPS: u64 = 25;
/// The longest plausible queue, in seconds of the relay's bandwidth (prototype).
const BELIEVED_QUEUE: f64 = 60.0;
/// Bandwidth of an unlimited relay, cells/s.
const UNLIMITED: f64 = 1e7;

/// State of one circuit; its trajectories are in [`Beliefs::values`].
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// When each trajectory was solved, by kind; zero without one.
    solved: [Time; 4],
    /// The sender's own time of each, which must grow.
    stamps: [Time; 4],
    /// Number of values, by kind.
    lengths: [u16; 4],
    /// From the successor, and from the predecessor.
    delays: [Delay; 2],
}

/// All circuits' trajectories.
#[derive(Debug)]
pub(super) struct Beliefs {
    parameters: PredictorParameters,
    /// Cells per second that the relay's link or bucket carries.
    pub bandwidth: f64,
    known: Vec<Known>,
    /// Four trajectories of `horizon` values per circuit, by [`About`]. At a circuit's first hop that of
    /// [`About::Output`] holds our own last wish.
    values: Vec<f64>,
}

impl Beliefs {
    /// A relay with this bandwidth, in bytes per second (infinite: no limit known).
    pub(crate) fn new(parameters: PredictorParameters, bytes_per_s: f64) -> Beliefs {
        // The prototype counts cells of 512 bytes.
        let bandwidth = (bytes_per_s / 512.0).min(UNLIMITED);
        Beliefs { parameters, bandwidth, known: Vec::new(), values: Vec::new() }
    }

    /// Cells that a queue may hold.
    pub(crate) fn longest_queue(&self) -> f64 {
        self.bandwidth * BELIEVED_QUEUE
    }

    /// Makes room for a circuit and returns its index.
    pub(crate) fn index(&mut self, circuit: CircuitKey) -> usize {
        let index = circuit.0 as usize;
        if self.known.len() <= index {
            self.known.resize(index + 1, Known::default());
            self.values.resize((index + 1) * 4 * self.parameters.horizon, 0.0);
        }
        index
    }

    fn range(&self, index: usize, about: About) -> std::ops::Range<usize> {
        let start = (4 * index + about as usize) * self.parameters.horizon;
        start..start + self.parameters.horizon
    }

    /// Forgets a circuit that is gone; its key may be reused.
    pub(crate) fn forget(&mut self, circuit: CircuitKey) {
        if let Some(known) = self.known.get_mut(circuit.0 as usize) {
            *known = Known::default();
        }
    }

    /// Exchanges two circuits' successors and their grants.
    pub(crate) fn exchange(&mut self, a: CircuitKey, b: CircuitKey) {
        let (a, b) = (self.index(a), self.index(b));
        let kind = About::Intake as usize;
        let Ok([first, second]) = self.known.get_disjoint_mut([a, b]) else { return };
        std::mem::swap(&mut first.solved[kind], &mut second.solved[kind]);
        std::mem::swap(&mut first.stamps[kind], &mut second.stamps[kind]);
        std::mem::swap(&mut first.lengths[kind], &mut second.lengths[kind]);
        std::mem::swap(&mut first.delays[0], &mut second.delays[0]);
        for (first, second) in self.range(a, About::Intake).zip(self.range(b, About::Intake)) {
            self.values.swap(first, second);
        }
    }

    /// The last trajectory of a circuit; empty before the first.
    pub(crate) fn of(&self, index: usize, about: About) -> &[f64] {
        &self.values[self.range(index, about)][..self.known[index].lengths[about as usize].into()]
    }

    /// Time since this trajectory was solved, ns.
    pub(crate) fn age(&self, now: Time, index: usize, about: About) -> f64 {
        now.since(self.known[index].solved[about as usize]).0 as f64
    }

    /// Whether this trajectory has not expired.
    pub(crate) fn holds(&self, now: Time, index: usize, about: About) -> bool {
        self.age(now, index, about) <= (self.parameters.step * TIMEOUT_STEPS).0 as f64
    }

    /// One-way delays from the successor and from the predecessor, ns.
    pub(crate) fn delays(&self, index: usize) -> [f64; 2] {
        let PredictorParameters { delay, step, horizon, estimate_delay, .. } = self.parameters;
        self.known[index].delays.map(|estimate| {
            let believed = if estimate_delay { estimate.get(delay, step * horizon as u64) } else { delay };
            believed.0 as f64
        })
    }

    /// Notes our own wish at a circuit's first hop; empty for an idle circuit.
    pub(crate) fn wish(&mut self, circuit: CircuitKey, values: &[f64]) {
        let index = self.index(circuit);
        let range = self.range(index, About::Output);
        self.values[range][..values.len()].copy_from_slice(values);
        self.known[index].lengths[About::Output as usize] = values.len() as u16;
    }

    /// Stores a neighbour's trajectory; returns false if it is refused. `from_predecessor`: the neighbour sends
    /// us cells.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        circuit: CircuitKey,
        from_predecessor: bool,
        told: &Trajectory<'_>,
    ) -> bool {
        let PredictorParameters { horizon, step, delay, clocks, lasting_grants, .. } = self.parameters;
        let most = if told.about == About::Queue { self.longest_queue() } else { self.bandwidth };
        let (index, kind) = (self.index(circuit), told.about as usize);
        let start = self.range(index, told.about).start;
        let known = &mut self.known[index];
        let sound = from_predecessor == (told.about != About::Intake)
            && (1..=horizon).contains(&told.values.len())
            && told.step == step
            // Refuse replays, and more than one update in a step.
            && (told.solved.0 > known.stamps[kind].0.saturating_add(step.0 / 2) || known.lengths[kind] == 0)
            && told.values.iter().all(|value| !value.is_nan());
        if !sound {
            return false;
        }
        let ours = &mut self.values[start..][..told.values.len()];
        ours.copy_from_slice(told.values);
        believe(ours, most);
        if lasting_grants && told.about == About::Intake {
            last(ours, self.parameters.fixed_steps());
        }
        let timeout = step * TIMEOUT_STEPS;
        known.delays[usize::from(from_predecessor)].observe(now, now.since(told.solved), timeout);
        known.lengths[kind] = told.values.len() as u16;
        known.stamps[kind] = told.solved;
        known.solved[kind] = match clocks {
            Clocks::Shared => told.solved.clamp(Time(now.0.saturating_sub(timeout.0)), now),
            Clocks::Own => Time(now.0.saturating_sub(delay.0)),
        };
        true
    }
}
