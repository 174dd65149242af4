//! Iterative refinement of the interior point method's steps.
//!
//! Near the optimum a tight constraint is 10^14 times as stiff as the rates' own curvature, so the last bit of a
//! rate is a large force. The residual of the Newton system is therefore computed from
//! the multipliers' steps, and the same factors give a correction. The correction is small and so is its last bit.
//! Slacks and multipliers add it to their step.

use super::cholesky::solve_cholesky;
use super::iterate::{Interior, Pair, Progress, Step};
use super::lane::Lane;

/// Accepted gradient after a step, relative to the step's discount, and to the gradient before it.
const LEFT: f64 = 1e-6;
const LEFT_OF_GRADIENT: f64 = 1e-3;
/// The most refinements of a step.
const ROUNDS: usize = 20;

impl<const M: usize, const O: usize> Interior<M, O> {
    /// Refines the present step until its residual is small relative to `gradient` (the largest before the
    /// step), or refinement no longer helps. Returns the step's progress.
    pub fn refine(&mut self, gradient: f64) -> Progress {
        let enough = LEFT.max(LEFT_OF_GRADIENT * gradient);
        let mut last = f64::INFINITY;
        for _ in 0..ROUNDS {
            let left = self.what_is_left();
            if left <= enough || left.is_nan() || left > 0.9 * last {
                break;
            }
            last = left;
            self.solve_for_rest();
        }
        let mut progress = Progress::NONE;
        self.steps.iter().for_each(|step| step.note(&mut progress));
        progress
    }

    /// Sets the targets to the gradient that remains after the present step; returns its maximum, relative
    /// to the step's discount.
    fn what_is_left(&mut self) -> f64 {
        let mut worst = Lane::ZERO;
        for block in self.steps.chunks_exact_mut(self.scale.horizon) {
            let mut queues = [Lane::ZERO; M];
            for (k, step) in block.iter_mut().enumerate().rev() {
                let cost = &self.scale.cost[k];
                queues[0] += step.source.price_step;
                for (o, out) in step.out.iter().enumerate() {
                    let net = out.high.price_step - out.low.price_step;
                    queues[0] += net;
                    queues[o + 1] -= net;
                }
                for m in 0..M {
                    let price = Lane::all(self.shift[k * M + m]);
                    let own = Lane::all(cost[m]) * step.open[m];
                    let limit = if m == 0 { Lane::ZERO } else { step.out[m - 1].limit.price_step };
                    let left = step.gradient[m] + own + price - step.lower[m].price_step + limit + queues[m];
                    step.target[m] = -left * step.free[m];
                    worst = worst.max(step.target[m].abs() * Lane::all(1.0 / cost[m]));
                }
            }
        }
        worst.largest()
    }

    /// Solves the Newton system for the residual and adds the correction to the step.
    fn solve_for_rest(&mut self) {
        let horizon = self.scale.horizon;
        self.moved.fill([Lane::ZERO; M]);
        for block in self.steps.chunks_exact_mut(horizon) {
            let mut pull = [Lane::ZERO; M];
            for step in block.iter_mut().rev() {
                step.queue_pull = step.factor.backward(&step.target, &mut pull);
            }
            let mut queues = [Lane::ZERO; M];
            for (step, moved) in block.iter().zip(&mut self.moved) {
                let rate = step.factor.forward(&step.queue_pull, &mut queues);
                for m in 0..M {
                    moved[m] += rate[m] + step.open[m];
                }
            }
        }
        for (index, row) in self.coupling.iter().enumerate() {
            self.shift[index] = if row.weight > 0.0 {
                self.moved[index / M][index % M].sum() + row.slack_step + self.ahead * row.excess
            } else {
                0.0
            };
        }
        solve_cholesky(&self.schur, &mut self.shift);
        for block in self.steps.chunks_exact_mut(horizon) {
            let mut pull = [Lane::ZERO; M];
            for (k, step) in block.iter_mut().enumerate().rev() {
                let mut target = step.target;
                for m in 0..M {
                    target[m] -= Lane::all(self.shift[k * M + m]) * step.free[m];
                }
                step.queue_pull = step.factor.backward(&target, &mut pull);
            }
            let mut queues = [Lane::ZERO; M];
            for step in block.iter_mut() {
                let before = queues;
                let mut rate = step.factor.forward(&step.queue_pull, &mut queues);
                for m in 0..M {
                    rate[m] = rate[m] * step.free[m];
                    queues[m] = before[m] + rate[m];
                }
                step.add(&rate, &queues);
            }
        }
        for (row, shift) in self.coupling.iter_mut().zip(&mut self.shift) {
            row.price_step += *shift;
            row.slack_step -= if row.weight > 0.0 { row.slack * *shift / row.price } else { 0.0 };
            *shift = row.price_step;
        }
    }
}

impl Pair {
    /// Adds another `step` of the row.
    fn add(&mut self, step: Lane) {
        self.slack_step += step;
        self.price_step -= self.stiffness() * step;
    }
}

impl<const M: usize, const O: usize> Step<M, O> {
    /// Adds the effect of a change of rates and queues to the step.
    fn add(&mut self, rate: &[Lane; M], queues: &[Lane; M]) {
        for m in 0..M {
            self.open[m] += rate[m];
            self.lower[m].add(rate[m]);
        }
        self.source.add(-queues[0]);
        for (o, out) in self.out.iter_mut().enumerate() {
            let queue = queues[0] - queues[o + 1];
            out.limit.add(-rate[o + 1]);
            out.low.add(queue);
            let stiffness = out.overflow_stiffness();
            let (high, over) = (&mut out.high, &mut out.over);
            let price = stiffness * queue;
            let excess = over.slack * price / over.price;
            high.price_step += price;
            high.slack_step += excess - queue;
            over.price_step -= price;
            over.slack_step += excess;
        }
    }
}
