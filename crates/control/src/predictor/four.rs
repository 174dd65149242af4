//! The interior point method's passes over four circuits, which take most of a solve's time.
//!
//! The Newton system is written for the prices after the step, not for their change. It then does not need the gradient,
//! which rounding spoils near the optimum.

use super::circuit::Start;
use super::lane::Lane;
use super::point::{Common, Held, Place, Point, Progress, Reach, Slacks, Soft};
use super::riccati::{Factor, Mat, Network, Vector, add_inverse};

/// Added to the Hessian of a rate that is fixed.
const FIXED: f64 = 1e18;
/// The share of slacks and prices that a step must leave.
pub(super) const SHORT: f64 = 0.99;

/// Working memory of one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch<const M: usize, const O: usize> {
    curvature: Vector<M>,
    /// Curvature of the sum of incoming rates, and of the queues.
    hold: Lane,
    tie: Vector<O>,
    /// Linear costs of the rates, and of the queues `[incoming, outgoing, ..]` after the step.
    target: Vector<M>,
    pull: Vector<M>,
}

impl<const M: usize, const O: usize> Scratch<M, O> {
    pub(crate) const EMPTY: Scratch<M, O> = Scratch {
        curvature: [Lane::ZERO; M],
        hold: Lane::ZERO,
        tie: [Lane::ZERO; O],
        target: [Lane::ZERO; M],
        pull: [Lane::ZERO; M],
    };
}

/// Sums over all circuits, step by step, and working memory.
#[derive(Debug, Default)]
pub(super) struct Sums<const M: usize, const O: usize> {
    pub scratch: Vec<Scratch<M, O>>,
    pub rates: Vec<Vector<M>>,
    /// Steps of the rates at the present prices of the capacity.
    pub moved: Vec<Vector<M>>,
    /// Inverse Hessians, in blocks.
    pub inverse: Vec<Mat<M>>,
    pub transfer: Vec<Mat<M>>,
}

impl<const M: usize, const O: usize> Sums<M, O> {
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.inverse.fill([[Lane::ZERO; M]; M]);
        self.rates.fill([Lane::ZERO; M]);
        self.moved.fill([Lane::ZERO; M]);
    }
}

/// Four circuits over the horizon.
pub(super) struct Four<'a, const M: usize, const O: usize> {
    pub start: &'a Start,
    pub pace: &'a mut Progress,
    pub places: &'a [Place<M>],
    pub points: &'a mut [Point<M, O>],
    /// The last step; during the search for a step, the affine step's effect on the slacks.
    pub moves: &'a mut [Point<M, O>],
    pub held: &'a mut [Held<M, O>],
    pub factors: &'a mut [Factor<M>],
    /// The rates' steps without the feedback from the queues.
    pub opens: &'a mut [Vector<M>],
    pub common: &'a [Common<M>],
    /// Largest price of a queue above its bound.
    pub overflow: f64,
}

impl<const M: usize, const O: usize> Four<'_, M, O> {
    /// Takes the last step, then computes factors and the circuits' goals without barriers at the present prices of the
    /// capacity. Returns the largest gradient, relative to the curvature of its rate.
    #[inline(always)]
    pub(crate) fn advance(&mut self, all: &mut Sums<M, O>) -> Lane {
        let (mut sums, mut product, mut value) = ([Lane::ZERO; M], Lane::ZERO, Lane::ZERO);
        for (k, point) in self.points.iter_mut().enumerate() {
            let (place, common, work) = (&self.places[k], &self.common[k], &mut all.scratch[k]);
            point.advance(self.pace.along, &self.moves[k]);
            for m in 0..M {
                sums[m] += point.rate[m];
                all.rates[k][m] += point.rate[m];
            }
            let slacks = Slacks::of(point, place, self.start, &sums);
            let Held { inverse, soft } = &mut self.held[k];
            *inverse = slacks.inverse(point);
            product += slacks.products(point);
            for m in 0..M {
                let fixed = (Lane::ONE - place.free[m]) * Lane::all(FIXED);
                work.curvature[m] =
                    Lane::all(common.curvature[m]) + point.lower[m] * inverse.lower[m] + fixed;
                let unused = Lane::ONE - point.rate[m];
                value += Lane::all(0.5 * common.pull[m]) * unused * unused * place.free[m];
            }
            work.curvature[1] += point.limit * inverse.limit;
            work.target = drawn(common, point, &place.free);
            work.hold = point.source * inverse.source;
            work.pull = [Lane::ZERO; M];
            for o in 0..O {
                soft[o] = Soft::new(point.high[o], inverse.high[o], slacks.over[o], point.spare[o]);
                work.tie[o] = point.low[o] * inverse.low[o] + soft[o].stiffness;
                let pull = soft[o].price(Lane::ZERO, Lane::ZERO, self.overflow);
                work.pull[0] += pull;
                work.pull[o + 1] -= pull;
            }
        }
        (self.pace.product, self.pace.value) = (product, value);
        let worst = self.gradient(&all.scratch);
        let mut future = Network::NONE;
        let mut pull = [Lane::ZERO; M];
        for (k, work) in all.scratch.iter().enumerate().rev() {
            future.hold(0, work.hold);
            for o in 0..O {
                future.tie(0, o + 1, work.tie[o]);
            }
            for m in 0..M {
                pull[m] += work.pull[m];
            }
            self.factors[k] = Factor::step(&work.curvature, &mut future);
            self.opens[k] = self.factors[k].backward(&work.target, &mut pull);
        }
        self.add_moved(&mut all.moved);
        add_inverse(self.factors.iter(), &mut all.transfer, &mut all.inverse);
        worst
    }

    /// Largest gradient of the Lagrangian, relative to the curvature of its rate.
    #[inline(always)]
    fn gradient(&self, scratch: &[Scratch<M, O>]) -> Lane {
        let (mut worst, mut queues) = (Lane::ZERO, [Lane::ZERO; M]);
        for (k, work) in scratch.iter().enumerate().rev() {
            let point = &self.points[k];
            queues[0] += point.source;
            for o in 0..O {
                let net = point.high[o] - point.low[o];
                queues[0] += net;
                queues[o + 1] -= net;
            }
            for m in 0..M {
                let limit = if m == 1 { point.limit } else { Lane::ZERO };
                let left = work.target[m] + point.lower[m] - queues[m] - limit;
                let one_by = Lane::all(1.0 / self.common[k].curvature[m]);
                worst = worst.max((left * self.places[k].free[m]).abs() * one_by);
            }
        }
        worst
    }

    /// Adds the circuits' goals.
    #[inline(always)]
    fn add_moved(&self, moved: &mut [Vector<M>]) {
        let mut queues = [Lane::ZERO; M];
        for (k, moved) in moved.iter_mut().enumerate() {
            let rate = self.factors[k].forward(&self.opens[k], &mut queues);
            for m in 0..M {
                moved[m] += rate[m];
            }
        }
    }

    /// Adds the answer to the change of the capacity's prices.
    #[inline(always)]
    fn add_shift(&mut self) {
        let mut pull = [Lane::ZERO; M];
        for k in (0..self.points.len()).rev() {
            let mut target = [Lane::ZERO; M];
            for m in 0..M {
                target[m] = -Lane::all(self.common[k].shift[m]) * self.places[k].free[m];
            }
            let more = self.factors[k].backward(&target, &mut pull);
            for m in 0..M {
                self.opens[k][m] += more[m];
            }
        }
    }

    /// The rates' steps in one step of the horizon; `queues` move on.
    #[inline(always)]
    fn rates(&self, k: usize, queues: &mut Vector<M>) -> Vector<M> {
        let before = *queues;
        let mut rate = self.factors[k].forward(&self.opens[k], queues);
        for m in 0..M {
            rate[m] = rate[m] * self.places[k].free[m];
            queues[m] = before[m] + rate[m];
        }
        rate
    }

    /// The affine step: the remaining products, and in `moves` the relative changes of the slacks.
    #[inline(always)]
    pub(crate) fn foresee(&mut self) -> Lane {
        self.add_shift();
        let mut reach = Reach::NONE;
        let (mut sums, mut queues) = ([Lane::ZERO; M], [Lane::ZERO; M]);
        for k in 0..self.points.len() {
            let rate = self.rates(k, &mut queues);
            let (point, to) = (&self.points[k], &mut self.moves[k]);
            for m in 0..M {
                sums[m] += point.rate[m];
            }
            let slacks = Slacks::of(point, &self.places[k], self.start, &sums);
            let Held { inverse, soft } = &self.held[k];
            for m in 0..M {
                to.lower[m] = rate[m] * inverse.lower[m];
                reach.affine(point.lower[m] * slacks.lower[m], to.lower[m]);
            }
            to.limit = -rate[1] * inverse.limit;
            reach.affine(point.limit * slacks.limit, to.limit);
            to.source = -queues[0] * inverse.source;
            reach.affine(point.source * slacks.source, to.source);
            for o in 0..O {
                let net = queues[0] - queues[o + 1];
                to.low[o] = net * inverse.low[o];
                reach.affine(point.low[o] * slacks.low[o], to.low[o]);
                let over = soft[o].over(-point.high[o], -point.spare[o], net);
                to.high[o] = (over - net) * inverse.high[o];
                to.over[o] = over * inverse.over[o];
                reach.affine(point.high[o] * slacks.high[o], to.high[o]);
                reach.affine(point.spare[o] * slacks.over[o], to.over[o]);
            }
        }
        self.pace.left = (self.pace.product + reach.change()).max(Lane::ZERO);
        self.pace.left
    }

    /// The circuits' goals at the present prices of the capacity, for products of `mu` times their
    /// weights, with the second-order terms of the affine step.
    #[inline(always)]
    pub(crate) fn correct(&mut self, mu: f64, all: &mut Sums<M, O>) -> Lane {
        for (k, point) in self.points.iter().enumerate() {
            let (place, common, work) = (&self.places[k], &self.common[k], &mut all.scratch[k]);
            let Held { inverse, soft } = &self.held[k];
            let prices = point.corrected(&common.weight, mu, &self.moves[k], inverse);
            work.target = drawn(common, point, &place.free);
            for m in 0..M {
                work.target[m] += prices.lower[m];
            }
            work.target[1] -= prices.limit;
            work.pull = [Lane::ZERO; M];
            work.pull[0] = prices.source;
            for o in 0..O {
                let pull = soft[o].price(prices.high[o], prices.spare[o], self.overflow) - prices.low[o];
                work.pull[0] += pull;
                work.pull[o + 1] -= pull;
            }
        }
        let mut pull = [Lane::ZERO; M];
        for (k, work) in all.scratch.iter().enumerate().rev() {
            for m in 0..M {
                pull[m] += work.pull[m];
            }
            self.opens[k] = self.factors[k].backward(&work.target, &mut pull);
        }
        self.add_moved(&mut all.moved);
        Lane::ZERO
    }

    /// The corrected step, into `moves`, and each circuit's longest step. Returns the largest step of a rate.
    #[inline(always)]
    pub(crate) fn step(&mut self, mu: f64) -> Lane {
        self.add_shift();
        let (mut reach, mut largest) = (Reach::NONE, Lane::ZERO);
        let mut queues = [Lane::ZERO; M];
        for k in 0..self.points.len() {
            let rate = self.rates(k, &mut queues);
            let (point, to) = (&self.points[k], &mut self.moves[k]);
            for m in 0..M {
                largest = largest.max(rate[m].abs());
            }
            let Held { inverse, soft } = &self.held[k];
            let prices = point.corrected(&self.common[k].weight, mu, to, inverse);
            to.rate = rate;
            for m in 0..M {
                to.lower[m] = reach.price_step(inverse.lower[m], rate[m], point.lower[m], prices.lower[m]);
            }
            to.limit = reach.price_step(inverse.limit, -rate[1], point.limit, prices.limit);
            to.source = reach.price_step(inverse.source, -queues[0], point.source, prices.source);
            for o in 0..O {
                let net = queues[0] - queues[o + 1];
                to.low[o] = reach.price_step(inverse.low[o], net, point.low[o], prices.low[o]);
                let soft = &soft[o];
                // Compute changes: of two prices with a constant sum the smaller would be lost in rounding.
                let (high, spare) = (prices.high[o] - point.high[o], prices.spare[o] - point.spare[o]);
                to.high[o] = soft.keep * (high - soft.ratio * spare) + soft.stiffness * net;
                to.spare[o] = -to.high[o];
                to.over[o] = soft.over(high, spare, net);
                reach.note(inverse.high[o], to.over[o] - net, point.high[o], to.high[o]);
                reach.note(inverse.over[o], to.over[o], point.spare[o], to.spare[o]);
            }
        }
        self.pace.along = reach.length();
        for along in &mut self.pace.along.0 {
            *along = if *along < 1.0 { SHORT * *along } else { 1.0 };
        }
        largest
    }
}

/// The rates' costs without their own barriers: at the optimum, the barriers' prices.
#[inline(always)]
fn drawn<const M: usize, const O: usize>(
    common: &Common<M>,
    point: &Point<M, O>,
    free: &Vector<M>,
) -> Vector<M> {
    let mut target = [Lane::ZERO; M];
    for m in 0..M {
        let mut pull = Lane::all(common.pull[m] - common.price[m]);
        if M == 3 && m > 0 {
            pull += Lane::all(0.5 * common.middle) * (point.rate[1] + point.rate[2]);
        }
        target[m] = (pull - Lane::all(common.curvature[m]) * point.rate[m]) * free[m];
    }
    target
}
