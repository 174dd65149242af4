//! The current point of the last interior point method ([`super::interior`]).
//!
//! It holds rates, slacks and multipliers of all circuits, step by step, and each step's part of the Newton system.

use super::lane::{LANES, Lane};
use super::riccati::{Factor, Mat, Network, Vector};

/// Added to the Hessian of a rate that is fixed.
const FIXED: f64 = 1e18;

/// Constants of one solve.
#[derive(Debug, Default)]
pub(super) struct Scale {
    pub horizon: usize,
    /// Curvature of the incoming, outgoing and virtual rates, per step.
    pub cost: Vec<[f64; 3]>,
    /// Complementarity at which the solve ends.
    pub gap: f64,
    /// Sum of all pairs' weights.
    pub weights: f64,
}

/// A slack and its multiplier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub slack: Lane,
    pub price: Lane,
    /// Target of their product as a share of `mu`; zero for a missing constraint.
    pub weight: Lane,
    /// Excess of the slack over the room at the start.
    pub excess: Lane,
    pub slack_step: Lane,
    /// The multiplier's step; before the slack's step is known, its constant part.
    pub price_step: Lane,
}

impl Pair {
    /// A missing constraint.
    pub const NONE: Pair = Pair {
        // Too far away to shorten a step.
        slack: Lane([1e300; LANES]),
        price: Lane::ZERO,
        weight: Lane::ZERO,
        excess: Lane::ZERO,
        slack_step: Lane::ZERO,
        price_step: Lane::ZERO,
    };

    #[inline(always)]
    pub fn stiffness(&self) -> Lane {
        self.price / self.slack
    }

    /// Sets the step's target for the product; returns the constant part of the multiplier's decrease.
    #[inline(always)]
    pub fn aim(&mut self, goal: &Goal, ahead: Lane) -> Lane {
        let (slack, price) = (self.slack, self.price);
        let off = match *goal {
            Goal::Affine => slack * price,
            Goal::Corrected { mu, share } => {
                slack * price - Lane::all(mu) * self.weight
                    + Lane::all(share) * self.slack_step * self.price_step
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

    /// Sets slack and multiplier steps for a row's step; the slack also loses its excess.
    #[inline(always)]
    pub fn answer(&mut self, step: Lane, ahead: Lane) {
        self.slack_step = step - self.excess * ahead;
        self.price_step = -(self.price_step + self.stiffness() * step);
    }

    #[inline(always)]
    pub fn advance(&mut self, step: Lane) {
        self.slack += step * self.slack_step;
        self.price += step * self.price_step;
    }
}

/// The treatment of rounding errors in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Care {
    /// The gradient determines the most affected multipliers ([`Step::settle`]); this is enough for
    /// most problems.
    #[default]
    Settled,
    /// Iterative refinement removes them ([`super::refine`]).
    Refined,
}

/// A direction's target for the products of slacks and multipliers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    /// Zero.
    Affine,
    /// `mu` times their weight, with a share of the affine step's second-order term
    /// (Mehrotra; the share is Colombo and Gondzio's).
    Corrected { mu: f64, share: f64 },
    /// Correct the present step: move products that are far off `mu` times their weight after a step of length
    /// `reach` (Gondzio 1996).
    Centred { mu: f64, reach: f64 },
}

/// The effect of a direction: its longest step, and the complementarity after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Largest relative decrease of a slack or multiplier.
    pub shrink: Lane,
    pub linear: Lane,
    pub quadratic: Lane,
}

impl Progress {
    pub const NONE: Progress = Progress { shrink: Lane::ZERO, linear: Lane::ZERO, quadratic: Lane::ZERO };

    #[inline(always)]
    pub fn note(&mut self, pair: &Pair) {
        let slack = -pair.slack_step / pair.slack;
        // A missing constraint has price zero and price step zero.
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
    /// The queue after the step is not negative.
    pub low: Pair,
    /// The queue is at most its bound plus the overflow.
    pub high: Pair,
    /// The overflow is not negative.
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
    /// The goal of the rates.
    pub goal: Vector<M>,
    /// Rates are not negative.
    pub lower: [Pair; M],
    /// Incoming cells by the end of the step are at most the predecessor's.
    pub source: Pair,
    pub out: [Out; O],
    pub gradient: Vector<M>,
    pub target: Vector<M>,
    /// Linear cost on the queues `[incoming, outgoing, ..]` after the step.
    pub queue_pull: Vector<M>,
    pub open: Vector<M>,
    pub factor: Factor<M>,
}

impl<const M: usize, const O: usize> Step<M, O> {
    pub const EMPTY: Step<M, O> = Step {
        rate: [Lane::ZERO; M],
        free: [Lane::ZERO; M],
        goal: [Lane::ONE; M],
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
    pub fn curvature(&self, cost: &[f64; 3]) -> Vector<M> {
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
    pub fn add_queues(&self, future: &mut Network<M>) {
        future.hold(0, self.source.stiffness());
        for (o, out) in self.out.iter().enumerate() {
            future.tie(0, o + 1, out.low.stiffness() + out.overflow_stiffness());
        }
    }
}

impl Out {
    /// Only missing constraints. The overflow's price is positive because it is a divisor.
    pub const NONE: Out = Out {
        limit: Pair::NONE,
        low: Pair::NONE,
        high: Pair::NONE,
        over: Pair { slack: Lane::ONE, price: Lane([1e-300; LANES]), ..Pair::NONE },
        toll: Lane::ZERO,
    };

    /// Second derivative of the soft bound with the overflow eliminated.
    #[inline(always)]
    pub fn overflow_stiffness(&self) -> Lane {
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
    pub care: Care,
    /// The remaining share of the start's excess slack, from one to zero.
    pub ahead: f64,
    /// The coupling rows, rate by rate in a step, step after step.
    pub coupling: Vec<Row>,
    /// Lanewise sums: of the inverse Hessians, and of the steps at the present multipliers.
    pub inverse: Vec<Mat<M>>,
    pub transfer: Vec<Mat<M>>,
    pub moved: Vec<Vector<M>>,
    pub schur: Vec<f64>,
    pub shift: Vec<f64>,
    /// A copy of the step before a centring that may not help.
    pub kept: Vec<Step<M, O>>,
    /// The rates nearest to optimal so far.
    pub best: Vec<Vector<M>>,
    pub kept_coupling: Vec<Row>,
}

/// A coupling row: the circuits' rates add up to at most one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub slack: f64,
    pub price: f64,
    /// Target of their product as a share of `mu`; zero if all rates in the row are fixed.
    pub weight: f64,
    pub slack_step: f64,
    pub price_step: f64,
    pub off: f64,
    /// Excess of the slack over the room at the start.
    pub excess: f64,
}

impl Row {
    /// As [`Pair::aim`].
    pub fn off(&self, goal: &Goal) -> f64 {
        let (slack, price) = (self.slack, self.price);
        match *goal {
            Goal::Affine => slack * price,
            Goal::Corrected { mu, share } => {
                slack * price - mu * self.weight + share * self.slack_step * self.price_step
            }
            Goal::Centred { mu, reach } => {
                let middle = mu * self.weight;
                let product = (slack + reach * self.slack_step) * (price + reach * self.price_step);
                let repair = (product.clamp(0.1 * middle, 10.0 * middle) - product).max(-10.0 * middle);
                -(slack * self.price_step + price * self.slack_step) - repair
            }
        }
    }

    /// A row with fixed rates only.
    pub const ABSENT: Row =
        Row { slack: 1.0, price: 0.0, weight: 0.0, slack_step: 0.0, price_step: 0.0, off: 0.0, excess: 0.0 };
}

impl<const M: usize, const O: usize> Step<M, O> {
    /// Right-hand sides of the Newton system for complementarity `mu`.
    #[inline(always)]
    pub fn aim(&mut self, goal: &Goal, ahead: Lane) {
        for m in 0..M {
            self.target[m] = -self.gradient[m] * self.free[m] - self.lower[m].aim(goal, ahead);
        }
        self.queue_pull = [Lane::ZERO; M];
        self.queue_pull[0] = -self.source.aim(goal, ahead);
        for (o, out) in self.out.iter_mut().enumerate() {
            self.target[o + 1] += out.limit.aim(goal, ahead);
            // Eliminate the overflow: its multiplier and the bound's add up to a constant.
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
    pub fn answer(&mut self, rate: &Vector<M>, queues: &Vector<M>, ahead: Lane) {
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
    /// Computes the steps of stiff queue multipliers from the stationarity of the outgoing rates.
    ///
    /// The queue's own step is a difference of nearly equal numbers; times the stiffness, its
    /// rounding error would dominate late steps. `later` is the part of queues after later steps.
    #[inline(always)]
    pub fn settle(&mut self, cost: &[f64; 3], shift: &[f64], later: &mut Vector<M>, known: &mut Vector<M>) {
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
    pub fn note(&self, progress: &mut Progress) {
        self.lower.iter().for_each(|pair| progress.note(pair));
        progress.note(&self.source);
        for out in &self.out {
            [&out.limit, &out.low, &out.high, &out.over].into_iter().for_each(|pair| progress.note(pair));
        }
    }
}
