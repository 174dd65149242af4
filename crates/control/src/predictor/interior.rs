//! The last method: Mehrotra's predictor-corrector with stored slacks and one step length for all circuits.
//!
//! It solves the rare problems that both [`super::path`] and [`super::dual`] give up. Its structure is that of
//! [`super::path`].
//!
//! Two properties keep the number of iterations low. The start is strictly feasible and exactly centred, so only
//! the gradient of the Lagrangian must go to zero. And complementarity is weighted: the target of a step's pairs
//! is `mu` times the step's discount, so late steps, 10^-4 as important as the first, converge together with it.

use pulp::{Arch, Simd, WithSimd};

use super::centre;
use super::cholesky::{cholesky, solve_cholesky};
use super::dual::Dual;
use super::form::Limits;
use super::iterate::{Care, Goal, Interior, Pair, Progress};
use super::lane::Lane;
use super::problem::{Problem, Residuals};
use super::riccati::{Factor, Network, add_inverse, block_index};

/// The most iterations; a solve needs 8 to 50.
const ITERATIONS: u32 = 100;
/// The most centrings in an iteration, and the step length above which centring is skipped: each costs half an
/// iteration.
const CORRECTORS: usize = 2;
const LONG: f64 = 0.5;
/// Gradient of the Lagrangian, relative to the step's discount, at which a solve ends.
const GRADIENT: f64 = 1e-5;
/// Accepted distance from the optimum, as a multiple of the tolerance, if rounding prevents a better answer.
const NEAR: f64 = 1e4;
/// Distance from the optimal objective, relative to it, at which a solve ends.
const OBJECTIVE: f64 = 1e-7;
/// Accepted remaining share of the start's excess slack.
const EXCESS: f64 = 1e-9;
impl<const M: usize, const O: usize> Interior<M, O> {
    /// Solves a checked problem with circuits and positive capacity; `None` if it does not converge.
    ///
    /// Returns the residuals, and the distance from the optimum as a multiple of the tolerance (at most one: solved).
    /// Increments `iterations`.
    pub fn solve(
        &mut self,
        problem: &Problem,
        limits: &Limits,
        middle: &[f64],
        care: Care,
        iterations: &mut u32,
    ) -> Option<(Residuals, f64)> {
        let last = *iterations + ITERATIONS;
        centre::load(self, problem, limits, middle);
        self.care = care;
        let horizon = problem.horizon;
        self.inverse.resize(block_index(horizon, 0), [[Lane::ZERO; M]; M]);
        self.transfer.resize(horizon, [[Lane::ZERO; M]; M]);
        self.moved.resize(horizon, [Lane::ZERO; M]);
        self.schur.resize(M * horizon * M * horizon, 0.0);
        self.shift.resize(M * horizon, 0.0);
        self.best.resize(self.steps.len(), [Lane::ZERO; M]);
        let mut best = Residuals { dual: f64::INFINITY, complementarity: f64::INFINITY };
        let mut least = f64::INFINITY;
        loop {
            let now = self.differentiate();
            let distance = (now.dual / GRADIENT)
                .max(now.complementarity / self.scale.gap)
                .max(if self.ahead > EXCESS { NEAR * self.ahead / EXCESS } else { 0.0 });
            if distance < least {
                (least, best) = (distance, now);
                for (best, step) in self.best.iter_mut().zip(&self.steps) {
                    *best = step.rate;
                }
            }
            let stuck = distance.is_nan() || distance > 1e4 * least && least < NEAR;
            if least <= 1.0 || stuck || *iterations == last || !self.iterate(&now) {
                break;
            }
            *iterations += 1;
        }
        for (best, step) in self.best.iter().zip(&mut self.steps) {
            step.rate = *best;
        }
        (least <= NEAR).then_some((best, least))
    }

    /// Copies rates, prices and multipliers to the dual method.
    pub fn hand_over(&self, dual: &mut Dual<M>) {
        for (costs, rows) in dual.costs.iter_mut().zip(self.coupling.chunks_exact(M)) {
            for (price, row) in costs.price.iter_mut().zip(rows) {
                *price = row.price;
            }
        }
        for (to, from) in dual.steps.iter_mut().zip(&self.steps) {
            to.rate = from.rate;
            let force = &mut to.force;
            force.source = from.source.price;
            force.limit = from.out[0].limit.price;
            for m in 0..M {
                force.lower[m] = from.lower[m].price;
            }
            for (o, out) in from.out.iter().enumerate() {
                force.low[o + 1] = out.low.price;
                force.high[o + 1] = out.high.price + out.toll;
            }
        }
    }

    /// Gradient of the Lagrangian, factors, and the sum of the inverse Hessians.
    fn differentiate(&mut self) -> Residuals {
        let Derived { worst, product, weights, value } = Arch::new().dispatch(Differentiate(self, ()));
        let (mut product, mut weights) = (product.sum(), weights.sum());
        for row in &self.coupling {
            product += row.slack * row.price;
            weights += row.weight;
        }
        let complementarity = if weights > 0.0 { product / weights } else { 0.0 };
        self.scale.gap = self.scale.gap.min((OBJECTIVE * value.sum() / weights).max(1e-13));
        Residuals { dual: worst.largest(), complementarity }
    }

    /// The circuits' part of [`Self::differentiate`].
    #[inline(always)]
    fn differentiate_circuits(&mut self, (): ()) -> Derived {
        let horizon = self.scale.horizon;
        let mut worst = Lane::ZERO;
        let (mut product, mut weights, mut value) = (Lane::ZERO, Lane::ZERO, Lane::ZERO);
        self.inverse.fill([[Lane::ZERO; M]; M]);
        for block in self.steps.chunks_exact_mut(horizon) {
            let mut future = Network::NONE;
            let mut queues = [Lane::ZERO; M];
            for (k, step) in block.iter_mut().enumerate().rev() {
                let cost = &self.scale.cost[k];
                queues[0] += step.source.price;
                for (o, out) in step.out.iter().enumerate() {
                    let net = out.high.price + out.toll - out.low.price;
                    queues[0] += net;
                    queues[o + 1] -= net;
                }
                for m in 0..M {
                    let price = Lane::all(self.coupling[k * M + m].price);
                    step.gradient[m] = Lane::all(cost[m]) * (step.rate[m] - step.goal[m]) + price
                        - step.lower[m].price
                        + queues[m];
                }
                for (o, out) in step.out.iter().enumerate() {
                    step.gradient[o + 1] += out.limit.price;
                }
                for m in 0..M {
                    let unused = step.goal[m] - step.rate[m];
                    value += Lane::all(0.5 * cost[m]) * unused * unused * step.free[m];
                    worst = worst.max((step.gradient[m] * step.free[m]).abs() * Lane::all(1.0 / cost[m]));
                }
                let mut count = |pair: &Pair| {
                    product += pair.slack * pair.price;
                    weights += pair.weight;
                };
                step.lower.iter().for_each(&mut count);
                count(&step.source);
                for out in &step.out {
                    [&out.limit, &out.low, &out.high, &out.over].into_iter().for_each(&mut count);
                }
                step.add_queues(&mut future);
                step.factor = Factor::step(&step.curvature(cost), &mut future);
            }
            let factors = block.iter().map(|step| &step.factor);
            add_inverse(factors, &mut self.transfer, &mut self.inverse);
        }
        Derived { worst, product, weights, value }
    }

    /// One predictor-corrector step; false if it could not be computed.
    fn iterate(&mut self, now: &Residuals) -> bool {
        let mu = now.complementarity;
        if !self.factor_coupling() {
            return false;
        }
        self.direct(&Goal::Affine);
        let (length, change) = self.answer(now.dual);
        let after = (mu + change).max(0.0);
        let target = ((after / mu).powi(3).min(1.0) * mu).max(0.3 * self.scale.gap);
        // If the step will be shortened, its second-order term would dominate.
        let share = if self.care == Care::Refined { length * length } else { 1.0 };
        self.direct(&Goal::Corrected { mu: target, share });
        let (mut length, _) = self.answer(now.dual);
        for _ in 0..CORRECTORS {
            if length >= LONG {
                break;
            }
            self.kept.clone_from(&self.steps);
            self.kept_coupling.clone_from(&self.coupling);
            self.direct(&Goal::Centred { mu: target, reach: (length + 0.3).min(1.0) });
            let (better, _) = self.answer(now.dual);
            if better.is_nan() || better < length + 0.03 {
                std::mem::swap(&mut self.kept, &mut self.steps);
                std::mem::swap(&mut self.kept_coupling, &mut self.coupling);
                break;
            }
            length = better;
        }
        let length = if length < 1.0 { length * 0.99_f64.max(1.0 - mu) } else { 1.0 };
        if !length.is_finite() || length < 1e-12 {
            return false;
        }
        let along = Lane::all(length);
        Arch::new().dispatch(Advance(self, along));
        for row in &mut self.coupling {
            row.slack += length * row.slack_step;
            row.price += length * row.price_step;
        }
        self.ahead *= 1.0 - length;
        true
    }

    /// Cholesky factor of the coupling rows' system.
    fn factor_coupling(&mut self) -> bool {
        let (horizon, size) = (self.scale.horizon, self.coupling.len());
        for k in 0..horizon {
            for j in 0..=k {
                let block = &self.inverse[block_index(k, j)];
                for a in 0..M {
                    for b in 0..M {
                        self.schur[(j * M + b) * size + k * M + a] = block[a][b].sum();
                    }
                }
            }
        }
        for (i, row) in self.coupling.iter().enumerate() {
            self.schur[i * size + i] += if row.weight > 0.0 { row.slack / row.price } else { 1.0 };
        }
        cholesky(&mut self.schur, size)
    }

    /// Right-hand sides, and the coupling multipliers' step.
    fn direct(&mut self, goal: &Goal) {
        Arch::new().dispatch(Direct(self, *goal));
        for (index, row) in self.coupling.iter_mut().enumerate() {
            if row.weight > 0.0 {
                row.off = row.off(goal);
                self.shift[index] =
                    self.moved[index / M][index % M].sum() + self.ahead * row.excess - row.off / row.price;
            } else {
                self.shift[index] = 0.0;
            }
        }
        solve_cholesky(&self.schur, &mut self.shift);
    }

    /// All steps that follow from the coupling multipliers' step, refined under [`Care::Refined`]; `gradient` is
    /// the largest one. Returns the largest step length and the change of the average complementarity
    /// along the way.
    fn answer(&mut self, gradient: f64) -> (f64, f64) {
        for (row, shift) in self.coupling.iter_mut().zip(&self.shift) {
            if row.weight > 0.0 {
                row.price_step = *shift;
                row.slack_step = -(row.off + row.slack * row.price_step) / row.price;
            }
        }
        let mut progress = Arch::new().dispatch(Answer(self, ()));
        if self.care == Care::Refined {
            progress = self.refine(gradient);
        }
        let (mut shrink, mut linear, mut quadratic) =
            (progress.shrink.largest(), progress.linear.sum(), progress.quadratic.sum());
        for row in self.coupling.iter().filter(|row| row.weight > 0.0) {
            shrink = shrink.max(-row.slack_step / row.slack).max(-row.price_step / row.price);
            linear += row.slack * row.price_step + row.price * row.slack_step;
            quadratic += row.slack_step * row.price_step;
        }
        let length = if shrink.is_nan() { f64::NAN } else { 1.0 / shrink.max(1.0) };
        (length, (length * linear + length * length * quadratic) / self.scale.weights)
    }
}

/// A pass over all circuits, as a type that `pulp` compiles for several processors.
macro_rules! passes {
    ($($pass:ident: $method:ident($argument:ty) -> $output:ty;)*) => {$(
        struct $pass<'a, const M: usize, const O: usize>(&'a mut Interior<M, O>, $argument);

        impl<const M: usize, const O: usize> WithSimd for $pass<'_, M, O> {
            type Output = $output;

            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> $output {
                self.0.$method(self.1)
            }
        }
    )*};
}
passes! {
    Differentiate: differentiate_circuits(()) -> Derived;
    Direct: direct_circuits(Goal) -> ();
    Answer: answer_circuits(()) -> Progress;
    Advance: advance_circuits(Lane) -> ();
}

/// Sums of [`Interior::differentiate`] over the circuits.
struct Derived {
    worst: Lane,
    product: Lane,
    weights: Lane,
    value: Lane,
}

/// The passes over circuits, which take most of the time.
impl<const M: usize, const O: usize> Interior<M, O> {
    #[inline(always)]
    fn direct_circuits(&mut self, goal: Goal) {
        let horizon = self.scale.horizon;
        let ahead = Lane::all(self.ahead);
        self.moved.fill([Lane::ZERO; M]);
        for block in self.steps.chunks_exact_mut(horizon) {
            let mut pull = [Lane::ZERO; M];
            for step in block.iter_mut().rev() {
                step.aim(&goal, ahead);
                for m in 0..M {
                    pull[m] += step.queue_pull[m];
                }
                step.open = step.factor.backward(&step.target, &mut pull);
            }
            let mut queues = [Lane::ZERO; M];
            for (step, moved) in block.iter().zip(&mut self.moved) {
                let rate = step.factor.forward(&step.open, &mut queues);
                for m in 0..M {
                    moved[m] += rate[m];
                }
            }
        }
    }

    #[inline(always)]
    fn answer_circuits(&mut self, (): ()) -> Progress {
        let horizon = self.scale.horizon;
        let mut progress = Progress::NONE;
        for block in self.steps.chunks_exact_mut(horizon) {
            let mut pull = [Lane::ZERO; M];
            for (k, step) in block.iter_mut().enumerate().rev() {
                let mut target = step.target;
                for m in 0..M {
                    pull[m] += step.queue_pull[m];
                    target[m] -= Lane::all(self.shift[k * M + m]) * step.free[m];
                }
                step.open = step.factor.backward(&target, &mut pull);
            }
            let mut queues = [Lane::ZERO; M];
            for step in block.iter_mut() {
                let before = queues;
                let mut rate = step.factor.forward(&step.open, &mut queues);
                for m in 0..M {
                    rate[m] = rate[m] * step.free[m];
                    queues[m] = before[m] + rate[m];
                }
                step.open = rate;
                step.answer(&rate, &queues, Lane::all(self.ahead));
            }
            if self.care == Care::Refined {
                continue;
            }
            let (mut later, mut known) = ([Lane::ZERO; M], [Lane::ONE; M]);
            for (k, step) in block.iter_mut().enumerate().rev() {
                let shift = &self.shift[k * M..][..M];
                step.settle(&self.scale.cost[k], shift, &mut later, &mut known);
                step.note(&mut progress);
            }
        }
        progress
    }

    #[inline(always)]
    fn advance_circuits(&mut self, along: Lane) {
        for step in &mut self.steps {
            for m in 0..M {
                step.rate[m] += along * step.open[m];
                step.lower[m].advance(along);
            }
            step.source.advance(along);
            for out in &mut step.out {
                out.limit.advance(along);
                out.low.advance(along);
                out.high.advance(along);
                out.over.advance(along);
            }
        }
    }
}
