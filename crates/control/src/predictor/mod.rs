//! PredicTor's optimal control problem and its solver (Döpmann, Fiedler, Lucia, Tschorsch 2022).
//!
//! Every relay solves, every 40 ms, one convex quadratic program over the incoming and outgoing rates of
//! its circuits for the next `horizon` steps. There are two versions: the public prototype's
//! ([`Formulation::Prototype`]) and the journal's with virtual rates ([`Formulation::Journal`]). The paper's text leaves the
//! journal's objective partly open; `docs/predictor-solver.md` lists our choices.
//!
//! Rates are in cells/s, queues in cells, time in seconds. All circuits' arrays are flat, circuit by
//! circuit, `horizon` numbers each.

#![expect(clippy::needless_range_loop, reason = "rates, rows and queues share an index")]

mod cholesky;
mod circuit;
mod dual;
mod form;
mod four;
mod inside;
mod lane;
mod path;
mod point;
mod problem;
mod riccati;

use dual::Dual;
use form::Limits;
use path::{End, MOST_ITERATIONS, Pace, Path};
pub use problem::{Formulation, Problem, Refusal, Residuals, Solution, Weights};

/// The most answers while the middles of real and virtual rates move, and the largest move of settled middles in
/// units of the capacity.
const ROUNDS: usize = 60;
const SAME: f64 = 1e-8;

/// A solver that reuses its memory: after the largest number of circuits, solves do not allocate.
#[derive(Debug, Default)]
pub struct Solver {
    prototype: Method<2, 1>,
    journal: Method<3, 2>,
    fallbacks: u64,
}

/// Largest accepted violation of a constraint, in units of the capacity (rates) and of its cells per step
/// (queues).
const FEASIBLE: f64 = 1e-9;

/// The most circuits of a problem that the dual method tries: it may take a thousand times as long as the other.
const FEW: usize = 32;

/// Accepted distance of an inexact answer from the optimum, as a multiple of the tolerance.
const NEAR: f64 = 1e4;

/// The interior point method, and the dual method for problems that it gives up. Each circuit has `M` rates per step, `O = M - 1` of them outgoing.
#[derive(Debug, Default)]
struct Method<const M: usize, const O: usize> {
    limits: Limits,
    dual: Dual<M>,
    path: Path<M, O>,
}

impl<const M: usize, const O: usize> Method<M, O> {
    /// Solves a checked problem; `solution`'s arrays have their lengths.
    fn solve(&mut self, problem: &Problem, solution: &mut Solution) {
        if problem.circuits() == 0 || problem.capacity == 0.0 {
            problem.complete(solution);
            return;
        }
        self.limits.load(problem);
        inside::load(&mut self.path, problem, &self.limits);
        let end = self.path.solve(problem.circuits(), MOST_ITERATIONS, Pace::Own);
        solution.iterations = end.iterations;
        if end.solved {
            self.store_path(problem, &end, solution);
        } else {
            self.solve_degenerate(problem, solution);
        }
    }

    /// Writes the interior point method's present point to the solution.
    fn store_path(&self, problem: &Problem, end: &End, solution: &mut Solution) {
        self.path.store(problem, &self.limits, solution);
        problem.complete(solution);
        solution.residuals = end.residuals;
    }

    /// Solves problems that the interior point method gives up while circuits take steps of their own length.
    ///
    /// With one length for all, the rates' sums stay exact, so its best point is at least feasible. The dual method
    /// improves it, if it can. If even the best point is far from the optimum, the answer is safe rates.
    fn solve_degenerate(&mut self, problem: &Problem, solution: &mut Solution) {
        let circuits = problem.circuits();
        inside::load(&mut self.path, problem, &self.limits);
        let mut best = self.path.solve(circuits, MOST_ITERATIONS, Pace::Common);
        solution.iterations += best.iterations;
        if !best.solved {
            // Only the number of the best iteration is kept, because storing every point would slow down all solves.
            let iterations = self.path.best_iteration();
            inside::load(&mut self.path, problem, &self.limits);
            best = self.path.solve(circuits, iterations, Pace::Common);
            solution.iterations += best.iterations;
        }
        self.store_path(problem, &best, solution);
        if best.solved {
            return;
        }
        let (inexact, near) = (solution.objective, best.distance <= NEAR);
        let found = circuits <= FEW && self.solve_dual(problem, solution);
        // Where the best objective is nearly zero, rounding can cost the dual method more than its exactness wins.
        if near && !(found && solution.objective <= inexact) {
            self.store_path(problem, &best, solution);
        }
        if near || found {
            return;
        }
        form::load(&mut self.dual, problem, &self.limits);
        form::store(&self.dual, problem, solution);
        problem.complete(solution);
        solution.fallback = true;
    }

    /// Solves a problem with the dual method; the solution's rates are where the middles begin. Returns whether it found
    /// the optimum.
    fn solve_dual(&mut self, problem: &Problem, solution: &mut Solution) -> bool {
        self.dual.middle.clear();
        if problem.kind == Formulation::Journal && problem.weights.deviation > 0.0 {
            self.dual.middle.resize(problem.circuits() * problem.horizon, 0.0);
            self.move_middles(problem, solution);
        }
        form::load(&mut self.dual, problem, &self.limits);
        for _ in 0..ROUNDS {
            let (residuals, cleared) = self.dual.clear(&mut solution.iterations);
            solution.residuals = residuals;
            if !cleared || !self.answer(problem, solution) {
                return false;
            }
            if self.move_middles(problem, solution) <= SAME {
                return true;
            }
            form::aim(&mut self.dual, problem);
        }
        false
    }

    /// Moves the middles to the present rates; returns the largest move.
    ///
    /// A squared deviation couples two rates of a circuit. Drawing both to the middle of the last answer bounds this cost
    /// from above and touches it there, so repeated answers approach the optimum.
    fn move_middles(&mut self, problem: &Problem, solution: &Solution) -> f64 {
        let rates = solution.v_out.iter().zip(&solution.vv_out);
        self.dual.middle.iter_mut().zip(rates).fold(0.0, |most: f64, (middle, (real, unhindered))| {
            let now = (real + unhindered) / (2.0 * problem.capacity);
            let before = std::mem::replace(middle, now);
            most.max((now - before).abs())
        })
    }

    /// Moves the rates into their bounds and writes the solution; false if a constraint is still violated.
    fn answer(&mut self, problem: &Problem, solution: &mut Solution) -> bool {
        form::trim(&mut self.dual, problem, &self.limits);
        form::settle(&mut self.dual, problem, &self.limits);
        form::store(&self.dual, problem, solution);
        problem.complete(solution);
        form::excess(&self.dual, problem, &self.limits) <= FEASIBLE
    }
}

impl Solver {
    /// A solver without memory of earlier solves.
    pub fn new() -> Solver {
        Solver::default()
    }

    /// Number of solves that ended in safe rates.
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks
    }

    /// Solves `problem` into `solution` and reuses its memory.
    ///
    /// # Errors
    /// [`Refusal`] if the problem is malformed or infeasible; `solution` is then left as it was.
    pub fn solve(&mut self, problem: &Problem, solution: &mut Solution) -> Result<(), Refusal> {
        problem.check()?;
        let (n, steps) = (problem.circuits(), problem.horizon);
        let journal = problem.kind == Formulation::Journal;
        for (values, length) in [
            (&mut solution.v_in, n * steps),
            (&mut solution.v_out, n * steps),
            (&mut solution.vv_out, if journal { n * steps } else { 0 }),
            (&mut solution.s, n * (steps + 1)),
            (&mut solution.d, n * (steps + 1)),
            (&mut solution.eps, n * (steps + 1)),
        ] {
            values.clear();
            values.resize(length, 0.0);
        }
        solution.iterations = 0;
        solution.fallback = false;
        solution.residuals = Residuals::default();
        match problem.kind {
            Formulation::Prototype => self.prototype.solve(problem, solution),
            Formulation::Journal => self.journal.solve(problem, solution),
        }
        self.fallbacks += u64::from(solution.fallback);
        Ok(())
    }
}
