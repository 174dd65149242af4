//! Converts a problem to the solver's normalised form, and back.
//!
//! Rates are in units of the capacity and queues in units of the capacity's cells per step, so
//! results do not depend on scale. Unreachable bounds are left out, and rates without room
//! are fixed, so the rest has an interior and bounded multipliers.

use super::circuit::{Costs, Springs, Start, Step};
use super::dual::Dual;
use super::lane::{LANES, Lane};
use super::problem::{Formulation, Problem, Solution, Weights};

/// A rate with less room than this, relative to the capacity, is fixed at zero.
pub(super) const ROOM: f64 = 1e-10;
/// A smaller excess of a queue over its bound, in units of the capacity's cells per step, is rounding.
pub(super) const HAIR: f64 = 1e-6;
/// Stiffness of constraints, relative to the largest curvature of the rates.
const STIFF: f64 = 1e4;
/// The weight of the queue penalty, relative to the weights of the rates, beyond which it is exact: a larger
/// weight changes the objective but not the solution.
pub(super) const EXACT: f64 = 8.0;

pub(super) const STATES: usize = Problem::MAX_HORIZON + 1;

/// A circuit's bounds in one step, in normalised form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    /// The incoming rate, if it is fixed.
    pub fixed: Option<f64>,
    /// The most cells that can have come in by the end of the step, and the least of this from here on.
    pub source: f64,
    pub least_source: f64,
    pub limit: f64,
}

/// A circuit's bounds, step by step.
pub(super) struct Bounds<'a> {
    pub steps: &'a [Bound],
    pub queue: f64,
    pub queue_room: f64,
}

impl Bounds<'_> {
    /// Upper bound of rate `m` of a step, given the sums of earlier rates (for incoming rates including this step).
    pub(crate) fn room<const M: usize>(&self, step: usize, m: usize, sums: &[f64; M]) -> f64 {
        match (m, self.steps[step].fixed) {
            (0, Some(rate)) => rate,
            (0, None) => self.steps[step].least_source - sums[0],
            (1, _) => (self.queue + sums[0] - sums[1]).min(self.steps[step].limit),
            _ => self.queue + sums[0] - sums[m],
        }
    }
}

/// All circuits' bounds, cached because a solve reads them several times.
#[derive(Debug, Default)]
pub(super) struct Limits {
    horizon: usize,
    steps: Vec<Bound>,
    /// Each circuit's queue, and the room above it.
    queues: Vec<(f64, f64)>,
}

impl Limits {
    pub(crate) fn of(&self, circuit: usize) -> Bounds<'_> {
        let (queue, queue_room) = self.queues[circuit];
        Bounds { steps: &self.steps[circuit * self.horizon..][..self.horizon], queue, queue_room }
    }

    /// Computes the bounds of a checked problem with positive capacity.
    pub(crate) fn load(&mut self, problem: &Problem) {
        self.horizon = problem.horizon;
        self.steps.clear();
        self.queues.clear();
        for circuit in 0..problem.circuits() {
            self.add(problem, circuit);
        }
    }

    fn add(&mut self, problem: &Problem, circuit: usize) {
        let (steps, per_step) = (problem.horizon, 1.0 / (problem.capacity * problem.dt));
        let far = (steps + 1) as f64;
        let row = |values: &[f64], step: usize| values[circuit * steps + step];
        self.queues.push((
            (problem.s0[circuit] * per_step).min(far),
            ((problem.queue_bound(circuit) - problem.s0[circuit]) * per_step).clamp(-far, far),
        ));
        let mut planned = 0.0;
        for step in 0..steps {
            let plan = row(&problem.vsrc, step) / problem.capacity;
            planned += plan;
            let queued = row(&problem.ssrc, (step + 1).min(steps - 1)) * per_step;
            self.steps.push(Bound {
                fixed: problem.fixes(circuit, step).then_some(plan),
                source: (queued + planned).min(far),
                least_source: far,
                limit: (row(&problem.vmax, step) / problem.capacity).min(1.0),
            });
        }
        let bounds = &mut self.steps[circuit * steps..];
        if problem.kind == Formulation::Journal {
            let requested: f64 = (0..steps).map(|step| row(&problem.vvsrc, step)).sum();
            let last = &mut bounds[steps - 1].source;
            *last = last.min(requested / problem.capacity);
        }
        let mut least = far;
        for bound in bounds.iter_mut().rev() {
            // A later bound implies this one, because rates are not negative.
            if bound.source >= least {
                bound.source = far;
            }
            least = bound.source.min(least);
            bound.least_source = least;
        }
    }
}

/// Loads a checked problem with circuits and a capacity above zero, with safe rates and prices near those at
/// which all circuits get their fair share.
pub(super) fn load<const M: usize>(dual: &mut Dual<M>, problem: &Problem, limits: &Limits) {
    let (n, steps) = (problem.circuits(), problem.horizon);
    let weights = &problem.weights;
    let top = 2.0 * (weights.input + weights.output);
    let overflow = weights.overflow * problem.dt * problem.scaling * n as f64 / problem.capacity;
    let overflow = overflow.min(EXACT * (weights.input + weights.output));
    dual.springs = Springs { stiffness: STIFF * top, overflow };
    dual.costs.clear();
    dual.most.clear();
    let mut press = 0.0;
    for _ in 0..steps {
        dual.costs.push(Costs { curvature: [0.0; M], price: [0.0; M], stiffness: 0.0 });
        dual.most.push([0.0; M]);
    }
    for step in (0..steps).rev() {
        press += overflow;
        let discount = weights.discount(step);
        let curvature = weights.rates();
        for m in 0..M {
            let costs = &mut dual.costs[step];
            costs.curvature[m] = 2.0 * discount * curvature[m];
            costs.price[m] = costs.curvature[m] * (1.0 - 1.0 / n as f64);
            dual.most[step][m] = top * discount + press;
        }
    }
    let blocks = blocks(n);
    dual.prepare();
    dual.steps.clear();
    dual.steps.resize(blocks * steps, Step::STILL);
    dual.starts.clear();
    dual.starts.resize(blocks, Start { queue: Lane::ZERO, room: Lane::ONE });
    safe_rates(dual, problem, limits);
    for circuit in 0..n {
        let bounds = limits.of(circuit);
        let (block, lane) = (circuit / LANES, circuit % LANES);
        dual.starts[block].queue.0[lane] = bounds.queue;
        dual.starts[block].room.0[lane] = bounds.queue_room;
        for step in 0..steps {
            let at = &mut dual.steps[block * steps + step];
            at.limit.0[lane] = bounds.steps[step].limit;
            at.source.0[lane] = bounds.steps[step].source;
        }
    }
    aim(dual, problem);
}

/// The goal of each kind of rate, in units of the capacity: the capacity, weighted with `middle` (the middle of real and
/// virtual outgoing rates) if the objective weighs their deviation.
fn goals(weights: &Weights, middle: Option<&f64>) -> [f64; 3] {
    let middle = 2.0 * weights.deviation * middle.unwrap_or(&1.0);
    let [_, output, unhindered] = weights.rates();
    let unhindered = if unhindered > 0.0 { (weights.virtual_output + middle) / unhindered } else { 1.0 };
    [1.0, (weights.output + middle) / output, unhindered]
}

/// Sets the rates' goals from the present middles.
pub(super) fn aim<const M: usize>(dual: &mut Dual<M>, problem: &Problem) {
    let steps = problem.horizon;
    for circuit in 0..problem.circuits() {
        for step in 0..steps {
            let goals = goals(&problem.weights, dual.middle.get(circuit * steps + step));
            let at = &mut dual.steps[circuit / LANES * steps + step];
            for (goal, value) in at.goal.iter_mut().zip(goals) {
                goal.0[circuit % LANES] = value;
            }
        }
    }
}

/// The share of the capacity that fixed rates leave to the others, per step.
pub(super) fn left_by_fixed(problem: &Problem) -> [f64; STATES] {
    let mut left = [1.0; STATES];
    for (step, left) in left.iter_mut().enumerate().take(problem.horizon.min(2)) {
        *left -= problem.fixed_sum(step) / problem.capacity;
    }
    left
}

/// Gives every free rate its fair share of the capacity, within source, queue and successor.
fn safe_rates<const M: usize>(dual: &mut Dual<M>, problem: &Problem, limits: &Limits) {
    let (n, steps) = (problem.circuits(), problem.horizon);
    let share = 1.0 / n as f64;
    let left = left_by_fixed(problem);
    for circuit in 0..n {
        let bounds = limits.of(circuit);
        let (first, lane) = (circuit / LANES * steps, circuit % LANES);
        let mut queues = [0.0; M];
        // The least incoming cells, and whether any cells can have come in.
        let (mut certain, mut stocked) = (0.0, bounds.queue > ROOM);
        for step in 0..steps {
            let at = &mut dual.steps[first + step];
            let incoming = bounds.steps[step].fixed.is_none()
                && (bounds.steps[step].least_source - certain).min(left[step]) > ROOM;
            certain += bounds.steps[step].fixed.unwrap_or(0.0);
            stocked |= incoming || certain > ROOM;
            for m in 0..M {
                let here = bounds.queue + queues[0] - queues[m];
                let (free, rate) = match (m, bounds.steps[step].fixed) {
                    (0, Some(rate)) => (false, rate),
                    (0, None) => {
                        let room = bounds.steps[step].least_source - queues[0];
                        (incoming, (share * left[step]).min(room))
                    }
                    (1, _) => (
                        stocked && bounds.steps[step].limit > ROOM,
                        share.min(here).min(bounds.steps[step].limit),
                    ),
                    _ => (stocked, share.min(here)),
                };
                let fixed = m == 0 && bounds.steps[step].fixed.is_some();
                let rate = if free || fixed { rate.max(0.0) } else { 0.0 };
                at.rate[m].0[lane] = rate;
                at.free[m].0[lane] = f64::from(u8::from(free));
                queues[m] += rate;
            }
        }
    }
}

/// Removes the remaining small violations of a circuit's constraints.
pub(super) fn settle<const M: usize>(dual: &mut Dual<M>, problem: &Problem, limits: &Limits) {
    let steps = problem.horizon;
    for circuit in 0..problem.circuits() {
        let bounds = limits.of(circuit);
        let lane = circuit % LANES;
        let mut queues = [0.0; M];
        for (step, at) in dual.steps[circuit / LANES * steps..][..steps].iter_mut().enumerate() {
            for m in 0..M {
                let rate = &mut at.rate[m].0[lane];
                *rate = rate.min(bounds.room(step, m, &queues)).max(0.0);
                queues[m] += *rate;
            }
        }
    }
}

/// Takes from the incoming rates what lets a queue exceed its bound by a hair: rounding, but dearly paid for.
pub(super) fn trim<const M: usize>(dual: &mut Dual<M>, problem: &Problem, limits: &Limits) {
    let steps = problem.horizon;
    for circuit in 0..problem.circuits() {
        let bounds = limits.of(circuit);
        let lane = circuit % LANES;
        let mut queues = [0.0; M];
        for (step, at) in dual.steps[circuit / LANES * steps..][..steps].iter_mut().enumerate() {
            let least = (1..M).map(|m| queues[m] + at.rate[m].0[lane]).fold(f64::INFINITY, f64::min);
            let excess = queues[0] + at.rate[0].0[lane] - least - bounds.queue_room;
            if bounds.steps[step].fixed.is_none() && excess > 0.0 && excess < HAIR {
                at.rate[0].0[lane] = (at.rate[0].0[lane] - excess).max(0.0);
            }
            for m in 0..M {
                queues[m] += at.rate[m].0[lane];
            }
        }
    }
}

/// Largest violation of a constraint by the rates, in normalised units.
pub(super) fn excess<const M: usize>(core: &Dual<M>, problem: &Problem, limits: &Limits) -> f64 {
    let (n, steps) = (problem.circuits(), problem.horizon);
    let (mut worst, mut sums) = (0.0f64, [[0.0; M]; STATES]);
    for circuit in 0..n {
        let bounds = limits.of(circuit);
        let mut queues = [0.0; M];
        for (step, at) in core.steps[circuit / LANES * steps..][..steps].iter().enumerate() {
            for m in 0..M {
                let rate = at.rate[m].0[circuit % LANES];
                queues[m] += rate;
                sums[step][m] += rate;
                worst = worst.max(-rate).max(queues[m] - queues[0] - bounds.queue);
            }
            worst = worst.max(at.rate[1].0[circuit % LANES] - bounds.steps[step].limit);
            worst = worst.max(queues[0] - bounds.steps[step].source);
        }
    }
    sums.iter().flatten().fold(worst, |worst, sum| worst.max(sum - 1.0))
}

/// Writes the rates to the solution.
pub(super) fn store<const M: usize>(core: &Dual<M>, problem: &Problem, solution: &mut Solution) {
    let steps = problem.horizon;
    for circuit in 0..problem.circuits() {
        for step in 0..steps {
            let rate = &core.steps[circuit / LANES * steps + step].rate;
            let rate_of = |m: usize| rate[m].0[circuit % LANES].max(0.0) * problem.capacity;
            let at = circuit * steps + step;
            solution.v_in[at] = rate_of(0);
            solution.v_out[at] = rate_of(1);
            if M == 3 {
                solution.vv_out[at] = rate_of(2);
            }
        }
    }
}

/// Number of blocks of lanes for `circuits`.
pub(super) fn blocks(circuits: usize) -> usize {
    circuits.div_ceil(LANES)
}
