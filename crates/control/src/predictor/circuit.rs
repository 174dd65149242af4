//! Four circuits' answer to prices: each minimises its own cost plus the price of its capacity.
//!
//! A circuit's constraints become springs with a rest force, the augmented Lagrangian: the force of a
//! constraint is its multiplier plus a stiffness times its violation, not below zero. That is a smooth,
//! piecewise quadratic function of the rates, which Newton's method minimises in as many steps as the set of
//! tense springs changes. The Hessian is factored along the horizon ([`super::riccati`]).

use super::lane::{LANES, Lane};
use super::riccati::{Factor, Network, Vector};

/// Added to the Hessian of a rate that is fixed.
const FIXED: f64 = 1e18;
/// Full Newton steps before line searches begin.
const FULL: usize = 20;
/// The most Newton steps of a block.
const STEPS: usize = 60;
/// The most slopes in a line search.
const ROUNDS: usize = 12;
/// Gradient, relative to the rates' curvature, below which a circuit is at its minimum.
const FLAT: f64 = 1e-10;

/// One step of four circuits. Rates are `[incoming, outgoing, virtual outgoing]` as far as they exist.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<const M: usize> {
    pub rate: Vector<M>,
    /// One where the rate is free, zero where it is fixed.
    pub free: Vector<M>,
    /// The goal of the rates.
    pub goal: Vector<M>,
    /// The successor's limit.
    pub limit: Lane,
    /// The most cells that can have come in by the end of the step.
    pub source: Lane,
    /// Forces of the constraints.
    pub force: Forces<M>,
}

/// The multipliers of one step's constraints.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forces<const M: usize> {
    /// Rates are not negative.
    pub lower: Vector<M>,
    pub limit: Lane,
    pub source: Lane,
    /// Queues after the step are not negative (index 0 is unused).
    pub low: Vector<M>,
    /// Queues after the step are at most their bound (soft).
    pub high: Vector<M>,
}

impl<const M: usize> Step<M> {
    /// A step with zero rates.
    pub(crate) const STILL: Step<M> = Step {
        rate: [Lane::ZERO; M],
        free: [Lane::ZERO; M],
        goal: [Lane::ONE; M],
        limit: Lane::ONE,
        source: Lane::ONE,
        force: Forces {
            lower: [Lane::ZERO; M],
            limit: Lane::ZERO,
            source: Lane::ZERO,
            low: [Lane::ZERO; M],
            high: [Lane::ZERO; M],
        },
    };
}

/// Values that all circuits share in one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs<const M: usize> {
    /// Curvature of the rates.
    pub curvature: [f64; M],
    /// Price of the capacity.
    pub price: [f64; M],
    /// Stiffness of the constraints.
    pub stiffness: f64,
}

/// Largest stiffness of the constraints, and largest force of the queues' upper bound.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Springs {
    pub stiffness: f64,
    pub overflow: f64,
}

/// Queues of four circuits at the start, and room above them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub queue: Lane,
    pub room: Lane,
}

/// Working memory of one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<const M: usize> {
    gradient: Vector<M>,
    /// Force of the queue's constraints on `[incoming, outgoing, ..]`.
    pull: Vector<M>,
    curvature: Vector<M>,
    /// Curvature of the sum of incoming rates, and of the queues.
    hold: Lane,
    tie: Vector<M>,
    shift: Vector<M>,
    pub factor: Factor<M>,
}

impl<const M: usize> Work<M> {
    pub(crate) const EMPTY: Work<M> = Work {
        gradient: [Lane::ZERO; M],
        pull: [Lane::ZERO; M],
        curvature: [Lane::ZERO; M],
        hold: Lane::ZERO,
        tie: [Lane::ZERO; M],
        shift: [Lane::ZERO; M],
        factor: Factor::NONE,
    };
}

/// A spring's force, `rest + stiffness * stretch` if positive, and its stiffness.
#[inline(always)]
fn spring(rest: Lane, stiffness: f64, stretch: Lane) -> (Lane, Lane) {
    let force = rest + Lane::all(stiffness) * stretch;
    let (mut kept, mut stiff) = (Lane::ZERO, Lane::ZERO);
    for i in 0..LANES {
        let tense = force.0[i] > 0.0;
        kept.0[i] = if tense { force.0[i] } else { 0.0 };
        stiff.0[i] = if tense { stiffness } else { 0.0 };
    }
    (kept, stiff)
}

/// As [`spring`], with a largest force.
#[inline(always)]
fn weak_spring(rest: Lane, stiffness: f64, stretch: Lane, most: f64) -> (Lane, Lane) {
    let (mut force, mut stiff) = spring(rest, stiffness, stretch);
    for i in 0..LANES {
        let broken = force.0[i] >= most;
        force.0[i] = if broken { most } else { force.0[i] };
        stiff.0[i] = if broken { 0.0 } else { stiff.0[i] };
    }
    (force, stiff)
}

/// Four circuits over the horizon.
pub(super) struct Block<'a, const M: usize> {
    pub start: &'a Start,
    pub steps: &'a mut [Step<M>],
    pub costs: &'a [Costs<M>],
    pub springs: Springs,
}

impl<const M: usize> Block<'_, M> {
    /// Answers the prices: minimises each circuit's function, then makes the springs' forces the new
    /// multipliers. Returns their largest change as a stretch, and adds the cost in Newton steps to
    /// `effort`. `work` then holds the factors at the solution.
    #[inline(always)]
    pub(crate) fn answer(&mut self, work: &mut [Work<M>], effort: &mut usize) -> f64 {
        self.differentiate(work);
        let mut taken = 0;
        loop {
            self.newton(work);
            let full = taken < FULL;
            let length = if full { Lane::ONE } else { self.length(work) };
            for (step, work) in self.steps.iter_mut().zip(work.iter()) {
                for m in 0..M {
                    step.rate[m] += length * work.shift[m];
                }
            }
            taken += 1;
            // A line search takes a dozen slopes, each half the work of a step.
            *effort += if full { 1 } else { 1 + ROUNDS / 2 };
            let (changed, worst) = self.differentiate(work);
            let (mut settled, mut off) = (true, 0.0f64);
            for i in 0..LANES {
                if (changed.0[i] != 0.0 || length.0[i] != 1.0) && worst.0[i] > FLAT {
                    settled = false;
                    off = off.max(worst.0[i]);
                }
            }
            if settled || taken == STEPS {
                return self.settle().max(off);
            }
        }
    }

    /// Gradients, and the curvature of every part. Returns the lanes with changed curvatures, and the
    /// largest gradient relative to the rate's curvature.
    #[inline(always)]
    fn differentiate(&self, work: &mut [Work<M>]) -> (Lane, Lane) {
        let (mut changed, mut worst) = (Lane::ZERO, Lane::ZERO);
        let mut sums = [Lane::ZERO; M];
        for ((step, work), costs) in self.steps.iter().zip(work.iter_mut()).zip(self.costs) {
            let (force, stiffness) = (&step.force, costs.stiffness);
            let mut note = |now: Lane, was: &mut Lane| {
                changed = changed.max((now - *was).abs());
                *was = now;
            };
            for m in 0..M {
                sums[m] += step.rate[m];
                let curvature = Lane::all(costs.curvature[m]);
                let (lower, stiff) = spring(force.lower[m], stiffness, -step.rate[m]);
                let mut gradient =
                    curvature * (step.rate[m] - step.goal[m]) + Lane::all(costs.price[m]) - lower;
                let mut stiff = curvature + stiff + (Lane::ONE - step.free[m]) * Lane::all(FIXED);
                if m == 1 {
                    let (limit, more) = spring(force.limit, stiffness, step.rate[m] - step.limit);
                    gradient += limit;
                    stiff += more;
                }
                work.gradient[m] = gradient;
                note(stiff, &mut work.curvature[m]);
            }
            let (source, hold) = spring(force.source, stiffness, sums[0] - step.source);
            work.pull = [Lane::ZERO; M];
            work.pull[0] = source;
            note(hold, &mut work.hold);
            for m in 1..M {
                let net = sums[0] - sums[m];
                let (low, tie) = spring(force.low[m], stiffness, -(self.start.queue + net));
                let most = self.springs.overflow;
                let (high, more) = weak_spring(force.high[m], stiffness, net - self.start.room, most);
                let pull = high - low;
                work.pull[0] += pull;
                work.pull[m] -= pull;
                note(tie + more, &mut work.tie[m]);
            }
        }
        let mut pull = [Lane::ZERO; M];
        for ((step, work), costs) in self.steps.iter().zip(work.iter_mut()).zip(self.costs).rev() {
            for m in 0..M {
                pull[m] += work.pull[m];
                work.gradient[m] = (work.gradient[m] + pull[m]) * step.free[m];
                worst = worst.max(work.gradient[m].abs() * Lane::all(1.0 / costs.curvature[m]));
            }
        }
        (changed, worst)
    }

    /// The Newton step.
    #[inline(always)]
    fn newton(&self, work: &mut [Work<M>]) {
        let mut future = Network::NONE;
        let mut pull = [Lane::ZERO; M];
        for (step, work) in self.steps.iter().zip(work.iter_mut()).rev() {
            future.hold(0, work.hold);
            for m in 1..M {
                future.tie(0, m, work.tie[m]);
            }
            work.factor = Factor::step(&work.curvature, &mut future);
            let mut target = [Lane::ZERO; M];
            for m in 0..M {
                target[m] = -work.gradient[m] * step.free[m];
            }
            work.shift = work.factor.backward(&target, &mut pull);
        }
        let mut queues = [Lane::ZERO; M];
        for (step, work) in self.steps.iter().zip(work.iter_mut()) {
            let before = queues;
            work.shift = work.factor.forward(&work.shift, &mut queues);
            for m in 0..M {
                work.shift[m] = work.shift[m] * step.free[m];
                queues[m] = before[m] + work.shift[m];
            }
        }
    }

    /// Slope of the function along the shift, at `length` times the shift.
    #[inline(always)]
    fn slope(&self, work: &[Work<M>], length: Lane) -> Lane {
        let (mut sums, mut shifts) = ([Lane::ZERO; M], [Lane::ZERO; M]);
        let mut slope = Lane::ZERO;
        for ((step, work), costs) in self.steps.iter().zip(work).zip(self.costs) {
            let (force, stiffness) = (&step.force, costs.stiffness);
            for m in 0..M {
                let rate = step.rate[m] + length * work.shift[m];
                sums[m] += rate;
                shifts[m] += work.shift[m];
                let curvature = Lane::all(costs.curvature[m]);
                let (lower, _) = spring(force.lower[m], stiffness, -rate);
                let mut gradient = curvature * (rate - step.goal[m]) + Lane::all(costs.price[m]) - lower;
                if m == 1 {
                    gradient += spring(force.limit, stiffness, rate - step.limit).0;
                }
                slope += gradient * work.shift[m];
            }
            slope += spring(force.source, stiffness, sums[0] - step.source).0 * shifts[0];
            for m in 1..M {
                let net = sums[0] - sums[m];
                let (low, _) = spring(force.low[m], stiffness, -(self.start.queue + net));
                let most = self.springs.overflow;
                let (high, _) = weak_spring(force.high[m], stiffness, net - self.start.room, most);
                slope += (high - low) * (shifts[0] - shifts[m]);
            }
        }
        slope
    }

    /// The step length along the shift at which the slope, which grows, is nearly zero.
    #[inline(always)]
    fn length(&self, work: &[Work<M>]) -> Lane {
        let (mut near, mut far) = (Lane::ZERO, Lane::ONE);
        let (mut slope_near, mut slope_far) = (self.slope(work, near), self.slope(work, far));
        let mut length = Lane::ONE;
        for round in 0..ROUNDS {
            if slope_far.0.iter().all(|slope| *slope <= 0.0) {
                break;
            }
            for i in 0..LANES {
                if slope_far.0[i] <= 0.0 {
                    length.0[i] = far.0[i];
                    continue;
                }
                let share = -slope_near.0[i] / (slope_far.0[i] - slope_near.0[i]);
                let share = if round % 2 == 1 { 0.5 } else { share.clamp(0.01, 0.99) };
                length.0[i] = near.0[i] + share * (far.0[i] - near.0[i]);
            }
            let slope = self.slope(work, length);
            for i in 0..LANES {
                if slope_far.0[i] <= 0.0 {
                    continue;
                }
                if slope.0[i] <= 0.0 {
                    (near.0[i], slope_near.0[i]) = (length.0[i], slope.0[i]);
                } else {
                    (far.0[i], slope_far.0[i]) = (length.0[i], slope.0[i]);
                }
            }
        }
        for i in 0..LANES {
            if slope_far.0[i] > 0.0 && near.0[i] > 0.0 {
                length.0[i] = near.0[i];
            }
        }
        length
    }

    /// Makes the springs' forces the multipliers; returns the largest change as a stretch.
    #[inline(always)]
    fn settle(&mut self) -> f64 {
        let mut worst = Lane::ZERO;
        let mut sums = [Lane::ZERO; M];
        for (step, costs) in self.steps.iter_mut().zip(self.costs) {
            let (force, stiffness) = (&mut step.force, costs.stiffness);
            let mut take = |now: (Lane, Lane), was: &mut Lane, stiffness: f64| {
                worst = worst.max((now.0 - *was).abs() * Lane::all(1.0 / stiffness));
                *was = now.0;
            };
            for m in 0..M {
                sums[m] += step.rate[m];
                take(spring(force.lower[m], stiffness, -step.rate[m]), &mut force.lower[m], stiffness);
            }
            take(spring(force.limit, stiffness, step.rate[1] - step.limit), &mut force.limit, stiffness);
            take(spring(force.source, stiffness, sums[0] - step.source), &mut force.source, stiffness);
            for m in 1..M {
                let net = sums[0] - sums[m];
                let low = spring(force.low[m], stiffness, -(self.start.queue + net));
                take(low, &mut force.low[m], stiffness);
                let most = self.springs.overflow;
                let high = weak_spring(force.high[m], stiffness, net - self.start.room, most);
                take(high, &mut force.high[m], stiffness);
            }
        }
        worst.largest()
    }
}
