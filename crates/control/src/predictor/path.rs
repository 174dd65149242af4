//! The interior point method: Mehrotra's predictor-corrector, shaped to the problem.
//!
//! Only the rows that bound the sums of rates couple circuits. Each iteration factors every circuit's Hessian
//! along its horizon ([`super::riccati`]). The sum of the inverses is the system of the rows' prices, and
//! every circuit's step follows from these. Work is linear in the number of circuits; four are computed side
//! by side ([`super::four`]).
//!
//! Among hundreds of circuits some are always about to hit a bound, and would shorten every step. So the few with the shortest
//! possible steps take a step of their own; the next steps correct the rates' sums.

use pulp::{Arch, Simd, WithSimd};

use super::cholesky::Matrix;
use super::circuit::Start;
use super::form::{HAIR, Limits};
use super::four::{Four, SHORT, Sums};
use super::lane::{LANES, Lane};
use super::point::{Common, Held, Place, Point, Progress};
use super::problem::{Problem, Residuals, Solution};
use super::riccati::{Factor, Vector, block_index};

/// Iterations after which a solve is given up; it needs 10 to 35.
pub(super) const MOST_ITERATIONS: u32 = 60;
/// Share of the circuits that take a shorter step than the others.
const FEW: f64 = 0.1;
/// Duality gap, relative to the objective, at which a solve ends, and the least complementarity.
const OBJECTIVE: f64 = 1e-7;
const LEAST: f64 = 1e-16;
/// Gradient of the Lagrangian, relative to the curvature, at which a solve ends, or the largest step of a rate in units
/// of the capacity: rounding can keep the prices, and so the gradient, from coming as near as the rates do.
const GRADIENT: f64 = 1e-6;
const STILL: f64 = 1e-7;
/// Largest error of the rates' sums.
const EXCESS: f64 = 1e-12;
/// Shortest step.
const STUCK: f64 = 1e-9;

/// A coupling row: the circuits' rates add up to at most one. Its price lies in [`Common::price`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub slack: f64,
    /// Share of `mu` that slack times price is driven to; zero if no rate in the row is free.
    pub weight: f64,
    slack_step: f64,
    price_step: f64,
    /// Second-order term of the affine step.
    second: f64,
    /// By how much rates and slack add up to more than one.
    excess: f64,
}

impl Row {
    pub(crate) const EMPTY: Row =
        Row { slack: 1.0, weight: 0.0, slack_step: 0.0, price_step: 0.0, second: 0.0, excess: 0.0 };
}

/// The method's memory for problems with `M` rates per circuit and step, `O = M - 1` of them outgoing.
#[derive(Debug, Default)]
pub(super) struct Path<const M: usize, const O: usize> {
    pub horizon: usize,
    /// Largest price of a queue above its bound.
    pub overflow: f64,
    pub common: Vec<Common<M>>,
    /// The coupling rows, rate by rate in a step, step after step.
    pub rows: Vec<Row>,
    /// Blocks of [`LANES`] circuits.
    pub starts: Vec<Start>,
    pub paces: Vec<Progress>,
    /// The blocks' steps.
    pub places: Vec<Place<M>>,
    pub points: Vec<Point<M, O>>,
    pub moves: Vec<Point<M, O>>,
    pub held: Vec<Held<M, O>>,
    pub factors: Vec<Factor<M>>,
    pub opens: Vec<Vector<M>>,
    pub sums: Sums<M, O>,
    schur: Matrix,
    shift: Vec<f64>,
    lengths: Vec<f64>,
    /// Sum of all weights.
    weights: f64,
    /// Complementarity at which the solve ends.
    pub end: f64,
    /// The shortest distance from the optimum in this solve, and the iteration that had it.
    best: (f64, u32),
}

/// The lengths of the circuits' steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// A few circuits take a shorter step than the others.
    Own,
    /// All take the same.
    Common,
}

/// The end of a solve.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub iterations: u32,
    pub solved: bool,
    /// Distance from the optimum as a multiple of the tolerance; at most one if solved.
    pub distance: f64,
    pub residuals: Residuals,
}

impl<const M: usize, const O: usize> Path<M, O> {
    /// Solves a [loaded](super::inside::load) problem of `circuits` in at most `most` iterations.
    pub(crate) fn solve(&mut self, circuits: usize, most: u32, pace: Pace) -> End {
        let size = self.rows.len();
        self.shift.resize(size, 0.0);
        self.weights = self.rows.iter().map(|row| row.weight).sum::<f64>()
            + self.paces.iter().map(|pace| pace.weight.sum()).sum::<f64>();
        self.best = (f64::INFINITY, 0);
        let (mut along, mut moved) = (0.0, f64::INFINITY);
        let mut iterations = 0;
        loop {
            let gradient = self.advance(along);
            let product = self.product();
            // Without a free rate there is nothing to weigh, and the start is the solution.
            let mu = if self.weights > 0.0 { product / self.weights } else { 0.0 };
            let value: f64 = self.paces.iter().map(|pace| pace.value.sum()).sum();
            self.end = self.end.min((OBJECTIVE * value / self.weights).max(LEAST));
            let excess = self.rows.iter().fold(0.0f64, |most, row| most.max(row.excess.abs()));
            let mut end = End {
                iterations,
                solved: mu <= self.end && excess <= EXCESS && (gradient <= GRADIENT || moved <= STILL),
                distance: (mu / self.end).max(excess / EXCESS).max((gradient / GRADIENT).min(moved / STILL)),
                residuals: Residuals { dual: excess.max(moved.min(gradient)), complementarity: mu },
            };
            if end.distance < self.best.0 {
                self.best = (end.distance, iterations);
            }
            if end.solved || iterations == most || mu.is_nan() {
                return end;
            }
            iterations += 1;
            end.iterations = iterations;
            if !self.factor() {
                return end;
            }
            self.direct(0.0);
            Arch::new().dispatch(Foresee(self));
            let left = self.foresee_rows() + self.paces.iter().map(|pace| pace.left.sum()).sum::<f64>();
            let left = (left / product).min(1.0);
            let target = (left * left.sqrt() * mu).max(0.3 * self.end);
            Arch::new().dispatch(Correct(self, target));
            self.direct(target);
            moved = Arch::new().dispatch(Go(self, target)).largest();
            along = self.keep_pace(circuits, pace);
            if along.is_nan() || along < STUCK {
                return end;
            }
        }
    }

    /// The number of the iteration that came nearest to the optimum in the last solve.
    pub(crate) fn best_iteration(&self) -> u32 {
        self.best.1
    }

    /// Takes the last step, with `along` for the prices of the capacity; computes factors and the circuits' goals without
    /// barriers. Returns the largest gradient.
    fn advance(&mut self, along: f64) -> f64 {
        for (index, row) in self.rows.iter_mut().enumerate() {
            self.common[index / M].price[index % M] += along * row.price_step;
            row.slack += along * row.slack_step;
        }
        let gradient = Arch::new().dispatch(Advance(self)).largest();
        for (index, row) in self.rows.iter_mut().enumerate().filter(|(_, row)| row.weight > 0.0) {
            row.second = 0.0;
            row.excess = self.sums.rates[index / M][index % M].sum() + row.slack - 1.0;
        }
        gradient
    }

    /// Sum of all products of slacks and prices.
    fn product(&self) -> f64 {
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.weight > 0.0);
        let rows = rows.map(|(index, row)| row.slack * self.common[index / M].price[index % M]);
        rows.sum::<f64>() + self.paces.iter().map(|pace| pace.product.sum()).sum::<f64>()
    }

    /// Cholesky factor of the rows' system.
    fn factor(&mut self) -> bool {
        self.schur.resize(self.rows.len());
        for k in 0..self.horizon {
            for j in 0..=k {
                let block = &self.sums.inverse[block_index(k, j)];
                for a in 0..M {
                    for b in (0..M).filter(|b| j < k || *b <= a) {
                        self.schur.set(j * M + b, k * M + a, block[a][b].sum());
                    }
                }
            }
        }
        for (index, row) in self.rows.iter().enumerate() {
            let price = self.common[index / M].price[index % M];
            self.schur.add(index, if row.weight > 0.0 { row.slack / price } else { 1.0 });
        }
        self.schur.factor()
    }

    /// The rows' step to products of `mu` times their weights.
    fn direct(&mut self, mu: f64) {
        let off = |row: &Row, price: f64| row.slack * price - mu * row.weight + row.second;
        for (index, row) in self.rows.iter().enumerate() {
            let (k, m) = (index / M, index % M);
            let price = self.common[k].price[m];
            let moved = self.sums.moved[k][m].sum() + row.excess;
            self.shift[index] = if row.weight > 0.0 { moved - off(row, price) / price } else { 0.0 };
        }
        self.schur.solve(&mut self.shift);
        for (index, row) in self.rows.iter_mut().enumerate() {
            let common = &mut self.common[index / M];
            let (price, shift) = (common.price[index % M], self.shift[index]);
            common.shift[index % M] = shift;
            if row.weight > 0.0 {
                row.price_step = shift;
                row.slack_step = -(off(row, price) + row.slack * shift) / price;
            }
        }
    }

    /// The rows' products after the affine step; stores its second-order terms.
    fn foresee_rows(&mut self) -> f64 {
        let (mut shrink, mut constant, mut linear, mut quadratic) = (1.0f64, 0.0, 0.0, 0.0);
        for (index, row) in self.rows.iter_mut().enumerate().filter(|(_, row)| row.weight > 0.0) {
            let price = self.common[index / M].price[index % M];
            shrink = shrink.max(-row.slack_step / row.slack).max(-row.price_step / price);
            row.second = row.slack_step * row.price_step;
            constant += row.slack * price;
            linear += row.slack * row.price_step + price * row.slack_step;
            quadratic += row.second;
        }
        let length = 1.0 / shrink;
        (constant + length * linear + length * length * quadratic).max(0.0)
    }

    /// Step lengths: the longest step of the rows and of all circuits but a few; these take their own longest step.
    fn keep_pace(&mut self, circuits: usize, pace: Pace) -> f64 {
        let mut shrink = SHORT;
        for (index, row) in self.rows.iter().enumerate().filter(|(_, row)| row.weight > 0.0) {
            let price = self.common[index / M].price[index % M];
            for part in [row.slack_step / row.slack, row.price_step / price] {
                shrink = if part.is_nan() { f64::NAN } else { shrink.max(-part) };
            }
        }
        self.lengths.clear();
        self.lengths.extend(self.paces.iter().flat_map(|pace| pace.along.0).take(circuits));
        let few = if pace == Pace::Own { (FEW * circuits as f64) as usize } else { 0 };
        let (_, most, _) = self.lengths.select_nth_unstable_by(few, f64::total_cmp);
        let along = most.min(SHORT / shrink);
        for pace in &mut self.paces {
            pace.along = pace.along.min(Lane::all(along));
        }
        along
    }

    /// Moves the rates into their bounds and writes the solution. The barrier leaves queues slightly above their bound, which
    /// costs a penalty, so incoming rates are lowered by that excess.
    pub(crate) fn store(&self, problem: &Problem, limits: &Limits, solution: &mut Solution) {
        let Solution { v_in, v_out, vv_out, .. } = solution;
        for circuit in 0..problem.circuits() {
            let (bounds, lane) = (limits.of(circuit), circuit % LANES);
            let mut sums = [0.0; M];
            let points = &self.points[circuit / LANES * self.horizon..][..self.horizon];
            for (step, point) in points.iter().enumerate() {
                let mut rates = point.rate.map(|rate| rate.0[lane]);
                let least = (1..M).map(|m| sums[m] + rates[m]).fold(f64::INFINITY, f64::min);
                let above = sums[0] + rates[0] - least - bounds.queue_room;
                if above > 0.0 && above < HAIR {
                    rates[0] -= above;
                }
                let at = circuit * self.horizon + step;
                for m in 0..M {
                    let room = bounds.room(step, m, &sums);
                    let fixed = m == 0 && bounds.steps[step].fixed.is_some();
                    let rate = if fixed { room } else { rates[m].min(room).max(0.0) };
                    sums[m] += rate;
                    [&mut *v_in, v_out, vv_out][m][at] = rate * problem.capacity;
                }
            }
        }
    }
}

/// A pass over all circuits, four by four, as a type that `pulp` compiles for several processors. It avoids closures,
/// because the compiler does not specialise code that it does not inline.
macro_rules! passes {
    ($($pass:ident($($argument:ident: $kind:ty)?), $four:ident, $sums:ident: $begin:block $work:expr;)*) => {$(
        struct $pass<'a, const M: usize, const O: usize>(&'a mut Path<M, O> $(, $kind)?);

        impl<const M: usize, const O: usize> WithSimd for $pass<'_, M, O> {
            type Output = Lane;

            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> Lane {
                let $pass(path $(, $argument)?) = self;
                let $sums = &mut path.sums;
                $begin
                let mut largest = Lane::ZERO;
                for (block, start) in path.starts.iter().enumerate() {
                    let steps = block * path.horizon..(block + 1) * path.horizon;
                    let mut $four = Four {
                        start,
                        pace: &mut path.paces[block],
                        places: &path.places[steps.clone()],
                        points: &mut path.points[steps.clone()],
                        moves: &mut path.moves[steps.clone()],
                        held: &mut path.held[steps.clone()],
                        factors: &mut path.factors[steps.clone()],
                        opens: &mut path.opens[steps],
                        common: &path.common,
                        overflow: path.overflow,
                    };
                    largest = largest.max($work);
                }
                largest
            }
        }
    )*};
}
passes! {
    Advance(), four, sums: { sums.clear(); } four.advance(sums);
    Foresee(), four, _sums: {} four.foresee();
    Correct(mu: f64), four, sums: { sums.moved.fill([Lane::ZERO; M]); } four.correct(mu, sums);
    Go(mu: f64), four, _sums: {} four.step(mu);
}
