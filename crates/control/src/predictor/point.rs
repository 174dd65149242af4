//! The current point of the interior point method, step by step.
//!
//! A pass over many circuits waits for memory. So slacks are not stored: they follow from the rates. Quotients are, because
//! divisions take longer than loads.

use super::circuit::Start;
use super::lane::{LANES, Lane};
use super::riccati::Vector;

/// The constants of a solve, for one step of four circuits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<const M: usize> {
    /// One where the rate is free, zero where it is fixed.
    pub free: Vector<M>,
    /// The successor's limit.
    pub limit: Lane,
    /// The most cells that can have come in by the end of the step.
    pub source: Lane,
}

/// Rates and prices, or a change of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point<const M: usize, const O: usize> {
    pub rate: Vector<M>,
    /// Price of: rates are not negative.
    pub lower: Vector<M>,
    /// Price of: outgoing rates are at most the successor's limit.
    pub limit: Lane,
    /// Price of: incoming cells are at most the predecessor's.
    pub source: Lane,
    /// Price of: queues after the step are not negative.
    pub low: Vector<O>,
    /// Price of: queues are at most their bound plus the overflow.
    pub high: Vector<O>,
    /// Price of: the overflow is not negative.
    pub spare: Vector<O>,
    /// The overflow.
    pub over: Vector<O>,
}

impl<const M: usize, const O: usize> Point<M, O> {
    pub(crate) const ZERO: Point<M, O> = Point {
        rate: [Lane::ZERO; M],
        lower: [Lane::ZERO; M],
        limit: Lane::ZERO,
        source: Lane::ZERO,
        low: [Lane::ZERO; O],
        high: [Lane::ZERO; O],
        spare: [Lane::ZERO; O],
        over: [Lane::ZERO; O],
    };

    #[inline(always)]
    pub(crate) fn advance(&mut self, along: Lane, step: &Point<M, O>) {
        for m in 0..M {
            self.rate[m] += along * step.rate[m];
            self.lower[m] += along * step.lower[m];
        }
        self.limit += along * step.limit;
        self.source += along * step.source;
        for o in 0..O {
            self.low[o] += along * step.low[o];
            self.high[o] += along * step.high[o];
            self.spare[o] += along * step.spare[o];
            self.over[o] += along * step.over[o];
        }
    }

    /// The prices after a corrected step with constant slacks; `affine`: the affine step's relative changes of the
    /// slacks.
    #[inline(always)]
    pub(crate) fn corrected(
        &self,
        weight: &[f64; M],
        mu: f64,
        affine: &Point<M, O>,
        inverse: &Slacks<M, O>,
    ) -> Point<M, O> {
        let mut prices = Point::ZERO;
        for m in 0..M {
            prices.lower[m] = corrected(mu * weight[m], inverse.lower[m], self.lower[m], affine.lower[m]);
        }
        prices.limit = corrected(mu * weight[1], inverse.limit, self.limit, affine.limit);
        prices.source = corrected(mu * weight[0], inverse.source, self.source, affine.source);
        for o in 0..O {
            let weight = weight[o + 1];
            prices.low[o] = corrected(mu * weight, inverse.low[o], self.low[o], affine.low[o]);
            prices.high[o] = corrected(mu * weight, inverse.high[o], self.high[o], affine.high[o]);
            prices.spare[o] = corrected(mu * weight, inverse.over[o], self.spare[o], affine.over[o]);
        }
        prices
    }
}

/// Slacks of one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slacks<const M: usize, const O: usize> {
    pub lower: Vector<M>,
    pub limit: Lane,
    pub source: Lane,
    pub low: Vector<O>,
    pub high: Vector<O>,
    pub over: Vector<O>,
}

impl<const M: usize, const O: usize> Slacks<M, O> {
    /// `sums`: sums of the rates up to and including this step.
    #[inline(always)]
    pub(crate) fn of(point: &Point<M, O>, place: &Place<M>, start: &Start, sums: &Vector<M>) -> Slacks<M, O> {
        let mut slacks = Slacks {
            lower: point.rate,
            limit: place.limit - point.rate[1],
            source: place.source - sums[0],
            low: [Lane::ZERO; O],
            high: [Lane::ZERO; O],
            over: point.over,
        };
        for o in 0..O {
            let net = sums[0] - sums[o + 1];
            slacks.low[o] = start.queue + net;
            slacks.high[o] = start.room - net + point.over[o];
        }
        slacks
    }

    /// Sum of the products with the prices.
    #[inline(always)]
    pub(crate) fn products(&self, point: &Point<M, O>) -> Lane {
        let mut sum = point.limit * self.limit + point.source * self.source;
        for m in 0..M {
            sum += point.lower[m] * self.lower[m];
        }
        for o in 0..O {
            sum += point.low[o] * self.low[o] + point.high[o] * self.high[o] + point.spare[o] * self.over[o];
        }
        sum
    }

    /// The reciprocal of each slack; zero for a missing constraint, which has price zero.
    #[inline(always)]
    pub(crate) fn inverse(&self, point: &Point<M, O>) -> Slacks<M, O> {
        let mut inverse = *self;
        for m in 0..M {
            inverse.lower[m] = one_by(self.lower[m], point.lower[m]);
        }
        inverse.limit = one_by(self.limit, point.limit);
        inverse.source = one_by(self.source, point.source);
        for o in 0..O {
            inverse.low[o] = one_by(self.low[o], point.low[o]);
            inverse.high[o] = one_by(self.high[o], point.high[o]);
            inverse.over[o] = one_by(self.over[o], point.spare[o]);
        }
        inverse
    }
}

/// Quotients of one step of an iteration, which all of its passes use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held<const M: usize, const O: usize> {
    /// The reciprocal of each slack.
    pub inverse: Slacks<M, O>,
    pub soft: [Soft; O],
}

impl<const M: usize, const O: usize> Held<M, O> {
    pub(crate) const EMPTY: Held<M, O> = Held {
        inverse: Slacks {
            lower: [Lane::ZERO; M],
            limit: Lane::ZERO,
            source: Lane::ZERO,
            low: [Lane::ZERO; O],
            high: [Lane::ZERO; O],
            over: [Lane::ZERO; O],
        },
        soft: [Soft { ratio: Lane::ZERO, give: Lane::ZERO, keep: Lane::ZERO, stiffness: Lane::ZERO }; O],
    };
}

/// A queue's soft bound with the overflow eliminated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Soft {
    /// Stiffness of the bound alone, times the overflow's give.
    pub ratio: Lane,
    /// Change of the overflow per price.
    give: Lane,
    /// The share of a force on the bound that its own price takes.
    pub keep: Lane,
    /// Stiffness of bound and overflow together.
    pub stiffness: Lane,
}

impl Soft {
    #[inline(always)]
    pub(crate) fn new(high: Lane, inverse_high: Lane, over: Lane, spare: Lane) -> Soft {
        let (stiffness, give) = (high * inverse_high, over * one_by(spare, spare));
        let ratio = stiffness * give;
        let keep = Lane::ONE / (Lane::ONE + ratio);
        Soft { ratio, give, keep, stiffness: keep * stiffness }
    }

    /// The bound's price after a step without the queue's move, from both prices at constant slack and
    /// overflow.
    #[inline(always)]
    pub(crate) fn price(&self, high: Lane, spare: Lane, overflow: f64) -> Lane {
        self.keep * (high + self.ratio * (Lane::all(overflow) - spare))
    }

    /// The overflow's step for a queue's move `net` and changes of the prices.
    #[inline(always)]
    pub(crate) fn over(&self, high: Lane, spare: Lane, net: Lane) -> Lane {
        self.give * (self.keep * (high + spare) + self.stiffness * net)
    }
}

/// Values that all circuits share in one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common<const M: usize> {
    /// Curvature of the rates.
    pub curvature: [f64; M],
    /// Pull of the rates to the capacity: curvature times goal, without the middles' part.
    pub pull: [f64; M],
    /// Curvature that draws real and virtual outgoing rates to the middle of the two.
    pub middle: f64,
    /// Target of the products of slacks and prices, as a share of `mu`.
    pub weight: [f64; M],
    pub price: [f64; M],
    /// Change of the price in the step.
    pub shift: [f64; M],
}

/// The effect of a direction on slacks, prices and products.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Largest relative decrease of a slack or a price.
    shrink: Lane,
    /// Change of the products, of first and second order; of the affine step only.
    linear: Lane,
    quadratic: Lane,
}

impl Reach {
    pub(crate) const NONE: Reach = Reach { shrink: Lane::ZERO, linear: Lane::ZERO, quadratic: Lane::ZERO };

    /// Notes the affine step of a pair with this product and relative change of the slack.
    #[inline(always)]
    pub(crate) fn affine(&mut self, product: Lane, relative: Lane) {
        // The price falls by one plus the slack's relative change.
        let present = present(product);
        self.shrink = self.shrink.max(-relative).max(present * (Lane::ONE + relative));
        self.linear -= product;
        self.quadratic -= product * relative * (Lane::ONE + relative);
    }

    /// Change of the products' sum for the longest affine step.
    #[inline(always)]
    pub(crate) fn change(&self) -> Lane {
        let length = self.length();
        length * self.linear + length * length * self.quadratic
    }

    /// Length of the longest step.
    #[inline(always)]
    pub(crate) fn length(&self) -> Lane {
        Lane::ONE / self.shrink.max(Lane::ONE)
    }

    /// Notes a price's step, from its value at a constant slack.
    #[inline(always)]
    pub(crate) fn price_step(&mut self, inverse: Lane, step: Lane, price: Lane, aim: Lane) -> Lane {
        let price_step = aim - price * inverse * step - price;
        self.note(inverse, step, price, price_step);
        price_step
    }

    /// Notes a corrected step.
    #[inline(always)]
    pub(crate) fn note(&mut self, inverse: Lane, step: Lane, price: Lane, price_step: Lane) {
        let down = -(price_step * one_by(price, price));
        self.shrink = self.shrink.max(-(step * inverse)).max(down);
    }
}

/// The reciprocal slack of an existing constraint (price above zero).
#[inline(always)]
fn one_by(slack: Lane, price: Lane) -> Lane {
    let mut inverse = Lane::ONE / slack;
    for i in 0..LANES {
        inverse.0[i] = if price.0[i] > 0.0 { inverse.0[i] } else { 0.0 };
    }
    inverse
}

/// A price after a corrected step with constant slack.
#[inline(always)]
fn corrected(product: f64, inverse: Lane, price: Lane, relative: Lane) -> Lane {
    Lane::all(product) * inverse + price * relative * (Lane::ONE + relative)
}

/// One for an existing constraint (price above zero), otherwise zero.
#[inline(always)]
fn present(price: Lane) -> Lane {
    let mut one = Lane::ZERO;
    for i in 0..LANES {
        one.0[i] = if price.0[i] > 0.0 { 1.0 } else { 0.0 };
    }
    one
}

/// Progress of four circuits, each on its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Length of the last step.
    pub along: Lane,
    /// Sum of the products, and of their weights.
    pub product: Lane,
    pub weight: Lane,
    /// Cost of the free rates.
    pub value: Lane,
    /// The products after the affine step.
    pub left: Lane,
}

impl Progress {
    pub(crate) const BEGIN: Progress = Progress {
        along: Lane::ZERO,
        product: Lane::ZERO,
        weight: Lane::ZERO,
        value: Lane::ZERO,
        left: Lane::ZERO,
    };
}
