//! The structured solver against published optima and against an independent solver (Clarabel).

#![expect(clippy::needless_range_loop, reason = "rates and rows share an index")]

mod clarabel_reference;
mod hard;

use clarabel_reference::reference;
use tidegate_control::predictor::{Formulation, Problem, Refusal, Solution, Solver};
use tidegate_control::random::{Random, Seed};

fn toy() -> Problem {
    let steps = |values: [f64; 3]| values.iter().flat_map(|value| [*value; 10]).collect::<Vec<_>>();
    Problem {
        s_max: 15.0,
        s0: vec![2.0, 4.0, 4.0],
        vmax: steps([40.0, 30.0, 25.0]),
        ssrc: steps([3.0, 2.0, 0.0]),
        vsrc: steps([0.0, 50.0, 10.0]),
        vvsrc: vec![f64::INFINITY; 30],
        first_hop: vec![false; 3],
        ..Problem::new(Formulation::Prototype, 60.0)
    }
}

fn solve(problem: &Problem) -> Solution {
    let mut solution = Solution::default();
    Solver::new().solve(problem, &mut solution).unwrap();
    solution
}

fn close(got: f64, want: f64, within: f64) {
    assert!((got - want).abs() <= within, "{got} is not {want}");
}

#[test]
fn the_published_instance_has_its_published_optimum() {
    let solution = solve(&toy());
    close(solution.objective, 13.090194, 1e-6);
    for (circuit, first, third) in [(0, 19.98, 24.37), (1, 20.01, 25.63), (2, 20.01, 10.0)] {
        close(solution.v_out[circuit * 10], first, 0.01);
        close(solution.v_in[circuit * 10 + 2], third, 0.01);
    }
}

/// Sizes from 1 to 300, mostly small.
fn size(draws: &mut Random, index: usize) -> usize {
    match index % 100 {
        0 if index.is_multiple_of(300) => 200 + draws.below(101),
        0..3 => 20 + draws.below(60),
        3..15 => 5 + draws.below(12),
        _ => 1 + draws.below(5),
    }
}

/// A random problem; every second one is degenerate.
fn draw(kind: Formulation, index: usize, largest: usize) -> Problem {
    let mut draws = Seed::root(2022).fork("problems").fork_index(index as u64).random();
    let mut unbounded = Seed::root(2022).fork("unbounded").fork_index(index as u64).random();
    let n = size(&mut draws, index).min(largest);
    let unit = match draws.below(8) {
        0 => 1e-6,
        1 => 1e6,
        2 => 1e3,
        _ => 1.0,
    };
    let capacity = if draws.chance(0.03) { 0.0 } else { draws.uniform(5.0, 3000.0) * unit };
    let fair = capacity / n as f64;
    let mut problem = Problem::new(kind, capacity);
    problem.scaling = if draws.chance(0.2) { capacity.max(1e-9) / 10.0 } else { 50.0 * unit };
    problem.s_max = match draws.below(10) {
        0 => 0.0,
        1 => 1e9 * unit,
        _ => draws.uniform(0.5, 20.0) * fair * problem.dt,
    };
    let (empty, overfull, blocked) = (draws.chance(0.1), draws.chance(0.1), draws.chance(0.06));
    let mut fixed_left = [capacity; 2];
    for _ in 0..n {
        let queue = fair * problem.dt;
        problem.s0.push(match draws.below(5) {
            _ if empty => 0.0,
            _ if overfull => problem.s_max.min(20.0 * queue) * draws.uniform(1.0, 4.0),
            0 => 0.0,
            _ => draws.uniform(0.0, 8.0) * queue,
        });
        let first_hop = draws.chance(0.2);
        problem.first_hop.push(first_hop);
        problem.unbounded.push(unbounded.chance(0.1));
        let (limit, plan, stock) =
            (draws.uniform(0.0, 4.0), draws.uniform(0.0, 2.0), draws.uniform(0.0, 6.0));
        let nothing = draws.chance(0.2);
        for step in 0..problem.horizon {
            problem.vmax.push(match draws.below(12) {
                _ if blocked => 0.0,
                0 => f64::INFINITY,
                1 => 0.0,
                _ => limit * fair * draws.uniform(0.5, 1.5),
            });
            let mut rate =
                if nothing || draws.chance(0.1) { 0.0 } else { plan * fair * draws.uniform(0.0, 2.0) };
            if step < 2 && !first_hop {
                rate = rate.min(fixed_left[step] * draws.uniform(0.0, 1.0));
                fixed_left[step] -= rate;
            }
            problem.vsrc.push(rate);
            problem.ssrc.push(if nothing { 0.0 } else { stock * queue * draws.uniform(0.0, 2.0) });
            problem.vvsrc.push(if draws.chance(0.5) { f64::INFINITY } else { rate * 2.0 });
        }
    }
    problem
}

/// Largest violation of any constraint in scaled quantities.
fn violation(problem: &Problem, solution: &Solution) -> f64 {
    let (n, steps) = (problem.circuits(), problem.horizon);
    let journal = problem.kind == Formulation::Journal;
    let mut worst = 0.0f64;
    let mut note = |excess: f64| {
        assert!(!excess.is_nan());
        worst = worst.max(excess / problem.scaling);
    };
    for step in 0..steps {
        let sum = |rates: &[f64]| (0..n).map(|i| rates[i * steps + step]).sum::<f64>();
        note(sum(&solution.v_in) - problem.capacity);
        note(sum(&solution.v_out) - problem.capacity);
        if journal {
            note(sum(&solution.vv_out) - problem.capacity);
        }
    }
    for i in 0..n {
        let (mut queue, mut virtual_queue, mut change) = (problem.s0[i], problem.s0[i], 0.0);
        let (mut total, mut requested) = (0.0, 0.0);
        for step in 0..steps {
            let at = i * steps + step;
            let (v_in, v_out) = (solution.v_in[at], solution.v_out[at]);
            note(-v_in);
            note(-v_out);
            note(v_out - problem.vmax[at]);
            if !journal && step < 2 && !problem.first_hop[i] {
                note((v_in - problem.vsrc[at]).abs());
            }
            queue += problem.dt * (v_in - v_out);
            change += problem.dt * (v_in - problem.vsrc[at]);
            note(-queue);
            note(change - problem.ssrc[i * steps + (step + 1).min(steps - 1)]);
            if journal {
                note(-solution.vv_out[at]);
                virtual_queue += problem.dt * (v_in - solution.vv_out[at]);
                note(-virtual_queue);
                total += v_in;
                requested += problem.vvsrc[at];
            }
        }
        if journal {
            note(problem.dt * (total - requested));
        }
    }
    worst
}

/// Solves one instance; the error says how it disagrees with Clarabel.
fn disagreement(problem: &Problem, solver: &mut Solver, solution: &mut Solution) -> Result<u32, String> {
    solver.solve(problem, solution).map_err(|refusal| refusal.to_string())?;
    if solution.fallback {
        return Err(format!("fell back: {:?}", solution.residuals));
    }
    let violation = violation(problem, solution);
    if violation > 1e-7 {
        return Err(format!("violates a constraint by {violation:e}"));
    }
    if problem.capacity == 0.0 {
        let still = solution.v_in.iter().chain(&solution.v_out).all(|rate| *rate == 0.0);
        return if still { Ok(0) } else { Err("moves without capacity".into()) };
    }
    let Some(best) = reference(problem) else { return Ok(solution.iterations) };
    // If the optimum is nearly zero, compare the gap with the cost of sending nothing.
    let nothing = problem.weights.input * (problem.capacity / problem.scaling).powi(2);
    let gap = (solution.objective - best.objective) / best.objective.abs().max(1e-5 * nothing);
    // A lower objective without a violated constraint is the reference's error, not ours.
    if gap < -1e-7 && violation <= 1e-9 {
        return Ok(solution.iterations);
    }
    if gap.is_nan() || gap.abs() > 1e-6 {
        return Err(format!("objective {} against {}, {gap:e} off", solution.objective, best.objective));
    }
    for i in 0..problem.circuits() {
        let at = i * problem.horizon;
        for (ours, theirs) in [(solution.v_in[at], best.v_in[i]), (solution.v_out[at], best.v_out[i])] {
            let off = (ours - theirs).abs() / problem.capacity;
            if off.is_nan() || off > 1e-4 {
                return Err(format!(
                    "circuit {i}: first rate {ours} against {theirs}, {off:e} of C off; objective {gap:e} off"
                ));
            }
        }
    }
    Ok(solution.iterations)
}

/// `TIDEGATE_PREDICTOR_INSTANCES=N` draws another number of instances.
fn instances() -> usize {
    std::env::var("TIDEGATE_PREDICTOR_INSTANCES").ok().and_then(|text| text.parse().ok()).unwrap_or(500)
}

fn agrees_on_random_instances(kind: Formulation) {
    let (mut solver, mut solution) = (Solver::new(), Solution::default());
    let (mut most, mut wrong) = (0, Vec::new());
    for index in 0..instances() {
        let problem = draw(kind, index, 300);
        match disagreement(&problem, &mut solver, &mut solution) {
            Ok(iterations) => most = most.max(iterations),
            Err(why) => wrong.push(format!("instance {index}, {} circuits: {why}", problem.circuits())),
        }
    }
    println!("{kind:?}: at most {most} iterations");
    assert!(wrong.is_empty(), "{} instances disagree:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_prototype_problem_agrees_with_clarabel() {
    agrees_on_random_instances(Formulation::Prototype);
}

#[test]
fn the_journal_problem_agrees_with_clarabel() {
    agrees_on_random_instances(Formulation::Journal);
}

#[test]
fn bad_input_is_refused_with_the_reason() {
    let mut solution = Solution::default();
    let mut refuse = |change: &dyn Fn(&mut Problem)| {
        let mut problem = toy();
        change(&mut problem);
        Solver::new().solve(&problem, &mut solution).unwrap_err()
    };
    assert!(matches!(refuse(&|p| p.capacity = f64::NAN), Refusal::Number { field: "capacity", .. }));
    assert!(matches!(refuse(&|p| p.capacity = -1.0), Refusal::Number { field: "capacity", .. }));
    assert!(matches!(refuse(&|p| p.dt = 0.0), Refusal::Number { field: "dt", .. }));
    assert!(matches!(refuse(&|p| p.horizon = 0), Refusal::Number { field: "horizon", .. }));
    assert!(matches!(refuse(&|p| p.horizon = 11), Refusal::Length { field: "vmax", .. }));
    assert!(matches!(refuse(&|p| p.vmax[13] = -1.0), Refusal::Element { circuit: 1, step: 3, .. }));
    assert!(matches!(refuse(&|p| p.s0[2] = f64::INFINITY), Refusal::Element { field: "s0", circuit: 2, .. }));
    let infeasible = refuse(&|p| p.vsrc[11] = 61.0);
    assert!(matches!(infeasible, Refusal::FixedRates { step: 1, .. }));
    assert!(infeasible.to_string().contains("infeasible"));
}

/// Counts iterations, which are the same on every machine, instead of time.
#[test]
fn the_hardest_problems_take_a_bounded_number_of_iterations() {
    for (family, bound) in hard::Family::ALL.into_iter().zip([20, 24, 32, 36]) {
        for number in 0..8 {
            let solution = solve(&family.problem(300, number));
            assert!(!solution.fallback, "{family:?}, problem {number} ends in safe rates");
            let took = solution.iterations;
            assert!(took <= bound, "{}, problem {number}: {took} iterations, not {bound}", family.name);
        }
    }
}
