//! Writes PredicTor's problems row by row for Clarabel.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{
    DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus, SupportedConeT, ZeroConeT,
};
use tidegate_control::predictor::{Formulation, Problem};

/// Clarabel's answer.
pub struct Reference {
    pub objective: f64,
    pub v_in: Vec<f64>,
    pub v_out: Vec<f64>,
}

/// Rows of `a x (= or <=) b` in triplets.
#[derive(Default)]
struct Rows {
    row: Vec<usize>,
    col: Vec<usize>,
    value: Vec<f64>,
    bound: Vec<f64>,
}

impl Rows {
    fn add(&mut self, terms: impl IntoIterator<Item = (usize, f64)>, bound: f64) {
        for (col, value) in terms {
            self.row.push(self.bound.len());
            self.col.push(col);
            self.value.push(value);
        }
        self.bound.push(bound);
    }
}

/// Solves a problem with Clarabel; `None` if it gives up.
///
/// Solves with rates in units of the capacity and queues in units of capacity times dt, which changes no
/// optimum and lets a general solver reach the accuracy asked for.
pub fn reference(problem: &Problem) -> Option<Reference> {
    let (n, steps) = (problem.circuits(), problem.horizon);
    let journal = problem.kind == Formulation::Journal;
    let unit = problem.capacity * problem.dt;
    // Per circuit: v_in, v_out, vv_out, s_1.., sv_1.., d_1.., eps_1.., epsv_1..
    let width = 8 * steps;
    let var = |circuit: usize, kind: usize, step: usize| circuit * width + kind * steps + step;
    let (x, y, w, s, sv, d, e, ev) = (0, 1, 2, 3, 4, 5, 6, 7);
    let (mut equal, mut less) = (Rows::default(), Rows::default());
    let mut diagonal = vec![0.0; n * width];
    let mut linear = vec![0.0; n * width];
    // Above the diagonal.
    let mut crosses = Vec::new();
    let weights = &problem.weights;
    let overflow = weights.overflow * problem.dt * problem.scaling * n as f64 / problem.capacity;
    let mut constant = 0.0;
    for i in 0..n {
        let s0 = problem.s0[i] / unit;
        let s_max = (problem.queue_bound(i) / unit).min(s0 + 2.0 * steps as f64);
        constant += overflow * (s0 - s_max).max(0.0);
        let mut plan = 0.0;
        let mut requested = 0.0;
        for k in 0..steps {
            let at = i * steps + k;
            let g = weights.discount.powi(k as i32).max(weights.floor);
            for (kind, weight) in [(x, weights.input), (y, weights.output), (w, weights.virtual_output)] {
                diagonal[var(i, kind, k)] += 2.0 * g * weight;
                linear[var(i, kind, k)] -= 2.0 * g * weight;
                constant += g * weight;
            }
            if journal {
                diagonal[var(i, y, k)] += 2.0 * g * weights.deviation;
                diagonal[var(i, w, k)] += 2.0 * g * weights.deviation;
                crosses.push((var(i, y, k), var(i, w, k), -2.0 * g * weights.deviation));
            }
            linear[var(i, e, k)] += overflow;
            let state = |kind: usize| (k > 0).then(|| (var(i, kind, k - 1), -1.0));
            let start = if k == 0 { s0 } else { 0.0 };
            let (vx, vy, vw) = (var(i, x, k), var(i, y, k), var(i, w, k));
            equal.add([(var(i, s, k), 1.0), (vx, -1.0), (vy, 1.0)].into_iter().chain(state(s)), start);
            less.add([(vx, -1.0)], 0.0);
            less.add([(vy, -1.0)], 0.0);
            less.add([(var(i, s, k), -1.0)], 0.0);
            less.add([(var(i, s, k), 1.0), (var(i, e, k), -1.0)], s_max);
            less.add([(var(i, e, k), -1.0)], 0.0);
            less.add([(vy, 1.0)], (problem.vmax[at] / problem.capacity).min(2.0));
            let rate = problem.vsrc[at] / problem.capacity;
            plan += rate;
            equal.add([(var(i, d, k), 1.0), (vx, -1.0)].into_iter().chain(state(d)), 0.0);
            let stock = problem.ssrc[i * steps + (k + 1).min(steps - 1)] / unit + plan;
            less.add([(var(i, d, k), 1.0)], stock.min(2.0 * steps as f64));
            if journal {
                linear[var(i, ev, k)] += overflow;
                equal.add([(var(i, sv, k), 1.0), (vx, -1.0), (vw, 1.0)].into_iter().chain(state(sv)), start);
                less.add([(vw, -1.0)], 0.0);
                less.add([(var(i, sv, k), -1.0)], 0.0);
                less.add([(var(i, sv, k), 1.0), (var(i, ev, k), -1.0)], s_max);
                less.add([(var(i, ev, k), -1.0)], 0.0);
                requested += problem.vvsrc[at] / problem.capacity;
            } else if k < 2 && !problem.first_hop[i] {
                equal.add([(vx, 1.0)], rate);
            }
        }
        if journal && requested < 1e3 {
            less.add((0..steps).map(|k| (var(i, x, k), 1.0)), requested);
        }
    }
    for k in 0..steps {
        for kind in [x, y, w] {
            if kind != w || journal {
                less.add((0..n).map(|i| (var(i, kind, k), 1.0)), 1.0);
            }
        }
    }
    let (optimum, solution) = solve(equal, less, (&diagonal, &crosses), &linear)?;
    let first = |kind: usize| (0..n).map(|i| solution[var(i, kind, 0)] * problem.capacity).collect();
    let to_paper = (problem.capacity / problem.scaling).powi(2) / n as f64;
    let objective = (optimum + constant) * to_paper;
    Some(Reference { objective, v_in: first(x), v_out: first(y) })
}

/// Off the diagonal of a matrix: row, column, value.
type Crosses = [(usize, usize, f64)];

/// Minimum and place of half a quadratic form plus a linear one.
fn solve(
    equal: Rows,
    less: Rows,
    (diagonal, crosses): (&[f64], &Crosses),
    linear: &[f64],
) -> Option<(f64, Vec<f64>)> {
    let (equalities, inequalities) = (equal.bound.len(), less.bound.len());
    let mut rows = equal;
    rows.row.extend(less.row.iter().map(|row| row + equalities));
    rows.col.extend(less.col);
    rows.value.extend(less.value);
    rows.bound.extend(less.bound);
    let size = linear.len();
    let a = CscMatrix::new_from_triplets(rows.bound.len(), size, rows.row, rows.col, rows.value);
    let on_diagonal: Vec<_> =
        (0..size).filter(|&i| diagonal[i] != 0.0).map(|i| (i, i, diagonal[i])).collect();
    let entries = on_diagonal.iter().chain(crosses);
    let p = CscMatrix::new_from_triplets(
        size,
        size,
        entries.clone().map(|e| e.0.min(e.1)).collect(),
        entries.clone().map(|e| e.0.max(e.1)).collect(),
        entries.map(|e| e.2).collect(),
    );
    let cones: [SupportedConeT<f64>; 2] = [ZeroConeT(equalities), NonnegativeConeT(inequalities)];
    let settings = DefaultSettings {
        verbose: false,
        tol_gap_abs: 1e-13,
        tol_gap_rel: 1e-13,
        tol_feas: 1e-12,
        ..DefaultSettings::default()
    };
    let mut solver = DefaultSolver::new(&p, linear, &a, &rows.bound, &cones, settings).unwrap();
    solver.solve();
    let solution = solver.solution;
    if !matches!(solution.status, SolverStatus::Solved | SolverStatus::AlmostSolved) {
        return None;
    }
    Some((solution.obj_val, solution.x))
}
