//! PredicTor's optimal control problem and its solver (Döpmann, Fiedler, Lucia, Tschorsch 2022).
//!
//! Every relay solves, every 40 ms, one convex quadratic program over the incoming and outgoing rates of
//! its circuits for the next `horizon` steps. There are two versions: the public prototype's
//! ([`Formulation::Prototype`]) and the journal's with virtual rates ([`Formulation::Journal`]). The paper's text leaves the
//! journal's objective partly open; `docs/predictor.md` lists our choices.
//!
//! Rates are in cells/s, queues in cells, time in seconds. All circuits' arrays are flat, circuit by
//! circuit, `horizon` numbers each.

#![expect(clippy::needless_range_loop, reason = "rates, rows and queues share an index")]

mod centre;
mod cholesky;
mod circuit;
mod dual;
pub mod exchange;
mod form;
mod four;
mod inside;
mod interior;
mod iterate;
mod lane;
mod path;
mod point;
mod problem;
mod refine;
mod riccati;

use dual::{Dual, FIRM, Manner, QUICK};
use form::Limits;
use iterate::{Care, Interior};
use path::Path;
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

/// Problems with at most this many circuits are solved exactly at any cost.
const FEW: usize = 16;

/// The method for nearly all problems, and two for the rest. Each circuit has `M` rates per step, `O = M - 1` of them outgoing.
#[derive(Debug, Default)]
struct Method<const M: usize, const O: usize> {
    limits: Limits,
    dual: Dual<M>,
    interior: Interior<M, O>,
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
        if let Some(residuals) = self.path.solve(problem.circuits(), &mut solution.iterations) {
            self.path.store(problem, &self.limits, solution);
            problem.complete(solution);
            solution.residuals = residuals;
            return;
        }
        self.solve_degenerate(problem, solution);
    }

    /// Solves problems that the interior point method gives up.
    fn solve_degenerate(&mut self, problem: &Problem, solution: &mut Solution) {
        self.dual.middle.clear();
        if problem.kind == Formulation::Journal && problem.weights.deviation > 0.0 {
            // Start the middles near the circuits' rates, because answers then move less.
            let share = 1.0 / problem.circuits() as f64;
            self.dual.middle.resize(problem.circuits() * problem.horizon, share);
        }
        form::load(&mut self.dual, problem, &self.limits);
        for _ in 0..ROUNDS {
            let found = self.clear(&QUICK, problem, solution) || self.solve_surely(problem, solution);
            if !found {
                form::safe_rates(&mut self.dual, problem, &self.limits);
                form::store(&self.dual, problem, solution);
                problem.complete(solution);
                solution.fallback = true;
                return;
            }
            if self.move_middles(problem, solution) <= SAME {
                return;
            }
            form::aim(&mut self.dual, problem);
        }
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

    /// Solves problems that the quick search for prices gives up, with the second interior point method.
    ///
    /// It refines steps if needed. If rounding prevents an exact answer, the dual method clears from the answer's prices. If
    /// that fails, problems with few circuits start again, and others keep the inexact answer.
    fn solve_surely(&mut self, problem: &Problem, solution: &mut Solution) -> bool {
        let mut near = None;
        for care in [Care::Settled, Care::Refined] {
            near =
                self.interior.solve(problem, &self.limits, &self.dual.middle, care, &mut solution.iterations);
            self.interior.hand_over(&mut self.dual);
            if let Some((residuals, distance)) = near
                && distance <= 1.0
            {
                solution.residuals = residuals;
                if care == Care::Refined {
                    form::trim(&mut self.dual, problem, &self.limits);
                }
                if self.answer(problem, solution) {
                    return true;
                }
                self.interior.hand_over(&mut self.dual);
            }
        }
        if self.clear(&QUICK, problem, solution) {
            return true;
        }
        if problem.circuits() <= FEW {
            for manner in [&QUICK, &FIRM] {
                form::load(&mut self.dual, problem, &self.limits);
                if self.clear(manner, problem, solution) {
                    return true;
                }
            }
        }
        let Some((residuals, _)) = near else { return false };
        self.interior.hand_over(&mut self.dual);
        form::trim(&mut self.dual, problem, &self.limits);
        solution.residuals = residuals;
        self.answer(problem, solution)
    }

    /// Clears from the present prices; returns whether this gave an answer.
    fn clear(&mut self, manner: &Manner, problem: &Problem, solution: &mut Solution) -> bool {
        let exact;
        (solution.residuals, exact) = self.dual.clear(manner, &mut solution.iterations);
        exact && self.answer(problem, solution)
    }

    /// Moves the rates into their bounds and writes the solution; false if a constraint is still violated.
    fn answer(&mut self, problem: &Problem, solution: &mut Solution) -> bool {
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
