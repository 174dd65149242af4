//! PredicTor's solver: median processor time per solve over the number of circuits, on instances as relays
//! meet them.

use rustix::time::{ClockId, clock_gettime};
use tidegate_control::predictor::{Formulation, Problem, Solution, Solver};
use tidegate_control::random::Seed;

/// Instances per size.
const INSTANCES: u64 = 21;

/// A relay of 4 Mbit/s whose circuits have something queued here or at the predecessor, or are idle.
fn instance(kind: Formulation, n: usize, index: u64) -> Problem {
    let mut draws = Seed::root(n as u64).fork("benchmark").fork_index(index).random();
    let mut problem = Problem::new(kind, 830.0);
    let fair = problem.capacity / n as f64;
    let mut left = [problem.capacity; 2];
    for _ in 0..n {
        let idle = draws.chance(0.2);
        let level = |value: f64| if idle { 0.0 } else { value };
        problem.s0.push(level(draws.uniform(0.0, 4.0) * fair * problem.dt));
        problem.first_hop.push(draws.chance(1.0 / 3.0));
        let (limit, plan, stock) =
            (draws.uniform(0.3, 3.0), draws.uniform(0.0, 1.5), draws.uniform(0.0, 20.0));
        for step in 0..problem.horizon {
            problem.vmax.push(limit * fair * draws.uniform(0.8, 1.2));
            let mut rate = level(plan * fair * draws.uniform(0.8, 1.2));
            if let Some(left) = left.get_mut(step) {
                rate = rate.min(*left);
                *left -= rate;
            }
            problem.vsrc.push(rate);
            problem.ssrc.push(level(stock * fair * problem.dt));
            problem.vvsrc.push(2.0 * rate);
        }
    }
    problem
}

fn used() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // `cargo test` runs benches, too, to see that they work: then small ones will do.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    println!("{:>10} {:>6} {:>10} {:>12} {:>12}", "problem", "n", "ms", "us/circuit", "iterations");
    for kind in [Formulation::Prototype, Formulation::Journal] {
        for n in [1, 3, 10, 30, 100, 300, 1000, 3000].into_iter().filter(|n| is_measured || *n <= 30) {
            let (mut solver, mut solution) = (Solver::new(), Solution::default());
            let (mut seconds, mut iterations) = (Vec::new(), Vec::new());
            for index in 0..if is_measured { INSTANCES } else { 1 } {
                let problem = instance(kind, n, index);
                let repeats = if is_measured { (1000 / n).clamp(1, 50) } else { 1 };
                let begin = used();
                for _ in 0..repeats {
                    solver.solve(&problem, &mut solution).expect("the instance is well formed");
                }
                seconds.push((used() - begin) / repeats as f64);
                iterations.push(f64::from(solution.iterations));
            }
            let (seconds, iterations) = (median(seconds), median(iterations));
            let kind = format!("{kind:?}");
            let circuit = seconds * 1e6 / n as f64;
            println!("{kind:>10} {n:>6} {:>10.3} {circuit:>12.2} {iterations:>12}", seconds * 1e3);
        }
    }
}
