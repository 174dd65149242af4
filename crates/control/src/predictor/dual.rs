//! Prices that clear the capacity: Newton's method on the multipliers of the coupling rows.
//!
//! Only the rows that bound the sums of rates couple circuits. Given the rows' prices,
//! every circuit answers alone ([`super::circuit`]). The excess of the answers over the rows is the gradient
//! of the dual function, and the sum of the circuits' inverse Hessians is its curvature. The dual function is
//! concave and piecewise quadratic, so Newton's method with a line search ends after finitely many pieces.

use pulp::{Arch, Simd, WithSimd};

use super::cholesky::Matrix;
use super::circuit::{Block, Costs, Springs, Start, Step, Work};
use super::lane::{LANES, Lane};
use super::problem::Residuals;
use super::riccati::{Mat, Vector, add_inverse, block_index};

/// A solve ends below this excess of rows and violation of constraints, in units of the capacity.
const CLOSE: f64 = 1e-10;
/// Stiffness in the first pass relative to the step's curvature, and how it grows from pass to pass.
const FIRST: f64 = 30.0;
const GROWTH: f64 = 3.0;

/// Newton steps per four circuits after which a search is given up.
const STEPS: usize = 25_000;
/// Damping of the first steps of the prices, relative to the circuits' curvature.
const CAUTION: f64 = 0.3;
/// Stiffness relative to the largest while the prices are far off. Queues that press hard against their bounds need
/// this much: softer springs give way for too long.
const SOFT: f64 = 1e-2;

/// The method's memory for problems with `M` rates per circuit and step.
#[derive(Debug, Default)]
pub(super) struct Dual<const M: usize> {
    /// Blocks of [`LANES`] circuits, step after step.
    pub steps: Vec<Step<M>>,
    pub starts: Vec<Start>,
    pub costs: Vec<Costs<M>>,
    pub springs: Springs,
    /// Middles of real and virtual outgoing rates, by circuit and step, where their deviation is weighed.
    pub middle: Vec<f64>,
    /// The prices' upper bounds.
    pub most: Vec<[f64; M]>,
    work: Vec<Work<M>>,
    /// The excess of the answers over each row.
    excess: Vec<[f64; M]>,
    sums: Vec<Vector<M>>,
    inverse: Vec<Mat<M>>,
    transfer: Vec<Mat<M>>,
    schur: Matrix,
    shift: Vec<f64>,
    rows: Vec<(usize, usize)>,
    /// Start and direction of the line search.
    base: Vec<[f64; M]>,
    /// Newton steps of blocks in this search.
    effort: usize,
    along: Vec<[f64; M]>,
}

impl<const M: usize> Dual<M> {
    /// Allocates memory for a loaded problem.
    pub(crate) fn prepare(&mut self) {
        let horizon = self.costs.len();
        self.work.clear();
        self.work.resize(horizon, Work::EMPTY);
        self.sums.resize(horizon, [Lane::ZERO; M]);
        self.excess.resize(horizon, [0.0; M]);
        self.base.resize(horizon, [0.0; M]);
        self.along.clear();
        self.along.resize(horizon, [0.0; M]);
        self.inverse.resize(block_index(horizon, 0), [[Lane::ZERO; M]; M]);
        self.transfer.resize(horizon, [[Lane::ZERO; M]; M]);
    }

    /// Searches the prices that clear the capacity, from the present ones. Returns the distance from them,
    /// and whether it is small enough; increments `iterations`.
    pub(crate) fn clear(&mut self, iterations: &mut u32) -> (Residuals, bool) {
        let mut search = Search { caution: CAUTION, ..Search::default() };
        let (mut last, mut growth) = (1.0f64, FIRST);
        let mut residuals = Residuals::default();
        self.effort = 0;
        let most = STEPS * self.starts.len();
        while self.effort < most {
            // Soft springs find the first answers in few steps; later their rest forces make up for the
            // stretch.
            let hardest = self.springs.stiffness * (SOFT / last).clamp(SOFT, 1.0);
            for costs in &mut self.costs {
                costs.stiffness = (growth * costs.curvature[0]).min(hardest);
            }
            growth *= GROWTH;
            let stretch = self.answer();
            *iterations += 1;
            let mut worst = 0.0f64;
            for (excess, costs) in self.excess.iter().zip(&self.costs) {
                for m in 0..M {
                    worst = worst.max(if costs.price[m] > 0.0 { excess[m].abs() } else { excess[m] });
                }
            }
            last = worst.max(stretch);
            residuals = Residuals { dual: worst, complementarity: stretch };
            if last <= CLOSE {
                return (residuals, true);
            }
            self.move_prices(&mut search);
        }
        (residuals, false)
    }

    /// Computes all circuits' answers. Returns the largest violation of their constraints.
    fn answer(&mut self) -> f64 {
        let stretch = Arch::new().dispatch(Answer(self));
        for (excess, sum) in self.excess.iter_mut().zip(&self.sums) {
            for m in 0..M {
                excess[m] = sum[m].sum() - 1.0;
            }
        }
        stretch
    }

    #[inline(always)]
    fn answer_circuits(&mut self) -> f64 {
        let horizon = self.costs.len();
        self.sums.fill([Lane::ZERO; M]);
        self.inverse.fill([[Lane::ZERO; M]; M]);
        let mut stretch = 0.0f64;
        for (start, steps) in self.starts.iter().zip(self.steps.chunks_exact_mut(horizon)) {
            let mut block = Block { start, steps, costs: &self.costs, springs: self.springs };
            stretch = stretch.max(block.answer(&mut self.work, &mut self.effort));
            for (sum, step) in self.sums.iter_mut().zip(block.steps.iter()) {
                for m in 0..M {
                    let rate = if m == 1 { step.rate[m].min(step.limit) } else { step.rate[m] };
                    sum[m] += rate.max(Lane::ZERO);
                }
            }
            add_inverse(self.work.iter().map(|work| &work.factor), &mut self.transfer, &mut self.inverse);
        }
        stretch
    }

    /// The next prices to try.
    fn move_prices(&mut self, search: &mut Search) {
        let horizon = self.costs.len();
        let slope: f64 = dot(&self.excess, &self.along);
        if search.slope > 0.0 && slope < -0.5 * search.slope && search.tries < 6 {
            // The step was too long: go back to where the slope is about zero.
            search.length *= (search.slope / (search.slope - slope)).max(0.05);
            search.tries += 1;
            search.caution = (search.caution * 4.0).min(1.0);
            for k in 0..horizon {
                for m in 0..M {
                    self.costs[k].price[m] = self.base[k][m] + search.length * self.along[k][m];
                }
            }
            return;
        }
        if search.tries == 0 {
            search.caution =
                (search.caution * if slope > -0.1 * search.slope { 0.1 } else { 1.0 }).max(1e-12);
        }
        self.rows.clear();
        for k in 0..horizon {
            for m in 0..M {
                let (price, excess) = (self.costs[k].price[m], self.excess[k][m]);
                if price > 0.0 || excess > 0.0 {
                    self.rows.push((k, m));
                }
            }
        }
        self.schur.resize(self.rows.len());
        self.shift.clear();
        for (i, &(k, a)) in self.rows.iter().enumerate() {
            for (j, &(l, b)) in self.rows[..=i].iter().enumerate() {
                self.schur.set(j, i, self.inverse[block_index(k, l)][a][b].sum());
            }
            // Damping keeps a price in range if only a few circuits react to it.
            let circuits = (self.starts.len() * LANES) as f64;
            self.schur.add(i, (search.caution * circuits + 1e-9) / self.costs[k].curvature[a]);
            self.shift.push(self.excess[k][a]);
        }
        if !self.schur.factor() {
            return;
        }
        self.schur.solve(&mut self.shift);
        self.along.fill([0.0; M]);
        for (k, costs) in self.costs.iter().enumerate() {
            self.base[k] = costs.price;
        }
        for (&(k, m), shift) in self.rows.iter().zip(&self.shift) {
            let price = &mut self.costs[k].price[m];
            *price = (*price + shift).clamp(0.0, self.most[k][m]);
            self.along[k][m] = *price - self.base[k][m];
        }
        *search =
            Search { slope: dot(&self.excess, &self.along), length: 1.0, tries: 0, caution: search.caution };
    }
}

/// The pass over all circuits, as a type that `pulp` compiles for several processors.
struct Answer<'a, const M: usize>(&'a mut Dual<M>);

impl<const M: usize> WithSimd for Answer<'_, M> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        self.0.answer_circuits()
    }
}

/// State of a line search: first slope, length, number of shortenings, damping.
#[derive(Debug, Default)]
struct Search {
    slope: f64,
    length: f64,
    tries: u32,
    caution: f64,
}

fn dot<const M: usize>(a: &[[f64; M]], b: &[[f64; M]]) -> f64 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| a * b).sum()
}
