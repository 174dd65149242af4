//! Mehrotra's predictor-corrector method, shaped to the problem: for the problems that [`super::dual`] does
//! not get hold of.
//!
//! Circuits touch each other only in the rows that bound the sums of their rates. Per iteration every
//! circuit's Hessian is factored along its horizon ([`super::riccati`]), the sum of the inverses is the
//! system of the coupling rows' multipliers, and every circuit's step follows from these. Work is linear
//! in the number of circuits, four of which are computed side by side.
//!
//! Two things make it take few iterations. The start is strictly feasible and exactly centred, so only
//! the gradient of the Lagrangian has to be driven to zero. And complementarity is weighed: pairs of a step
//! are driven to `mu` times the step's discount, so that late steps, 10^-4 as important as the first,
//! converge with it and not long after it.

use super::centre::{self, Scale};
use pulp::{Arch, Simd, WithSimd};

use super::cholesky::{cholesky, solve_cholesky};
use super::dual::Dual;
use super::lane::{LANES, Lane};
use super::riccati::{Factor, Mat, Network, Vector, add_inverse, block_index};
use super::{Problem, Residuals};

/// Iterations after which the safe rates are taken; a solve needs 8 to 50.
const ITERATIONS: u32 = 100;
/// Most centrings in an iteration, and the length of a step from which on none is tried: each costs half an
/// iteration.
const CORRECTORS: usize = 2;
const LONG: f64 = 0.5;
/// Gradient of the Lagrangian, relative to the step's discount, at which a solve ends.
const GRADIENT: f64 = 1e-5;
/// How many times as far from optimal as asked for a solve may end when rounding lets it come no nearer.
const NEAR: f64 = 1e4;
/// Distance from the optimal objective, relative to it, at which a solve ends.
const OBJECTIVE: f64 = 1e-7;
/// Share of the start's excess slack that may be left.
const EXCESS: f64 = 1e-9;
/// Added to the Hessian of a rate that is fixed.
const FIXED: f64 = 1e18;

/// A slack and its multiplier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub slack: Lane,
    pub price: Lane,
    /// Share of `mu` their product is driven to; zero for a constraint that is not there.
    pub weight: Lane,
    /// By how much the slack exceeded the room there was at the start.
    pub excess: Lane,
    slack_step: Lane,
    /// The multiplier's step, and until the slack's step is known the constant part of it.
    price_step: Lane,
}

impl Pair {
    /// A constraint that is not there.
    pub const NONE: Pair = Pair {
        // So far away that no step shortens it.
        slack: Lane([1e300; LANES]),
        price: Lane::ZERO,
        weight: Lane::ZERO,
        excess: Lane::ZERO,
        slack_step: Lane::ZERO,
        price_step: Lane::ZERO,
    };

    #[inline(always)]
    fn stiffness(&self) -> Lane {
        self.price / self.slack
    }

    /// Sets what the step is to do to the product; returns the constant part of the multiplier's decrease.
    #[inline(always)]
    fn aim(&mut self, goal: &Goal, ahead: Lane) -> Lane {
        let (slack, price) = (self.slack, self.price);
        let off = match *goal {
            Goal::Affine => slack * price,
            Goal::Corrected { mu } => {
                slack * price - Lane::all(mu) * self.weight + self.slack_step * self.price_step
            }
            Goal::Centred { mu, reach } => {
                let (reach, middle) = (Lane::all(reach), Lane::all(mu) * self.weight);
                let product = (slack + reach * self.slack_step) * (price + reach * self.price_step);
                let (low, high) = (Lane::all(0.1) * middle, Lane::all(10.0) * middle);
                let repair = (product.max(low).min(high) - product).max(-high);
                -(slack * self.price_step + price * self.slack_step) - repair
            }
        };
        let mut present = self.weight;
        for weight in &mut present.0 {
            *weight = if *weight > 0.0 { 1.0 } else { 0.0 };
        }
        self.price_step = present * (off - price * self.excess * ahead) / slack;
        self.price_step
    }

    /// The row moves by `step`, and the slack gives up its excess; the multiplier answers.
    #[inline(always)]
    fn answer(&mut self, step: Lane, ahead: Lane) {
        self.slack_step = step - self.excess * ahead;
        self.price_step = -(self.price_step + self.stiffness() * step);
    }

    #[inline(always)]
    fn advance(&mut self, step: Lane) {
        self.slack += step * self.slack_step;
        self.price += step * self.price_step;
    }
}

/// What a direction is to do to the products of slacks and multipliers.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// Bring them to zero.
    Affine,
    /// Bring them to `mu` times their weight, foreseeing the second-order term of the affine step (Mehrotra).
    Corrected { mu: f64 },
    /// Mend the present step: products that are far off `mu` times their weight when it is taken `reach`
    /// far are brought near (Gondzio 1996).
    Centred { mu: f64, reach: f64 },
}

/// What a step direction does: how far it may go, and the complementarity it leaves.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Largest relative decrease of a slack or multiplier.
    shrink: Lane,
    linear: Lane,
    quadratic: Lane,
}

impl Progress {
    const NONE: Progress = Progress { shrink: Lane::ZERO, linear: Lane::ZERO, quadratic: Lane::ZERO };

    #[inline(always)]
    fn note(&mut self, pair: &Pair) {
        let slack = -pair.slack_step / pair.slack;
        // A constraint that is not there has price zero and price step zero.
        let price = -pair.price_step / pair.price.max(Lane::all(f64::MIN_POSITIVE));
        self.shrink = self.shrink.max(slack).max(price);
        self.linear += pair.slack * pair.price_step + pair.price * pair.slack_step;
        self.quadratic += pair.slack_step * pair.price_step;
    }
}

/// An outgoing rate's own constraints in one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    /// The successor's limit.
    pub limit: Pair,
    /// The queue after the step is not negative,
    pub low: Pair,
    /// nor above its bound plus the overflow,
    pub high: Pair,
    /// which is not negative.
    pub over: Pair,
    /// A fixed price of the queue, in place of the two pairs where its bound is zero.
    pub toll: Lane,
}

/// One step of four circuits. Rates are `[incoming, outgoing, virtual outgoing]` as far as they exist.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<const M: usize, const O: usize> {
    pub rate: Vector<M>,
    /// One where the rate is free, zero where it is fixed.
    pub free: Vector<M>,
    /// Rates are not negative.
    pub lower: [Pair; M],
    /// What has come in by the end of the step is within what the predecessor has.
    pub source: Pair,
    pub out: [Out; O],
    gradient: Vector<M>,
    target: Vector<M>,
    /// Linear cost on the queues `[incoming, outgoing, ..]` after the step.
    queue_pull: Vector<M>,
    open: Vector<M>,
    factor: Factor<M>,
}

impl<const M: usize, const O: usize> Step<M, O> {
    pub const EMPTY: Step<M, O> = Step {
        rate: [Lane::ZERO; M],
        free: [Lane::ZERO; M],
        lower: [Pair::NONE; M],
        source: Pair::NONE,
        out: [Out::NONE; O],
        gradient: [Lane::ZERO; M],
        target: [Lane::ZERO; M],
        queue_pull: [Lane::ZERO; M],
        open: [Lane::ZERO; M],
        factor: Factor::NONE,
    };

    /// Curvature of the rates.
    #[inline(always)]
    fn curvature(&self, cost: &[f64; 3]) -> Vector<M> {
        let mut curvature = [Lane::ZERO; M];
        for m in 0..M {
            let fixed = (Lane::ONE - self.free[m]) * Lane::all(FIXED);
            curvature[m] = Lane::all(cost[m]) + self.lower[m].stiffness() + fixed;
        }
        for (o, out) in self.out.iter().enumerate() {
            curvature[o + 1] += out.limit.stiffness();
        }
        curvature
    }

    /// Adds the curvature of the queues after the step.
    #[inline(always)]
    fn add_queues(&self, future: &mut Network<M>) {
        future.hold(0, self.source.stiffness());
        for (o, out) in self.out.iter().enumerate() {
            future.tie(0, o + 1, out.low.stiffness() + out.overflow_stiffness());
        }
    }
}

impl Out {
    /// No constraint at all; the overflow's price is not quite zero, since it is divided by.
    const NONE: Out = Out {
        limit: Pair::NONE,
        low: Pair::NONE,
        high: Pair::NONE,
        over: Pair { slack: Lane::ONE, price: Lane([1e-300; LANES]), ..Pair::NONE },
        toll: Lane::ZERO,
    };

    /// Second derivative of the soft bound with the overflow eliminated.
    #[inline(always)]
    fn overflow_stiffness(&self) -> Lane {
        let (high, over) = (&self.high, &self.over);
        high.price * over.price / (high.slack * over.price + high.price * over.slack)
    }
}

/// The method's memory for problems with `M` rates per circuit and step, `O = M - 1` of them outgoing.
#[derive(Debug, Default)]
pub(super) struct Interior<const M: usize, const O: usize> {
    /// Blocks of [`LANES`] circuits, step after step.
    pub steps: Vec<Step<M, O>>,
    pub scale: Scale,
    /// What is left of the excess slack the solve began with, from one to zero.
    pub ahead: f64,
    /// The coupling rows, rate by rate in a step, step after step.
    pub coupling: Vec<Row>,
    /// Lanewise sums: of the inverse Hessians, and of the steps at the present multipliers.
    inverse: Vec<Mat<M>>,
    transfer: Vec<Mat<M>>,
    moved: Vec<Vector<M>>,
    schur: Vec<f64>,
    shift: Vec<f64>,
    /// The step before a centring that may not pay.
    kept: Vec<Step<M, O>>,
    /// The rates nearest to optimal so far.
    best: Vec<Vector<M>>,
    kept_coupling: Vec<Row>,
}

/// A coupling row: the circuits' rates add up to at most one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub slack: f64,
    pub price: f64,
    /// Share of `mu` their product is driven to; zero if no rate in the row is free.
    pub weight: f64,
    slack_step: f64,
    price_step: f64,
    off: f64,
    /// By how much the slack exceeded the room there was at the start.
    pub excess: f64,
}

impl Row {
    /// As [`Pair::aim`].
    fn off(&self, goal: &Goal) -> f64 {
        let (slack, price) = (self.slack, self.price);
        match *goal {
            Goal::Affine => slack * price,
            Goal::Corrected { mu } => slack * price - mu * self.weight + self.slack_step * self.price_step,
            Goal::Centred { mu, reach } => {
                let middle = mu * self.weight;
                let product = (slack + reach * self.slack_step) * (price + reach * self.price_step);
                let repair = (product.clamp(0.1 * middle, 10.0 * middle) - product).max(-10.0 * middle);
                -(slack * self.price_step + price * self.slack_step) - repair
            }
        }
    }

    /// A row in which no rate is free.
    pub const ABSENT: Row =
        Row { slack: 1.0, price: 0.0, weight: 0.0, slack_step: 0.0, price_step: 0.0, off: 0.0, excess: 0.0 };
}

impl<const M: usize, const O: usize> Interior<M, O> {
    /// Solves a checked problem with circuits and a capacity above zero: how far from optimal it ends, and how
    /// many times as far as asked for (up to one: solved); `None` if it comes nowhere near the optimum. Counts
    /// `iterations` up.
    pub fn solve(&mut self, problem: &Problem, iterations: &mut u32) -> Option<(Residuals, f64)> {
        let last = *iterations + ITERATIONS;
        centre::load(self, problem);
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
            if least <= 1.0 || stuck || *iterations == last || !self.iterate(now.complementarity) {
                break;
            }
            *iterations += 1;
        }
        for (best, step) in self.best.iter().zip(&mut self.steps) {
            step.rate = *best;
        }
        (least <= NEAR).then_some((best, least))
    }

    /// Hands rates, prices and multipliers over.
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

    /// The circuits' part of it.
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
                    step.gradient[m] = Lane::all(cost[m]) * (step.rate[m] - Lane::ONE) + price
                        - step.lower[m].price
                        + queues[m];
                }
                for (o, out) in step.out.iter().enumerate() {
                    step.gradient[o + 1] += out.limit.price;
                }
                for m in 0..M {
                    let unused = Lane::ONE - step.rate[m];
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
    fn iterate(&mut self, mu: f64) -> bool {
        if !self.factor_coupling() {
            return false;
        }
        self.direct(&Goal::Affine);
        let (length, left) = self.answer();
        let after = (mu + left(length)).max(0.0);
        let target = ((after / mu).powi(3).min(1.0) * mu).max(0.3 * self.scale.gap);
        self.direct(&Goal::Corrected { mu: target });
        let (mut length, _) = self.answer();
        for _ in 0..CORRECTORS {
            if length >= LONG {
                break;
            }
            self.kept.clone_from(&self.steps);
            self.kept_coupling.clone_from(&self.coupling);
            self.direct(&Goal::Centred { mu: target, reach: (length + 0.3).min(1.0) });
            let (better, _) = self.answer();
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
                        self.schur[(k * M + a) * size + j * M + b] = block[a][b].sum();
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

    /// All steps that follow from the coupling multipliers' step. Returns the largest step length and the
    /// change of the average complementarity along the way.
    fn answer(&mut self) -> (f64, impl Fn(f64) -> f64 + use<M, O>) {
        let progress = Arch::new().dispatch(Answer(self, ()));
        let (mut shrink, mut linear, mut quadratic) =
            (progress.shrink.largest(), progress.linear.sum(), progress.quadratic.sum());
        for (index, row) in self.coupling.iter_mut().enumerate() {
            if row.weight == 0.0 {
                continue;
            }
            row.price_step = self.shift[index];
            row.slack_step = -(row.off + row.slack * row.price_step) / row.price;
            shrink = shrink.max(-row.slack_step / row.slack).max(-row.price_step / row.price);
            linear += row.slack * row.price_step + row.price * row.slack_step;
            quadratic += row.slack_step * row.price_step;
        }
        let weights = self.scale.weights;
        let length = if shrink.is_nan() { f64::NAN } else { 1.0 / shrink.max(1.0) };
        (length, move |length: f64| (length * linear + length * length * quadratic) / weights)
    }
}

/// A pass over all circuits as a thing that can be compiled for several kinds of processor.
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

/// What [`Interior::differentiate`] adds up over the circuits.
struct Derived {
    worst: Lane,
    product: Lane,
    weights: Lane,
    value: Lane,
}

/// The passes themselves, where the time goes.
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

impl<const M: usize, const O: usize> Step<M, O> {
    /// Right-hand sides of the Newton system for complementarity `mu`.
    #[inline(always)]
    fn aim(&mut self, goal: &Goal, ahead: Lane) {
        for m in 0..M {
            self.target[m] = -self.gradient[m] * self.free[m] - self.lower[m].aim(goal, ahead);
        }
        self.queue_pull = [Lane::ZERO; M];
        self.queue_pull[0] = -self.source.aim(goal, ahead);
        for (o, out) in self.out.iter_mut().enumerate() {
            self.target[o + 1] += out.limit.aim(goal, ahead);
            // The overflow is eliminated: its multiplier and the bound's add up to a constant.
            let low = out.low.aim(goal, ahead);
            let over = out.over.aim(goal, ahead);
            let high = out.high.aim(goal, ahead);
            let (h, e) = (&out.high, &out.over);
            let give = h.slack + h.price * e.slack / e.price;
            let constant = (high * h.slack - h.price * over * e.slack / e.price) / give;
            let net = low - constant;
            self.queue_pull[0] += net;
            self.queue_pull[o + 1] -= net;
        }
    }

    /// Steps of slacks and multipliers from those of rates and queues.
    #[inline(always)]
    fn answer(&mut self, rate: &Vector<M>, queues: &Vector<M>, ahead: Lane) {
        for m in 0..M {
            self.lower[m].answer(rate[m], ahead);
        }
        self.source.answer(-queues[0], ahead);
        for (o, out) in self.out.iter_mut().enumerate() {
            let queue = queues[0] - queues[o + 1];
            out.limit.answer(-rate[o + 1], ahead);
            out.low.answer(queue, ahead);
            let (h, e) = (&mut out.high, &mut out.over);
            let give = h.slack + h.price * e.slack / e.price;
            let off = h.price_step * h.slack - h.price * e.price_step * e.slack / e.price;
            let price = (h.price * queue - off) / give;
            let over = (e.slack * price - e.price_step * e.slack) / e.price;
            h.price_step = price;
            h.slack_step = over - queue - h.excess * ahead;
            e.price_step = -price;
            e.slack_step = over;
        }
    }
}

impl<const M: usize, const O: usize> Step<M, O> {
    /// Takes the steps of stiff queue multipliers from the stationarity of the outgoing rates instead of
    /// the queue's own step: that is a difference of nearly equal numbers, and times the stiffness its
    /// rounding error would drown the late steps. `later` is what the queues after later steps account for.
    #[inline(always)]
    fn settle(&mut self, cost: &[f64; 3], shift: &[f64], later: &mut Vector<M>, known: &mut Vector<M>) {
        let mut net = [Lane::ZERO; M];
        let mut sure = [Lane::ZERO; M];
        for m in 0..M {
            let sum = self.lower[m].price_step
                - self.gradient[m]
                - Lane::all(cost[m]) * self.open[m]
                - Lane::all(shift[m]);
            let sum = if m == 0 { sum } else { sum - self.out[m - 1].limit.price_step };
            net[m] = sum - later[m];
            sure[m] = known[m] * self.free[m];
            later[m] = sum;
            known[m] = self.free[m];
        }
        let mut queues = Lane::ZERO;
        for (o, out) in self.out.iter_mut().enumerate() {
            let m = o + 1;
            let (low, high) = (out.low.stiffness(), out.overflow_stiffness());
            for lane in 0..LANES {
                if sure[m].0[lane] == 0.0 || low.0[lane].max(high.0[lane]) <= cost[m] {
                    continue;
                }
                if low.0[lane] > high.0[lane] {
                    out.low.price_step.0[lane] = net[m].0[lane] + out.high.price_step.0[lane];
                } else {
                    out.high.price_step.0[lane] = out.low.price_step.0[lane] - net[m].0[lane];
                    out.over.price_step.0[lane] = -out.high.price_step.0[lane];
                }
            }
            queues += out.low.price_step - out.high.price_step;
        }
        let stiff = self.source.stiffness();
        for lane in 0..LANES {
            if sure[0].0[lane] > 0.0 && stiff.0[lane] > cost[0] {
                self.source.price_step.0[lane] = net[0].0[lane] + queues.0[lane];
            }
        }
    }

    /// Notes all pairs' steps.
    #[inline(always)]
    fn note(&self, progress: &mut Progress) {
        self.lower.iter().for_each(|pair| progress.note(pair));
        progress.note(&self.source);
        for out in &self.out {
            [&out.limit, &out.low, &out.high, &out.over].into_iter().for_each(|pair| progress.note(pair));
        }
    }
}
