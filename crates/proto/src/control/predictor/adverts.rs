//! The trajectories that a relay sends to its neighbours, and those that they already have.

use tidegate_control::predictor::Formulation;
use tidegate_control::units::{Span, Time};

use super::compact::PiecewiseLinear;
use super::parameters::PredictorParameters;
use super::trajectory::{About, Encoding, Trajectory};
use super::wire;
use crate::ids::CircuitKey;

/// Steps after which a trajectory is repeated even if the neighbour's version is good. Well below the timeout of
/// beliefs (25 steps).
const REPEAT: u64 = 10;

/// Quanta added to grants. A grant that is too low is lost capacity; one that is too high is a queue that drains.
const GENEROSITY: f64 = 0.25;

/// A neighbour's version of one trajectory; its values are in [`Adverts::values`].
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    solved: Time,
    /// Zero if it has not received one.
    length: u16,
}

/// Writes trajectories; with the compact encoding only those that neighbours lack.
#[derive(Debug, Default)]
pub(super) struct Adverts {
    encoding: Encoding,
    /// The allowed error of the neighbour's version, as a share of the plan's largest value.
    resolution: f64,
    step: Span,
    horizon: usize,
    /// By circuit and [`About`].
    known: Vec<[Known; 4]>,
    /// Values as neighbours decode them, `horizon` each.
    values: Vec<f64>,
    /// First steps of a grant that pass before the predecessor has acted on it and its cells
    /// arrive.
    past: usize,
    /// By circuit: the neighbours know that it is idle.
    quiet: Vec<bool>,
    pieces: PiecewiseLinear,
    wanted: Vec<f64>,
    work: Vec<f64>,
}

impl Adverts {
    pub(super) fn new(parameters: &PredictorParameters) -> Adverts {
        let PredictorParameters {
            encoding, resolution, step, horizon, delay, estimate_delay, problem, ..
        } = *parameters;
        let past = match problem {
            Formulation::Prototype if !estimate_delay => (2 * delay.0 / step.0) as usize,
            _ => 0,
        };
        Adverts { encoding, resolution, step, horizon, past, ..Adverts::default() }
    }

    /// Forgets what neighbours know, because the circuit is gone or has a new neighbour.
    pub(super) fn forget(&mut self, circuit: CircuitKey) {
        if let Some(known) = self.known.get_mut(circuit.0 as usize) {
            *known = Default::default();
        }
        if let Some(quiet) = self.quiet.get_mut(circuit.0 as usize) {
            *quiet = false;
        }
    }

    /// Whether a message about the circuit is due: its plan while it `flows`, and once that it is idle. Without that
    /// neighbours would read silence as an unlimited grant.
    pub(super) fn are_due(&mut self, circuit: CircuitKey, flows: bool) -> bool {
        let index = circuit.0 as usize;
        if self.quiet.len() <= index {
            self.quiet.resize(index + 1, false);
        }
        let quiet = std::mem::replace(&mut self.quiet[index], !flows);
        flows || !quiet
    }

    /// Prepares a trajectory of the solve at `now` for [`write`](Self::write); returns its largest size in bytes.
    ///
    /// `None` if the neighbour's version is good. `flow`: the most cells that the circuit sends in a step.
    pub(super) fn prepare(
        &mut self,
        now: Time,
        circuit: CircuitKey,
        (about, flow): (About, f64),
        values: &[f64],
    ) -> Option<usize> {
        if self.encoding == Encoding::Plain {
            return Some(wire::plain_bytes(values.len()));
        }
        let resolution = self.resolution;
        let (index, what) = (circuit.0 as usize, (about, self.step));
        if self.known.len() <= index {
            self.known.resize(index + 1, Default::default());
            self.values.resize((index + 1) * 4 * self.horizon, 0.0);
        }
        let known = &mut self.known[index][about as usize];
        let theirs = &mut self.values[(4 * index + about as usize) * self.horizon..][..self.horizon];
        self.pieces.choose_quantum(what, (values, flow), resolution);
        self.wanted.clear();
        self.wanted.extend_from_slice(values);
        if about == About::Intake {
            let past = self.past.min(values.len() - 1);
            self.wanted[..past].fill(values[past]);
            let more = GENEROSITY * self.pieces.quantum(what);
            self.wanted.iter_mut().filter(|grant| **grant > 0.0).for_each(|grant| *grant += more);
        }
        let values = &self.wanted;
        let elapsed = now.since(known.solved).0 as f64 / self.step.0 as f64;
        if elapsed < REPEAT as f64
            && self.pieces.is_known(what, values, &theirs[..known.length.into()], elapsed, &mut self.work)
        {
            return None;
        }
        self.pieces.fit(what, values, &mut self.work);
        theirs[..self.work.len()].copy_from_slice(&self.work);
        *known = Known { solved: now, length: self.work.len() as u16 };
        Some(self.pieces.most_bytes())
    }

    /// Appends the prepared trajectory to a cell; `same`: the previous one is of the same circuit.
    pub(super) fn write(&self, trajectory: &Trajectory<'_>, same: bool, out: &mut Vec<u8>) {
        match self.encoding {
            Encoding::Plain => wire::write(trajectory, out),
            Encoding::Compact => self.pieces.write(trajectory, same, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::align;
    use proptest::prelude::*;

    use super::*;

    const STEP: Span = Span::from_millis(40);
    const RESOLUTION: f64 = 1.0 / 16.0;

    fn compact() -> Adverts {
        let (encoding, resolution) = (Encoding::Compact, RESOLUTION);
        Adverts::new(&PredictorParameters { encoding, resolution, ..PredictorParameters::default() })
    }

    /// The message of a step, if one is due.
    fn told(adverts: &mut Adverts, step: u64, values: &[f64]) -> Option<Vec<u8>> {
        let (now, about) = (Time(STEP.0 * step), About::Intake);
        adverts.prepare(now, CircuitKey(3), (about, 0.0), values)?;
        let mut cell = Vec::new();
        adverts.write(&Trajectory { circ: 3, about, solved: now, step: STEP, values }, false, &mut cell);
        Some(cell)
    }

    #[test]
    fn known_trajectories_are_seldom_repeated() {
        let mut adverts = compact();
        let often = |adverts: &mut Adverts, steps: std::ops::Range<u64>| {
            steps.filter(|step| told(adverts, *step, &[200.0; 10]).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(often(&mut adverts, 0..35), [0, 10, 20, 30]);
        adverts.forget(CircuitKey(3));
        assert_eq!(often(&mut adverts, 35..40), [35], "a new neighbour is told");
        assert!(told(&mut adverts, 40, &[0.0; 10]).is_some(), "it has come to an end");
        assert!(told(&mut adverts, 41, &[0.01; 10]).is_none(), "next to nothing");
        // The plan comes true; the first two steps pass before a neighbour can act on them.
        let plan = |first: u64| (first..first + 10).map(|step| if step < 5 { 300.0 } else { 100.0 });
        assert!(told(&mut adverts, 42, &plan(0).collect::<Vec<_>>()).is_some());
        assert!(told(&mut adverts, 43, &plan(1).collect::<Vec<_>>()).is_none());
        let unimportant: Vec<f64> = [0.0, 50.0].into_iter().chain(plan(4).take(8)).collect();
        assert!(told(&mut adverts, 44, &unimportant).is_none());
    }

    proptest! {
        /// For any plans, the neighbour's version is within the resolution; right after a message within four
        /// quanta.
        #[test]
        fn neighbours_are_never_far_off(
            plans in proptest::collection::vec(proptest::collection::vec(0.0..500.0f64, 10), 1..30),
            repeats in proptest::collection::vec(1..5usize, 30),
        ) {
            let mut adverts = compact();
            let (mut heard, mut solved, mut step) = (Vec::new(), 0, 0);
            let mut values = Vec::new();
            for (plan, repeat) in plans.iter().zip(repeats) {
                for _ in 0..repeat {
                    if let Some(cell) = told(&mut adverts, step, plan) {
                        let now = Time(STEP.0 * (step + 1));
                        wire::read(&cell, (now, STEP), &mut values, |trajectory| {
                            heard = trajectory.values.to_vec();
                            solved = trajectory.solved.0 / STEP.0;
                        })
                        .unwrap();
                        prop_assert_eq!(solved, step);
                        prop_assert!(cell.len() <= 3 + 2 + 2 * 10);
                    }
                    let mut theirs = [0.0; 10];
                    align(&heard, (step - solved) as f64, &mut theirs);
                    let largest = plan.iter().fold(25.0, |most: f64, value| value.max(most));
                    for (plan, theirs) in plan.iter().zip(theirs).skip(2) {
                        let room = GENEROSITY + if step == solved + 1 { 4.0 } else { 1.0 };
                        prop_assert!((plan - theirs).abs() <= room * RESOLUTION * largest + 1e-9);
                    }
                    step += 1;
                }
            }
        }
    }
}
